"""Waits of a running plan: the tasks that have left the ready queue, or are between two attempts, and for what.

==============  ========================================================================================================
``backoff``     the delay before the next attempt
``stopping``    an earlier execution of the task, or that of its set-up, has not stopped yet
``no_device``   no device that has joined can run it; it fails after ``no_device_timeout``
``approval``    a person decides about its start, or about an edit that changes it (waiting_edits.py)
``wait_for``    a time, an event, or a task of another plan (``core/plan/awaited.py``)
==============  ========================================================================================================

A task that waits has no slot, no device and no coroutine. Nothing polls: a wait ends by its time or by what it waits
for, and is dropped when an edit changes or removes the task, or makes it depend on others. Until what comes ``World``
looks in the store, for a stored plan.

All times of a plan, with those of its edit cycles and waiting edits, are one heap with one timer. A *delay* is counted
in seconds that pass: a clock that jumps does not change it. Other times are those of the plan's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from asterism.base.durations import format_duration
from asterism.core.errors import NoDevice, PlanError
from asterism.core.history import Reason
from asterism.core.plan.awaited import WaitFailed, awaited_text, deadline
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.explain import approval_holder
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED, PENDING, RUNNING
from asterism.core.plan.task import Lane, absent_plugin, lane_of, needs_of, needs_text
from asterism.core.record import Struct
from asterism.orchestrator.events import DeviceEvent

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution
    from asterism.orchestrator.scheduler import DeviceScheduler

BACKOFF, STOPPING, NO_DEVICE, APPROVAL, WAIT_FOR = "backoff", "stopping", "no_device", "approval", "wait_for"

HERE = "orchestrator"
"""The device of a group, and of a task that waited, in the story."""

NEVER = float("inf")

LONGEST_SLEEP = 30.0
"""Seconds between two looks at the clock: it may jump, and the timers of a loop stand still while a machine sleeps."""

JUMP = 0.1
"""By how many seconds a clock differs at least from that of the loop after it has jumped."""

ENDS_PER_TURN = 100
"""How many waits end before other callbacks of the loop get a turn."""

MOST_OVER = 1000
"""How many entries of waits that are over the heap has at most, beside as many as there are waits."""

HELD_PAUSE = 1.0
"""Seconds until the next look at a task without a device that may not start now, if its ``no_device_timeout`` is 0."""


class World(Protocol):
    """Where a stored plan finds events and other plans."""

    def look_for(self, node: Node) -> None:
        """Look from now on for what a task waits for, and call ``Waits.complete`` or ``fail``."""

    def forget(self, node: Node) -> None:
        """The task waits no longer."""

    def time_is_up(self, node: Node) -> None:
        """The timeout of the task is over. Look once more, since it may have come in time; then let the task fail."""


class Wait(Struct, eq=False):
    """``due`` is called at ``until``."""

    reason: str = ""
    due: Callable[[], None] = lambda: None
    awaited: Mapping[str, Any] | None = None
    is_delay: bool = False
    until: float = NEVER


class Waits:
    """Those of one execution. A plan without a store has no ``world``: its tasks wait for times only."""

    def __init__(self, execution: Execution, scheduler: DeviceScheduler) -> None:
        self._execution, self._plan, self._now = execution, execution.plan, execution.now
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._waits: dict[Node, Wait] = {}
        self._heap: list[tuple[float, int, Wait]] = []
        self._serial = count()
        self._timer: asyncio.TimerHandle | None = None
        self._ahead = self._now() - self._loop.time()  # the clock of the plan, of that of the loop
        self.world: World | None = None
        self.refused_since: dict[Node, float] = {}
        """Since when devices give a task back, without having begun it."""

    def __bool__(self) -> bool:
        return bool(self._waits)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._waits)

    def __contains__(self, node: Node) -> bool:
        return node in self._waits

    def waiting(self, reason: str) -> list[Node]:
        """The tasks that wait for this reason."""
        return [node for node, wait in self._waits.items() if wait.reason == reason]

    # -- how tasks begin to wait ---------------------------------------------------------------------------------------

    def add(self, node: Node, reason: str, due: Callable[[], None] = lambda: None) -> Wait:
        """Let a task wait that has left the queue: an edit holds it, or its last execution still stops."""
        self.remove(node)
        wait = self._waits[node] = Wait(reason, due)
        return wait

    def back_off(self, node: Node, delay: float) -> None:
        """Let a task that runs wait before its next attempt."""
        self._delay(self.add(node, BACKOFF, partial(self._requeue, node)), delay)

    def no_device(self, lane: Lane) -> None:
        """Move the tasks of a lane here from the queue: no device can run them."""
        queue = self._plan.queue
        while queue.peek(lane) is not None:
            node = queue.pop(lane)
            if node not in self._waits:
                wait = self.add(node, NO_DEVICE, partial(self._give_up, node))
                self._delay(wait, self._execution.options.no_device_timeout)
                detail = f"{missing(node)} has joined"
                self._execution.events.emit(DeviceEvent, kind="no_device", device="", task_id=node.id, detail=detail)

    def begin(self, node: Node) -> None:
        """Let a ready task wait for the world, or for a person; or go on waiting, if an earlier owner of the plan began
        that."""
        execution, now = self._execution, self._now()
        if not node.awaits:
            self._plan.wait(node, now)
            execution.events.task_changed("task_waiting", node)
        if node.task.approval is not None:
            self.add(node, APPROVAL)
            execution.waiting.ask(node)
            return
        awaited = dict(node.task.wait_for or {})
        wait = self.add(node, WAIT_FOR, partial(self._time_is_up, node))
        wait.awaited = awaited
        try:
            at = deadline(awaited, now if node.awaited_since is None else node.awaited_since)
            problem = store_problem(node.id, awaited) if self.world is None else None
            if problem is not None:
                raise WaitFailed(problem)
        except WaitFailed as error:
            self.fail(node, error)
            return
        if at is not None:
            self._set(wait, at)
        if self.world is not None and "until" not in awaited:
            self.world.look_for(node)

    # -- how they end --------------------------------------------------------------------------------------------------

    def complete(self, node: Node, value: Any) -> None:
        """What a task waited for is there: end it with that as its result."""
        self._start(node)
        self._execution.end(node, COMPLETED, value)

    def fail(self, node: Node, error: BaseException | None) -> None:
        """What a task waited for cannot come any more."""
        self._start(node)
        self._execution.fail(node, error)

    def _start(self, node: Node) -> None:
        self.remove(node)
        self._plan.start(node, HERE, self._now())

    def _time_is_up(self, node: Node) -> None:
        awaited = node.task.wait_for or {}
        if "until" in awaited:
            self.complete(node, awaited["until"])
        elif self.world is not None:
            self.world.time_is_up(node)

    def _give_up(self, node: Node) -> None:
        limit = self._execution.options.no_device_timeout
        if node.held or not self._execution.dispatching:  # it could not start anywhere now, and may still be edited
            self._delay(self._waits[node], limit or HELD_PAUSE)
            return
        self.remove(node)
        when = f"became available within {limit:g} s" if limit else "is there, and none is waited for"
        self._execution.fail(node, NoDevice(f"{missing(node)} {when}"))

    def _requeue(self, node: Node) -> None:
        """Put a task back into the queue."""
        self.remove(node)
        if node.status is RUNNING and node.device is None and node.entry is None:
            self._plan.queue.push(node)
        elif self._plan.nodes.get(node.id) is node:
            self._plan.requeue(node)
        self._execution.wake()

    def stopped(self) -> None:
        """An execution has stopped: look again at the tasks that wait for one."""
        for node in self.waiting(STOPPING):
            self._requeue(node)

    def devices_changed(self) -> None:
        """A device joined or left. The times of tasks that still have none go on."""
        for node in self.waiting(NO_DEVICE):
            if self._execution.roster.capable(lane_of(node.task)):
                self._requeue(node)

    def decided(self) -> None:
        """A person has decided, or the time for that is over."""
        for node in self.waiting(APPROVAL):
            if not node.awaits and not self._execution.waiting.holds(node):
                self._requeue(node)
        self._execution.wake()

    def edited(self) -> None:
        """An edit was applied: drop the waits that it has changed."""
        for node in [node for node, wait in self._waits.items() if not self._stands(node, wait)]:
            self.remove(node)

    def _stands(self, node: Node, wait: Wait) -> bool:
        if node.status is RUNNING:  # between two attempts, where edits do not reach it
            return True
        if node.status is not PENDING or self._plan.nodes.get(node.id) is not node or wait.reason == BACKOFF:
            return False
        if wait.awaited is not None:
            return node.awaits and node.task.wait_for == wait.awaited
        return node.awaits or (not node.open and node.entry is None)

    def remove(self, node: Node) -> None:
        wait = self._waits.pop(node, None)
        if wait is not None:
            wait.until = NEVER
            if wait.awaited is not None and self.world is not None:
                self.world.forget(node)

    def close(self) -> None:
        """Nothing waits any more: the plan has ended, or another process continues it."""
        for node in tuple(self._waits):
            self.remove(node)
        self.refused_since.clear()
        self._heap.clear()
        self._set_timer()

    # -- times ---------------------------------------------------------------------------------------------------------

    def alarm(self, due: Callable[[], None]) -> Callable[[float], None]:
        """What sets the time at which ``due`` is called; ``NEVER`` for none."""
        return partial(self._set, Wait(due=due))

    def _set(self, wait: Wait, at: float) -> None:
        if at == wait.until:
            return
        wait.until = at
        if at < NEVER:
            heappush(self._heap, (at, next(self._serial), wait))
            if len(self._heap) > 2 * len(self._waits) + MOST_OVER:
                self._rebuild()
            if self._heap[0][2] is wait:
                self._set_timer()

    def _rebuild(self, jump: float = 0.0) -> None:
        """Drop the entries of waits that are over, or have another time; and move the delays."""
        live = {wait: number for at, number, wait in self._heap if at == wait.until}
        for wait in live:
            wait.until += jump if wait.is_delay else 0.0
        self._heap = [(wait.until, number, wait) for wait, number in live.items()]
        heapify(self._heap)

    def _delay(self, wait: Wait, seconds: float) -> None:
        wait.is_delay = True
        self._follow_clock()
        self._set(wait, self._now() + seconds)

    def _set_timer(self, delay: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            left = max(0.0, self._heap[0][0] - self._now()) if delay is None else delay
            self._timer = self._loop.call_later(min(left, LONGEST_SLEEP), self._look_at_clock)

    def _look_at_clock(self) -> None:
        self._follow_clock()
        now, ended = self._now(), 0
        try:
            while self._heap and self._heap[0][0] <= now and ended < ENDS_PER_TURN:
                at, _, wait = heappop(self._heap)
                if at == wait.until:
                    wait.until = NEVER
                    ended += 1
                    wait.due()
        finally:
            self._set_timer(0.0 if ended == ENDS_PER_TURN else None)

    def _follow_clock(self) -> None:
        """If the clock of the plan has jumped, move the delays with it."""
        jump = self._now() - self._loop.time() - self._ahead
        if abs(jump) > JUMP:
            self._ahead += jump
            self._rebuild(jump)

    # -- why -----------------------------------------------------------------------------------------------------------

    def holder(self, node: Node) -> Reason | None:
        """What keeps a ready task from a device; None if nothing does."""
        execution = self._execution
        if execution.paused and not execution.cancelling:
            return Reason("pause", self._plan.id, "the plan is paused")
        if (edit := execution.waiting.holder_of(node.id)) is not None:
            return approval_holder(edit, node.id)
        if node.task.wait_for is not None or node.needs_approval:  # it needs no device
            return None
        wait = self._waits.get(node)
        if wait is not None and wait.reason == STOPPING:
            return Reason(STOPPING, "", "its last execution was asked to stop and has not stopped yet")
        if wait is not None and wait.reason == BACKOFF:
            left = format_duration(max(0.0, wait.until - self._now()))
            return Reason(BACKOFF, "", f"its next attempt begins in {left}")
        roster, lane = execution.roster, lane_of(node.task)
        capable = roster.capable(lane)
        if not capable:
            absent = absent_plugin(needs_of(node.task), [member.can for member in roster])
            text = absent or f"{missing(node)} has joined; the devices are {roster.names()}"
            return Reason(NO_DEVICE, "", text)
        if not any(member.reachable for member in capable):
            resting = ", ".join(member.id for member in capable)
            return Reason("resting", resting, f"every device that can run it gave it back: {resting}")
        if not any(member.free for member in capable) or (self._plan.queue, lane) in capable[0].waiting_lanes:
            full = [member for member in capable if not member.free] or capable
            busy = ", ".join(f"{member.id} ({member.running})" for member in full)
            return Reason("busy", busy, f"every device that can run it is busy: {busy}")
        if not self._scheduler.has_room:
            limit = self._scheduler.concurrency
            return Reason("concurrency", "", f"the limit of {limit} running tasks is reached")
        return None


def missing(node: Node) -> str:
    """The device that a task needs and that has not joined, such as "no device with 'gpu'"."""
    task = node.task
    wanted = needs_of(task)
    needs = f" with {needs_text(wanted)}" if wanted else ""
    return f"no device{needs}" if task.device is None else f"no device {task.device!r}{needs}"


def store_problem(task_id: str, wait: Mapping[str, Any]) -> str | None:
    """Why a task cannot wait in a plan without a store; None if it can."""
    if "until" in wait:
        return None
    return f"task {task_id!r} waits for {awaited_text(wait)}, which needs a plan in a store: run it with --store"


def check_waits(plan: Constellation) -> None:
    """Raise PlanError if a plan without a store has tasks that cannot wait there."""
    waits = ((node.id, node.task.wait_for) for node in plan.nodes.values() if node.task.wait_for is not None)
    problems = [problem for task_id, wait in waits if (problem := store_problem(task_id, wait)) is not None]
    if problems:
        raise PlanError(f"plan {plan.id!r} cannot run: {problems[0]}")
