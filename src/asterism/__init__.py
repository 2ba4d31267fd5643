"""Asterism runs plans that change while they run, and work that has exactly one owner in a fleet of devices.

::

    from asterism import Constellation, LocalDevice, Orchestrator, Task, edits
    from asterism import DeviceAgent, Fleet, Workflow

Each name is imported when it is first asked for: whoever runs plans alone does not wait for stores, and a command that
claims an issue does not wait for either.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asterism.core import edits
    from asterism.core.apply import Applied
    from asterism.core.constellation import Constellation
    from asterism.core.diff import diff, merge
    from asterism.core.edits import EditBatch
    from asterism.core.errors import (
        AsterismError,
        DeviceLost,
        DeviceUnavailable,
        EditRejected,
        Fenced,
        InvalidWorkflow,
        NotJson,
        PlanError,
        RunRefused,
        Violation,
    )
    from asterism.core.run import Progress, Run, RunStatus
    from asterism.core.status import ConstellationState, TaskStatus
    from asterism.core.task import Dependency, Priority, Task
    from asterism.core.view import ConstellationView, TaskView
    from asterism.core.workflow import Workflow
    from asterism.runtime.devices import Device, LocalDevice, Work
    from asterism.runtime.durable.keeping import ConstellationExists, NotOurs, UnknownConstellation
    from asterism.runtime.durable.orchestrating import DurableOrchestrator
    from asterism.runtime.events import ConstellationEvent, DeviceEvent, EditEvent, Event, EventBus, TaskEvent
    from asterism.runtime.fleet.agent import DeviceAgent, DeviceReplaced
    from asterism.runtime.fleet.calling import CurrentRun, RunStopped
    from asterism.runtime.fleet.fleet import Fleet, UnknownDevice
    from asterism.runtime.fleet.joining import DeviceNameTaken
    from asterism.runtime.fleet.ledger import UnknownRun
    from asterism.runtime.fleet.policy import Policy
    from asterism.runtime.fleet.settings import Settings
    from asterism.runtime.fleet.workflows import UnknownWorkflow
    from asterism.runtime.orchestrator import Orchestrator
    from asterism.runtime.result import Result
    from asterism.store.errors import StoreError, StoreUnavailable
    from asterism.store.protocol import Query

__version__ = "0.1.0"

__all__ = [
    "Applied",
    "AsterismError",
    "Constellation",
    "ConstellationEvent",
    "ConstellationExists",
    "ConstellationState",
    "ConstellationView",
    "CurrentRun",
    "Dependency",
    "Device",
    "DeviceAgent",
    "DeviceEvent",
    "DeviceLost",
    "DeviceNameTaken",
    "DeviceReplaced",
    "DeviceUnavailable",
    "DurableOrchestrator",
    "EditBatch",
    "EditEvent",
    "EditRejected",
    "Event",
    "EventBus",
    "Fenced",
    "Fleet",
    "InvalidWorkflow",
    "LocalDevice",
    "NotJson",
    "NotOurs",
    "Orchestrator",
    "PlanError",
    "Policy",
    "Priority",
    "Progress",
    "Query",
    "Result",
    "Run",
    "RunRefused",
    "RunStatus",
    "RunStopped",
    "Settings",
    "StoreError",
    "StoreUnavailable",
    "Task",
    "TaskEvent",
    "TaskStatus",
    "TaskView",
    "UnknownConstellation",
    "UnknownDevice",
    "UnknownRun",
    "UnknownWorkflow",
    "Violation",
    "Work",
    "Workflow",
    "diff",
    "edits",
    "merge",
]

_LATER = {
    "asterism.core.apply": ("Applied",),
    "asterism.core.constellation": ("Constellation",),
    "asterism.core.diff": ("diff", "merge"),
    "asterism.core.edits": ("EditBatch",),
    "asterism.core.errors": (
        "AsterismError",
        "DeviceLost",
        "DeviceUnavailable",
        "EditRejected",
        "Fenced",
        "InvalidWorkflow",
        "NotJson",
        "PlanError",
        "RunRefused",
        "Violation",
    ),
    "asterism.core.status": ("ConstellationState", "TaskStatus"),
    "asterism.core.task": ("Dependency", "Priority", "Task"),
    "asterism.core.view": ("ConstellationView", "TaskView"),
    "asterism.runtime.devices": ("Device", "LocalDevice", "Work"),
    "asterism.runtime.events": ("ConstellationEvent", "DeviceEvent", "EditEvent", "Event", "EventBus", "TaskEvent"),
    "asterism.runtime.orchestrator": ("Orchestrator",),
    "asterism.runtime.result": ("Result",),
    "asterism.core.run": ("Progress", "Run", "RunStatus"),
    "asterism.core.workflow": ("Workflow",),
    "asterism.runtime.durable.keeping": ("ConstellationExists", "NotOurs", "UnknownConstellation"),
    "asterism.runtime.durable.orchestrating": ("DurableOrchestrator",),
    "asterism.runtime.fleet.agent": ("DeviceAgent", "DeviceReplaced"),
    "asterism.runtime.fleet.calling": ("CurrentRun", "RunStopped"),
    "asterism.runtime.fleet.fleet": ("Fleet", "UnknownDevice"),
    "asterism.runtime.fleet.joining": ("DeviceNameTaken",),
    "asterism.runtime.fleet.ledger": ("UnknownRun",),
    "asterism.runtime.fleet.policy": ("Policy",),
    "asterism.runtime.fleet.settings": ("Settings",),
    "asterism.runtime.fleet.workflows": ("UnknownWorkflow",),
    "asterism.store.errors": ("StoreError", "StoreUnavailable"),
    "asterism.store.protocol": ("Query",),
}
"""Where the names are."""


def __getattr__(name: str) -> Any:
    if name == "edits":
        return import_module("asterism.core.edits")
    for module, names in _LATER.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
