"""Scheduler of an orchestrator: shares its devices among the plans that run at the same time.

Everything happens on one event loop. A change (a task ends, an edit is applied, a device joins) wakes the scheduler,
which takes one step for all changes since the last one: it opens edit cycles, starts ready tasks, and notices the end
of a plan. It never polls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from asterism.core.errors import AlreadyRunning, EditRejected, PlanError, Violation
from asterism.execution.function_calls import start_capture, stop_capture
from asterism.orchestrator.devices import Device
from asterism.orchestrator.events import DeviceEvent
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.roster import Member, Roster
from asterism.orchestrator.waits import NO_DEVICE

REST = 1.0
"""Seconds during which a device that gave a task back gets no other."""

STARTS_PER_STEP, STARTS_PER_TURN = 100, 1000
"""How many tasks one step starts at most, and how many start before the next step if others end meanwhile: with 100,000
ready tasks, other callbacks of the loop get a turn between."""

LONGEST_TURN = 0.01
"""Seconds for which ended tasks are followed by others without a turn of the loop: tasks that never wait must not keep
the loop from its other work."""


class DeviceScheduler:
    """The ``Scheduler`` of all executions of one orchestrator. ``clock`` replaces the clock of the event loop."""

    def __init__(
        self, roster: Roster, *, concurrency: int | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.roster, self.concurrency = roster, concurrency
        self.now = clock or self._loop_time
        self._executions: dict[str, Execution] = {}
        self._awake: dict[Execution, None] = {}
        self._departed: list[Device] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_began = 0.0
        self._started = 0  # tasks since the last step
        self._turn_ends: float | None = 0.0  # None: the next turn of the loop is waited for

    def _loop_time(self) -> float:
        """Seconds since 1970, counted by the clock of the loop, which never jumps."""
        return self._loop_began + self._loop.time()  # type: ignore[union-attr]

    # -- executions ----------------------------------------------------------------------------------------------------

    def attach_loop(self) -> None:
        """Use the running event loop. Raises RuntimeError while plans run on another one."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._executions:
                raise RuntimeError("this orchestrator runs plans on another event loop")
            self._loop = loop
            self._loop_began = time.time() - loop.time()
            self._awake.clear()
            self._turn_ends = 0.0
            for member in self.roster:
                member.reachable = True  # the timer that ends a rest died with the old loop

    def has_plan(self, plan_id: str) -> bool:
        return plan_id in self._executions

    def check_unused(self, plan_id: str) -> None:
        """Raises AlreadyRunning if a plan with this id runs here."""
        if self.has_plan(plan_id):
            raise AlreadyRunning(f"another plan with the id {plan_id!r} is running here; give this one its own id")

    def add(self, execution: Execution, owner: object) -> None:
        execution.plan.owner = owner
        self._executions[execution.plan.id] = execution
        if execution.options.log_limit:
            start_capture()

    async def remove(self, execution: Execution) -> None:
        """Forget an execution, and wait a bounded time for its tasks, editors and observers."""
        del self._executions[execution.plan.id]
        try:
            await execution.closed()
        finally:
            execution.plan.owner = None  # not before: an edit of an observer would reopen a plan that nobody continues
            if execution.options.log_limit:
                stop_capture()
            if not self._executions:
                self._close_devices()

    def _close_devices(self) -> None:
        """No plan runs: devices may release what they hold for the work. They can be used again."""
        for device in [*(member.device for member in self.roster), *self._departed]:
            close = getattr(device, "close", None)
            if close is not None:
                close()
        self._departed.clear()

    def find(self, plan_id: str | None) -> Execution:
        """The execution of a plan; None means the only one. Raises PlanError."""
        if plan_id is None and len(self._executions) == 1:
            return next(iter(self._executions.values()))
        if plan_id is not None and plan_id in self._executions:
            return self._executions[plan_id]
        running = ", ".join(self._executions) or "none"
        if plan_id is None:
            raise PlanError(f"name the plan; running here: {running}")
        raise PlanError(f"no plan {plan_id!r} is running here (running: {running})")

    def find_editable(self, plan_id: str | None) -> Execution:
        """The same for an edit: after the end of the plan it is rejected, like any edit that cannot be applied."""
        try:
            return self.find(plan_id)
        except PlanError as error:
            if plan_id is None:
                raise
            raise EditRejected([Violation(None, "ended", str(error))]) from None

    # -- the step ------------------------------------------------------------------------------------------------------

    def wake(self, execution: Execution) -> None:
        """Take a step as soon as the loop is free: one for all changes until then."""
        if not self._awake:
            assert self._loop is not None
            self._loop.call_soon(self._step)
        self._awake[execution] = None

    def task_ended(self, execution: Execution, now: float) -> None:
        """A task ended without a review: start the next tasks at once, without a step of the loop in between."""
        awake = bool(self._awake)
        if len(self._executions) > 1:
            if not awake:
                self._dispatch(now)
        elif (self._started < STARTS_PER_TURN or not awake) and execution.may_start and self.has_room:
            execution.start_one(now)  # one for the one that ended
            if awake:  # a step is about to start the others
                self._started += 1
            elif execution.plan.queue.active_lanes:
                self._dispatch(now)
        if not execution.active:
            self.wake(execution)  # it may be the end of the plan

    def _step(self) -> None:
        # the others were removed
        awake = [execution for execution in self._awake if self._executions.get(execution.plan.id) is execution]
        self._awake.clear()
        self._started = 0
        for execution in awake:
            execution.open_cycles()
        self._dispatch(self.now())
        for execution in awake:
            execution.check_end()

    def _dispatch(self, now: float) -> None:
        """Start ready tasks on free devices; among several plans, of the one with the fewest running tasks."""
        ready = [execution for execution in self._executions.values() if execution.may_start]
        started = 0
        while ready and (self.concurrency is None or self.has_room):
            execution = ready[0] if len(ready) == 1 else min(ready, key=_share)
            if started == STARTS_PER_STEP:
                self.wake(execution)
                return
            if not execution.start_one(now) or not execution.plan.queue.active_lanes:
                ready.remove(execution)
            started += 1

    def keeps_turn(self, now: float) -> bool:
        """Whether a task may follow another one before the other callbacks of the loop get a turn."""
        if self._turn_ends is None:
            return False
        if now < self._turn_ends:
            return True
        assert self._loop is not None
        self._turn_ends = None
        self._loop.call_soon(self._begin_turn)
        return False

    def _begin_turn(self) -> None:
        self._turn_ends = self.now() + LONGEST_TURN

    @property
    def has_room(self) -> bool:
        """Whether ``concurrency`` allows one more task."""
        if self.concurrency is None:
            return True
        occupied = sum(len(execution.active) + len(execution.stopping) for execution in self._executions.values())
        return occupied < self.concurrency

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once, by the devices and by ``concurrency``; None for no limit."""
        limits = [limit for limit in (self.roster.slots, self.concurrency) if limit is not None]
        return min(limits, default=None)

    # -- devices -------------------------------------------------------------------------------------------------------

    def join(self, device: Device) -> None:
        self.roster.join(device)
        self._devices_changed("device_joined", device.id)

    def leave(self, device_id: str) -> None:
        self._departed.append(self.roster.leave(device_id).device)
        self._devices_changed("device_left", device_id)

    def _devices_changed(self, kind: str, device_id: str) -> None:
        for execution in self._executions.values():
            execution.events.emit(DeviceEvent, kind=kind, device=device_id)
            execution.devices_changed()

    def rest(self, member: Member) -> None:
        """A device gave a task back: let it rest, so that the task does not return to it at once."""
        assert self._loop is not None
        member.reachable = False
        self._loop.call_later(REST, self._rested, member)

    def _rested(self, member: Member) -> None:
        member.reachable = True
        for execution in self._executions.values():
            execution.plan.queue.activate_all()
            self.wake(execution)

    @property
    def has_unplaceable_tasks(self) -> bool:
        """Whether a ready task waits for a capable device to join."""
        return any(execution.waits.waiting(NO_DEVICE) for execution in self._executions.values())


def _share(execution: Execution) -> tuple[int, int]:
    """How many devices it uses, and when it was last given one."""
    return len(execution.active), execution.last_assigned
