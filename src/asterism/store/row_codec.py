"""Row codec: runs, sessions and notices as rows of a table, and back.

A field that queries search for has a column of its own. The rest of a run is one JSON text, ``state``, which leaves out
fields with default values.

JSON as stores write it is compact and without NaN. A record is encoded in one step.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar

from asterism.core.errors import AsterismError
from asterism.core.limits import LimitedRuns, uses_of
from asterism.core.record import Record, decode, encode, encode_json, part_of
from asterism.core.run.run import UNOWNED, Run, RunStatus
from asterism.core.run.session import Session
from asterism.core.run.work import work_of
from asterism.store.protocol import BatchPart, Notice, PlanRow, Register, StoredChunk, WaitingRuns
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

    def to_text(value: Any) -> str:
        if isinstance(value, Record):
            try:
                return encode_json(value).decode()
            except UnicodeEncodeError:  # a lone surrogate
                value = encode(value)
        return join(chunks(value, 0))

    return to_text


to_text = _encoder()
"""Encodes a JSON value, or a record. Raises TypeError or ValueError for a value that is not JSON."""

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
    "digest",
    "created_at",
    "series",
    "key",
    "priority",
    "pinned",
    "timeout",
    "label",
    "batch",
    "uses",
    "work",
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

_IN_STATE = tuple(name for name in Run.__struct_fields__ if name not in (*COLUMNS, "admitted", "output"))
_State = part_of(Run, _IN_STATE)
"""The fields without a column of their own, but the output, which may be any JSON."""

_state = attrgetter(*_IN_STATE)
_written_once = attrgetter(*({"digest": "work.digest", "work": "work.text"}.get(name, name) for name in FIXED[:-1]))
"""All columns that are written once but the last, which is the input."""

_STATUSES = {str(status): status for status in RunStatus}
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
        if plan.budget is not None:
            _check_form("budget", plan.budget)
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
        _state_text(run),
    )


def _state_text(run: Run) -> str:
    state = encode(_State(*_state(run)))
    return to_text(state if run.output is None else {"output": run.output, **state})


def offer_of(run: Run) -> int:
    """Return whether a run is in the queue: 0 if not, else OFFERED_TO_ALL or LIMITED."""
    if not run.offered:
        return 0
    return OFFERED_TO_ALL if run.uses is None else LIMITED


def _avoided(names: tuple[str, ...]) -> str:
    """Names between bars, so that a search for ``|name|`` finds exactly that name."""
    text = f"|{'|'.join(names)}|"
    if text.count("|") != len(names) + 1:
        raise ValueError(f"the name of a device must not contain '|': {', '.join(names)}")
    return text


def fixed(run: Run) -> tuple[Any, ...]:
    """Return the values of the columns that are written once, in the order of FIXED."""
    return (*_written_once(run), to_text(dict(run.input)))


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


def run_of(row: Sequence[Any]) -> Run:
    """Return the run in a row with the columns COLUMNS, or in a record. Raises CorruptRecord."""
    try:
        fields = dict(zip(COLUMNS, row, strict=True))
        offered, state = fields.pop("offered"), from_text(fields.pop("state"))
        if type(offered) not in (int, bool) or not state.keys() <= _STATE_FIELDS:
            raise TypeError("it has other fields than those of a run")
        del fields["digest"], fields["timeout"]  # columns for statements, which the work has
        fields["work"] = work_of(fields["work"])
        fields["input"] = from_text(fields["input"])
        if type(fields["input"]) is not dict:
            raise TypeError("its input is not an object")
        fields["avoid"] = fields["avoid"][1:-1].split("|") if fields["avoid"] else ()
        run = decode(Run, {**fields, **state})
        if run.uses is not None and not uses_of(run.uses):
            raise TypeError("its uses are not the amounts of limits")
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptRecord(f"run {row[0] if row else '?'} cannot be read: {error!r}") from error
    return run


_STATE_FIELDS = frozenset({*_IN_STATE, "output"})


# -- sessions and notices ----------------------------------------------------------------------------------------------

SESSION_COLUMNS = ("id", "device", "revision", "state", "draining", "beat_at", "profile", "terms")
_TERMS = ("joined_at", "host", "can", "slots", "backlog", "accepts", "timeout")
"""The fields of a session that are in ``terms``, as JSON."""


def session_row(session: Session) -> tuple[Any, ...]:
    """Return the values of the columns, in the order of SESSION_COLUMNS."""
    session_terms = {name: getattr(session, name) for name in _TERMS}
    texts = to_text(dict(session.profile)), to_text({**session_terms, "can": sorted(session.can)})
    return session.id, session.device, session.revision, session.state, int(session.draining), session.beat_at, *texts


def session_of(row: Sequence[Any], used: int = 0) -> Session:
    """Return the session in a row with the columns SESSION_COLUMNS. Raises CorruptRecord."""
    try:
        fields = dict(zip(SESSION_COLUMNS, row, strict=False))
        session_terms = from_text(fields.pop("terms"))
        if session_terms.keys() != {*_TERMS}:
            raise TypeError("its terms have other fields than those of a session")
        fields |= {**session_terms, "profile": from_text(fields["profile"])}
        fields |= {"draining": bool(fields["draining"]), "used": used}
        return decode(Session, fields)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptRecord(f"session {row[0] if row else '?'} cannot be read: {error!r}") from error


def stored_notice(text: str) -> Notice:
    """Return the notice in a JSON text. Raises CorruptRecord."""
    try:
        return Notice.from_json(from_text(text))
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"a notice cannot be read: {error!r}") from error


# -- other rows --------------------------------------------------------------------------------------------------------


_NUMBER: set[type] = {int, float}
_TEXT: set[type] = {str}

_OBJECTS = (
    "answer",
    "audit",
    "backfill",
    "coordinator",
    "credential",
    "event",
    "exchange",
    "gateway",
    "limit",
    "limit-hold",
)
_MORE_OBJECTS = ("limit-account", "login", "peer", "rejected", "settings", "store", "workflow", "workflow-version")
_FORMS: Mapping[str, Mapping[str, set[type]] | type] = {
    **{kind: {} for kind in (*_OBJECTS, *_MORE_OBJECTS)},
    "approval": {"state": _TEXT, "at": _NUMBER},
    "budget": {"account": {dict}},
    "device": {"session": _TEXT},
    "event-key": int,
    "event-log": {"name": _TEXT, "at": _NUMBER},
    "events": int,
    "plan-turns": {"running": {list}, "waiting": {list}},
    "runner": {"at": _NUMBER},
    "schedule": {"name": _TEXT},
    "schedule-history": list,
    "schedule-plan": {"plan": {dict}},
    "store/id": {"id": _TEXT},
}
"""What the values of registers are, by their keys or the first parts of these: a type, or objects with at least these
fields. Values of other kinds, and the other fields, are checked by those who read them."""


def waiting_of(row: Sequence[Any]) -> WaitingRuns:
    """Return the group of waiting runs in a row. Raises CorruptRecord."""
    try:
        return WaitingRuns(row[0], work_of(row[1]), *row[2:])
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"runs of {row[0]} cannot be read: {error!r}") from error


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
        *("limit", "limit-account", "limit-hold"),  # a run would be granted more than its limit allows
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


def _object(value: Any, types: Mapping[str, set[type]]) -> dict[str, Any]:
    """A JSON value that is an object whose fields have these types. Raises TypeError."""
    if type(value) is not dict:
        raise TypeError(f"it is not an object but a {type(value).__name__}")
    for name, field_value in value.items():
        if type(field_value) not in types.get(name, ()):
            raise TypeError(f"{name} is of type {type(field_value).__name__}")
    return value


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

FEWEST_GROUPED = 5
"""From how many runs on looking for what they share is worth it."""

_shared = itemgetter(*(place for place, name in enumerate(COLUMNS) if name not in VARYING))
_varying = itemgetter(*map(COLUMNS.index, VARYING))


class RunGroup(NamedTuple):
    """New runs that were created together: the values of the columns SHARED, and of VARYING for each run."""

    shared: tuple[Any, ...]
    rows: list[tuple[Any, ...]]


def grouped(runs: Sequence[Run]) -> list[RunGroup]:
    """Return new runs in groups, in their order. What the runs of a group share is sent once."""
    groups: list[RunGroup] = []
    for row in map(row_of, runs):
        if not groups or groups[-1].shared != _shared(row):
            groups.append(RunGroup(_shared(row), []))
        groups[-1].rows.append(_varying(row))
    return groups


def rows_of(runs: Sequence[Run]) -> list[tuple[Any, ...]]:
    """Return the rows of new runs, as ``row_of`` does for one."""
    return [row_of(run) for run in runs] if len(runs) < FEWEST_GROUPED else rows_in(grouped(runs))


def rows_in(groups: Sequence[RunGroup]) -> list[tuple[Any, ...]]:
    """Return the rows of all runs in these groups."""
    rows: list[tuple[Any, ...]] = []
    for (workflow, version, digest, created_at, series, priority, pinned, timeout, *others), group in groups:
        first, second, third = (workflow, version, digest, created_at, series), (priority, pinned, timeout), others[:3]
        rows += [(run_id, *first, key, *second, label, *third, text, *others[3:]) for run_id, key, text, label in group]
    return rows
