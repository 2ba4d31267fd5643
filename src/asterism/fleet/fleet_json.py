"""Runs, workflows and notices as JSON for programs, with stable field names, and the state of a device in a word.

Times are seconds since 1970 by the clock of the store, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from asterism.base.secret_mask import Mask, environment_mask, secret_names
from asterism.core.errors import InvalidWorkflow, NotJson
from asterism.core.json_values import plain_json
from asterism.core.run.outcomes import waiting_time, work_time
from asterism.core.run.run import ASSIGNED, CLAIMED, COMPLETED, FAILED, Progress, Run
from asterism.core.run.session import ENDED, REACHABLE_STATES, Session
from asterism.core.run.workflow import DEFAULTS, Workflow
from asterism.fleet.device.run_inputs import is_secret
from asterism.fleet.fleet import Fleet, reported_progress
from asterism.fleet.workflows import UnknownWorkflow
from asterism.store.protocol import Notice, ProgressReport

_PLAIN_FIELDS = (
    *("id", "workflow", "version", "created_at", "created_by", "key", "series", "priority", "pinned", "retry_of"),
    *(
        "heartbeat_timeout",
        "revision",
        "epoch",
        "device",
        "session",
        "assigned_by",
        "assigned_at",
        "claimed_at",
        "started_at",
    ),
    *("ended_at", "due_at", "waiting_since", "not_before", "held", "paused", "wish", "wished_by", "failures"),
    *("losses", "rounds", "error", "cancelled", "keep", "label"),
)
"""The fields of a run whose JSON is their value."""

_ATTRIBUTES = {"heartbeat_timeout": "timeout", "wish": "stop_request", "wished_by": "stop_requested_by"}
"""Fields whose attribute has another name."""


def run_json(
    run: Run, sessions: Mapping[str, Session], reports: Mapping[str, ProgressReport], mask: Mask
) -> dict[str, Any]:
    """``sessions`` are the sessions of the store by id, ``reports`` the progress reports by run, and ``mask`` the
    mask of the run from ``masks_of``."""
    owner = sessions.get(run.session) if run.session is not None else None
    return {
        **{name: getattr(run, _ATTRIBUTES.get(name, name)) for name in _PLAIN_FIELDS},
        "status": run.reported_status,
        "assigned_to": run.device,
        "last_heartbeat_at": owner.beat_at if owner is not None else None,
        "assignment_expires_at": run.due_at if run.status is ASSIGNED else None,
        "claim_expires_at": run.due_at if run.status is CLAIMED else None,
        "completed_at": run.ended_at if run.status is COMPLETED else None,
        "failed_at": run.ended_at if run.status is FAILED and not run.cancelled else None,
        "cancelled_at": run.ended_at if run.cancelled else None,
        "avoid": list(run.avoid),
        "declined": dict(run.declined),
        "previous_assignments": [one._asdict() for one in run.previous],
        "scores": dict(run.scores),
        "progress": _progress(reported_progress(run, reports)),
        "input": mask.data(plain_json(run.input)),
        "output": mask.result(plain_json(run.output)),
        "superseded": [{**one._asdict(), "output": mask.result(plain_json(one.output))} for one in run.superseded],
        "story": [{"at": entry.at, "what": entry.what, "why": entry.why} for entry in run.story],
        **({} if run.traceparent is None else {"traceparent": run.traceparent}),
    }


async def run_in(fleet: Fleet, run: Run) -> dict[str, Any]:
    """``run_json`` with everything else read from the store."""
    masks = await masks_of(fleet, [run])
    return run_json(run, await sessions_of(fleet), await fleet.store.reports([run.id]), masks[run.id])


async def masks_of(fleet: Fleet, runs: Iterable[Run]) -> dict[str, Mask]:
    """For each run, by id, the mask that hides the secrets that it and its workflow refer to."""
    masks = {}
    for run in runs:
        given = run.input.values() if isinstance(run.input, Mapping) else ()
        names = set(secret_names(list(filter(is_secret, given))))
        with suppress(UnknownWorkflow, InvalidWorkflow, NotJson):  # such as one of a later version
            flow = await fleet.workflows.get(run.workflow, run.version)
            names.update(secret_names([flow.env, flow.http]))
        masks[run.id] = environment_mask(names)
    return masks


async def sessions_of(fleet: Fleet) -> dict[str, Session]:
    """All sessions of the store, by id."""
    return {session.id: session for session in await fleet.store.sessions(ended=True)}


def took(run: Run) -> float | None:
    """How long the last execution of an ended run took, without its waiting time. None if it has not ended, or ended
    before it started."""
    return work_time(run)


def waited(run: Run) -> float | None:
    """How long an ended run waited for its last execution, without the time of earlier assignments. None if it has not
    ended."""
    return None if run.ended_at is None else waiting_time(run)


def _progress(progress: Progress | None) -> dict[str, int | None] | None:
    return None if progress is None else {"step": progress.step, "total": progress.total}


def notice_json(notice: Notice) -> dict[str, Any]:
    return {name: getattr(notice, name) for name in ("at", "kind", "message", "run", "device")}


def workflow_json(workflow: Workflow) -> dict[str, Any]:
    """All fields of a workflow, including defaults."""
    out: dict[str, Any] = {"name": workflow.name, "version": workflow.version}
    for name in DEFAULTS:
        value = getattr(workflow, name)
        out[name] = plain_json(sorted(value) if isinstance(value, frozenset) else value, f"{name} of {workflow.name!r}")
    return out


def state_of(session: Session, now: float) -> str:
    """The state of a device, in one word."""
    if session.state not in REACHABLE_STATES:
        return "left" if session.state == ENDED else session.state
    if not session.reachable(now):
        return "silent"
    if session.draining:
        return "draining"
    if session.resting is not None:
        return "resting"
    if session.slots == 0:
        return "watching"
    if session.suspended is not None:
        return "suspended"
    return "busy" if session.used >= session.slots else "ready"
