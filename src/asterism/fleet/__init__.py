"""Fleets: devices that share runs through a store.

A *fleet* is the devices, workflows and runs of one store. A *workflow* says what is executed and under which terms, a
*run* is one piece of work of a workflow, a *device* executes runs. All of them are records of the store; nothing else
is shared, so a fleet has no server. The state machine of a run is pure (core/run); this package does the reading,
writing and waiting around it.

========================  ==============================================================================================
``fleet``                 ``Fleet``: create, wait for, cancel, pause and retry runs; list and drain devices; settings
``ledger``                the records of runs: every change (read, apply a transition, commit), large values
``workflows``             the versions of workflows
``settings``              settings of the whole fleet
``waiters``               waiting for the ends of runs
``run_explanation``       why a run is not running
``schedules``             ``Schedules``: add, pause, resume and remove schedules; their next times and histories
``scheduled_work``        the coordinator's pass over schedules, which decides about due ticks and creates their runs
``retention``             removal of old runs and plans
``coordinator``           the elected device that monitors the others, its deputy, and their election
``monitor``               takes runs from lost devices, assigns waiting runs, gives up what no device can execute
``notifier``              delivers notices to a command or an address
``extensions``            ports into which another package plugs monitor passes and explanations
``device/``               a device: agent, lease, heartbeat, claimer, worker, executor
``policy/``               the device policy: what a device executes
========================  ==============================================================================================

The life of a run: ``Fleet.create`` writes it, assigned to the best device in the same commit. The claimer of that
device claims it, the worker executes it and writes its end; heartbeats renew the lease meanwhile. If the device falls
silent, the monitor of the coordinator takes the run away after its timeout and assigns it to another device.
``Fleet.wait`` returns when the end is written, in whatever process that happens.

Invariants:

- At most one device executes a run at any moment, whatever the clocks show. A device stops work before the store
  can take it away (device/heartbeat.py, by device/lease.py), and every write of a device carries the epoch of its
  grant: a stale one is refused as ``Fenced`` (core/run/transitions.py). A stale heartbeat is refused by the store
  (``heartbeat`` of each engine).
- A change is committed against the revision that was read. When the answer to a commit is lost, the ledger recognises
  its own write in the story of the run.
- The coordinator saves work and is never needed for correctness: two at once do no harm.
- This package imports neither ``peers`` nor ``durable``. ``peers`` plugs into ``extensions``; ``durable`` uses
  ``Fleet.place`` and ``RunWaiters.consume``.

Where to add things: a setting in ``settings.Settings``; a reason in ``run_explanation``; a duty of the coordinator as a
step of ``Monitor.run_pass``; a way to execute work in ``device/executor``; a rule about what may be executed in
``policy/``.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.core.history import Reason as Reason
    from asterism.core.run import transitions as transitions
    from asterism.core.run.run import Grant as Grant
    from asterism.core.run.run import Owner as Owner
    from asterism.core.run.run import Progress as Progress
    from asterism.core.run.run import Run as Run
    from asterism.core.run.run import RunStatus as RunStatus
    from asterism.core.run.session import Session as Session
    from asterism.core.run.work import Workflow as Workflow
    from asterism.core.schedule.schedule import Schedule as Schedule
    from asterism.core.schedule.ticks import TickEntry as TickEntry
    from asterism.fleet.bulk_creation import InvalidInput as InvalidInput
    from asterism.fleet.device.agent import DeviceAgent as DeviceAgent
    from asterism.fleet.device.functions import CurrentRun as CurrentRun
    from asterism.fleet.fleet import Fleet as Fleet
    from asterism.fleet.policy.device_policy import DevicePolicy as DevicePolicy
    from asterism.fleet.run_explanation import RunExplanation as RunExplanation
    from asterism.fleet.run_explanation import explain_run as explain_run
    from asterism.fleet.schedules import Schedules as Schedules
    from asterism.fleet.settings import Settings as Settings

__getattr__, __dir__ = lazy_names(__name__)
