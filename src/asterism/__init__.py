"""Asterism runs plans that change while they run, and exclusive runs on a fleet of devices.

::

    from asterism import Constellation, LocalDevice, Orchestrator, Task, edits   # plans
    from asterism import DeviceAgent, Fleet, Workflow                            # runs on a fleet
    from asterism import DurableOrchestrator                                     # plans in a store
    from asterism import AsyncClient, Client                                     # all of it through a server

Other names are one level below:

======================  ============================================================================================
``asterism.planfile``   plan files and workflow files
``asterism.report``     drawings, the HTML report, results as JSON
``asterism.series``     series of issues and their registers
``asterism.store``      stores and their errors
``asterism.api``     errors of the clients of a server
``asterism.peers``      invitations and synchronisation of stores
``asterism.testing``    virtual time, the simulator, conformance suites
``asterism.cli``        the live view and Ctrl-C handling of the command line, for scripts
``asterism.compat``     the documented names of the Galaxy and Orion orchestrators: ``galaxy``, ``orion``
======================  ============================================================================================

Each name is imported when it is first used, so that a program pays only for the parts it uses. Deeper modules are
internal.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import VERSION, lazy_names
from asterism.fleet.extensions import register as _register_fleet_extension
from asterism.fleet.extensions import register_plans as _register_plans

if TYPE_CHECKING:
    from asterism.api.client import AsyncClient, Client
    from asterism.core.attempt_log import LogLine, TaskLog
    from asterism.core.errors import (
        AlreadyRunning,
        AsterismError,
        CycleFound,
        DeviceLost,
        DeviceUnavailable,
        DuplicateTask,
        EditRejected,
        Fenced,
        InvalidTask,
        InvalidWorkflow,
        NoDevice,
        NotJson,
        PlanError,
        PlanFailed,
        RunRefused,
        TooLarge,
        UnknownTask,
        Violation,
    )
    from asterism.core.plan import edits
    from asterism.core.plan.apply import Applied
    from asterism.core.plan.assignment_lock import CycleClaimed, CycleGone, EditCycle
    from asterism.core.plan.constellation import Constellation, ConstellationView, TaskView
    from asterism.core.plan.diff import diff, merge
    from asterism.core.plan.edit_rules import ApprovalRule, EditScope
    from asterism.core.plan.edits import ApprovalGone, EditBatch, EditWaits, WaitingEdit
    from asterism.core.plan.status import ConstellationState, TaskStatus
    from asterism.core.plan.task import Dependency, Priority, Task
    from asterism.core.run.run import Progress, Run, RunStatus
    from asterism.core.run.workflow import Workflow
    from asterism.core.schedule.schedule import InvalidSchedule, Schedule
    from asterism.core.schedule.tick_values import InvalidTick, Tick
    from asterism.durable.durable_orchestrator import DurableOrchestrator
    from asterism.durable.journal_store import ConstellationExists, OwnershipLost, UnknownConstellation
    from asterism.execution.http_requests import NoAnswer, RequestFailed
    from asterism.execution.plan_tick import with_tick
    from asterism.execution.processes import CommandFailed
    from asterism.execution.task_inputs import MissingInput
    from asterism.fleet.device.agent import DeviceAgent, DeviceReplaced
    from asterism.fleet.device.functions import CurrentRun, RunStopped
    from asterism.fleet.device.membership import DeviceNameTaken
    from asterism.fleet.fleet import Fleet, UnknownDevice
    from asterism.fleet.ledger import UnknownRun
    from asterism.fleet.policy.device_policy import DevicePolicy
    from asterism.fleet.policy.policy_file import InvalidDevicePolicy
    from asterism.fleet.schedules import ScheduleExists, UnknownSchedule
    from asterism.fleet.settings import InvalidSettings, Settings
    from asterism.fleet.workflows import UnknownWorkflow
    from asterism.orchestrator.devices import Device, LocalDevice, Work
    from asterism.orchestrator.events import ConstellationEvent, DeviceEvent, EditEvent, Event, EventBus, TaskEvent
    from asterism.orchestrator.orchestrator import Orchestrator
    from asterism.orchestrator.result import Result
    from asterism.store.protocol import Query
    from asterism.store.store_errors import StoreError, StoreUnavailable

_register_fleet_extension("asterism.peers.takeover")
_register_plans("asterism.durable.plan_submissions")

__version__ = VERSION

__all__ = [
    "AlreadyRunning",
    "Applied",
    "ApprovalGone",
    "ApprovalRule",
    "AsterismError",
    "AsyncClient",
    "Client",
    "CommandFailed",
    "Constellation",
    "ConstellationEvent",
    "ConstellationExists",
    "ConstellationState",
    "ConstellationView",
    "CurrentRun",
    "CycleClaimed",
    "CycleFound",
    "CycleGone",
    "Dependency",
    "Device",
    "DeviceAgent",
    "DeviceEvent",
    "DeviceLost",
    "DeviceNameTaken",
    "DevicePolicy",
    "DeviceReplaced",
    "DeviceUnavailable",
    "DuplicateTask",
    "DurableOrchestrator",
    "EditBatch",
    "EditCycle",
    "EditEvent",
    "EditRejected",
    "EditScope",
    "EditWaits",
    "Event",
    "EventBus",
    "Fenced",
    "Fleet",
    "InvalidDevicePolicy",
    "InvalidSchedule",
    "InvalidSettings",
    "InvalidTask",
    "InvalidTick",
    "InvalidWorkflow",
    "LocalDevice",
    "LogLine",
    "MissingInput",
    "NoAnswer",
    "NoDevice",
    "NotJson",
    "Orchestrator",
    "OwnershipLost",
    "PlanError",
    "PlanFailed",
    "Priority",
    "Progress",
    "Query",
    "RequestFailed",
    "Result",
    "Run",
    "RunRefused",
    "RunStatus",
    "RunStopped",
    "Schedule",
    "ScheduleExists",
    "Settings",
    "StoreError",
    "StoreUnavailable",
    "Task",
    "TaskEvent",
    "TaskLog",
    "TaskStatus",
    "TaskView",
    "Tick",
    "TooLarge",
    "UnknownConstellation",
    "UnknownDevice",
    "UnknownRun",
    "UnknownSchedule",
    "UnknownTask",
    "UnknownWorkflow",
    "Violation",
    "WaitingEdit",
    "Work",
    "Workflow",
    "diff",
    "edits",
    "merge",
    "with_tick",
]

__getattr__, __dir__ = lazy_names(__name__)
