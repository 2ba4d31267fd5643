"""Validation of a record from a peer: types, sizes, and whether its fields are consistent.

A valid record need not be true. But every function of transitions.py and merge.py works on it, and it fits into every
store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from asterism.core.history import Entry
from asterism.core.limits import uses_of
from asterism.core.plan.task_files import is_content_name
from asterism.core.run.merge import own_story
from asterism.core.run.run import (
    CLAIMED,
    COMPLETED,
    CREATED,
    FAILED,
    MAX_EPOCHS,
    OWNED,
    PROCESSING,
    REASONS,
    REASSIGNING,
    Assignment,
    Progress,
    Run,
    RunStatus,
    Superseded,
)
from asterism.core.run.work import KEEP_RULES, Work

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

MAX_ENTRIES = 10_000
"""The longest story, list of assignments, and so on."""

MAX_NUMBER = 1 << 53
"""The bound of whole numbers: exact in every language, and fits into every column."""

LONGEST_NAME = 500
LONGEST_TEXT = 100_000


def problems_in(run: Run) -> list[str]:
    """All problems of a record; empty if it is valid."""
    invalid = [f"{name} cannot be {_short(value)}" for name, value in _fields(run)]
    return invalid or list(_contradictions(run))


# -- single fields -----------------------------------------------------------------------------------------------------


def _fields(run: Run) -> Iterator[tuple[str, Any]]:
    """The fields with an invalid value."""
    for name, valid in _FIELD_CHECKS.items():
        if not valid(getattr(run, name)):
            yield name, getattr(run, name)


def _name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def _id(value: Any) -> bool:
    return _name(value) and len(value) <= 200 and " " not in value


def _text(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        return False
    return "\0" not in value and (value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value))


def _time(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER and isfinite(value)
    )


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ENTRIES


def _optional(valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or valid(value)


def _many(valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and len(value) <= MAX_ENTRIES and all(map(valid, value))


def _mapping(valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def problems_in(value: Any) -> bool:
        if not isinstance(value, Mapping) or len(value) > MAX_ENTRIES:
            return False
        return all(_name(name) and valid(item) for name, item in value.items())

    return problems_in


def _part(kind: type, **checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """The check of a part of a record, by its fields."""
    return lambda part: isinstance(part, kind) and all(valid(getattr(part, name)) for name, valid in checks.items())


def _content_name(value: Any) -> bool:
    return isinstance(value, str) and is_content_name(value)


def _traceparent(value: Any) -> bool:
    """It becomes a variable of a process and a header of a request here."""
    return isinstance(value, str) and _TRACEPARENT.fullmatch(value) is not None


def _uses(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(uses_of(value))
    except ValueError:  # also of an InvalidLimit
        return False


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_NUMBER


_assignment = _part(
    Assignment,
    device=_name,
    epoch=_count,
    assigned_at=_time,
    ended_at=_time,
    reason=lambda reason: reason in REASONS,
    detail=_text,
    score=_optional(_time),
)

_FIELD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "id": _id,
    "workflow": _name,
    "version": _number,
    "work": lambda value: isinstance(value, Work),
    "created_at": _time,
    "created_by": _text,
    "input": lambda value: isinstance(value, Mapping),
    "key": _optional(_name),
    "series": _optional(_name),
    "priority": lambda value: type(value) is int and abs(value) <= 1_000_000,
    "pinned": _optional(_name),
    "retry_of": _optional(_id),
    "keep": lambda value: value in KEEP_RULES,
    "label": _optional(_name),
    "traceparent": _optional(_traceparent),
    "uses": _optional(_uses),
    "revision": lambda value: _number(value) and value > 0,
    "status": lambda value: isinstance(value, RunStatus),
    "epoch": _count,
    "device": _optional(lambda value: _name(value) and "|" not in value),
    "session": _optional(_id),
    "assigned_by": _optional(_text),
    **dict.fromkeys(
        ("assigned_at", "claimed_at", "started_at", "ended_at", "due_at", "waiting_since"), _optional(_time)
    ),
    "not_before": _time,
    "admitted": lambda value: value is False,
    "paused": _optional(_text),
    "stop_request": lambda value: value in (None, "pause", "cancel"),
    "stop_requested_by": _optional(_text),
    "failures": _count,
    "losses": _count,
    "rounds": _count,
    "avoid": _many(lambda value: _name(value) and "|" not in value),
    "declined": _mapping(_text),
    "previous": _many(_assignment),
    "scores": _mapping(_time),
    "progress": _optional(_part(Progress, step=_number, total=_optional(_number))),
    "output": lambda value: True,
    "files": _optional(_content_name),
    "error": _optional(_text),
    "cancelled": lambda value: isinstance(value, bool),
    "superseded": _many(_part(Superseded, device=_name, epoch=_count, ended_at=_time)),
    "story": _many(_part(Entry, at=_time, what=_text, task=lambda task: task is None, why=_text)),
}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


# -- consistency -------------------------------------------------------------------------------------------------------


def _contradictions(run: Run) -> Iterator[str]:
    status, owned = run.status, run.status in OWNED
    if (run.session is not None) != owned:
        yield f"it is {status} and owned by session {run.session}"
    if (run.ended_at is not None) != run.ended:
        yield f"it is {status} and ended at {run.ended_at}"
    if (owned or status is COMPLETED) and (run.device is None or run.assigned_at is None):
        yield f"it is {status}, of device {run.device}, assigned at {run.assigned_at}"
    if status in (CREATED, REASSIGNING) and (run.device, run.assigned_at) != (None, None):
        yield f"it is {status} and names the device {run.device}"
    if (run.epoch == 0) != (status is CREATED) and not (status is FAILED and run.epoch == 0):
        yield f"it is {status} in epoch {run.epoch}"
    if status is REASSIGNING and run.epoch >= MAX_EPOCHS:
        yield f"it is to be assigned again after epoch {run.epoch}"
    if status in (CLAIMED, PROCESSING) and run.claimed_at is None:
        yield f"it is {status} and was never claimed"
    if status is PROCESSING and run.started_at is None:
        yield "it is being processed and never began"
    if (run.error is not None) != (status is FAILED) or (run.cancelled and status is not FAILED):
        yield f"it is {status}, with error {_short(run.error)}, and was {'' if run.cancelled else 'not '}cancelled"
    if run.output is not None and status is not COMPLETED:
        yield f"it is {status} and has a result"
    if run.files is not None and (status not in (COMPLETED, FAILED) or run.cancelled):
        yield f"it is {status} and has files"
    if run.stop_request is not None and status not in (CLAIMED, PROCESSING):
        yield f"it is {status}, and its owner is asked to {run.stop_request}"
    if run.paused is not None and (owned or run.ended):
        yield f"it is {status}, and is paused"
    yield from _history(run)


def _history(run: Run) -> Iterator[str]:
    count = run.epoch - (run.status in OWNED or run.status is COMPLETED)
    own = run.previous[max(0, len(run.previous) - count) :] if count else ()
    epochs = [assignment.epoch for assignment in own]
    if epochs != list(range(1, count + 1)):
        yield f"its {count} ended assignments have the epochs {_short(epochs)}"
    if not run.story or own_story(run)[0].what != "created":
        yield "its story does not begin with its creation"
