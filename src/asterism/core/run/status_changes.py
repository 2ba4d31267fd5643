"""Helpers of transitions.py: compute the next record of a run.

transitions.py decides who may do a step. This module computes the next record.
"""

from __future__ import annotations

from typing import Any

from asterism.core.errors import RunRefused, truncate
from asterism.core.history import Entry
from asterism.core.plan.task import NOTHING
from asterism.core.run.run import MAX_EPOCHS, TERMINAL, TRANSITIONS, Assignment, Owner, Run


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
    if run.held:
        raise RunRefused(run.id, f"it is not its turn in series {run.series}: it cannot {what}", run.story)
    raise refused(run, what)


def change_status(run: Run, event: str, at: float, why: str, *then: Entry, **changes: Any) -> Run:
    """Change the status by the table. ``at`` is the time to record. Only this and ``grant_to`` change a status."""
    status = TRANSITIONS[event].get(run.status)
    if status is None:
        raise refused(run, event)
    changes["status"] = status
    changes["revision"] = run.revision + 1
    changes["story"] = (*run.story, Entry(at, str(status), None, why), *then)
    return run.with_changes(changes)


def grant_to(
    run: Run, events: tuple[str, ...], to: Owner, by: str, at: float, entries: tuple[Entry, ...], **changes: Any
) -> Run:
    """Grant a run to a session: the next epoch, with all the statuses that ``events`` lead through."""
    require_offered(run, "be assigned to a device")
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
        ended = Assignment(f"{run.device}", run.epoch, run.assigned_at or 0.0, at, reason, detail)
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
        device=None,
        assigned_by=None,
        assigned_at=None,
        claimed_at=None,
        started_at=None,
        scores=NOTHING,
        waiting_since=now + delay,
        not_before=now + delay,
        paused=paused,
        **end_assignment(run, at, reason, detail),
        **changes,
    )


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
        held=False,
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
    story = run.story_with(now, f"asked to {request}", f"by {by}")
    return run.changed(revision=run.revision + 1, stop_request=request, stop_requested_by=by, story=story)


def with_device_avoided(run: Run) -> tuple[str, ...]:
    """The devices to avoid, including the current one."""
    return run.avoid if run.device is None or run.device in run.avoid else (*run.avoid, run.device)
