"""Messages between two peers: their fields, limits, validation and encoding.

Every incoming message is validated before it is used. An invalid message raises PeerRefused; an invalid record is
counted and left out.

A message is encoded as lines of strict JSON. The first line is the message; each of its records and devices
follows in a line of its own, and is parsed on its own. A line that is not strict JSON (NaN and Infinity, numbers out of
range, duplicate keys, lone surrogates, deep nesting) costs the sender that one record, and not the rest of the sync. It
becomes an UnreadableLine among the records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

from asterism.base.strict_json import NotStrictJson, parse_strict
from asterism.core.errors import safe_repr
from asterism.core.json_values import JsonObject
from asterism.core.run.peer_record_validation import problems_in
from asterism.core.run.run import Run
from asterism.peers.registry import PeerRefused
from asterism.store import row_codec
from asterism.store.dump_format import blob_sizes
from asterism.store.store_errors import StoreError

PROTOCOL = 2
MAX_BATCH_RECORDS = 500
MAX_BATCH_BYTES = 1 << 20
"""How many records one message has, and about how many bytes of records."""

MAX_RECORD_CHARS = 4 << 20
"""The largest record, in characters."""

MAX_RECORD_BYTES = 12 << 20
"""The largest record, in bytes of JSON, which writes many characters longer. A larger one would be a
message that every peer refuses."""

MAX_REASONS = 5
MAX_REASON_CHARS = 300
"""How many reasons for refusals one message has, and how many characters of each."""

MAX_BLOBS_WANTED = 50
"""How many blobs one message asks for."""

MAX_RECORD_BLOBS = 100
"""To how many blobs a record may refer: its input, its result, and superseded results."""

MAX_RUNS_ASKED = 500
"""About how many runs one message asks whether the other side still knows them."""

MAX_DEVICES = 1000
"""How many devices one message announces."""

LINE_LISTS = {"records": "record", "devices": "device"}
"""The lists whose elements have lines of their own, and the key of such a line."""

_LIST_OF = {kind: name for name, kind in LINE_LISTS.items()}

_MAX_NUMBER = 1 << 53
_WORK, _INPUT, _STATE = map(row_codec.COLUMNS.index, ("work", "input", "state"))


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """A line that is not strict JSON, and the reason."""

    error: str


class Cursor(NamedTuple):
    """A store's position in the feed of another, and the mark of the last batch it received (outgoing.py);
    without a mark ``turn`` is 0. ``whole`` asks for all records, including those that came from the reader."""

    feed: str
    number: int
    turn: int = 0
    mark: str = ""
    whole: bool = False


class IncomingRecord(NamedTuple):
    """A record of a message. ``by`` is the id of its authority according to the sender. ``run`` is None if the record
    is invalid; then ``error`` is the reason. ``run_id`` is the id of the run, as far as it can be read."""

    number: int
    by: str
    run: Run | None
    error: str = ""
    run_id: str | None = None


# -- a message, and how each of its fields is read ---------------------------------------------------------------------

_Parse = Callable[[Any], Any]


def _parse_cursor(value: Any) -> Cursor | None:
    if value is None:
        return None
    feed, number = _parse_name(value["feed"]), _parse_count(value["number"])
    return Cursor(
        feed, number, _parse_count(value.get("turn", 0)), _parse_mark(value.get("mark", "")), bool(value.get("whole"))
    )


def _parse_clock(value: Any) -> float:
    clock = float(value)
    if not abs(clock) < _MAX_NUMBER:
        raise ValueError("clock")
    return clock


def _parse_mark(value: Any) -> str:
    return "" if value == "" else _parse_name(value)


def _parse_name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise ValueError(f"{str(value)[:40]} is not a valid name")
    return value


def _parse_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise ValueError(f"{str(value)[:40]} is not a valid number")
    return value


def _parse_list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{str(value)[:40]} is not a list of at most {most}")
    return value


def _parse_reason(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]} is not a valid reason")
    return printable(value, MAX_REASON_CHARS)


def _parse_blob_name(value: Any) -> str:
    if not is_blob_name(value):
        raise ValueError(f"{str(value)[:40]} is not the name of a blob")
    return str(value)


def is_blob_name(name: object) -> bool:
    """Whether it is the name of a blob: the SHA-256 of its bytes."""
    return isinstance(name, str) and len(name) == 64 and not set(name) - set("0123456789abcdef")


def _parse_sizes(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > MAX_BLOBS_WANTED:
        raise ValueError(f"{str(value)[:40]} is not a valid list of wanted blobs")
    return {_parse_blob_name(name): _parse_count(size) for name, size in value.items()}


def _list_of(most: int, parse: _Parse = lambda item: item, make: _Parse = list) -> _Parse:
    return lambda value: make(map(parse, _parse_list(value, most)))


def _or_none(parse: _Parse) -> _Parse:
    return lambda value: None if value is None else parse(value)


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a sync. The wire names of its fields are fixed. The annotation of a field has what reads it.

    ``feed`` is the id of the sender's feed, and ``items`` are its changes after number ``after`` up to ``upto``;
    ``more`` if there are others, and ``newest`` is the number of the last. ``turn`` and ``mark`` belong to ``upto``.
    ``cursor`` is the sender's position in the receiver's feed. ``anew`` says that the receiver's cursor is void and it
    is sent everything, ``put_back`` that the reason is a rollback of the sender's store. ``whole`` says that records
    that came from the receiver are included. ``devices`` are only in the first
    message of a sync.

    ``wants`` are blobs that the sender lacks, with their sizes, ``lacks`` those it was asked for and does not have.
    ``refused`` is how many records of the message that this one answers were refused, ``reasons`` are the first
    reasons. ``asks`` are runs with open copies at the sender, None if it does not ask; ``unknown``
    are runs that the receiver asked about and the sender does not know."""

    store: Annotated[str, _parse_name]
    clock: Annotated[float, _parse_clock]
    feed: Annotated[str, _parse_name]
    cursor: Annotated[Cursor | None, _parse_cursor]
    after: Annotated[int, _parse_count]
    upto: Annotated[int, _parse_count]
    more: Annotated[bool, bool]
    newest: Annotated[int, _parse_count]
    items: Sequence[IncomingRecord]
    devices: Annotated[Sequence[Any] | None, _or_none(_list_of(MAX_DEVICES))]
    wants: Annotated[Mapping[str, int], _parse_sizes]
    lacks: Annotated[frozenset[str], _list_of(MAX_BLOBS_WANTED, _parse_blob_name, frozenset)]
    refused: Annotated[int, _parse_count] = 0
    reasons: Annotated[Sequence[str], _list_of(MAX_REASONS, _parse_reason)] = ()
    turn: Annotated[int, _parse_count] = 0
    mark: Annotated[str, _parse_mark] = ""
    anew: Annotated[bool, bool] = False
    put_back: Annotated[bool, bool] = False
    asks: Annotated[Sequence[str] | None, _or_none(_list_of(MAX_RUNS_ASKED, _parse_name))] = None
    unknown: Annotated[frozenset[str], _list_of(MAX_RUNS_ASKED, _parse_name, frozenset)] = frozenset()
    whole: Annotated[bool, bool] = True


def encode_record(number: int, by: str, run: Run) -> JsonObject:
    """A run as it is sent: without its key, which belongs to this store."""
    sent = run.changed(key=None)
    return {"number": number, "by": by, "run": list(row_codec.row_of(sent))}


def encoded_size(sent: Any) -> int:
    """The size of a value in bytes of JSON."""
    return len(json.dumps(sent, separators=(",", ":")))


def fits_message(sent: Mapping[str, Any]) -> bool:
    """Whether a record is within the size limit of every peer."""
    return record_length(sent["run"]) <= MAX_RECORD_CHARS


def printable(text: str, most: int) -> str:
    """Foreign text, cut and without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])


# -- validation --------------------------------------------------------------------------------------------------------


def parse_message(data: object) -> Message:
    """Raises PeerRefused."""
    if not isinstance(data, Mapping):
        raise PeerRefused("a message has to be a JSON object")
    if data.get("protocol") != PROTOCOL:
        raise PeerRefused(
            f"the peer uses protocol version {safe_repr(data.get('protocol'))}, and this store uses {PROTOCOL}"
        )
    try:
        values = {name: parse(data[name]) for name, parse in _PARSERS.items() if name in data or name in _REQUIRED}
        return Message(items=_parse_records(_parse_list(data["records"], MAX_BATCH_RECORDS), values["after"]), **values)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise PeerRefused(f"the message is incomplete or invalid: {safe_repr(error)}") from None


_PARSERS: Mapping[str, _Parse] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Message, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""How each field of a message is read, except its records."""

_REQUIRED = frozenset(field.name for field in fields(Message) if field.default is MISSING)


def _parse_records(records: Sequence[Any], after: int) -> list[IncomingRecord]:
    """A record whose number is unreadable gets the number of the record before it."""
    items: list[IncomingRecord] = []
    for record in records:
        number = items[-1].number if items else after
        try:
            items.append(_parse_record(record, number))
        except (KeyError, TypeError, ValueError) as error:
            name = _run_id(record.get("run")) if isinstance(record, Mapping) else None
            items.append(
                IncomingRecord(number, "", None, f"it is not a valid record: {printable(safe_repr(error), 200)}", name)
            )
    return items


def _parse_record(record: Any, before: int) -> IncomingRecord:
    if isinstance(record, UnreadableLine):
        return IncomingRecord(before, "", None, printable(record.error, 300))
    number, by = _parse_count(record["number"]), _parse_name(record["by"])
    row = record["run"]
    name = _run_id(row)
    try:
        run = _parse_run(row)
    except (StoreError, TypeError, ValueError, OverflowError, RecursionError) as error:
        return IncomingRecord(
            number, by, None, f"it is not a valid record of a run: {printable(str(error), 200)}", name
        )
    if (problem := _problem_in(run)) is not None:
        return IncomingRecord(number, by, None, problem, name)
    return IncomingRecord(number, by, run, "", run.id)


def _problem_in(run: Run) -> str | None:
    """Why a run that could be read is not a valid record; None if it is."""
    if problems := problems_in(run):
        return f"it contradicts itself: {printable('; '.join(problems[:3]), 300)}"
    large = blob_sizes(run)
    if not all(is_blob_name(blob) and type(size) is int and 0 <= size < _MAX_NUMBER for blob, size in large.items()):
        return "it refers to a blob by an invalid name or size"
    return f"it refers to more than {MAX_RECORD_BLOBS} blobs" if len(large) > MAX_RECORD_BLOBS else None


def _run_id(row: Any) -> str | None:
    """The id of a run, if it is printable."""
    first = row[0] if isinstance(row, list) and row else None
    good = isinstance(first, str) and 0 < len(first) <= 200 and first.isprintable()
    return str(first) if good else None


def record_length(row: Sequence[Any]) -> int:
    """The characters of a record."""
    return sum(len(text) for text in row if isinstance(text, str))


def _parse_run(row: Any) -> Run:
    """Decode a run, and encode it again, so that it contains nothing that a store could not keep."""
    if not isinstance(row, list) or len(row) != len(row_codec.COLUMNS):
        raise ValueError("it does not have the columns of a run")
    if record_length(row) > MAX_RECORD_CHARS:
        raise ValueError(f"it has more than {MAX_RECORD_CHARS:,} characters")
    for text in (row[_WORK], row[_INPUT], row[_STATE]):
        parse_strict(text)
    read = row_codec.run_of(row)
    for column in row_codec.row_of(read):
        if isinstance(column, str):
            column.encode()  # a lone surrogate is text in Python, and nowhere else
    return read


# -- encoding ----------------------------------------------------------------------------------------------------------


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Raises ValueError for a value that is not JSON."""
    lines = [{name: [] if name in LINE_LISTS and value is not None else value for name, value in message.items()}]
    lines += [{kind: element} for name, kind in LINE_LISTS.items() for element in message.get(name) or ()]
    return "\n".join(json.dumps(line, separators=(",", ":"), allow_nan=False) for line in lines).encode("ascii")


def decode_message(data: bytes) -> JsonObject:
    """Raises NotStrictJson if the first line is not a message."""
    first, *lines = data.split(b"\n")
    message = parse_strict(first)
    if not isinstance(message, dict):
        raise NotStrictJson("a message has to be a JSON object")
    lists: dict[str, list[Any]] = {name: [] for name in LINE_LISTS}
    for line in lines:
        name, value = _parse_line(line)
        lists[name].append(value)
    for name, values in lists.items():
        if message.get(name) or (values and message.get(name, ()) is None):
            raise NotStrictJson(f"{name} have to be in lines of their own")
        if values:
            message[name] = values
    return message


def _parse_line(line: bytes) -> tuple[str, Any]:
    try:
        match parse_strict(line):
            case dict(element) if len(element) == 1 and (kind := next(iter(element))) in _LIST_OF:
                return _LIST_OF[kind], element[kind]
        reason = f"a line has to be one of {', '.join(_LIST_OF)}"
    except NotStrictJson as error:
        reason = str(error)
    return "records", UnreadableLine(f"it is not a valid JSON line: {reason}")
