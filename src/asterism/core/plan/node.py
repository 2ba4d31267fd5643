"""A node of a plan: a task, its edges, the counters that decide its dispatch, and its progress.

``open``  incoming dependencies that are not satisfied: the source has not ended, or has ended in another way.
``held``  sources whose end is not settled: the editor has not reviewed it, or the source itself is provisional.

A pending task is ready when both are 0. So dispatch never searches the graph. For a task with ``join="any"``, ``open``
counts the dependencies that are not decided, and one more if none holds; see joins.py.

``AttemptTimes`` are the times of an attempt that a fleet made: created, assigned, begun, ended. A plan counts a task as
running from the moment at which it offers it to the fleet. ``AttemptTimes.phase`` tells more: the task is *queued*
until a device has it, *starting* until it has begun there, and only then *running*.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from operator import attrgetter
from typing import Any, NamedTuple

from asterism.core.plan.status import PENDING, TERMINAL, TaskStatus
from asterism.core.plan.task import Dependency, Task
from asterism.core.plan.teardowns import NO_SCOPE

QUEUED, STARTING, RUNNING = "queued", "starting", "running"

NEVER_BEGAN = "never began"

_TEXT = re.compile(r", waited ([0-9.]+) s, ran ([0-9.]+) s$")


class AttemptTimes(NamedTuple):
    """None for what did not happen, or is not known."""

    created: float
    assigned: float | None = None
    begun: float | None = None
    ended: float | None = None
    executed: bool | None = None
    """Whether a device has begun to execute the task, in this attempt or an earlier one."""

    @property
    def phase(self) -> str:
        """The phase of an attempt that has not ended."""
        if self.begun is not None:
            return RUNNING
        return QUEUED if self.assigned is None else STARTING

    def to_json(self) -> dict[str, float | None]:
        return {f"{name}_at": at for name, at in zip(self._fields[:4], self[:4], strict=True)}

    def __str__(self) -> str:
        """How long it waited and ran, for the story; ``read_seconds`` reads it."""
        if self.begun is None or self.ended is None:
            return NEVER_BEGAN
        return f"waited {max(0.0, self.begun - self.created):.3f} s, ran {max(0.0, self.ended - self.begun):.3f} s"


def read_seconds(why: str) -> tuple[float, float] | None:
    """How long an attempt waited and ran, from its entry in the story; None if it never began."""
    found = _TEXT.search(why)
    return None if found is None else (float(found[1]), float(found[2]))


class Node:
    __slots__ = (
        "attempts",
        "begun_at",
        "below",
        "children",
        "device",
        "doomed",
        "ended_at",
        "entry",
        "epoch",
        "error",
        "held",
        "id",
        "label",
        "losses",
        "lost",
        "met",
        "needless",
        "number",
        "open",
        "over",
        "parents",
        "provisional",
        "rank",
        "reason",
        "reviewed",
        "scope",
        "setup",
        "spent",
        "started_at",
        "status",
        "task",
        "teardowns",
        "tentative",
        "times",
        "unsettled",
        "urgency",
        "value",
        "verdicts",
        "worked",
    )

    def __init__(self, task: Task, label: int) -> None:
        self.task = task
        self.id = task.id
        self.label = label  # position in the topological order, see topological_order.py
        self.number = 0  # counts the tasks of the plan in the order in which they were added
        self.parents: dict[str, Dependency] = {}
        self.children: MutableMapping[str, Node] = {}
        self.open = 0
        self.held = 0
        self.met = self.lost = 0  # see joins.py: kept only while the plan has a task with join="any"
        self.doomed = False  # its dependencies keep it from ever starting; kept like the two above
        self.over = False  # its end is settled, or it is doomed; kept like the three above
        self.setup: Node | None = None  # of a teardown; see teardowns.py
        self.teardowns = 0  # how many teardowns it has
        self.below = 0  # of a set-up: how many tasks between it and its teardowns are not over
        self.scope = NO_SCOPE
        self.verdicts: dict[str, bool | str] | None = None  # result of each condition by source; a text is an error
        self.entry: tuple[Any, ...] | None = None  # its entry in the ready queue, see ready_queue.py
        self.rank = 0.0
        self.urgency = task.priority  # the highest priority that waits for it, see inherited_priority.py
        self.status: TaskStatus = PENDING
        self.provisional = False
        self.tentative: TaskStatus | None = None  # the end of a provisional task, until it is confirmed
        self.reviewed = True
        self.unsettled = False  # ended, and not yet reviewed and confirmed: holds its children
        self.needless = False  # cancelled because a condition or an outcome made it unnecessary
        self.epoch = 0
        self.device: str | None = None
        self.attempts = 0
        self.losses = 0
        self.spent = 0  # attempts before the plan was retried: they do not count against its retries
        self.value: Any = None
        self.error: BaseException | None = None
        self.reason = ""  # why it was cancelled
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.begun_at = 0.0  # when the current attempt began
        self.worked = 0.0  # seconds of all its attempts, without the waits between them
        self.times: AttemptTimes | None = None  # of its last attempt, if a fleet made it and has told them

    @property
    def span(self) -> tuple[float, float | None] | None:
        """When its work began and ended. In a fleet that is its last attempt, without the wait for a device; None if it
        never began."""
        if self.times is not None:
            return None if self.times.begun is None else (self.times.begun, self.times.ended)
        return None if self.started_at is None else (self.started_at, self.ended_at)

    @property
    def has_begun(self) -> bool:
        """Whether a device has begun to execute it. A task that a fleet has only queued has started, and not begun.
        While that is unknown, since no device has told it or an earlier version wrote it, it counts as begun."""
        never = self.times is not None and self.times.executed is False and self.attempts - self.spent <= 1
        return self.started_at is not None and not never

    def satisfies(self, dependency: Dependency, child: Node) -> bool:
        """Whether the end of this task, if it has ended, satisfies ``dependency`` of ``child``."""
        status = self.tentative or self.status
        if dependency.on == "teardown":
            return status in TERMINAL and self.has_begun and not self.below
        return holds(dependency, status, child)


def holds(dependency: Dependency, status: TaskStatus, child: Node) -> bool:
    """Whether a source with ``status`` satisfies ``dependency`` of ``child``, which is not that of a teardown."""
    if not outcome_fits(dependency.on, status):
        return False
    return dependency.when is None or (child.verdicts is not None and child.verdicts.get(dependency.source) is True)


def outcome_fits(on: str, status: TaskStatus) -> bool:
    """Whether an end with ``status`` is the outcome that ``on`` requires. A cancelled task fits only ``always``."""
    if on == "success":
        return status is TaskStatus.COMPLETED
    if on == "failure":
        return status is TaskStatus.FAILED
    if on == "always":
        return status in TERMINAL
    return status is TaskStatus.COMPLETED or status is TaskStatus.FAILED


def handler_of(node: Node) -> Node | None:
    """The completed task that handled the failure of a node, itself or by handling the failure of a handler."""
    failed = [node]
    while failed:
        source = failed.pop()
        for child in source.children.values():
            if child.parents[source.id].handled:
                if child.status is TaskStatus.COMPLETED:
                    return child
                if child.status is TaskStatus.FAILED:
                    failed.append(child)
    return None


def provisional_below(node: Node) -> list[Node]:
    """A node and all provisional nodes below it, which started because it did."""
    below = {node: None}
    stack = [node]
    while stack:
        for child in stack.pop().children.values():
            if child.provisional and child not in below:
                below[child] = None
                stack.append(child)
    return sorted(below, key=attrgetter("number"))
