"""Tasks that wait for the world (``core/plan/awaited.py``): their timers, and their ends.

A task that waits has no slot, no device and no coroutine. All times of a plan are one heap with one timer; events and
tasks of other plans come from the ``World`` of a stored plan, which looks for them in its store. A wait is dropped when
an edit removes the task, changes what it waits for, or makes it depend on others; what comes then changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from asterism.core.errors import PlanError
from asterism.core.plan.awaited import WaitFailed, awaited_text, deadline
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution

HERE = "orchestrator"
"""The device of a group, and of a task that waited, in the story."""

LONGEST_SLEEP = 30.0
"""Seconds between two looks at the clock: it may jump, and the timers of a loop stand still while a machine sleeps."""

ENDS_PER_TURN = 100
"""How many waits end before other callbacks of the loop get a turn."""


class World(Protocol):
    """Where a stored plan finds events and other plans."""

    def look_for(self, node: Node) -> None:
        """Look from now on for what a task waits for, and call ``WaitingTasks.complete`` or ``fail``."""

    def forget(self, node: Node) -> None:
        """The task waits no longer."""

    def time_is_up(self, node: Node) -> None:
        """The timeout of the task is over. Look once more, since it may have come in time; then let the task fail."""


class WaitingTasks:
    """The tasks of an execution that wait. A plan without a store has no ``world``: its tasks wait for times only."""

    def __init__(self, execution: Execution) -> None:
        self._execution, self._plan = execution, execution.plan
        self._waits: dict[Node, Mapping[str, Any]] = {}
        self._times: list[tuple[float, int, Node, Mapping[str, Any]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._added = 0
        self.world: World | None = None

    def __bool__(self) -> bool:
        return bool(self._waits)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._waits)

    def begin(self, node: Node) -> None:
        """Let a ready task wait; or go on waiting, if an earlier owner of the plan began that."""
        execution, now = self._execution, self._execution.now()
        if not node.awaits:
            self._plan.wait(node, now)
            execution.events.task_changed("task_waiting", node)
        wait = self._waits[node] = dict(node.task.wait_for or {})  # a new object, by which this wait is known
        try:
            at = deadline(wait, now if node.awaited_since is None else node.awaited_since)
            problem = store_problem(node.id, wait) if self.world is None else None
            if problem is not None:
                raise WaitFailed(problem)
        except WaitFailed as error:
            self.fail(node, error)
            return
        if at is not None:
            self._added += 1
            heappush(self._times, (at, self._added, node, wait))
            if self._times[0][2] is node:
                self._set_timer()
        if self.world is not None and "until" not in wait:
            self.world.look_for(node)

    def waits_for(self, node: Node, wait: Mapping[str, Any]) -> bool:
        """Whether a task still waits for this."""
        return self._waits.get(node) is wait

    def complete(self, node: Node, value: Any) -> None:
        """What a task waited for is there: end it with that as its result."""
        self._start(node)
        self._execution.end(node, COMPLETED, value)

    def fail(self, node: Node, error: BaseException) -> None:
        """What a task waited for cannot come any more."""
        self._start(node)
        self._execution.fail(node, error)

    def _start(self, node: Node) -> None:
        self.remove(node)
        self._plan.start(node, HERE, self._execution.now())

    # -- times ---------------------------------------------------------------------------------------------------------

    def _set_timer(self, delay: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._times:
            left = max(0.0, self._times[0][0] - self._execution.now()) if delay is None else delay
            self._timer = asyncio.get_running_loop().call_later(min(left, LONGEST_SLEEP), self._look_at_clock)

    def _look_at_clock(self) -> None:
        now, ended = self._execution.now(), 0
        while self._times and self._times[0][0] <= now and ended < ENDS_PER_TURN:
            _, _, node, wait = heappop(self._times)
            if not self.waits_for(node, wait):
                continue
            ended += 1
            if "until" in wait:
                self.complete(node, wait["until"])
            elif self.world is not None:
                self.world.time_is_up(node)
        self._set_timer(0.0 if ended == ENDS_PER_TURN else None)

    # -- edits and the end ---------------------------------------------------------------------------------------------

    def edited(self) -> None:
        """Forget the tasks that an edit removed, cancelled or changed."""
        for node in [node for node, wait in self._waits.items() if not self._unchanged(node, wait)]:
            self.remove(node)

    def _unchanged(self, node: Node, wait: Mapping[str, Any]) -> bool:
        return node.awaits and self._plan.nodes.get(node.id) is node and node.task.wait_for == wait

    def remove(self, node: Node) -> None:
        if self._waits.pop(node, None) is not None and self.world is not None:
            self.world.forget(node)

    def close(self) -> None:
        """Nothing waits any more: the plan has ended, or another process continues it."""
        for node in tuple(self._waits):
            self.remove(node)
        self._times.clear()
        self._set_timer()


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
