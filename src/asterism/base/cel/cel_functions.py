"""Functions, methods, fields and macros of CEL. Any other name is refused when an expression is compiled."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from asterism.base.cel.cel_values import (
    ABSENT,
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    INT,
    LIST,
    MAP,
    STRING,
    TIMESTAMP,
    TYPES,
    UINT,
    BuiltList,
    Evaluation,
    ExpressionError,
    TooCostly,
    Unevaluable,
    find,
    integer,
    keys_of,
    kind_of,
    no_overload,
    unsigned,
)
from asterism.base.cel.regex import matches

Function = Callable[..., Any]
"""Takes the evaluation and then the arguments."""

LONGEST_NUMBER = 400
"""The longest text that is converted to a number, a time or a duration."""

_CONVERTING = 5
"""The cost of converting a number or a time, in steps, in addition to its characters."""

_INTEGER = re.compile(r"[-+]?[0-9]+")
_DOUBLE = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[iI]nf(inity)?|[nN]a[nN]")
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?([Zz]|[-+][0-9:]{5})"
)
_DURATION = re.compile(r"([-+]?)((?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:h|ms|m|s|us|µs|ns))+|0)")
_SPAN = re.compile(r"([0-9.]+)(h|ms|m|s|us|µs|ns)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_OFFSET = re.compile(r"([-+])([0-9]{2}):([0-9]{2})")
_BOOL = re.compile("[1t0f]|true|True|TRUE|false|False|FALSE")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _size(run: Evaluation, value: Any) -> int:
    if kind_of(value) in (STRING, BYTES, LIST, MAP):
        return len(value)
    raise no_overload("'size'", value)


def _type(run: Evaluation, value: Any) -> Any:
    return TYPES[kind_of(value)]


# -- conversions -------------------------------------------------------------------------------------------------------


def _conversion(name: str, ways: Mapping[str, Function]) -> Function:
    """The function that converts a value by the way for its type. No message repeats the value."""

    def convert(run: Evaluation, value: Any) -> Any:
        way = ways.get(kind_of(value))
        if way is None:
            raise no_overload(f"'{name}'", value)
        run.spend(_CONVERTING)
        try:
            return way(run, value)
        except ExpressionError:
            raise
        except (ValueError, OverflowError):
            raise Unevaluable(f"the value is not valid for '{name}'") from None

    return convert


def _same(run: Evaluation, value: Any) -> Any:
    return value


def _text(name: str, form: re.Pattern[str], read: Callable[[re.Match[str]], Any]) -> Function:
    """The way to convert a text that has a form."""

    def convert(run: Evaluation, text: str) -> Any:
        run.spend(len(text))
        match = form.fullmatch(text) if len(text) <= LONGEST_NUMBER else None
        if match is None:
            raise Unevaluable(f"the text is not valid for '{name}'")
        return read(match)

    return convert


def _to_whole(name: str, checked: Callable[[int], int]) -> dict[str, Function]:
    """The ways to an integer in the range of a type."""

    def from_double(run: Evaluation, value: float) -> int:
        if not math.isfinite(value):
            raise Unevaluable(f"the number is out of range for '{name}'")
        return checked(int(value))

    whole: Function = lambda run, value: checked(int(value))  # noqa: E731
    return {
        INT: whole,
        UINT: whole,
        DOUBLE: from_double,
        STRING: _text(name, _INTEGER, lambda text: checked(int(text[0]))),
    }


def _double_to_string(run: Evaluation, value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _bytes_to_string(run: Evaluation, value: bytes) -> str:
    run.spend_on(value)
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise Unevaluable("the bytes are not UTF-8") from None


def _duration_to_string(run: Evaluation, value: timedelta) -> str:
    seconds = value / timedelta(seconds=1)
    return f"{int(seconds) if seconds.is_integer() else seconds}s"


def _string_to_bytes(run: Evaluation, value: str) -> bytes:
    run.spend_on(value)
    try:
        return bytes(value, "utf-8")
    except UnicodeEncodeError:
        raise Unevaluable("the text cannot be written as UTF-8") from None


def _read_timestamp(match: re.Match[str]) -> datetime:
    date, time, fraction, zone = match.groups()
    read = datetime.fromisoformat(f"{date}T{time}{(fraction or '.0')[:7].ljust(7, '0')}")
    return read.replace(tzinfo=_zone(zone)).astimezone(UTC)


def _read_duration(match: re.Match[str]) -> timedelta:
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _SPAN.findall(match.group(2)))
    return timedelta(seconds=-seconds if match.group(1) == "-" else seconds)


_CONVERSIONS: dict[str, dict[str, Function]] = {
    "int": {
        **_to_whole("int", integer),
        TIMESTAMP: lambda run, value: int((value - _EPOCH) // timedelta(seconds=1)),
    },
    "uint": _to_whole("uint", unsigned),
    "double": {
        STRING: _text("double", _DOUBLE, lambda text: float(text[0])),
        DOUBLE: lambda run, value: float(value),
        INT: lambda run, value: float(integer(value)),
        UINT: lambda run, value: float(value),
    },
    "bool": {
        BOOL: lambda run, value: bool(value),
        STRING: _text("bool", _BOOL, lambda text: text[0] in ("1", "t", "true", "True", "TRUE")),
    },
    "string": {
        STRING: lambda run, value: str(value),
        BOOL: lambda run, value: "true" if value else "false",
        INT: lambda run, value: str(integer(value)),
        UINT: lambda run, value: str(int(value)),
        DOUBLE: _double_to_string,
        BYTES: _bytes_to_string,
        TIMESTAMP: lambda run, value: str(value.astimezone(UTC).isoformat()).replace("+00:00", "Z"),
        DURATION: _duration_to_string,
    },
    "bytes": {BYTES: lambda run, value: bytes(value), STRING: _string_to_bytes},
    "timestamp": {
        TIMESTAMP: _same,
        INT: lambda run, value: _EPOCH + timedelta(seconds=integer(value)),
        STRING: _text("timestamp", _TIMESTAMP, _read_timestamp),
    },
    "duration": {
        DURATION: _same,
        INT: lambda run, value: timedelta(seconds=integer(value)),
        STRING: _text("duration", _DURATION, _read_duration),
    },
}
"""The ways to convert a value to a type, by the type of the value."""


# -- texts -------------------------------------------------------------------------------------------------------------


def _of_texts(name: str, ask: Callable[[str, str], bool]) -> Function:
    def function(run: Evaluation, text: Any, part: Any) -> bool:
        if kind_of(text) != STRING or kind_of(part) != STRING:
            raise no_overload(f"'{name}'", text, part)
        run.spend(1 + len(text) // 16 + len(text) * min(len(part), 100) // 512)  # the worst case of a search
        return ask(text, part)

    return function


def _matches(run: Evaluation, text: Any, pattern: Any) -> bool:
    if kind_of(text) != STRING or kind_of(pattern) != STRING:
        raise no_overload("'matches'", text, pattern)
    return matches(run, str(text), str(pattern))


# -- times -------------------------------------------------------------------------------------------------------------


def _zone(name: str) -> timezone:
    if name in ("UTC", "Z", "z"):
        return UTC
    match = _OFFSET.fullmatch(name)
    if match is None or int(match.group(2)) > 23 or int(match.group(3)) > 59:
        raise Unevaluable("a time zone is 'UTC' or an offset such as '+02:00'")
    offset = timedelta(hours=int(match.group(2)), minutes=int(match.group(3)))
    return timezone(-offset if match.group(1) == "-" else offset)


def _of_time(name: str, of_timestamp: Callable[[datetime], int], unit: timedelta | None = None) -> Function:
    """A part of a time; with ``unit`` also of a duration, in that unit."""

    def function(run: Evaluation, value: Any, zone: Any = "UTC") -> int:
        kind = kind_of(value)
        run.spend(_CONVERTING)
        if kind == DURATION and unit is not None and zone == "UTC":
            return int(value / unit)
        if kind != TIMESTAMP or kind_of(zone) != STRING:
            raise no_overload(f"'{name}'", value)
        try:
            return of_timestamp(value.astimezone(_zone(zone)))
        except OverflowError:
            raise Unevaluable("a time is out of range") from None

    return function


def _milliseconds(run: Evaluation, value: Any, zone: Any = "UTC") -> int:
    kind = kind_of(value)
    if kind == TIMESTAMP:
        return int(value.microsecond // 1000)
    if kind == DURATION:
        return int(value / timedelta(milliseconds=1)) % 1000
    raise no_overload("'getMilliseconds'", value)


FUNCTIONS: dict[str, tuple[Function, frozenset[int]]] = {
    name: (function, frozenset({1}))
    for name, function in {
        "size": _size,
        "type": _type,
        "dyn": _same,
        **{name: _conversion(name, ways) for name, ways in _CONVERSIONS.items()},
    }.items()
} | {"matches": (_matches, frozenset({2}))}
"""Functions by name, with the numbers of arguments that they take."""

METHODS: dict[str, tuple[Function, frozenset[int]]] = {
    "size": (_size, frozenset({0})),
    "contains": (_of_texts("contains", lambda text, part: part in text), frozenset({1})),
    "startsWith": (_of_texts("startsWith", str.startswith), frozenset({1})),
    "endsWith": (_of_texts("endsWith", str.endswith), frozenset({1})),
    "matches": (_matches, frozenset({1})),
    **{
        name: (function, frozenset({0, 1}))
        for name, function in {
            "getFullYear": _of_time("getFullYear", lambda time: time.year),
            "getMonth": _of_time("getMonth", lambda time: time.month - 1),
            "getDate": _of_time("getDate", lambda time: time.day),
            "getDayOfMonth": _of_time("getDayOfMonth", lambda time: time.day - 1),
            "getDayOfWeek": _of_time("getDayOfWeek", lambda time: time.isoweekday() % 7),
            "getDayOfYear": _of_time("getDayOfYear", lambda time: time.timetuple().tm_yday - 1),
            "getHours": _of_time("getHours", lambda time: time.hour, timedelta(hours=1)),
            "getMinutes": _of_time("getMinutes", lambda time: time.minute, timedelta(minutes=1)),
            "getSeconds": _of_time("getSeconds", lambda time: time.second, timedelta(seconds=1)),
            "getMilliseconds": _milliseconds,
        }.items()
    },
}
"""Methods by name, with the numbers of arguments that they take, without the receiver."""


# -- fields, items and macros: each part of ``a.b[c].all(x, …)`` as a function of a value ------------------------------

ERROR = 10
"""The cost of ignoring an error, in steps."""

Run = Callable[[Evaluation], Any]
Part = Callable[[Evaluation, Any], Any]


def step(run: Evaluation) -> None:
    run.left -= 1
    if run.left < 0:
        raise TooCostly


def truth(value: Any, where: str) -> bool:
    if value is True or value is False:
        return value
    if kind_of(value) != BOOL:
        raise no_overload(where, value)
    return bool(value)


def field(name: str) -> Part:
    def run(run: Evaluation, value: Any) -> Any:
        run.left -= 1
        if run.left < 0:
            raise TooCostly
        if type(value) is not dict and kind_of(value) != MAP:
            raise Unevaluable(f"a value of type {kind_of(value)} has no field '{name}'")
        content = value.get(name, ABSENT)
        if content is ABSENT:
            raise Unevaluable(f"there is no field '{name}'")
        return content

    return run


def item_at(key: Run) -> Part:
    def run(run: Evaluation, value: Any) -> Any:
        step(run)
        index, kind = key(run), kind_of(value)
        if kind == MAP:
            item = find(value, index)
            if item is ABSENT:
                raise Unevaluable("there is no such key in the map")
            return item
        if kind != LIST:
            raise no_overload("'[]'", value)
        if type(index) is float and index.is_integer():
            index = int(index)
        if kind_of(index) not in (INT, UINT):
            raise Unevaluable(f"a list is indexed by type int, not by type {kind_of(index)}")
        if not 0 <= index < len(value):
            raise Unevaluable("the index is not in the list")
        return value[index]

    return run


def _range(run: Evaluation, value: Any, macro: str) -> Any:
    """The range of a macro: the items of a list, or the keys of a map."""
    kind = kind_of(value)
    if kind == LIST:
        return value
    if kind != MAP:
        raise no_overload(macro, value)
    run.spend(len(value))
    return keys_of(value)


def _decided(decisive: bool, slot: int, macro: str, body: Run) -> Part:
    """``all`` and ``exists``: as ``&&`` and ``||`` over all items."""

    def run(run: Evaluation, value: Any) -> Any:
        failed: Unevaluable | None = None
        for item in _range(run, value, macro):
            step(run)
            run.variables[slot] = item
            try:
                if truth(body(run), macro) is decisive:
                    return decisive
            except Unevaluable as error:
                run.spend(ERROR)
                failed = error
        if failed is not None:
            raise failed
        return not decisive

    return run


def _exists_one(slot: int, macro: str, body: Run) -> Part:
    def run(run: Evaluation, value: Any) -> Any:
        matches = 0
        for item in _range(run, value, macro):
            step(run)
            run.variables[slot] = item
            matches += truth(body(run), macro)
        return matches == 1

    return run


def _filter(slot: int, macro: str, body: Run) -> Part:
    def run(run: Evaluation, value: Any) -> Any:
        kept = BuiltList()
        for item in _range(run, value, macro):
            run.spend(2)
            run.variables[slot] = item
            if truth(body(run), macro):
                kept.append(item)
        return kept

    return run


def _map(slot: int, macro: str, *bodies: Run) -> Part:
    wanted, made = bodies if len(bodies) == 2 else (None, bodies[0])

    def run(run: Evaluation, value: Any) -> Any:
        items = BuiltList()
        for item in _range(run, value, macro):
            run.spend(2)
            run.variables[slot] = item
            if wanted is None or truth(wanted(run), macro):
                items.append(made(run))
        return items

    return run


MACROS: dict[str, Callable[..., Part]] = {
    "all": lambda *arguments: _decided(False, *arguments),
    "exists": lambda *arguments: _decided(True, *arguments),
    "exists_one": _exists_one,
    "existsOne": _exists_one,
    "filter": _filter,
    "map": _map,
}
