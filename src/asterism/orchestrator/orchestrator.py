"""``Orchestrator``, the public class; and the commands that every orchestrator has: pause, why, claim a cycle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any

from asterism.core.attempt_log import TaskLog
from asterism.core.errors import AlreadyRunning, PlanError
from asterism.core.plan.apply import Applied
from asterism.core.plan.assignment_lock import AssignmentLock, EditCycle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import Edit, EditBatch, WaitingEdit
from asterism.core.plan.explain import Why
from asterism.core.plan.explain import why as explain
from asterism.core.plan.status import ConstellationState, TaskStatus
from asterism.core.record import replace
from asterism.execution.artifacts import Artifacts
from asterism.orchestrator.devices import Device
from asterism.orchestrator.edit_cycles import Answer
from asterism.orchestrator.events import Event, EventBus
from asterism.orchestrator.execution import NO_LIMITS, NO_TURNS, Execution
from asterism.orchestrator.options import Options
from asterism.orchestrator.plan_trace import PlanTrace
from asterism.orchestrator.result import Result
from asterism.orchestrator.roster import Member, Roster
from asterism.orchestrator.scheduler import DeviceScheduler
from asterism.orchestrator.waiting_edits import WaitingEdits
from asterism.orchestrator.waits import check_waits


class PlanCommands:
    """Commands for plans that run in this process. ``plan_id`` may be left out while one plan runs. Call these on the
    event loop that runs the plan."""

    def __init__(self, scheduler: DeviceScheduler) -> None:
        self.events = EventBus()
        self.scheduler = scheduler

    def now(self) -> float:
        """The orchestrator's clock: seconds since 1970."""
        return self.scheduler.now()

    def runs(self, plan: Constellation) -> bool:
        """Whether it runs a plan. It stays the owner of one that it leaves until all observers know."""
        return plan.owner is self and self.scheduler.has_plan(plan.id)

    def places(self) -> list[Member]:
        """The devices, each with its load."""
        return list(self.scheduler.roster)

    def pause(self, plan_id: str) -> None:
        """Start no more tasks; running tasks continue."""
        self.scheduler.find(plan_id).pause()

    def resume(self, plan_id: str) -> None:
        """Start tasks again."""
        self.scheduler.find(plan_id).resume()

    def why(self, task_id: str, plan_id: str | None = None) -> Why:
        """Why a task is not running: what holds it."""
        execution = self.scheduler.find(plan_id)
        node = execution.plan.node(task_id)
        edits = tuple(execution.waiting.waiting.values())
        return explain(execution.plan, execution.lock, node, execution.waits.holder(node), self.now(), edits)

    def cycles(self, plan_id: str | None = None) -> list[EditCycle]:
        """The open edit cycles."""
        return list(self.scheduler.find(plan_id).lock.cycles.values())

    def claim(self, cycle_id: int, who: str, *, lease: float = 60.0, plan_id: str | None = None) -> EditCycle:
        """Claim a cycle for ``lease`` seconds, in order to answer it; call again to renew. Raises CycleGone or
        CycleClaimed."""
        return self.scheduler.find(plan_id).cycles.claim(cycle_id, who, lease)

    def approvals(self, plan_id: str | None = None) -> list[WaitingEdit]:
        """The edits that wait for a person."""
        return list(self.scheduler.find(plan_id).waiting.waiting.values())

    def logs(self, task_id: str, plan_id: str | None = None) -> list[TaskLog]:
        """What each attempt at a task has printed so far, if this process executes it. Raises UnknownTask."""
        execution = self.scheduler.find(plan_id)
        execution.plan.node(task_id)
        return execution.logs.of(task_id)

    def events_of(self, cycle_id: int, plan_id: str | None = None) -> list[Event]:
        """The events that an editor receives about a cycle."""
        execution = self.scheduler.find(plan_id)
        return execution.cycles.events_of(execution.lock.get(cycle_id))


class Orchestrator(PlanCommands):
    """Runs plans. ``devices`` execute the tasks; more may ``join`` later. The others are the fields of ``Options``, by
    name or as a record."""

    def __init__(self, devices: Iterable[Device] = (), *, options: Options | None = None, **fields: Any) -> None:
        chosen = Options.of(options, fields)
        self.options = chosen if chosen.artifacts is not None else replace(chosen, artifacts=Artifacts(None))
        super().__init__(DeviceScheduler(Roster(devices, chosen.strategy), concurrency=chosen.concurrency))
        self._random = random.Random(chosen.seed)

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(self, plan: Constellation, *, assignments: Mapping[str, str] | None = None) -> Result:
        """Run a plan to its end. ``assignments`` maps tasks to devices. Raises PlanError, and AlreadyRunning.

        Cancelling the caller cancels the plan, waits for its end, and is passed on."""
        return await self._ended(self._begin(plan, assignments))

    async def _ended(self, execution: Execution) -> Result:
        try:
            try:
                await asyncio.shield(execution.done)
            except asyncio.CancelledError:
                execution.cancel()
                await _cancelled(execution)
                raise
        finally:
            await self.scheduler.remove(execution)
        return execution.result()

    async def retry(
        self,
        ended: Result | Constellation,
        *,
        from_tasks: Iterable[str] = (),
        edits: EditBatch | Iterable[Edit] | None = None,
    ) -> Result:
        """Run a plan that has ended again: the tasks that failed, and those that were cancelled because of them.
        Completed tasks keep their results.

        ``from_tasks`` are run again instead, with everything below them. ``edits`` are applied first, all or none; with
        a task that they add, a plan in which nothing failed is run too. A plan that an edit has reopened is continued.
        Raises PlanError, EditRejected (also for edits that would wait for a person), and AlreadyRunning."""
        plan = ended.plan if isinstance(ended, Result) else ended
        self._check_idle(plan)
        batch = None if edits is None else EditBatch.of(edits)
        self.options.evaluate_conditions(plan)
        first = tuple(from_tasks)
        if plan.state is not ConstellationState.EXECUTING or first or batch is not None:
            now, devices = self.scheduler.now, self.scheduler.roster.known_devices
            waiting = WaitingEdits(plan, now, rules=self.options.approvals, devices=devices)
            plan.run_again(self.scheduler.now(), first, batch, check=waiting.check_retry)
        plan.ranks = None
        self.options.add_ranks(plan)
        execution = self._execution(plan)
        execution.take_over()
        return await self._ended(execution)

    def run_sync(self, plan: Constellation, *, assignments: Mapping[str, str] | None = None) -> Result:
        """``run``, for callers without an event loop."""
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("run_sync cannot be called from a running event loop; use: await run(plan)")
        return asyncio.run(self.run(plan, assignments=assignments))

    def _begin(self, plan: Constellation, assignments: Mapping[str, str] | None) -> Execution:
        self._check_idle(plan)
        if plan.state is not ConstellationState.CREATED and plan.state is not ConstellationState.READY:
            raise PlanError(f"plan {plan.id!r} is {plan.state}: it cannot run again; use retry")
        if (limited := next((node for node in plan.nodes.values() if node.task.uses), None)) is not None:
            raise PlanError(f"task {limited.id!r}: {NO_LIMITS}")
        if plan.overlap is not None:
            raise PlanError(f"plan {plan.id!r}: {NO_TURNS}")
        check_waits(plan)
        self.options.prepare(plan, assignments)
        execution = self._execution(plan)
        execution.begin()
        return execution

    def _check_idle(self, plan: Constellation) -> None:
        """Raise AlreadyRunning or PlanError if a plan cannot run here now."""
        if not isinstance(plan, Constellation):
            raise TypeError(f"run takes a Constellation, not {plan!r}")
        if plan.owner is not None:
            raise AlreadyRunning(f"plan {plan.id!r} is running already; one orchestrator runs it at a time")
        if plan.counts[TaskStatus.RUNNING]:
            raise PlanError(f"plan {plan.id!r} is a copy of a plan with running tasks: it cannot run")
        self.scheduler.check_unused(plan.id)
        self.scheduler.attach_loop()

    def _execution(self, plan: Constellation) -> Execution:
        lock = self.options.lock(plan, AssignmentLock)
        trace = PlanTrace.start(plan.id, self.scheduler.now)
        execution = Execution(self.scheduler, plan, lock, self.options, self.events, self._random, trace=trace)
        self.scheduler.add(execution, self)
        return execution

    # -- devices -------------------------------------------------------------------------------------------------------

    def join(self, device: Device) -> None:
        """Add a device."""
        self.scheduler.join(device)

    def leave(self, device_id: str) -> None:
        """Give a device no more tasks. It finishes those that it has begun, and gives the others back
        (DeviceUnavailable)."""
        self.scheduler.leave(device_id)

    def slots(self) -> int | None:
        """How many tasks can run at once, by the devices and by ``concurrency``; None for no limit."""
        return self.scheduler.slots

    @property
    def has_unplaceable_tasks(self) -> bool:
        """Whether a ready task waits for a capable device to join."""
        return self.scheduler.has_unplaceable_tasks

    # -- commands ------------------------------------------------------------------------------------------------------

    async def cancel(self, plan_id: str, *, hard: bool = False) -> None:
        """Cancel a plan and wait for its end: running tasks are asked to stop, and have ``grace`` seconds; then the
        teardowns of set-ups that have started run. With ``hard`` neither is waited for. A second call may be harder
        than the first."""
        execution = self.scheduler.find(plan_id)
        execution.cancel()
        if hard:
            execution.cancel_hard()
        await asyncio.shield(execution.done)

    def edit(self, plan_id: str, batch: EditBatch, *, editor: str | None = None) -> Applied:
        """Edit a running plan, as a person or, with ``editor``, as an editor of that name, which has a scope. Raises
        EditRejected; after the end of the plan, with the rule ``ended``. Raises EditWaits if the edit waits for a
        person."""
        return self.scheduler.find_editable(plan_id).waiting.submit(batch, None, editor)

    def approve(
        self,
        number: int,
        who: str,
        batch: EditBatch | None = None,
        *,
        reason: str = "",
        plan_id: str | None = None,
    ) -> Applied:
        """Apply a waiting edit, or ``batch`` in its place. Raises ApprovalGone; and EditRejected, with the edit still
        waiting."""
        return self.scheduler.find_editable(plan_id).waiting.approve(number, who, batch, reason)

    def refuse(self, number: int, who: str, reason: str = "", *, plan_id: str | None = None) -> WaitingEdit:
        """Drop a waiting edit. Raises ApprovalGone."""
        return self.scheduler.find(plan_id).waiting.refuse(number, who, reason)

    def release_cycle(self, cycle_id: int, who: str, reason: str = "", *, plan_id: str | None = None) -> EditCycle:
        """Close a cycle whose editor does not answer, as a person: the plan goes on as it is. Raises CycleGone."""
        why = f"by {who}: {reason}" if reason else f"by {who}"
        return self.scheduler.find(plan_id).cycles.release(cycle_id, why)

    def answer(self, cycle_id: int, who: str, answer: Answer, *, plan_id: str | None = None) -> Applied:
        """Answer a claimed cycle: None, edits, or a batch. Raises EditRejected; the cycle then stays open for another
        answer."""
        return self.scheduler.find_editable(plan_id).cycles.answer(cycle_id, who, answer)


async def _cancelled(execution: Execution) -> None:
    """Wait for the end of a cancelled plan. A second cancellation ends the wait, not the cleanup."""
    try:
        await asyncio.shield(execution.done)
    except asyncio.CancelledError:
        execution.cancel_hard()
        execution.check_end()
