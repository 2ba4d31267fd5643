"""Row codec: runs, sessions and notices as rows of a table, and back.

A field that queries search for has a column of its own. The rest of a run is one JSON text, ``state``, which leaves out
fields with default values.

Every write passes here, so this is written for speed: each part of a run is encoded once. A story only grows, and its
text is remembered with the record (``_told``), so that the next record encodes only the new entries.

JSON as stores write it is compact, in ASCII, without NaN, by an encoder that is made once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from asterism.core.errors import AsterismError
from asterism.core.history import Entry
from asterism.core.json_values import NOTHING
from asterism.core.limits import LimitedRuns, uses_of
from asterism.core.run.run import BLANK, UNOWNED, Assignment, Progress, Run, RunStatus, Superseded
from asterism.core.run.session import Session
from asterism.store.protocol import BatchPart, Notice, PlanRow, Register, StoredChunk
from asterism.store.store_errors import CorruptRecord

log = logging.getLogger("asterism.store")

Decoded = TypeVar("Decoded")


def _refuse(value: object) -> Any:
    raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")


def _encoder() -> Callable[[Any], str]:
    """Return an encoder that is made once; ``JSONEncoder.encode`` makes one for every call. Without the C accelerator
    of the standard library there is only that."""
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    chunks = make(None, _refuse, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
    join = "".join

    def encode(value: Any) -> str:
        return join(chunks(value, 0))

    return encode


to_text = _encoder()
"""Encodes a JSON value. Raises TypeError or ValueError for a value that is not JSON."""

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def from_text(text: str) -> Any:
    """Decode what ``to_text`` wrote. Raises ValueError for anything else."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError(f"not JSON: {text[:40]!r}") from None
    except RecursionError:
        raise ValueError(f"nested too deep: {text[:40]!r}") from None
    if end != len(text):
        raise ValueError(f"more than one JSON value: {text[:40]!r}")
    return value


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
    "label",
    "batch",
    "uses",
    "input",
)
"""The columns of a run that are written once."""

MOVING = (
    "revision",
    "status",
    "epoch",
    "device",
    "session",
    "stop_request",
    "avoid",
    "offered",
    "due_at",
    "not_before",
    "waiting_since",
    "ended_at",
    "state",
)
"""The columns that change."""

OFFERED_TO_ALL, LIMITED = 1, 2
"""The values of ``offered`` for a run that any device may take, and for one that its limits have to admit first."""

COLUMNS = (*FIXED, *MOVING)
"""All columns."""

_TIMES = ("assigned_at", "claimed_at", "started_at")
_TEXTS = ("retry_of", "paused", "stop_requested_by", "files", "error", "traceparent")
"""Fields inside ``state`` whose default is None, besides ``assigned_by``, ``output`` and ``progress`` …"""

_EMPTY: dict[str, Any] = {"held": False, "failures": 0, "losses": 0, "rounds": 0, "cancelled": False, "previous": ()}
"""… those with another empty default …"""

_MAPPINGS = ("declined",)
"""… and those that are mappings, of any type. ``scores`` is one, too, and most runs have some."""

_RARE: dict[str, Any] = {
    **dict.fromkeys((*_TEXTS, "progress")),
    **_EMPTY,
    **dict.fromkeys(_MAPPINGS, NOTHING),
    "keep": "epoch",
    "superseded": (),
}
"""Fields that have their default in most runs, which one comparison shows: ``_rare(fields) == _COMMON``."""

_written_once = itemgetter(*FIXED[:-1])
"""All columns that are written once but the last, which is the input."""

_grant = itemgetter("created_by", "assigned_by", *_TIMES)
_rare = itemgetter(*_RARE)
_beside_output = itemgetter("story", "created_by", "assigned_by", *_TIMES, "scores", *_RARE)
"""All that is in ``state`` but the output."""


class _Memo:
    """A cache of one entry each, for runs that are written or read together. An entry is replaced as a whole, so
    threads may share it.

    ``written`` is what ``_state`` has written last: its key, the text before and after the output, and the text of the
    story. ``created`` is the last ``state`` of a new run that ``_state_fields`` has read."""

    __slots__ = ("created", "written")

    def __init__(self) -> None:
        self.written: tuple[tuple[Any, ...], str, str, Any] = ((), "", "", None)
        self.created: tuple[str, dict[str, Any]] = ("", {})


_memo = _Memo()

_COMMON = tuple(_RARE.values())
_blank = BLANK.__dict__.copy
"""Makes the fields of a run with default values, to be filled from a row."""

_STATUSES = {str(status): status for status in RunStatus}
_STORY = '"story":['
_NO_STORY_TEXT: tuple[tuple[Entry, ...], str] = ((), "")
_quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii
_make_entry = tuple.__new__  # the same as Entry(…), without the cost of its constructor
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def searched(text: str) -> tuple[str, str]:
    """Return a text to search for, in small letters: as it is, and as it is written inside JSON."""
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate is in no stored text
    return lower(text), lower(to_text(text)[1:-1])


def lower(text: str) -> str:
    """Return a text with small letters for the capital ones of ASCII, as both engines do it."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def like_pattern(glob: str) -> str:
    """Return a glob as the pattern of LIKE with the escape character ``\\``, in small letters."""
    escaped = "".join(f"\\{letter}" if letter in "\\%_" else letter for letter in lower(glob))
    return escaped.replace("*", "%").replace("?", "_")


def plan_columns(head: Any) -> tuple[float, str | None, str | None, bool, str | None, str]:
    """Return what lists of plans are filtered by: the time of creation, state, owner, whether it is being cancelled,
    file and tags (as JSON). The head may be anything: a later version may have written it."""
    values = head if isinstance(head, Mapping) else {}
    created_at, tags = values.get("created_at"), values.get("tags")
    texts = [value if isinstance(value := values.get(name), str) else None for name in ("state", "owner", "file")]
    return (
        float(created_at) if isinstance(created_at, int | float) else 0.0,
        texts[0],
        texts[1],
        values.get("cancelling") is True,
        texts[2],
        to_text(tags if isinstance(tags, list) else []),
    )


def plan_of(row: Sequence[Any]) -> PlanRow:
    """Return a plan from a row of a list. Raises CorruptRecord."""
    name, created_at, *texts = row
    try:
        plan = PlanRow(name, created_at, *[None if text is None else from_text(text) for text in texts])
        for kind in ("cancel", "paused", "budget"):
            if (value := getattr(plan, kind)) is not None:
                _check_form(kind, value)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"the summary of plan {name} cannot be read: {error}") from error
    return plan


# -- runs --------------------------------------------------------------------------------------------------------------


def moving(run: Run) -> tuple[Any, ...]:
    """Return the values of the columns that change, in the order of MOVING."""
    return (
        run.revision,
        run.status._value_,
        run.epoch,
        run.device,
        run.session,
        run.stop_request,
        _avoided(run.avoid) if run.avoid else "",
        offer_of(run) if run.status in UNOWNED else 0,
        run.due_at,
        run.not_before,
        run.waiting_since,
        run.ended_at,
        _state(run.__dict__),
    )


def offer_of(run: Run) -> int:
    """Return whether a run is in the queue: 0 if not, else OFFERED_TO_ALL or LIMITED."""
    if not run.offered:
        return 0
    return OFFERED_TO_ALL if run.uses is None else LIMITED


def _state(fields: dict[str, Any]) -> str:
    """Return the fields without a column of their own as JSON, with the story at the end. Runs that a device takes
    together differ at most in their output, so what the last one had is remembered."""
    key, head, rest, told = _memo.written
    same = _beside_output(fields)
    if same == key:
        fields["_told"] = told
    else:
        head, rest = _head(*_grant(fields)), ""
        if scores := fields["scores"]:
            rest = f",{_scores_text(scores)}"
        if _rare(fields) != _COMMON and (more := _uncommon(fields)):
            rest = f"{rest},{more}"
        rest = f"{rest},{_STORY}{_story_text(fields)}]}}"
        if "_told" in fields:
            _memo.written = (same, head, rest, fields["_told"])
    value = fields["output"]
    return f"{head}{rest}" if value is None else f'{head},"output":{to_text(value)}{rest}'


@lru_cache(1024)
def _head(created_by: str, assigned_by: str | None, *times: float | None) -> str:
    """Return the beginning of ``state``: creator, assigner and times. It is the same in all records of one assignment,
    and in all runs that a device takes at one time."""
    text = f'{{"created_by":{_quoted(created_by)}'
    for name, value in zip(_TIMES, times, strict=True):
        if value is not None:
            text = f'{text},"{name}":{_number(value)}'
    return text if assigned_by is None else f'{text},"assigned_by":{_quoted(assigned_by)}'


def _uncommon(fields: dict[str, Any]) -> str:
    parts = [f'"{name}":{_quoted(value)}' for name in _TEXTS if (value := fields[name]) is not None]
    if (value := fields["progress"]) is not None:
        parts.append(f'"progress":{to_text(value)}')
    for name in _EMPTY:
        if value := fields[name]:
            parts.append(f'"{name}":{to_text(value)}')
    for name in _MAPPINGS:
        if value := fields[name]:
            parts.append(f'"{name}":{to_text(dict(value))}')
    if fields["superseded"] or fields["keep"] != "epoch":
        parts.append(f'"keep":{_quoted(fields["keep"])},"superseded":{to_text(fields["superseded"])}')
    return ",".join(parts)


def _scores_text(scores: Mapping[str, float]) -> str:
    if len(scores) == 1:
        [(device, score)] = scores.items()
        return _own_score_text(device, score)
    return f'"scores":{to_text(dict(scores))}'


@lru_cache(1024)
def _own_score_text(device: str, score: float) -> str:
    """The score of a device that took a run itself. Many of its runs have the same one."""
    return f'"scores":{{{_quoted(device)}:{_number(score)}}}'


def _story_text(fields: dict[str, Any]) -> str:
    """Return the entries of the story as JSON. The text of the first ones is remembered."""
    story = fields["story"]
    before: tuple[Entry, ...]
    text: str
    before, text = fields.get("_told", _NO_STORY_TEXT)
    known = len(before)
    new = story[known:]
    if story[:known] != before:
        new, text = story, ""
    if new:
        more = _entry(new[0]) if len(new) == 1 else _entries(new)
        text = f"{text},{more}" if text else more
        fields["_told"] = (story, text)
    return text


@lru_cache(64)
def _entries(several: tuple[Entry, ...]) -> str:
    """Entries as JSON. A device adds the same entries to all runs that it takes at one time."""
    return ",".join(map(_entry, several))


def _entry(entry: Entry) -> str:
    at, what, _, why = entry
    return f"[{_number(at)},{_quoted(what)},{_quoted(why)}]"


@lru_cache(1024)
def _number(value: float) -> str:
    """A number as JSON. Cached, since everything in one step has the same time, and the shortest text is slow to
    find."""
    return repr(value) if type(value) is float and isfinite(value) else to_text(value)


def _avoided(names: tuple[str, ...]) -> str:
    """Names between bars, so that a search for ``|name|`` finds exactly that name."""
    text = f"|{'|'.join(names)}|"
    if text.count("|") != len(names) + 1:
        raise ValueError(f"the name of a device must not contain '|': {', '.join(names)}")
    return text


def fixed(run: Run) -> tuple[Any, ...]:
    """Return the values of the columns that are written once, in the order of FIXED."""
    return (*_written_once(run.__dict__), _input_text(run))


def _input_text(run: Run) -> str:
    return to_text(run.input if type(run.input) is dict else dict(run.input))


def row_of(run: Run) -> tuple[Any, ...]:
    """Return the values of all columns, in the order of COLUMNS."""
    return (*fixed(run), *moving(run))


def batch_range(name: str | None) -> tuple[str, str]:
    """Return the first and the last of the names that batches are read of: one, or all."""
    return ("", "\U0010ffff") if name is None else (name, name)


def batch_parts(rows: Sequence[Sequence[Any]]) -> list[BatchPart]:
    """Return parts of batches from their rows. Raises CorruptRecord."""
    try:
        return [
            BatchPart(batch, _STATUSES[status], bool(cancelled), *numbers)
            for batch, status, cancelled, *numbers in rows
        ]
    except KeyError as error:
        raise CorruptRecord(f"a run has an unknown status: {error}") from error


_WHOLE: set[type] = {int}
_NUMBER: set[type] = {int, float}
_TEXT: set[type] = {str}
_TYPES: dict[str, set[type]] = {
    "id": _TEXT,
    "workflow": _TEXT,
    "version": _WHOLE,
    "created_at": _NUMBER,
    "priority": _WHOLE,
    "timeout": _NUMBER,
    "input": _TEXT,
    "revision": _WHOLE,
    "status": _TEXT,
    "epoch": _WHOLE,
    "avoid": _TEXT,
    "offered": _WHOLE | {bool},
    "due_at": _NUMBER | {type(None)},
    "not_before": _NUMBER,
    "waiting_since": _NUMBER | {type(None)},
    "ended_at": _NUMBER | {type(None)},
    "state": _TEXT,
}
"""The types of columns; those of all others are text or nothing. SQLite stores any type in any column."""

_COLUMN_TYPES = tuple(_TYPES.get(name, _TEXT | {type(None)}) for name in COLUMNS)


@lru_cache(maxsize=256)
def _mistyped(types: tuple[type, ...]) -> str | None:
    """The first column whose value has another type than it may have. Most rows have one of a few combinations."""
    for name, allowed, actual in zip(COLUMNS, _COLUMN_TYPES, types, strict=True):
        if actual not in allowed:
            return f"{name} is of type {actual.__name__}"
    return None


def run_of(row: Sequence[Any]) -> Run:
    """Return the run in a row with the columns COLUMNS, or in a record. Raises CorruptRecord."""
    try:
        if (mistake := _mistyped(tuple(map(type, row)))) is not None:
            raise TypeError(mistake)
        fields = _blank()
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
            fields["label"],
            fields["batch"],
            fields["uses"],
            input_text,
            fields["revision"],
            status,
            fields["epoch"],
            fields["device"],
            fields["session"],
            fields["stop_request"],
            avoid,
            _,
            fields["due_at"],
            fields["not_before"],
            fields["waiting_since"],
            fields["ended_at"],
            text,
        ) = row
        fields.update(_state_fields(text))
        fields["input"] = from_text(input_text)
        if type(fields["input"]) is not dict:
            raise TypeError("its input is not an object")
        fields["status"] = _STATUSES[status]
        if avoid:
            fields["avoid"] = tuple(avoid[1:-1].split("|"))
        if fields["uses"] is not None and not uses_of(fields["uses"]):
            raise TypeError("its uses are not the amounts of limits")
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptRecord(f"run {row[0] if row else '?'} cannot be read: {error!r}") from error
    run: Run = object.__new__(Run)
    object.__setattr__(run, "__dict__", fields)
    return run


_ANY_TEXT = _TEXT | {type(None)}
_STATE_TYPES: dict[str, set[type]] = {
    "story": {list},
    "created_by": _TEXT,
    "assigned_by": _ANY_TEXT,
    **dict.fromkeys(_TIMES, _NUMBER | {type(None)}),
    **dict.fromkeys(_TEXTS, _ANY_TEXT),
    "output": {dict, list, str, int, float, bool, type(None)},
    "progress": {list, type(None)},
    "held": {bool},
    "cancelled": {bool},
    "admitted": {bool},
    **dict.fromkeys(("failures", "losses", "rounds"), _WHOLE),
    "previous": {list},
    "superseded": {list},
    "declined": {dict},
    "scores": {dict},
    "keep": _TEXT,
}
"""The types of the fields in ``state``."""


def _object(value: Any, types: Mapping[str, set[type]]) -> dict[str, Any]:
    """A JSON value that is an object whose fields have these types. Raises TypeError."""
    if type(value) is not dict:
        raise TypeError(f"it is not an object but a {type(value).__name__}")
    for name, field_value in value.items():
        if type(field_value) not in types.get(name, ()):
            raise TypeError(f"{name} is of type {type(field_value).__name__}")
    return value


def _state_fields(text: str) -> dict[str, Any]:
    """Return the fields in a ``state``, for one run or several: nobody may change the dictionary."""
    known, known_fields = _memo.created
    if text == known:
        return known_fields
    fields: dict[str, Any] = _object(from_text(text), _STATE_TYPES)
    start = text.rfind(_STORY)
    as_written = start >= 0 and next(reversed(fields)) == "story"  # not reordered by a database
    story = tuple([_make_entry(Entry, (at, what, None, why)) for at, what, why in fields["story"]])
    fields["story"] = story
    if "previous" in fields:
        fields["previous"] = tuple([Assignment(*values) for values in fields["previous"]])
    if "progress" in fields:
        fields["progress"] = Progress(*fields["progress"])
    if "superseded" in fields:
        fields["superseded"] = tuple([Superseded(*values) for values in fields["superseded"]])
    new = len(fields) == 2  # creator and story: the same in all runs that were created together, and nothing mutable
    if as_written:
        fields["_told"] = (story, text[start + len(_STORY) : -2])
    if new:
        _memo.created = (text, fields)
    return fields


# -- sessions and notices ----------------------------------------------------------------------------------------------

SESSION_COLUMNS = ("id", "device", "revision", "state", "draining", "beat_at", "profile", "terms")
_SESSION_TYPES = (_TEXT, _TEXT, _WHOLE, _TEXT, _WHOLE | {bool}, _NUMBER, _TEXT, _TEXT)
_TERMS = ("joined_at", "host", "can", "slots", "backlog", "accepts", "timeout")
"""The fields of a session that are in ``terms``, as JSON."""
_TERM_TYPES: dict[str, set[type]] = {
    "joined_at": _NUMBER,
    "host": _TEXT,
    "can": {list},
    "slots": _WHOLE,
    "backlog": _WHOLE,
    "accepts": _TEXT | {type(None)},
    "timeout": _NUMBER,
}


def session_row(session: Session) -> tuple[Any, ...]:
    """Return the values of the columns, in the order of SESSION_COLUMNS."""
    session_terms = {name: getattr(session, name) for name in _TERMS}
    texts = to_text(dict(session.profile)), to_text({**session_terms, "can": sorted(session.can)})
    return session.id, session.device, session.revision, session.state, int(session.draining), session.beat_at, *texts


def session_of(row: Sequence[Any], used: int = 0) -> Session:
    """Return the session in a row with the columns SESSION_COLUMNS. Raises CorruptRecord."""
    try:
        for name, allowed, value in zip(SESSION_COLUMNS, _SESSION_TYPES, row, strict=False):
            if type(value) not in allowed:
                raise TypeError(f"{name} is of type {type(value).__name__}")
        fields = dict(zip(SESSION_COLUMNS, row, strict=False))
        session_terms = _object(from_text(fields.pop("terms")), _TERM_TYPES)
        if not all(type(capability) is str for capability in session_terms["can"]):
            raise TypeError("can has other values than text")
        fields |= {name: session_terms[name] for name in _TERMS}
        fields |= {"can": frozenset(session_terms["can"]), "draining": bool(fields["draining"]), "used": used}
        profile = from_text(fields["profile"])
        if type(profile) is not dict:
            raise TypeError("its profile is not an object")
        return Session(**{**fields, "profile": profile})
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptRecord(f"session {row[0] if row else '?'} cannot be read: {error!r}") from error


def stored_notice(text: str) -> Notice:
    """Return the notice in a JSON text. Raises CorruptRecord."""
    try:
        return Notice.from_json(from_text(text))
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"a notice cannot be read: {error!r}") from error


# -- other rows --------------------------------------------------------------------------------------------------------


_OBJECTS = ("answer", "audit", "backfill", "coordinator", "credential", "event", "exchange", "gateway", "limit")
_MORE_OBJECTS = ("limit-account", "login", "peer", "rejected", "settings", "store", "workflow", "workflow-version")
_FORMS: Mapping[str, Mapping[str, set[type]] | type] = {
    **{kind: {} for kind in (*_OBJECTS, *_MORE_OBJECTS)},
    "approval": {"state": _TEXT, "at": _NUMBER},
    "budget": {"account": {dict}},
    "cancel": {"why": _TEXT},
    "device": {"session": _TEXT},
    "event-key": int,
    "event-log": {"name": _TEXT, "at": _NUMBER},
    "events": int,
    "paused": {"why": _TEXT},
    "plan-turns": {"running": {list}, "waiting": {list}},
    "runner": {"at": _NUMBER},
    "schedule": {"schema": _WHOLE, "name": _TEXT},
    "schedule-history": list,
    "schedule-plan": {"plan": {dict}},
    "store/id": {"id": _TEXT},
}
"""What the values of registers are, by their keys or the first parts of these: a type, or objects with at least these
fields. Values of other kinds, and the other fields, are checked by those who read them."""


def limited_of(row: Sequence[Any]) -> LimitedRuns:
    """Return the group of waiting runs in a row. Raises CorruptRecord."""
    group = LimitedRuns._make((*row[:4], bool(row[4]), *row[5:]))
    try:
        uses_of(group.uses)
    except ValueError as error:
        raise CorruptRecord(f"runs of {group.workflow} cannot be read: {error!r}") from error
    return group


def readable(decode: Callable[[Any], Decoded], rows: Sequence[Any]) -> list[Decoded]:
    """The records in rows or registers. One that cannot be read is left out, and named in the log."""
    try:
        return [decode(row) for row in rows]
    except AsterismError:
        return [record for row in rows for record in _readable(decode, row)]


def _readable(decode: Callable[[Any], Decoded], row: Any) -> Iterator[Decoded]:
    try:
        yield decode(row)
    except AsterismError as error:
        _warn(str(error))


@lru_cache(maxsize=1000)
def _warn(text: str) -> None:
    """Once in a process: some lists are read every second."""
    log.warning("%s; it is left out", text)


def register_of(row: Sequence[Any]) -> Register:
    """Return the register in a row: key, value as JSON, revision. Raises CorruptRecord."""
    key, text, revision = row
    try:
        value = from_text(text)
        _check_form(key, value)
        return Register(key, value, revision)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"register {key} cannot be read: {error!r}", revision=revision) from error


_WHOLE_KINDS = frozenset(
    {
        *("journal", "snapshot", "archive", "approval", "exchange"),  # of a plan
        *("limit", "limit-account"),  # a run would be granted more than its limit allows
        *("event-taken", "uses-blob", "uses-files", "unchanged"),  # an event would be taken twice, a file removed
    }
)
"""The first parts of the keys of registers that are read as a whole: without one, the others say something false."""


def registers_of(rows: Sequence[Any]) -> list[Register]:
    """The registers in rows. One that cannot be read is left out, and named in the log, unless its readers rely on all
    of them: then this raises CorruptRecord."""
    if any(row[0].partition("/")[0] in _WHOLE_KINDS for row in rows):
        return [register_of(row) for row in rows]
    return readable(register_of, rows)


def _check_form(key: str, value: Any) -> None:
    """Raise KeyError or TypeError for a value that no register with this key has."""
    form = _FORMS.get(key) or _FORMS.get(key.partition("/")[0])
    if isinstance(form, type) and type(value) is not form:
        raise TypeError(f"it is not of type {form.__name__} but {type(value).__name__}")
    if isinstance(form, Mapping):
        _object({name: value[name] for name in form} if type(value) is dict else value, form)


def chunk_of(run_id: str, row: Sequence[Any]) -> StoredChunk:
    """Return the chunk in a row of the log of a run: epoch, first line, number of lines, JSON. Raises CorruptRecord."""
    epoch, first, lines, said = row
    try:
        return StoredChunk(epoch, first, lines, from_text(said))
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"the log of run {run_id} cannot be read: {error!r}") from error


# -- new runs in groups ------------------------------------------------------------------------------------------------


VARYING = ("id", "key", "input", "label")
SHARED = tuple(name for name in COLUMNS if name not in VARYING)
"""The columns in which runs that are created together differ, and those that they share."""

_shared_once = itemgetter(*(name for name in FIXED if name not in VARYING))
_common = itemgetter(*(name for name in BLANK.__dict__ if name not in VARYING))
"""The fields behind SHARED: those that are written once, and all of them."""

FEWEST_GROUPED = 5
"""From how many runs on looking for what they share is worth it."""

INPUT_TEXT = "_input_text"
"""An attribute that a new run may have: its input, and the same as ``to_text`` encodes it, so that it need not be
encoded again. It counts as long as the input is this very object."""

_NO_TEXT = (None, "")


class RunGroup(NamedTuple):
    """New runs that were created together: the values of the columns SHARED, and of VARYING for each run."""

    shared: tuple[Any, ...]
    rows: list[tuple[Any, ...]]


def grouped(runs: Sequence[Run]) -> list[RunGroup]:
    """Return new runs in groups, in their order. What the runs of a group share is encoded once."""
    groups: list[RunGroup] = []
    known: tuple[Any, ...] | None = None
    for run in runs:
        fields = run.__dict__
        common = _common(fields)
        if common != known:
            known = common
            groups.append(RunGroup((*_shared_once(fields), *moving(run)), []))
            add = groups[-1].rows.append
        encoded, text = fields.get(INPUT_TEXT, _NO_TEXT)
        if encoded is not fields["input"]:
            text = _input_text(run)
        add((fields["id"], fields["key"], text, fields["label"]))
    return groups


def rows_of(runs: Sequence[Run]) -> list[tuple[Any, ...]]:
    """Return the rows of new runs, as ``row_of`` does for one."""
    return [row_of(run) for run in runs] if len(runs) < FEWEST_GROUPED else rows_in(grouped(runs))


def rows_in(groups: Sequence[RunGroup]) -> list[tuple[Any, ...]]:
    """Return the rows of all runs in these groups."""
    rows: list[tuple[Any, ...]] = []
    for (workflow, version, created_at, series, priority, pinned, timeout, batch, uses, *others), group in groups:
        first, second, third = (workflow, version, created_at, series), (priority, pinned, timeout), (batch, uses)
        rows += [(run_id, *first, key, *second, label, *third, text, *others) for run_id, key, text, label in group]
    return rows
