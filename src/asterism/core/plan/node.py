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

from collections.abc import MutableMapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from asterism.core.plan.status import PENDING, TERMINAL, TaskStatus
from asterism.core.plan.task import Dependency, Priority, Task
from asterism.core.plan.task_approval import APPROVED

QUEUED, STARTING, RUNNING = "queued", "starting", "running"


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

    @property
    def seconds(self) -> tuple[float, float] | None:
        """How long it waited and ran; None if it never began."""
        if self.begun is None or self.ended is None:
            return None
        return max(0.0, self.begun - self.created), max(0.0, self.ended - self.begun)

    def __str__(self) -> str:
        return "never began" if self.seconds is None else "waited {:.3f} s, ran {:.3f} s".format(*self.seconds)


def is_process(device: str | None) -> bool:
    """Whether a device is the process that runs a plan: PLAN@HOST. No other device has such a name."""
    return device is not None and "@" in device


class Scope(NamedTuple):
    """Where a node is among set-ups and their teardowns: see teardowns.py."""

    above: frozenset[Node]
    torn: frozenset[Node]
    inside: frozenset[Node]


NO_EDGES: Any = MappingProxyType({})
"""The edges of a node that has none: all of them share it, and ``Graph.link`` replaces it."""

NO_SCOPE = Scope(frozenset(), frozenset(), frozenset())


class RareState:
    """What few nodes of a plan have. A node holds such a value only once it differs from the default: a task that just
    waits, runs and completes needs none of them."""

    __slots__ = ()

    met: int = 0  # this and the next: see joins.py, kept only while the plan has a task with join="any"
    lost: int = 0
    doomed: bool = False  # its dependencies keep it from ever starting; kept like the two above
    over: bool = False  # its end is settled, or it is doomed; kept like the three above
    setup: Node | None = None  # of a teardown; see teardowns.py
    teardowns: int = 0  # how many teardowns it has
    below: int = 0  # of a set-up: how many tasks between it and its teardowns are not over
    scope: Scope = NO_SCOPE
    verdicts: dict[str, bool | str] | None = None  # result of each condition by source; a text is an error
    error: BaseException | None = None

    # progress, as below
    tentative: TaskStatus | None = None  # the end of a provisional task, until it is confirmed
    needless: bool = False  # cancelled because a condition or an outcome made it unnecessary
    given_up: bool = False  # cancelled by the end of the plan, because it could never run
    losses: int = 0
    reason: str = ""  # why it was cancelled
    times: AttemptTimes | None = None  # of its last attempt, if a fleet made it and has told them
    files: str | None = None  # the manifest of the files that it has made (execution/artifacts.py)
    spent: int = 0  # attempts before the plan was retried: they do not count against its retries
    decision: str | None = None  # of a person about its start; see task_approval.py


class Node(RareState):
    """Not a record: the attributes of a slotted class are set three times as fast, and a task sets some twenty of them
    while it runs."""

    __slots__ = (
        *("__dict__", "attempts", "awaited_since", "begun_at", "children", "device", "ended_at", "entry", "epoch"),
        *("held", "id", "label", "number", "open", "parents", "provisional", "rank", "reviewed", "started_at"),
        *("status", "task", "unsettled", "urgency", "value", "worked"),
    )

    def __init__(self, task: Task, label: int, number: int = 0) -> None:
        self.task = task
        self.id = task.id
        self.urgency: Priority = task.priority  # the highest that waits for it, see inherited_priority.py
        self.label = label  # position in the topological order, see topological_order.py
        self.number = number  # counts the tasks of the plan in the order in which they were added
        self.parents: dict[str, Dependency] = NO_EDGES
        self.children: MutableMapping[str, Node] = NO_EDGES
        self.open = self.held = 0
        self.entry: tuple[Any, ...] | None = None  # its entry in the ready queue, see ready_queue.py
        self.rank = 0.0
        self.unsettled = False  # ended, and not yet reviewed and confirmed: holds its children
        self.value: Any = None
        # progress: what a record of the plan has, unless it is as here (PROGRESS)
        self.status: TaskStatus = PENDING
        self.provisional = False
        self.reviewed = True
        self.epoch = self.attempts = 0
        self.device: str | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.begun_at = 0.0  # when the current attempt began
        self.worked = 0.0  # seconds of all its attempts, without the waits between them
        self.awaited_since: float | None = None  # when it began to wait for the world, or a person; see awaited.py

    @property
    def needs_approval(self) -> bool:
        """Whether it may not start, because no person has approved that."""
        return self.task.approval is not None and self.decision != APPROVED

    @property
    def awaits(self) -> bool:
        """Whether it waits for the world, or for a person: it is ready, and not in the queue."""
        return self.awaited_since is not None and self.status is PENDING

    @property
    def shown_status(self) -> str:
        """Its status as people see it: ``waiting`` if it is pending and not ready."""
        return "waiting" if self.status is PENDING and (self.open or self.awaits) else str(self.status)

    @property
    def span(self) -> tuple[float, float | None] | None:
        """When its work began and ended. In a fleet that is its last attempt, without the wait for a device; None if it
        never began."""
        if self.times is not None:
            return None if self.times.begun is None else (self.times.begun, self.times.ended)
        return None if self.started_at is None else (self.started_at, self.ended_at)

    @property
    def attempt_times(self) -> AttemptTimes | None:
        """The times of its last attempt, as far as they are known; of an attempt of the process that runs the plan they
        are those of its start and end."""
        if self.times is not None or not is_process(self.device):
            return self.times
        return AttemptTimes(self.begun_at, self.begun_at, self.begun_at, self.ended_at)

    @property
    def has_begun(self) -> bool:
        """Whether a device has begun to execute it. A task that a fleet has only queued has started, and not begun.
        While that is unknown, since no device has told it, it counts as begun."""
        never = self.times is not None and self.times.executed is False and self.attempts - self.spent <= 1
        return self.started_at is not None and not never

    def satisfies(self, dependency: Dependency, child: Node) -> bool:
        """Whether the end of this task, if it has ended, satisfies ``dependency`` of ``child``."""
        status = self.tentative or self.status
        if dependency.on == "teardown":
            return status in TERMINAL and self.has_begun and not self.below
        return holds(dependency, status, child)


NODE_FIELDS = (*Node.__slots__[1:], *RareState.__annotations__)
"""The names of the fields of a node."""

PROGRESS: dict[str, Any] = {
    **{"status": PENDING, "provisional": False, "tentative": None, "reviewed": True, "needless": False},
    **{"given_up": False, "epoch": 0, "device": None, "attempts": 0, "losses": 0, "started_at": None},
    **{"ended_at": None, "reason": "", "begun_at": 0.0, "worked": 0.0, "times": None, "files": None, "spent": 0},
    **{"awaited_since": None, "decision": None},
}
"""The facts of progress with their initial values. Only those that differ are written."""


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


def descendants(*nodes: Node) -> dict[Node, None]:
    """All tasks below some tasks."""
    below: dict[Node, None] = {}
    stack = list(nodes)
    while stack:
        new = [child for child in stack.pop().children.values() if child not in below]
        below.update(dict.fromkeys(new))
        stack += new
    return below


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
