"""A run: one exclusive piece of work, and its whole history of assignments.

::

    created ──assign──> assigned ──claim──> claimed ──start──> processing ──complete──> completed
       │                   │                   │                   │
       ├──────take─────────┼──────────────────>│                   │
       │                   └─────reassign──────┴───────────────────┤
       │                                                           v
       └─ fail, from everywhere that is not an end          reassigning ──assign──> assigned
                            │                                      └──────take────> claimed
                            v
                          failed

``take`` is a device that assigns a run to itself and claims it in one step. The seed's "assigning to self" and
"assigning to other" are entries of the story, since nobody can ever see them: they begin and end inside one write.
Pausing, holding (for a series) and wishes (to cancel, to pause) are marks on a run, no states: they say who may
assign it and what its owner shall do.

*Whose word counts.* Each assignment is a **grant**: the session of a device and an ``epoch``, which grows by one with
every assignment of the run. Whatever an owner says names its grant, and the word of any other is refused (Fenced). A
device that slept and woke can therefore neither extend, release nor complete what now belongs to another.

*An end is an end.* A completed or failed run never changes again. A retry by hand is a new run that names the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from asterism.core.history import Entry, step_time
from asterism.core.plan.task import NOTHING


class RunStatus(StrEnum):
    __hash__ = str.__hash__  # Enum's own hash is Python code, and these are looked up for every write

    CREATED = "created"
    ASSIGNED = "assigned"
    CLAIMED = "claimed"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    REASSIGNING = "reassigning"


CREATED, ASSIGNED, CLAIMED, PROCESSING, COMPLETED, FAILED, REASSIGNING = RunStatus

TRANSITIONS: dict[str, dict[RunStatus, RunStatus]] = {
    "assign": {CREATED: ASSIGNED, REASSIGNING: ASSIGNED},
    "take": {CREATED: CLAIMED, REASSIGNING: CLAIMED},
    "claim": {ASSIGNED: CLAIMED},
    "start": {CLAIMED: PROCESSING},
    "complete": {PROCESSING: COMPLETED},
    "reassign": {ASSIGNED: REASSIGNING, CLAIMED: REASSIGNING, PROCESSING: REASSIGNING},
    "fail": dict.fromkeys((CREATED, ASSIGNED, CLAIMED, PROCESSING, REASSIGNING), FAILED),
}
"""Event -> state before -> state after."""

TERMINAL = frozenset({COMPLETED, FAILED})
OWNED = frozenset({ASSIGNED, CLAIMED, PROCESSING})
"""The states in which a run is somebody's."""
UNOWNED = frozenset({CREATED, REASSIGNING})
"""The states in which it waits for somebody."""

REPORTED_STATUSES: dict[str, frozenset[RunStatus]] = {
    **{str(status): frozenset({status}) for status in RunStatus},
    "paused": UNOWNED,
    "pausing": frozenset({CLAIMED, PROCESSING}),
    "cancelling": frozenset({CLAIMED, PROCESSING}),
    "cancelled": frozenset({FAILED}),
}
"""What ``Run.reported_status`` may be, and in which states a run is then."""

REASONS = ("timeout", "declined", "failed", "released", "conflict", "preempted")
"""Why an assignment ended before the run did."""

MAX_EPOCHS = 10_000
"""How often a run may be given away: after that it fails. Nobody needs so many, and a record has to end somewhere."""

KEEP_RULES = ("epoch", "original", "furthest")
"""Which of two records is kept when peers without a common store meet: see core/run/merge.py."""


class Owner(NamedTuple):
    """A device in one of its lives: each start of a device is another session."""

    device: str
    session: str


class Grant(NamedTuple):
    """What an owner shows with everything it says."""

    run: str
    session: str
    epoch: int


class Assignment(NamedTuple):
    """One that has ended. ``reason`` is one of REASONS, ``detail`` says it in words."""

    device: str
    epoch: int
    assigned_at: float
    ended_at: float
    reason: str
    detail: str = ""


class Progress(NamedTuple):
    step: int
    total: int | None = None

    def __str__(self) -> str:
        return f"{self.step}/{self.total}" if self.total is not None else str(self.step)


class Superseded(NamedTuple):
    """A result that lost to another when two stores met: the run was completed in both of them."""

    device: str
    epoch: int
    ended_at: float
    output: Any = None


@dataclass(frozen=True)
class Run:
    """The record. Times are by the clock of the store.

    ``timeout`` is the workflow's: so long after the last heartbeat of its device the run is taken for lost. ``input``
    and ``output`` are JSON, or ``{"$blob": …, "size": …}`` if they are large and kept apart. ``avoid`` names the
    devices that are not asked again for now, ``declined`` what those among them said that declined. ``due_at`` is when
    an assignment or a claim runs out; work under way lasts as long as its device is heard of. ``waiting_since`` is
    when it began to wait for a device, or when it may begin to, if it is still backing off until ``not_before``.

    ``stop_request`` is what a person asks of its owner: to ``pause`` or to ``cancel``; ``stop_requested_by`` says who,
    and why ("ann: the disk is full"), and so does ``paused`` once it is ("by ann: the disk is full"). What concerns one
    assignment (``device``, ``assigned_at``, ``scores`` and so on) is that of the present one, or of the last one if the
    run ended in it.

    ``keep`` is one of KEEP_RULES, ``superseded`` has the results of other peers that lost to this one. In a record that
    was united with a peer's (core/run/merge.py) ``previous`` and ``story`` begin with what happened only there."""

    id: str
    workflow: str
    version: int
    created_at: float
    created_by: str
    input: Any = field(default_factory=lambda: NOTHING)
    key: str | None = None
    series: str | None = None
    priority: int = 0
    pinned: str | None = None
    retry_of: str | None = None
    keep: str = "epoch"
    timeout: float = 90.0

    revision: int = 1
    status: RunStatus = CREATED
    epoch: int = 0
    device: str | None = None
    session: str | None = None
    assigned_by: str | None = None
    assigned_at: float | None = None
    claimed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    due_at: float | None = None

    waiting_since: float | None = None
    not_before: float = 0.0
    held: bool = False
    paused: str | None = None
    stop_request: str | None = None
    stop_requested_by: str | None = None

    failures: int = 0
    losses: int = 0
    rounds: int = 0
    avoid: tuple[str, ...] = ()
    declined: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    previous: tuple[Assignment, ...] = ()
    scores: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    progress: Progress | None = None
    output: Any = None
    error: str | None = None
    cancelled: bool = False
    superseded: tuple[Superseded, ...] = ()
    story: tuple[Entry, ...] = ()

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    @property
    def offered(self) -> bool:
        """Whether a device may have it (once ``not_before`` has passed)."""
        return self.status in UNOWNED and self.paused is None and not self.held

    @property
    def reported_status(self) -> str:
        """The status as lists, JSON and ``why`` report it, one of REPORTED: what a person asked of the run says more
        than the state it is in."""
        if self.cancelled:
            return "cancelled"
        if self.stop_request is not None:
            return "cancelling" if self.stop_request == "cancel" else "pausing"
        return "paused" if self.paused is not None else str(self.status)

    @property
    def kind(self) -> str:
        """Which version of which workflow: devices judge by it what they can do."""
        return f"{self.workflow}@{self.version}"

    @property
    def grant(self) -> Grant | None:
        return Grant(self.id, self.session, self.epoch) if self.session is not None else None

    def recorded_time(self, now: float) -> float:
        """When a step of now is recorded to have happened: never before the last one."""
        return step_time(self.story[-1].at, now) if self.story else now

    def story_with(self, now: float, what: str, why: str) -> tuple[Entry, ...]:
        """The story with one more entry."""
        return (*self.story, Entry(self.recorded_time(now), what, None, why))

    def changed(self, **changes: Any) -> Run:
        """A copy with some fields replaced."""
        return self.with_changes(changes)

    def with_changes(self, changes: dict[str, Any]) -> Run:
        """The same. Through the dictionary: it happens with every write, and ``replace`` takes ten times as long."""
        new = object.__new__(Run)
        object.__setattr__(new, "__dict__", self.__dict__ | changes)
        return new


BLANK = Run("", "", 0, 0.0, "")
"""A run with nothing in it, to make others from."""

# Built field by field, a dictionary has room to grow. One of its own size makes every run that descends from it half as
# large.
object.__setattr__(BLANK, "__dict__", dict(BLANK.__dict__))


def state_diagram() -> str:
    """The machine as Mermaid text, made from the table so that the docs cannot drift from the code."""
    lines = ["stateDiagram-v2", "    [*] --> created"]
    lines += [f"    {old} --> {new}: {event}" for event, moves in TRANSITIONS.items() for old, new in moves.items()]
    lines += [f"    {status} --> [*]" for status in RunStatus if status in TERMINAL]
    return "\n".join(lines) + "\n"
