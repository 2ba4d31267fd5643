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
``asterism.notebook``   a live view of plans in a notebook
``asterism.testing``    virtual time, pretended devices, a check of devices of one's own
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
    from asterism.api.client import AsyncClient as AsyncClient
    from asterism.api.client import Client as Client
    from asterism.core.attempt_log import LogLine as LogLine
    from asterism.core.attempt_log import TaskLog as TaskLog
    from asterism.core.errors import AlreadyRunning as AlreadyRunning
    from asterism.core.errors import AsterismError as AsterismError
    from asterism.core.errors import CycleFound as CycleFound
    from asterism.core.errors import DeviceLost as DeviceLost
    from asterism.core.errors import DeviceUnavailable as DeviceUnavailable
    from asterism.core.errors import DuplicateTask as DuplicateTask
    from asterism.core.errors import EditRejected as EditRejected
    from asterism.core.errors import Fenced as Fenced
    from asterism.core.errors import InvalidTask as InvalidTask
    from asterism.core.errors import InvalidWorkflow as InvalidWorkflow
    from asterism.core.errors import NoDevice as NoDevice
    from asterism.core.errors import NotJson as NotJson
    from asterism.core.errors import PlanError as PlanError
    from asterism.core.errors import PlanFailed as PlanFailed
    from asterism.core.errors import PlanOverlaps as PlanOverlaps
    from asterism.core.errors import RunRefused as RunRefused
    from asterism.core.errors import TooLarge as TooLarge
    from asterism.core.errors import UnknownTask as UnknownTask
    from asterism.core.errors import Violation as Violation
    from asterism.core.plan import edits as edits
    from asterism.core.plan.apply import Applied as Applied
    from asterism.core.plan.assignment_lock import CycleClaimed as CycleClaimed
    from asterism.core.plan.assignment_lock import CycleGone as CycleGone
    from asterism.core.plan.assignment_lock import EditCycle as EditCycle
    from asterism.core.plan.constellation import Constellation as Constellation
    from asterism.core.plan.constellation import ConstellationView as ConstellationView
    from asterism.core.plan.constellation import TaskView as TaskView
    from asterism.core.plan.diff import diff as diff
    from asterism.core.plan.diff import merge as merge
    from asterism.core.plan.edit_rules import ApprovalRule as ApprovalRule
    from asterism.core.plan.edit_rules import EditScope as EditScope
    from asterism.core.plan.edits import ApprovalForbidden as ApprovalForbidden
    from asterism.core.plan.edits import ApprovalGone as ApprovalGone
    from asterism.core.plan.edits import EditBatch as EditBatch
    from asterism.core.plan.edits import EditWaits as EditWaits
    from asterism.core.plan.edits import WaitingEdit as WaitingEdit
    from asterism.core.plan.status import ConstellationState as ConstellationState
    from asterism.core.plan.status import TaskStatus as TaskStatus
    from asterism.core.plan.task import Dependency as Dependency
    from asterism.core.plan.task import Priority as Priority
    from asterism.core.plan.task import Task as Task
    from asterism.core.run.run import Progress as Progress
    from asterism.core.run.run import Run as Run
    from asterism.core.run.run import RunStatus as RunStatus
    from asterism.core.run.work import Workflow as Workflow
    from asterism.core.schedule.schedule import InvalidSchedule as InvalidSchedule
    from asterism.core.schedule.schedule import Schedule as Schedule
    from asterism.core.schedule.tick_values import InvalidTick as InvalidTick
    from asterism.core.schedule.tick_values import Tick as Tick
    from asterism.durable.durable_orchestrator import DurableOrchestrator as DurableOrchestrator
    from asterism.durable.journal_store import ConstellationExists as ConstellationExists
    from asterism.durable.journal_store import OwnershipLost as OwnershipLost
    from asterism.durable.journal_store import UnknownConstellation as UnknownConstellation
    from asterism.execution.actions import Attempt as Attempt
    from asterism.execution.http_requests import NoAnswer as NoAnswer
    from asterism.execution.http_requests import RequestFailed as RequestFailed
    from asterism.execution.plan_tick import with_tick as with_tick
    from asterism.execution.plugin_actions import Action as Action
    from asterism.execution.processes import CommandFailed as CommandFailed
    from asterism.execution.task_inputs import MissingInput as MissingInput
    from asterism.fleet.device.agent import DeviceAgent as DeviceAgent
    from asterism.fleet.device.agent import DeviceReplaced as DeviceReplaced
    from asterism.fleet.device.functions import CurrentRun as CurrentRun
    from asterism.fleet.device.functions import RunStopped as RunStopped
    from asterism.fleet.device.membership import DeviceNameTaken as DeviceNameTaken
    from asterism.fleet.fleet import Fleet as Fleet
    from asterism.fleet.fleet import UnknownDevice as UnknownDevice
    from asterism.fleet.ledger import UnknownRun as UnknownRun
    from asterism.fleet.policy.device_policy import DevicePolicy as DevicePolicy
    from asterism.fleet.policy.policy_file import InvalidDevicePolicy as InvalidDevicePolicy
    from asterism.fleet.schedules import ScheduleExists as ScheduleExists
    from asterism.fleet.schedules import UnknownSchedule as UnknownSchedule
    from asterism.fleet.settings import InvalidSettings as InvalidSettings
    from asterism.fleet.settings import Settings as Settings
    from asterism.fleet.workflows import UnknownWorkflow as UnknownWorkflow
    from asterism.orchestrator.devices import Device as Device
    from asterism.orchestrator.devices import LocalDevice as LocalDevice
    from asterism.orchestrator.devices import Work as Work
    from asterism.orchestrator.events import ConstellationEvent as ConstellationEvent
    from asterism.orchestrator.events import DeviceEvent as DeviceEvent
    from asterism.orchestrator.events import EditEvent as EditEvent
    from asterism.orchestrator.events import Event as Event
    from asterism.orchestrator.events import EventBus as EventBus
    from asterism.orchestrator.events import TaskEvent as TaskEvent
    from asterism.orchestrator.options import Options as Options
    from asterism.orchestrator.orchestrator import Orchestrator as Orchestrator
    from asterism.orchestrator.result import Result as Result
    from asterism.store.protocol import Query as Query
    from asterism.store.store_errors import StoreError as StoreError
    from asterism.store.store_errors import StoreUnavailable as StoreUnavailable

_register_fleet_extension("asterism.peers.takeover")
_register_plans("asterism.durable.plan_submissions")

__version__ = VERSION

__getattr__, __dir__ = lazy_names(__name__)
