"""Functions, methods, fields and macros of CEL. Any other name is refused when an expression is compiled."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
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
_BOOLS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _size(run: Evaluation, value: Any) -> int:
    if kind_of(value) in (STRING, BYTES, LIST, MAP):
        return len(value)
    raise no_overload("'size'", value)


def _type(run: Evaluation, value: Any) -> Any:
    return TYPES[kind_of(value)]


# -- conversions -------------------------------------------------------------------------------------------------------


def _text(run: Evaluation, function: str, value: str, form: re.Pattern[str]) -> str:
    """A text to be converted. The message does not repeat it."""
    run.spend(_CONVERTING + len(value))
    if len(value) > LONGEST_NUMBER or form.fullmatch(value) is None:
        raise Unevaluable(f"the text is not valid for '{function}'")
    return value


def _whole(run: Evaluation, function: str, value: Any) -> int:
    kind = kind_of(value)
    if kind in (INT, UINT):
        return int(value)
    if kind == STRING:
        return int(_text(run, function, value, _INTEGER))
    if kind == DOUBLE and math.isfinite(value):
        return int(value)
    if kind == DOUBLE:
        raise Unevaluable(f"the number is out of range for '{function}'")
    raise no_overload(f"'{function}'", value)


def _int(run: Evaluation, value: Any) -> int:
    if kind_of(value) == TIMESTAMP:
        return int((value - _EPOCH) // timedelta(seconds=1))
    return integer(_whole(run, "int", value))


def _uint(run: Evaluation, value: Any) -> int:
    return unsigned(_whole(run, "uint", value))


def _double(run: Evaluation, value: Any) -> float:
    kind = kind_of(value)
    if kind == STRING:
        return float(_text(run, "double", value, _DOUBLE))
    if kind == DOUBLE:
        return float(value)
    if kind == INT:
        return float(integer(value))
    if kind == UINT:
        return float(value)
    raise no_overload("'double'", value)


def _bool(run: Evaluation, value: Any) -> bool:
    kind = kind_of(value)
    if kind == BOOL:
        return bool(value)
    if kind == STRING:
        if len(value) <= 5 and (value in _BOOLS or value in ("True", "TRUE", "False", "FALSE")):
            return _BOOLS[value.lower()]
        raise Unevaluable("the text is not valid for 'bool'")
    raise no_overload("'bool'", value)


def _string(run: Evaluation, value: Any) -> str:
    kind = kind_of(value)
    run.spend(_CONVERTING)
    if kind == STRING:
        return str(value)
    if kind == BOOL:
        return "true" if value else "false"
    if kind in (INT, UINT):
        return str(integer(value) if kind == INT else int(value))
    if kind == DOUBLE:
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if kind == BYTES:
        run.spend_on(value)
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError:
            raise Unevaluable("the bytes are not UTF-8") from None
    if kind == TIMESTAMP:
        return str(value.astimezone(UTC).isoformat()).replace("+00:00", "Z")
    if kind == DURATION:
        seconds = value / timedelta(seconds=1)
        return f"{int(seconds) if seconds.is_integer() else seconds}s"
    raise no_overload("'string'", value)


def _bytes(run: Evaluation, value: Any) -> bytes:
    kind = kind_of(value)
    if kind == BYTES:
        return bytes(value)
    if kind != STRING:
        raise no_overload("'bytes'", value)
    run.spend_on(value)
    try:
        return bytes(value, "utf-8")
    except UnicodeEncodeError:
        raise Unevaluable("the text cannot be written as UTF-8") from None


def _timestamp(run: Evaluation, value: Any) -> datetime:
    kind = kind_of(value)
    run.spend(_CONVERTING)
    try:
        if kind == TIMESTAMP:
            return value  # type: ignore[no-any-return]
        if kind == INT:
            return _EPOCH + timedelta(seconds=integer(value))
        if kind == STRING:
            match = _TIMESTAMP.fullmatch(_text(run, "timestamp", value, _TIMESTAMP))
            assert match is not None
            date, time, fraction, zone = match.groups()
            read = datetime.fromisoformat(f"{date}T{time}{(fraction or '.0')[:7].ljust(7, '0')}")
            return read.replace(tzinfo=_zone(zone)).astimezone(UTC)
    except ExpressionError:
        raise
    except (ValueError, OverflowError):
        raise Unevaluable("the value is not valid for 'timestamp'") from None
    raise no_overload("'timestamp'", value)


def _duration(run: Evaluation, value: Any) -> timedelta:
    kind = kind_of(value)
    run.spend(_CONVERTING)
    try:
        if kind == DURATION:
            return value  # type: ignore[no-any-return]
        if kind == INT:
            return timedelta(seconds=integer(value))
        if kind == STRING:
            match = _DURATION.fullmatch(_text(run, "duration", value, _DURATION))
            assert match is not None
            seconds = sum(float(number) * _UNITS[unit] for number, unit in _SPAN.findall(match.group(2)))
            return timedelta(seconds=-seconds if match.group(1) == "-" else seconds)
    except ExpressionError:
        raise
    except (ValueError, OverflowError):
        raise Unevaluable("the value is not valid for 'duration'") from None
    raise no_overload("'duration'", value)


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
        "dyn": lambda run, value: value,
        "int": _int,
        "uint": _uint,
        "double": _double,
        "bool": _bool,
        "string": _string,
        "bytes": _bytes,
        "timestamp": _timestamp,
        "duration": _duration,
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
