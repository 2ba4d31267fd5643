"""The orchestrator: runs constellations on devices, and lets editors change them while they run.

Everything happens on one event loop. Whatever changes (a task ends, an edit is applied, a device joins) wakes the
orchestrator, which takes one step for all that has happened since: cycles are opened, ready tasks placed, ends
noticed. It never polls.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from asterism.base import expressions as cel
from asterism.base.expressions import Conditions
from asterism.core.errors import AlreadyRunning, EditRejected, PlanError, Violation
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation, TaskView
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.explain import Why, why
from asterism.core.plan.lock import AssignmentLock, EditCycle
from asterism.core.plan.ready_queue import CriticalPathRanks
from asterism.core.plan.status import ConstellationState, TaskStatus
from asterism.core.run.placement import Strategy
from asterism.orchestrator.devices import Device
from asterism.orchestrator.editor_calls import Answer, Editor, reviewed
from asterism.orchestrator.events import DeviceEvent, EventBus
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.result import Result
from asterism.orchestrator.roster import Place, Roster

DRAIN = 1.0
"""How long the end of a run waits for observers that have events left, in seconds."""

REST = 1.0
"""How long a device that gave work back is left alone, in seconds."""


PLACED_PER_STEP = 1000
"""How many tasks are started in one step of the loop: with a hundred thousand ready at once, others have to get their
turn in between."""


class Orchestrator:
    """Runs constellations.

    ``editor``       an async function ``(view, events)`` or an object with ``edit``; it answers with edits, or None
    ``external``     editors outside the process may list, claim and answer cycles (used when there is no ``editor``)
    ``policy``       what is held while an editor thinks: ``scoped``, ``global`` or ``speculative``
    ``edit_on``      which ends are reviewed: ``all``, ``failure``, or a predicate over the task
    ``strategy``     how a device is chosen: ``score``, ``round_robin``, ``capability_match``, ``load_balance``, or a
    function
    ``concurrency``  how many tasks run at once in all; None for as many as the devices take
    ``conditions``   what judges the conditions of dependencies; CEL by default
    ``rank``         order ready tasks of equal priority by the estimated work that hangs on them
    """

    def __init__(
        self,
        devices: Iterable[Device] = (),
        *,
        editor: Editor | None = None,
        external: bool = False,
        policy: str = "scoped",
        edit_on: str | Callable[[TaskView], bool] = "all",
        max_cycles: int = 4,
        max_rejections: int = 3,
        edit_timeout: float = 600.0,
        claim_timeout: float = 30.0,
        strategy: str | Strategy = "score",
        concurrency: int | None = None,
        rank: bool = False,
        conditions: Conditions = cel,
        no_device_timeout: float = 300.0,
        max_losses: int = 3,
        grace: float = 5.0,
        seed: int | None = None,
    ) -> None:
        if editor is not None and external:
            raise ValueError("give an editor, or external=True for editors outside the process, not both")
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency is 1 or more, or None for no limit, not {concurrency}")
        self.events = EventBus()
        self.roster = Roster(devices, strategy)
        self.editor = editor
        self.external = external
        self.concurrency = concurrency
        self.max_rejections, self.max_losses = max_rejections, max_losses
        self.no_device_timeout, self.grace = no_device_timeout, grace
        self.conditions = conditions
        self.random = random.Random(seed)
        self._edit_on = reviewed(edit_on) if editor is not None or external else None
        self._lock_terms: dict[str, Any] = {
            "policy": policy,
            "max_cycles": max_cycles,
            "edit_timeout": edit_timeout,
            "claim_timeout": claim_timeout if editor is None else None,
        }
        self._rank = rank
        self._executions: dict[str, Execution] = {}
        self._awake: dict[Execution, None] = {}
        self._departed: list[Device] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock_began = 0.0
        AssignmentLock(Constellation(), **self._lock_terms)  # complains now about terms that make no sense

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(self, plan: Constellation, *, assignments: Mapping[str, str] | None = None) -> Result:
        """Run a constellation to its end. ``assignments`` fixes devices for tasks, by id.

        Cancelling the caller cancels the running tasks, cleans up, and is passed on."""
        execution = self._admit(plan, assignments or {})
        try:
            try:
                await asyncio.shield(execution.done)
            except asyncio.CancelledError:
                execution.cancel()
                await self._wait_hard(execution)
                raise
        finally:
            await self._dismiss(execution)
        return self._result(execution)

    def _result(self, execution: Execution) -> Result:
        return Result(execution.plan, execution.lock.history, execution.slots, execution.lock.policy)

    def slots(self) -> int | None:
        """How much can run at once, by the devices and by ``concurrency``."""
        limits = [limit for limit in (self.roster.slots, self.concurrency) if limit is not None]
        return min(limits, default=None)

    def run_sync(self, plan: Constellation, *, assignments: Mapping[str, str] | None = None) -> Result:
        """``run``, for callers without an event loop."""
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("run_sync cannot be called from a running event loop; await run there")
        return asyncio.run(self.run(plan, assignments=assignments))

    async def _wait_hard(self, execution: Execution) -> None:
        """Wait for a cancelled execution; a second cancellation stops the waiting, not the cleaning up."""
        try:
            await asyncio.shield(execution.done)
        except asyncio.CancelledError:
            execution.cancel_hard()
            execution.settle_up()

    def _admit(self, plan: Constellation, assignments: Mapping[str, str]) -> Execution:
        if not isinstance(plan, Constellation):
            raise TypeError(f"run takes a Constellation, not {plan!r}")
        if plan.owner is not None:
            raise AlreadyRunning(f"constellation {plan.id!r} is being run already; one orchestrator owns it at a time")
        if plan.state is not ConstellationState.CREATED and plan.state is not ConstellationState.READY:
            raise PlanError(f"constellation {plan.id!r} is {plan.state}: it cannot be run again")
        if plan.counts[TaskStatus.RUNNING]:
            raise PlanError(f"constellation {plan.id!r} is a copy of one whose tasks are running: it cannot be run")
        self._not_twice(plan)
        self._adopt_loop()
        self._prepare(plan, assignments)
        execution = self._take_on(plan, AssignmentLock(plan, edit_on=self._edit_on, **self._lock_terms))
        execution.begin()
        return execution

    def _not_twice(self, plan: Constellation) -> None:
        if plan.id in self._executions:
            raise AlreadyRunning(
                f"another constellation with the id {plan.id!r} is running here; give this one its own id"
            )

    def _take_on(self, plan: Constellation, lock: AssignmentLock) -> Execution:
        plan.owner = self
        execution = self._executions[plan.id] = Execution(self, plan, lock)
        return execution

    def _prepare(self, plan: Constellation, assignments: Mapping[str, str]) -> None:
        plan.evaluate, plan.check_condition = PlanMask(plan).over(self.conditions.evaluate), self.conditions.check
        problems = [
            f"{d.source!r} -> {d.target!r}: the condition {d.when!r} is not valid: {problem}"
            for d in plan.dependencies
            if d.when is not None and (problem := self.conditions.check(d.when)) is not None
        ]
        if problems:
            raise PlanError(f"constellation {plan.id!r} cannot run:\n" + "\n".join(f"  - {p}" for p in problems))
        assigned = [(plan.node(id), plan.node(id).task.changed({"device": it})) for id, it in assignments.items()]
        for node, task in assigned:
            node.task = task
        if self._rank:
            plan.ranks = CriticalPathRanks()
            plan.ranks.all(plan.nodes)
        plan.state = ConstellationState.READY

    def _adopt_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._executions:
                raise RuntimeError("this orchestrator is running constellations on another event loop")
            self._loop = loop
            self._clock_began = time.time() - loop.time()
            self._awake.clear()
            for place in self.roster:
                place.reachable = True  # the timer that would have ended a rest died with the old loop

    async def _dismiss(self, execution: Execution) -> None:
        del self._executions[execution.plan.id]
        execution.plan.owner = None
        try:
            await execution.stopped()
            await self.events.drain(DRAIN)
        finally:
            if not self._executions:
                self._close_devices()

    def _close_devices(self) -> None:
        """Nothing runs any more: devices may end what they keep up for the work; they can be used again."""
        for device in [*(place.device for place in self.roster), *self._departed]:
            close = getattr(device, "close", None)
            if close is not None:
                close()
        self._departed.clear()

    def now(self) -> float:
        """Seconds since 1970, counted by the loop's clock so that it never jumps."""
        return self._clock_began + self._loop.time()  # type: ignore[union-attr]

    # -- the step ------------------------------------------------------------------------------------------------------

    def wake(self, execution: Execution) -> None:
        """Something happened: take a step as soon as the loop is free, one for all that happens until then."""
        if not self._awake:
            assert self._loop is not None
            self._loop.call_soon(self._step)
        self._awake[execution] = None

    def ended(self, execution: Execution) -> None:
        """A task ended that nobody reviews: its slot and its dependents need no step of the loop in between."""
        if not self._awake and (execution.plan.queue.active_lanes or len(self._executions) > 1):
            self._dispatch()  # unless a step is about to do that
        if not execution.active:
            self.wake(execution)  # it may be the end of the constellation

    def _step(self) -> None:
        awake = [one for one in self._awake if self._executions.get(one.plan.id) is one]  # others were left
        self._awake.clear()
        for execution in awake:
            execution.settle_up()
        self._dispatch()
        for execution in awake:
            execution.check_end()

    def _dispatch(self) -> None:
        """Give free devices to ready tasks; among several constellations, to the one with the least running."""
        hungry = [one for one in self._executions.values() if one.plan.queue.active_lanes and one.dispatching]
        if not hungry:
            return
        now = self.now()
        placed = 0
        while hungry and self.has_room:
            execution = hungry[0] if len(hungry) == 1 else min(hungry, key=_share)
            if placed == PLACED_PER_STEP:
                self.wake(execution)
                return
            if not execution.place_one(now) or not execution.plan.queue.active_lanes:
                hungry.remove(execution)
            placed += 1

    @property
    def has_room(self) -> bool:
        if self.concurrency is None:
            return True
        return sum(len(one.active) + len(one.stopping) for one in self._executions.values()) < self.concurrency

    # -- devices -------------------------------------------------------------------------------------------------------

    def join(self, device: Device) -> None:
        """A device takes part from now on."""
        self.roster.join(device)
        self._devices_changed("device_joined", device.id)

    def leave(self, device_id: str) -> None:
        """A device gets no more work. What it is executing goes on; what it had not begun it gives back
        (DeviceUnavailable)."""
        self._departed.append(self.roster.leave(device_id).device)
        self._devices_changed("device_left", device_id)

    def rest(self, place: Place) -> None:
        """A device gave work back: let it be for a second, so that the same task does not bounce off it without end."""
        assert self._loop is not None
        place.reachable = False
        self._loop.call_later(REST, self._rested, place)

    def _rested(self, place: Place) -> None:
        place.reachable = True
        for execution in self._executions.values():
            execution.plan.queue.activate_all()
            self.wake(execution)

    def _devices_changed(self, kind: str, device_id: str) -> None:
        for execution in self._executions.values():
            execution.tell.tell(DeviceEvent, kind=kind, device=device_id)
            execution.devices_changed()

    @property
    def stranded(self) -> bool:
        """Whether some ready task waits for a device to join that could take it."""
        return any(one.stranded for one in self._executions.values())

    # -- steering ------------------------------------------------------------------------------------------------------

    def pause(self, plan_id: str) -> None:
        """Start nothing more; what runs goes on."""
        execution = self._execution(plan_id)
        execution.paused = True
        execution.tell.constellation("constellation_paused")

    def resume(self, plan_id: str) -> None:
        execution = self._execution(plan_id)
        execution.paused = False
        execution.tell.constellation("constellation_resumed")
        self.wake(execution)

    async def cancel(self, plan_id: str, *, hard: bool = False) -> None:
        """Cancel a constellation and wait for its end: running tasks are asked to stop, and after ``grace`` seconds no
        longer waited for; with ``hard``, not even that long. A second call may be harder than the first."""
        execution = self._execution(plan_id)
        execution.cancel()
        if hard:
            execution.cancel_hard()
        await asyncio.shield(execution.done)

    def edit(self, plan_id: str, batch: EditBatch) -> Applied:
        """Edit a running constellation from anywhere. Raises EditRejected; after the end, with the rule ``ended``."""
        return self._editable(plan_id).cycles.apply(batch)

    def why(self, task_id: str, plan_id: str | None = None) -> Why:
        """Why a task is not running: the actual holder. ``plan_id`` may be left out while one constellation runs."""
        execution = self._execution(plan_id)
        node = execution.plan.node(task_id)
        return why(execution.plan, execution.lock, node, execution.placement(node), self.now())

    def cycles(self, plan_id: str | None = None) -> list[EditCycle]:
        """The cycles that are open."""
        return list(self._execution(plan_id).lock.cycles.values())

    def claim(self, cycle_id: int, who: str, *, lease: float = 60.0, plan_id: str | None = None) -> EditCycle:
        """Take a cycle to answer it, for ``lease`` seconds; call again to renew. Raises CycleGone or CycleClaimed."""
        return self._execution(plan_id).cycles.claim(cycle_id, who, lease)

    def events_of(self, cycle_id: int, plan_id: str | None = None) -> list[Any]:
        """What an editor is told about a cycle."""
        execution = self._execution(plan_id)
        return list(execution.cycles.events_of(execution.lock.get(cycle_id)))

    def answer(self, cycle_id: int, who: str, answer: Answer, *, plan_id: str | None = None) -> Applied:
        """Answer a claimed cycle: None, edits, or a batch. Raises EditRejected, and the cycle stays open for another
        try."""
        return self._editable(plan_id).cycles.answer(cycle_id, who, answer)

    def _execution(self, plan_id: str | None) -> Execution:
        if plan_id is None and len(self._executions) == 1:
            return next(iter(self._executions.values()))
        if plan_id is not None and plan_id in self._executions:
            return self._executions[plan_id]
        running = ", ".join(self._executions) or "none"
        if plan_id is None:
            raise PlanError(f"say which constellation is meant; running here: {running}")
        raise PlanError(f"no constellation {plan_id!r} is running here (running: {running})")

    def _editable(self, plan_id: str | None) -> Execution:
        """The execution to edit; an edit that comes after the end is rejected like any other that cannot be applied."""
        try:
            return self._execution(plan_id)
        except PlanError as error:
            if plan_id is None:
                raise
            raise EditRejected([Violation(None, "ended", str(error))]) from None


def _share(execution: Execution) -> tuple[int, int]:
    """How much of the devices it has, and when it was given something last."""
    return len(execution.active), execution.served
