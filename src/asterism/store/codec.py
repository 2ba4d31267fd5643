"""Records as rows. What is searched for has a column of its own; the rest of a run is one JSON text, without what is
as it is by default."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asterism.core.run import Assignment, Progress, Run, RunStatus
from asterism.core.session import Session
from asterism.core.story import Entry
from asterism.core.task import NOTHING
from asterism.store.errors import StoreCorrupt
from asterism.store.protocol import Notice

FIXED = (
    "id",
    "workflow",
    "version",
    "created_at",
    "series",
    "key",
    "priority",
    "pinned",
    "timeout",
    "input",
)
"""The columns of a run that are written once."""

MOVING = (
    "revision",
    "status",
    "epoch",
    "device",
    "session",
    "wish",
    "avoid",
    "offered",
    "due_at",
    "not_before",
    "waiting_since",
    "ended_at",
    "state",
)
"""The columns that change."""

COLUMNS = FIXED + MOVING

_PLAIN_STATE: dict[str, Any] = {
    "created_by": "",
    "retry_of": None,
    "assigned_by": None,
    "assigned_at": None,
    "claimed_at": None,
    "started_at": None,
    "held": False,
    "paused": None,
    "wished_by": None,
    "failures": 0,
    "losses": 0,
    "rounds": 0,
    "output": None,
    "error": None,
    "cancelled": False,
}
"""The fields inside ``state`` that are JSON as they are, with their defaults."""

_DEFAULTS: dict[str, Any] = {
    **_PLAIN_STATE,
    "declined": NOTHING,
    "previous": (),
    "scores": NOTHING,
    "progress": None,
}
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_STATUSES = {str(status): status for status in RunStatus}


def to_text(value: Any) -> str:
    return _encode(value)


def moving(run: Run) -> tuple[Any, ...]:
    """The values of the columns that change, in the order of MOVING."""
    fields = run.__dict__
    state: dict[str, Any] = {}
    for name, default in _PLAIN_STATE.items():
        value = fields[name]
        if value != default:
            state[name] = value
    if run.declined:
        state["declined"] = dict(run.declined)
    if run.previous:
        state["previous"] = run.previous
    if run.scores:
        state["scores"] = dict(run.scores)
    if run.progress is not None:
        state["progress"] = run.progress
    state["story"] = [(at, what, why) for at, what, _, why in run.story]
    return (
        run.revision,
        run.status.value,
        run.epoch,
        run.device,
        run.session,
        run.wish,
        f"|{'|'.join(run.avoid)}|" if run.avoid else "",
        1 if run.offered else 0,
        run.due_at,
        run.not_before,
        run.waiting_since,
        run.ended_at,
        _encode(state),
    )


def fixed(run: Run) -> tuple[Any, ...]:
    """The values of the columns that are written once, in the order of FIXED."""
    return (
        run.id,
        run.workflow,
        run.version,
        run.created_at,
        run.series,
        run.key,
        run.priority,
        run.pinned,
        run.timeout,
        _encode(run.input if type(run.input) is dict else dict(run.input)),
    )


def run_of(row: Sequence[Any]) -> Run:
    """The run in a row whose columns are COLUMNS. Raises StoreCorrupt."""
    try:
        state = json.loads(row[22])
        run: Run = object.__new__(Run)
        fields = run.__dict__
        fields.update(_DEFAULTS)
        fields.update(state)
        (
            fields["id"],
            fields["workflow"],
            fields["version"],
            fields["created_at"],
            fields["series"],
            fields["key"],
            fields["priority"],
            fields["pinned"],
            fields["timeout"],
        ) = row[:9]
        fields["input"] = json.loads(row[9])
        fields["revision"] = row[10]
        fields["status"] = _STATUSES[row[11]]
        fields["epoch"], fields["device"], fields["session"], fields["wish"] = row[12:16]
        fields["avoid"] = tuple(row[16][1:-1].split("|")) if row[16] else ()
        fields["due_at"], fields["not_before"], fields["waiting_since"], fields["ended_at"] = row[18:22]
        fields["story"] = tuple(Entry(at, what, None, why) for at, what, why in state["story"])
        if "previous" in state:
            fields["previous"] = tuple(Assignment(*one) for one in state["previous"])
        if "progress" in state:
            fields["progress"] = Progress(*state["progress"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise StoreCorrupt(f"run {row[0] if row else '?'} cannot be read: {error!r}") from error
    return run


SESSION_COLUMNS = ("id", "device", "revision", "state", "draining", "beat_at", "profile", "terms")


def session_row(session: Session) -> tuple[Any, ...]:
    """In the order of SESSION_COLUMNS."""
    terms = {
        "joined_at": session.joined_at,
        "host": session.host,
        "can": sorted(session.can),
        "slots": session.slots,
        "backlog": session.backlog,
        "accepts": session.accepts,
        "timeout": session.timeout,
    }
    return (
        session.id,
        session.device,
        session.revision,
        session.state,
        1 if session.draining else 0,
        session.beat_at,
        _encode(dict(session.profile)),
        _encode(terms),
    )


def session_of(row: Sequence[Any], used: int = 0) -> Session:
    """The session in a row whose columns are SESSION_COLUMNS. Raises StoreCorrupt."""
    try:
        terms = json.loads(row[7])
        return Session(
            row[0],
            row[1],
            terms["joined_at"],
            terms["host"],
            frozenset(terms["can"]),
            terms["slots"],
            terms["backlog"],
            terms["accepts"],
            terms["timeout"],
            json.loads(row[6]),
            row[2],
            row[3],
            bool(row[4]),
            row[5],
            used,
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise StoreCorrupt(f"the session {row[0] if row else '?'} cannot be read: {error!r}") from error


def notice_to_json(notice: Notice) -> dict[str, Any]:
    return {name: getattr(notice, name) for name in ("at", "kind", "message", "run", "device")}


def notice_of(data: Mapping[str, Any]) -> Notice:
    return Notice(**data)
