"""The record of a run: an exclusive piece of work, its states, and its history of assignments.

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

With ``take`` a device assigns a run to itself and claims it in one step. "assigning to self" and "assigning to other"
are entries of the story, not states: they begin and end within one write. Pausing and requests to stop (cancel, pause)
are marks on a run, not states: they say who may assign it, and what its owner must do.

*Fencing.* Each assignment is a **grant**: the session of a device and an ``epoch``, which grows by one with every
assignment of the run. An owner shows its grant with every step, and any other grant is refused (Fenced). So a device
that slept and woke can neither extend, release nor complete a run that now belongs to another device.

*Ends are final.* A completed or failed run never changes again. A retry by hand is a new run that names the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from asterism.core.errors import RunRefused, truncate
from asterism.core.history import Entry, step_time
from asterism.core.json_values import NOTHING
from asterism.core.record import Record, replace
from asterism.core.run.work import Work


class RunStatus(StrEnum):
    __hash__ = str.__hash__  # faster than the hash of Enum, and used for every write

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
"""Event -> status before -> status after."""

TERMINAL = frozenset({COMPLETED, FAILED})
OWNED = frozenset({ASSIGNED, CLAIMED, PROCESSING})
"""The states in which a device owns the run."""
UNOWNED = frozenset({CREATED, REASSIGNING})
"""The states in which the run waits for a device."""

REPORTED_STATUSES: dict[str, frozenset[RunStatus]] = {
    **{str(status): frozenset({status}) for status in RunStatus},
    "paused": UNOWNED,
    "pausing": frozenset({CLAIMED, PROCESSING}),
    "cancelling": frozenset({CLAIMED, PROCESSING}),
    "cancelled": frozenset({FAILED}),
}
"""The values of ``Run.reported_status``, each with the states in which it occurs."""

REASONS = ("timeout", "declined", "failed", "released", "conflict", "preempted")
"""Why an assignment ended before the run did."""

MAX_EPOCHS = 10_000
"""How often a run may be assigned before it fails. It bounds the size of a record."""

RETRY_KEYS = "retry/"
"""The key of the retry of a run in a batch: this, and the id of that run. So a run is retried once, and the keys tell a
store which runs were retried."""


class Owner(NamedTuple):
    """A session of a device. Each start of a device is a new session."""

    device: str
    session: str


class Grant(NamedTuple):
    """The proof of ownership that an owner shows with every step."""

    run: str
    session: str
    epoch: int


class Assignment(NamedTuple):
    """An ended assignment. ``reason`` is one of REASONS, ``detail`` explains it. ``score`` is the score with which the
    device got the run; None if it is not known."""

    device: str
    epoch: int
    assigned_at: float
    ended_at: float
    reason: str
    detail: str = ""
    score: float | None = None


class Progress(NamedTuple):
    step: int
    total: int | None = None

    def __str__(self) -> str:
        return f"{self.step}/{self.total}" if self.total is not None else str(self.step)


class Superseded(NamedTuple):
    """A result that lost in a merge: the run was completed in both stores."""

    device: str
    epoch: int
    ended_at: float
    output: Any = None


class Run(Record, forbid_unknown_fields=True):
    """The record of a run. Times are those of the store's clock.

    ``work`` is what it executes, and its terms. ``workflow`` and ``version`` say where that came from: a workflow,
    or a plan that has it as a task.
    ``input`` and ``output`` are JSON, or ``{"$blob": …, "size": …}`` if they are large and kept apart. ``avoid`` names
    the devices that are not tried again in this round, ``declined`` the reasons of those that declined. ``due_at`` is
    when an assignment or a claim expires; work under way lasts as long as its device sends heartbeats.
    ``files`` is the manifest of the files that it has made (execution/artifacts.py).
    ``waiting_since`` is when it began to wait for a device; if it backs off until ``not_before``, it is that time.

    ``stop_request`` is what a person asks of the owner: ``pause`` or ``cancel``. ``stop_requested_by`` is who asked,
    and why ("ann: the disk is full"); ``paused`` has the same form once the run is paused ("by ann: the disk is
    full"). The fields of an assignment (``device``, ``assigned_at``, ``scores``, …) describe the current one, or the
    last one if the run ended in it.

    ``label`` is what people call the run (run_label.py), ``batch`` the name of the runs to which it belongs. ``keep``
    is one of KEEP_RULES (work.py). ``uses`` is what it uses of limits, as text (core/limits.py); ``admitted``, which is
    set just before a grant and never stored, says that these have room. ``superseded`` has the results that lost in a
    merge. ``traceparent`` names the span in which the run was created, if its creator traces (base/trace_context.py).
    In a merged record (merge.py), ``previous`` and ``story`` begin with what happened only in the other stores."""

    id: str
    workflow: str
    version: int
    created_at: float
    created_by: str
    work: Work
    input: Any = NOTHING
    key: str | None = None
    series: str | None = None
    priority: int = 0
    pinned: str | None = None
    retry_of: str | None = None
    keep: str = "epoch"
    label: str | None = None
    batch: str | None = None
    traceparent: str | None = None
    uses: str | None = None

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
    admitted: bool = False
    paused: str | None = None
    stop_request: str | None = None
    stop_requested_by: str | None = None

    failures: int = 0
    losses: int = 0
    rounds: int = 0
    avoid: tuple[str, ...] = ()
    declined: Mapping[str, str] = NOTHING
    previous: tuple[Assignment, ...] = ()
    scores: Mapping[str, float] = NOTHING
    progress: Progress | None = None
    output: Any = None
    files: str | None = None
    error: str | None = None
    cancelled: bool = False
    superseded: tuple[Superseded, ...] = ()
    story: tuple[Entry, ...] = ()

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    @property
    def offered(self) -> bool:
        """Whether a device may take it, once ``not_before`` has passed."""
        return self.status in UNOWNED and self.paused is None

    @property
    def awaits_turn(self) -> bool:
        """Whether it waits in its series; it may be the next one."""
        return self.series is not None and self.offered

    @property
    def given_up(self) -> bool:
        """Whether it failed while it waited for a device: none could take it, or all declined."""
        return self.status is FAILED and self.device is None and not self.cancelled

    @property
    def reported_status(self) -> str:
        """The status that lists, JSON and ``why`` show, one of REPORTED_STATUSES: a request of a person comes before
        the state."""
        if self.cancelled:
            return "cancelled"
        if self.stop_request is not None:
            return "cancelling" if self.stop_request == "cancel" else "pausing"
        return "paused" if self.paused is not None else str(self.status)

    @property
    def timeout(self) -> float:
        """The run counts as lost so many seconds after the last heartbeat of its device."""
        return self.work.heartbeat_timeout

    @property
    def kind(self) -> str:
        """Where its work came from, and which it is: by this, devices decide what they can execute."""
        return f"{self.workflow}@{self.work.digest}"

    @property
    def grant(self) -> Grant | None:
        return Grant(self.id, self.session, self.epoch) if self.session is not None else None

    def recorded_time(self, now: float) -> float:
        """The time to record for a step at ``now``: never before the last step."""
        last = self.story[-1].at if self.story else now
        return now if last <= now else step_time(last, now)

    def story_with(self, now: float, what: str, why: str) -> tuple[Entry, ...]:
        """The story with one more entry."""
        return (*self.story, Entry(self.recorded_time(now), what, None, why))

    def changed(self, **changes: Any) -> Run:
        """A copy with some fields replaced."""
        return self.with_changes(changes)

    def with_changes(self, changes: dict[str, Any]) -> Run:
        """As ``changed``."""
        return replace(self, **changes)


def queue_order(run: Run) -> tuple[int, float, str]:
    """Sort key of runs that wait: the most urgent first, then the oldest."""
    return (-run.priority, run.created_at, run.id)


def state_diagram() -> str:
    """The transitions of a run as a Mermaid diagram for the docs, made from the table."""
    lines = ["stateDiagram-v2", "    [*] --> created"]
    lines += [f"    {old} --> {new}: {event}" for event, moves in TRANSITIONS.items() for old, new in moves.items()]
    lines += [f"    {status} --> [*]" for status in RunStatus if status in TERMINAL]
    return "\n".join(lines) + "\n"


# -- the next record: transitions.py decides who may do a step, these compute its result -------------------------------


def refused(run: Run, what: str) -> RunRefused:
    """The error for a step that the state of a run does not allow."""
    if run.status in TERMINAL:
        why = f"it is {run.reported_status}, which is final: it cannot {what}"
        return RunRefused(run.id, why, run.story)
    return RunRefused(run.id, f"it is {run.status}: it cannot {what}", run.story)


def require_offered(run: Run, what: str) -> None:
    """Raise RunRefused unless a device may take the run."""
    if run.offered:
        return
    if run.paused is not None:
        raise RunRefused(run.id, f"it is paused {run.paused}: it cannot {what}", run.story)
    raise refused(run, what)


def require_admitted(run: Run, what: str) -> None:
    """Raise RunRefused if the run uses limits and these have not admitted it."""
    if run.uses is not None and not run.admitted:
        raise RunRefused(run.id, f"it waits for its limits: it cannot {what}", run.story)


def change_status(run: Run, event: str, at: float, why: str, *then: Entry, **changes: Any) -> Run:
    """Change the status by the table. ``at`` is the time to record. Only this and ``grant_to`` change a status."""
    status = TRANSITIONS[event].get(run.status)
    if status is None:
        raise refused(run, event)
    changes["status"] = status
    changes["revision"] = run.revision + 1
    changes["story"] = (*run.story, Entry(at, str(status), None, why), *then)
    return run.with_changes(changes)


def note(run: Run, now: float, what: str, why: str, **changes: Any) -> Run:
    """Change marks of a run, with an entry in its story. Its status stays."""
    return run.changed(revision=run.revision + 1, story=run.story_with(now, what, why), **changes)


def grant_to(
    run: Run, events: tuple[str, ...], to: Owner, by: str, at: float, entries: tuple[Entry, ...], **changes: Any
) -> Run:
    """Grant a run to a session: the next epoch, with all the statuses that ``events`` lead through."""
    if not run.offered:
        require_offered(run, "be assigned to a device")
    if run.uses is not None:
        require_admitted(run, f"be assigned to {to.device}")
        changes["admitted"] = False
    if run.pinned is not None and run.pinned != to.device:
        raise refused(run, f"be assigned to {to.device}: it is pinned to {run.pinned}")
    status = run.status
    for event in events:
        status = TRANSITIONS[event][status]
    changes["status"] = status
    changes["revision"] = run.revision + 1
    changes["epoch"] = run.epoch + 1
    changes["device"], changes["session"] = to
    changes["assigned_by"], changes["assigned_at"] = by, at
    changes["waiting_since"] = None
    changes["story"] = run.story + entries
    return run.with_changes(changes)


def end_assignment(run: Run, at: float, reason: str, detail: str) -> dict[str, Any]:
    """The fields that change when an assignment ends before the run is completed."""
    changes: dict[str, Any] = {"session": None, "due_at": None, "stop_request": None, "stop_requested_by": None}
    if run.session is not None:
        device = f"{run.device}"
        score = run.scores.get(device)
        ended = Assignment(device, run.epoch, run.assigned_at or 0.0, at, reason, detail, score)
        changes["previous"] = (*run.previous, ended)
    return changes


def reassign(
    run: Run, now: float, reason: str, detail: str, delay: float = 0.0, *, paused: str | None = None, **changes: Any
) -> Run:
    """Return a run to the queue, so that it can be assigned again after ``delay`` seconds."""
    detail = truncate(detail)
    if run.epoch >= MAX_EPOCHS:
        error = f"assigned {run.epoch} times, the last one ended: {reason}{': ' if detail else ''}{detail}"
        return mark_failed(run, now, error, reason, **changes)
    if run.stop_request == "pause":
        paused = f"by {run.stop_requested_by}"
    at = run.recorded_time(now)
    then = (Entry(at, "paused", None, paused),) if paused is not None else ()
    return change_status(
        run,
        "reassign",
        at,
        f"{reason}: {detail}" if detail else reason,
        *then,
        waiting_since=now + delay,
        not_before=now + delay,
        paused=paused,
        **_NO_ASSIGNMENT,
        **end_assignment(run, at, reason, detail),
        **changes,
    )


_NO_ASSIGNMENT: Mapping[str, Any] = {
    **dict.fromkeys(("device", "assigned_by", "assigned_at", "claimed_at", "started_at")),
    "scores": NOTHING,
}
"""The fields of an assignment in a run that waits for the next one."""


def mark_failed(run: Run, now: float, error: str, reason: str = "failed", **changes: Any) -> Run:
    """End a run as failed."""
    error, at = truncate(error), run.recorded_time(now)
    return change_status(
        run,
        "fail",
        at,
        error,
        error=error,
        ended_at=at,
        waiting_since=None,
        paused=None,
        **end_assignment(run, at, reason, error),
        **changes,
    )


def mark_cancelled(run: Run, now: float, by: str | None, reason: str, detail: str) -> Run:
    """End a run as cancelled: failed, with the mark ``cancelled``."""
    error = f"cancelled by {by} ({detail})" if detail else f"cancelled by {by}"
    return mark_failed(run, now, error, reason, cancelled=True)


def request_stop(run: Run, request: str, now: float, by: str) -> Run:
    """Ask the owner to ``pause`` or ``cancel``."""
    return note(run, now, f"asked to {request}", f"by {by}", stop_request=request, stop_requested_by=by)


def with_device_avoided(run: Run) -> tuple[str, ...]:
    """The devices to avoid, including the current one."""
    return run.avoid if run.device is None or run.device in run.avoid else (*run.avoid, run.device)
