"""Durable plans: kept in a store, they survive the process that runs them; tasks on other devices are runs of a fleet.

::

    from asterism.durable import DurableOrchestrator

    async with await Fleet.open("sqlite:///fleet.db") as fleet:
        result = await DurableOrchestrator(fleet, local=4).run(plan)       # or run_stored("nightly"), after a crash

========================  ==============================================================================================
``durable_orchestrator``  ``DurableOrchestrator``: run, run_stored, standby, and commands that are durable on return
``ownership``             ``Ownership``: one plan while this process owns it: take over, run, reload, leave
``plan_process``          the process of a plan as a device of the orchestrator: its tasks are facts of the journal
``fleet_device``          the fleet as the other device: one run for each execution of a task
``task_logs``             the logs of the tasks that the process of a plan executes itself
``journal_store``         where a plan is in the store: head, journal, snapshot; insert and load
``journal_writer``        ``JournalWriter``: commits the steps of a plan together with the runs that follow from them
``compaction``            replaces a long journal by a snapshot while the plan runs, and packs the records it replaced
``plan_history``          versions of a plan, the plan as it was at one of them, events with positions
``approval_store``        the edits that wait for a person, and the rules for that
``editor_budget``         what an editor may spend on a plan, what it has spent, and who decides if that is all
``rejected_edits``        the newest rejected edits of a plan
``plan_submissions``      plans that any plan runner runs, until they have ended; those of schedules among them
``plan_turns``            how many plans of one file run at a time, if it has ``overlap``
``runner_registers``      which plan runners live, and what they are to run
``plan_runner``           ``PlanRunner``: runs submitted plans, and those of schedules
``plan_actor``            ``open_plan``: a plan and its mailbox; commands are done by the process that has it open
``commands``              what may be asked of a plan: edit, approve, retry, pause, cancel, answer a cycle, …
========================  ==============================================================================================

How they work together: ``DurableOrchestrator`` uses the scheduler and the execution of ``asterism.orchestrator``, with
two devices, ``PlanProcess`` and ``FleetDevice``, and the clock of the store as the clock. ``JournalWriter`` is the
journal that the execution asks before it publishes an event or calls an editor. For each plan there is one
``Ownership``.

The end of a task that this process executes::

    PlanProcess.execute      the function returned
      Execution              records the end and starts the next task
        JournalWriter        one commit: the record with both steps; the next task waits for it
          PlanProcess        begins the work

Invariants:

- A step is durable before anything outside this process can see it: an event, a call of the editor, a run.
- A record has the next number and is written once, and its commit expects the record before it. So at most one process
  continues a plan, whatever the clocks say; the other one gets ``OwnershipLost``, and nothing of its commit happened.
- A task that is started in the fleet has exactly one run, whose key names the plan, the task and the epoch.
- A task that the process of the plan executes is started again by the next owner, when the process before has
  certainly stopped it. Its death is not the failure of the task.
- If another process changed something of a commit, ``ReloadRequired``: the owner loads the plan again. Its own tasks
  go on.
- A plan that has ended is reopened by one commit, which writes the record and the head.
- Replaying the journal gives the plan that its owner had, to the byte.
- A cancellation is final, a pause can be ended. Both are facts of the head, which every owner obeys.
- A command is done once: what it changes and its answer are one commit, which expects the message. The process that
  runs the plan does its own commands without a message.

To add a step of a plan, add it to ``asterism.core.plan.journal``. To add a field of the head, give it a default, so
that older stores can be read. To add a command, add a class to ``commands``.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.durable.approval_store import list_approvals as list_approvals
    from asterism.durable.commands import CycleList as CycleList
    from asterism.durable.commands import CycleView as CycleView
    from asterism.durable.commands import EditAnswer as EditAnswer
    from asterism.durable.commands import PauseAnswer as PauseAnswer
    from asterism.durable.durable_orchestrator import DurableOrchestrator as DurableOrchestrator
    from asterism.durable.editor_budget import go_on_without_editor as go_on_without_editor
    from asterism.durable.editor_budget import raise_budget as raise_budget
    from asterism.durable.editor_budget import read_account as read_account
    from asterism.durable.journal_store import ConstellationExists as ConstellationExists
    from asterism.durable.journal_store import OwnershipLost as OwnershipLost
    from asterism.durable.journal_store import ReloadRequired as ReloadRequired
    from asterism.durable.journal_store import StoredConstellation as StoredConstellation
    from asterism.durable.journal_store import UnknownConstellation as UnknownConstellation
    from asterism.durable.journal_store import insert_plan as insert_plan
    from asterism.durable.journal_store import load as load
    from asterism.durable.plan_actor import AnswerLost as AnswerLost
    from asterism.durable.plan_actor import NotAnswered as NotAnswered
    from asterism.durable.plan_actor import answer_cycle as answer_cycle
    from asterism.durable.plan_actor import approve_edit as approve_edit
    from asterism.durable.plan_actor import claim_cycle as claim_cycle
    from asterism.durable.plan_actor import edit_plan as edit_plan
    from asterism.durable.plan_actor import list_cycles as list_cycles
    from asterism.durable.plan_actor import pause_plan as pause_plan
    from asterism.durable.plan_actor import refuse_edit as refuse_edit
    from asterism.durable.plan_actor import release_cycle as release_cycle
    from asterism.durable.plan_actor import undo_edit as undo_edit
    from asterism.durable.plan_history import PastPlan as PastPlan
    from asterism.durable.plan_history import PlanEvent as PlanEvent
    from asterism.durable.plan_history import PlanEvents as PlanEvents
    from asterism.durable.plan_history import PlanFollower as PlanFollower
    from asterism.durable.plan_history import PlanVersion as PlanVersion
    from asterism.durable.plan_history import Position as Position
    from asterism.durable.plan_history import VersionUnknown as VersionUnknown
    from asterism.durable.plan_history import plan_at as plan_at
    from asterism.durable.plan_history import plan_events as plan_events
    from asterism.durable.plan_history import versions as versions
    from asterism.durable.rejected_edits import RejectedEdit as RejectedEdit
    from asterism.durable.rejected_edits import rejected_edits as rejected_edits
    from asterism.durable.stored_plans import task_logs as task_logs

__getattr__, __dir__ = lazy_names(__name__)
