"""Asterism runs plans that change while they run.

::

    from asterism import Constellation, LocalDevice, Orchestrator, Task, edits
"""

from asterism.core import edits
from asterism.core.apply import Applied
from asterism.core.constellation import Constellation
from asterism.core.diff import diff, merge
from asterism.core.edits import EditBatch
from asterism.core.errors import AsterismError, DeviceLost, DeviceUnavailable, EditRejected, PlanError, Violation
from asterism.core.status import ConstellationState, TaskStatus
from asterism.core.task import Dependency, Priority, Task
from asterism.core.view import ConstellationView, TaskView
from asterism.runtime.devices import Device, LocalDevice, Work
from asterism.runtime.events import ConstellationEvent, DeviceEvent, EditEvent, Event, EventBus, TaskEvent
from asterism.runtime.orchestrator import Orchestrator
from asterism.runtime.result import Result

__version__ = "0.1.0"

__all__ = [
    "Applied",
    "AsterismError",
    "Constellation",
    "ConstellationEvent",
    "ConstellationState",
    "ConstellationView",
    "Dependency",
    "Device",
    "DeviceEvent",
    "DeviceLost",
    "DeviceUnavailable",
    "EditBatch",
    "EditEvent",
    "EditRejected",
    "Event",
    "EventBus",
    "LocalDevice",
    "Orchestrator",
    "PlanError",
    "Priority",
    "Result",
    "Task",
    "TaskEvent",
    "TaskStatus",
    "TaskView",
    "Violation",
    "Work",
    "diff",
    "edits",
    "merge",
]
