"""Orchestrator: runs plans on devices of this process, and lets editors change them while they run.

::

    from asterism.orchestrator import LocalDevice, Orchestrator

    result = await Orchestrator([LocalDevice("laptop", slots=4)]).run(plan)

======================  ================================================================================================
``orchestrator``        ``Orchestrator``: validates and runs plans in memory; what a program calls. ``PlanCommands``:
                        what every orchestrator can do: pause, resume, why, claim an edit cycle
``options``             ``Options``: the frozen options of an orchestrator, and how they prepare a plan and its lock;
                        ``PlanJournal``, the port of a stored plan
``scheduler``           ``DeviceScheduler``: one step of the loop for all changes; shares devices among plans
``execution``           ``Execution``: one running plan: starts tasks, records ends, retries, stops, cancels;
                        expands groups into tasks when their list is known
``edit_cycles``         calls the editor for tasks that ended, applies or rejects its answer, closes cycles in time
``unchanged_tasks``     tasks whose files have not changed since their last execution get their recorded result
``waits``               ``Waits``: the tasks that are not in the queue, and for what they wait: backoff, no device,
                        approval, ``wait_for``, an execution that still stops; one heap of all times, with one timer
``waiting_edits``       ``WaitingEdits``: the edits that wait for a person, and the judgment which ones have to
``roster``              the devices that have joined, and the choice of one for a task
``devices``             the ``Device`` protocol, ``Work``, and ``LocalDevice``, which is this process
``events``              typed events, the bus, and ``PlanEvents``, the publisher of one plan's events
``plan_mask``           masks the secrets of a whole plan in everything that is recorded or shown about it
``result``              the result of a plan: states, values, holds, summary; records of results in a store
======================  ================================================================================================

The life of a task::

    Execution._execute     the device's coroutine returns
      Execution._ended     AssignmentLock.finish records the end and holds its dependents, in one call
        task_ended         no review: the scheduler starts the next tasks at once
        wake               with a review: DeviceScheduler._step opens an edit cycle in the next turn of the loop
          EditCycles       calls the editor, applies its edits, closes the cycle, and wakes the scheduler
      Execution.start_one  the best ready task of all lanes goes to the device that the roster chooses

Invariants:

- Everything runs on one event loop, and nothing polls. Between two awaits the plan, its lock and its queue agree.
- An end is recorded in the same call that holds its dependents, so no task starts from a plan that is under review.
- The result of an execution counts only while its epoch is in ``active``; after a stop it is refused.
- A task is executed once at a time: the next attempt waits until the last one has really stopped, or ``grace`` is over.
- An event without a subscriber is not made. A subscriber never delays the plan.

To add an option, add it to ``Options``. To add a kind of event, add its type to ``events`` and the
call where it happens. To add a reason why a task waits, add it to ``waits``. The lock policies
themselves are in ``asterism.core.plan.assignment_lock``, the strategies that choose a device in
``asterism.core.run.placement``.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.orchestrator.devices import Device as Device
    from asterism.orchestrator.devices import LocalDevice as LocalDevice
    from asterism.orchestrator.devices import Work as Work
    from asterism.orchestrator.edit_cycles import Answer as Answer
    from asterism.orchestrator.edit_cycles import Editor as Editor
    from asterism.orchestrator.events import ConstellationEvent as ConstellationEvent
    from asterism.orchestrator.events import DeviceEvent as DeviceEvent
    from asterism.orchestrator.events import EditEvent as EditEvent
    from asterism.orchestrator.events import Event as Event
    from asterism.orchestrator.events import EventBus as EventBus
    from asterism.orchestrator.events import Subscription as Subscription
    from asterism.orchestrator.events import TaskEvent as TaskEvent
    from asterism.orchestrator.options import Options as Options
    from asterism.orchestrator.orchestrator import Orchestrator as Orchestrator
    from asterism.orchestrator.result import Result as Result
    from asterism.orchestrator.result import StoreRecords as StoreRecords
    from asterism.orchestrator.result import Summary as Summary

__getattr__, __dir__ = lazy_names(__name__)
