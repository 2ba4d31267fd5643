"""Asterism runs plans that change while they run, and work that has exactly one owner in a fleet of devices.

::

    from asterism import Constellation, LocalDevice, Orchestrator, Task, edits
    from asterism import DeviceAgent, Fleet, Workflow

Each name is imported when it is first asked for: whoever runs plans alone does not wait for stores, and a command that
claims an issue does not wait for either.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from asterism.fleet.extensions import register as _register_fleet_extension

if TYPE_CHECKING:
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
    from asterism.core.plan import edits
    from asterism.core.plan.apply import Applied
    from asterism.core.plan.constellation import Constellation, ConstellationView, TaskView
    from asterism.core.plan.diff import diff, merge
    from asterism.core.plan.edits import EditBatch
    from asterism.core.plan.status import ConstellationState, TaskStatus
    from asterism.core.plan.task import Dependency, Priority, Task
    from asterism.core.run.run import Progress, Run, RunStatus
    from asterism.core.run.workflow import Workflow
    from asterism.durable.durable_orchestrator import DurableOrchestrator
    from asterism.durable.journal_store import ConstellationExists, OwnershipLost, UnknownConstellation
    from asterism.fleet.device.agent import DeviceAgent, DeviceReplaced
    from asterism.fleet.device.functions import CurrentRun, RunStopped
    from asterism.fleet.device.membership import DeviceNameTaken
    from asterism.fleet.fleet import Fleet, UnknownDevice
    from asterism.fleet.ledger import UnknownRun
    from asterism.fleet.policy.policy import DevicePolicy
    from asterism.fleet.settings import Settings
    from asterism.fleet.workflows import UnknownWorkflow
    from asterism.orchestrator.devices import Device, LocalDevice, Work
    from asterism.orchestrator.events import ConstellationEvent, DeviceEvent, EditEvent, Event, EventBus, TaskEvent
    from asterism.orchestrator.orchestrator import Orchestrator
    from asterism.orchestrator.result import Result
    from asterism.store.protocol import Query
    from asterism.store.store_errors import StoreError, StoreUnavailable

_register_fleet_extension("asterism.peers.fleet_extension")

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
    "DevicePolicy",
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
    "Orchestrator",
    "OwnershipLost",
    "PlanError",
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
    "asterism.core.plan.apply": ("Applied",),
    "asterism.core.plan.constellation": ("Constellation", "ConstellationView", "TaskView"),
    "asterism.core.plan.diff": ("diff", "merge"),
    "asterism.core.plan.edits": ("EditBatch",),
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
    "asterism.core.plan.status": ("ConstellationState", "TaskStatus"),
    "asterism.core.plan.task": ("Dependency", "Priority", "Task"),
    "asterism.orchestrator.devices": ("Device", "LocalDevice", "Work"),
    "asterism.orchestrator.events": (
        "ConstellationEvent",
        "DeviceEvent",
        "EditEvent",
        "Event",
        "EventBus",
        "TaskEvent",
    ),
    "asterism.orchestrator.orchestrator": ("Orchestrator",),
    "asterism.orchestrator.result": ("Result",),
    "asterism.core.run.run": ("Progress", "Run", "RunStatus"),
    "asterism.core.run.workflow": ("Workflow",),
    "asterism.durable.journal_store": ("ConstellationExists", "OwnershipLost", "UnknownConstellation"),
    "asterism.durable.durable_orchestrator": ("DurableOrchestrator",),
    "asterism.fleet.device.agent": ("DeviceAgent", "DeviceReplaced"),
    "asterism.fleet.device.functions": ("CurrentRun", "RunStopped"),
    "asterism.fleet.fleet": ("Fleet", "UnknownDevice"),
    "asterism.fleet.device.membership": ("DeviceNameTaken",),
    "asterism.fleet.ledger": ("UnknownRun",),
    "asterism.fleet.policy.policy": ("DevicePolicy",),
    "asterism.fleet.settings": ("Settings",),
    "asterism.fleet.workflows": ("UnknownWorkflow",),
    "asterism.store.store_errors": ("StoreError", "StoreUnavailable"),
    "asterism.store.protocol": ("Query",),
}
"""Where the names are."""


def __getattr__(name: str) -> Any:
    if name == "edits":
        return import_module("asterism.core.plan.edits")
    for module, names in _LATER.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
