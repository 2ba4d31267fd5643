"""Values, operators and errors of CEL, and the cost of each operation.

JSON data is used without a copy: null, booleans, numbers, texts, lists and maps. An expression adds unsigned integers,
bytes, times, durations and types.

Every operation costs steps, which are paid *before* the work is done. One step is about the work of one comparison, and
at most about a hundred bytes. So the budget of an evaluation bounds both its time and its memory. The cost depends only
on the expression and the data, never on the machine, its clock or its load: a replayed journal gives the same results.

No message of an error repeats the data of an expression, since data may contain secrets::

    ExpressionError (ValueError)
    ├── InvalidExpression   it cannot be compiled: syntax, an unknown function, constants that cost too much
    ├── Unevaluable         it failed on this data; &&, || and the macros may ignore it
    └── TooCostly           it needs more steps than its budget; never ignored
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asterism.base.cel.regex import Pattern

LARGEST_INT = 2**63 - 1
LARGEST_UINT = 2**64 - 1

DEEPEST = 200
"""How deep the value of an expression may be nested."""

_LETTERS = 16
"""How many characters of a text one step pays for."""


class ExpressionError(ValueError):
    """An expression that has no value."""


class InvalidExpression(ExpressionError):
    """An expression that cannot be compiled."""


class Unevaluable(ExpressionError):
    """An expression that failed on the data it was given."""


class TooCostly(ExpressionError):
    """An evaluation that ran out of steps."""


class Evaluation:
    """One evaluation: the names it sees, the variables of its macros, the patterns that it has paid for, and the steps
    it has left."""

    __slots__ = ("left", "names", "patterns", "variables")

    def __init__(self, names: Mapping[str, Any], variables: int, steps: int) -> None:
        self.names, self.left = names, steps
        self.variables: list[Any] = [None] * variables
        self.patterns: dict[str, Pattern] = {}

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooCostly

    def spend_on(self, text: str | bytes) -> None:
        """Pay for reading or writing a text."""
        self.spend(1 + len(text) // _LETTERS)


class UInt(int):
    """An unsigned integer, such as ``5u``."""

    __slots__ = ()


class Type:
    """The value of ``type(x)``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class BuiltList(list[Any]):
    """A list that the expression built. A list of any other type is data."""

    __slots__ = ()


class BuiltMap(dict[Any, Any]):
    """A map that the expression built."""

    __slots__ = ()


class _BoolKey:
    """A boolean as the key of a map: for Python ``True`` and ``1`` are the same key, for CEL they are not."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value


_BOOL_KEYS = {True: _BoolKey(True), False: _BoolKey(False)}

NULL, BOOL, INT, UINT, DOUBLE, STRING, BYTES, LIST, MAP, TIMESTAMP, DURATION, TYPE = (
    "null_type",
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "timestamp",
    "duration",
    "type",
)
TYPES = {
    name: Type(name) for name in (NULL, BOOL, INT, UINT, DOUBLE, STRING, BYTES, LIST, MAP, TIMESTAMP, DURATION, TYPE)
}
_KINDS: dict[type, str] = {
    type(None): NULL,
    bool: BOOL,
    int: INT,
    UInt: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    list: LIST,
    BuiltList: LIST,
    tuple: LIST,
    dict: MAP,
    BuiltMap: MAP,
    datetime: TIMESTAMP,
    timedelta: DURATION,
    Type: TYPE,
}
_BASES: tuple[tuple[Any, str], ...] = (
    (str, STRING),
    (bool, BOOL),
    (int, INT),
    (float, DOUBLE),
    (list | tuple, LIST),
    (Mapping, MAP),
)
_SCALARS = frozenset({int, float, bool, type(None)})
_NUMBERS = frozenset({INT, UINT, DOUBLE})
_ORDERED = frozenset({BOOL, STRING, BYTES, TIMESTAMP, DURATION})


def kind_of(value: Any) -> str:
    """The type of a value, by its name in CEL. Raises Unevaluable for a value that is not data."""
    kind = _KINDS.get(type(value))
    if kind is not None:
        return kind
    for base, kind in _BASES:  # such as an enumeration of texts, or a read-only mapping
        if isinstance(value, base):
            return kind
    raise Unevaluable(f"a value of the Python type {type(value).__name__} is not JSON data")


def no_overload(what: str, *values: Any) -> Unevaluable:
    return Unevaluable(f"{what} is not defined for {' and '.join(kind_of(value) for value in values)}")


# -- maps --------------------------------------------------------------------------------------------------------------


def as_key(key: Any) -> Any:
    """A value as a key of a map. Raises Unevaluable for a value that cannot be a key."""
    kind = kind_of(key)
    if kind == STRING:
        return key
    if kind in (INT, UINT):
        return int(key)
    if kind == BOOL:
        return _BOOL_KEYS[bool(key)]
    raise Unevaluable(f"a value of type {kind} cannot be the key of a map")


def keys_of(mapping: Mapping[Any, Any]) -> Iterable[Any]:
    return [key.value if type(key) is _BoolKey else key for key in mapping]


def find(mapping: Mapping[Any, Any], key: Any) -> Any:
    """The value under a key, or ``ABSENT``."""
    if type(key) is float and key.is_integer():
        key = int(key)
    return mapping.get(as_key(key), ABSENT)


ABSENT = object()


# -- equality and order ------------------------------------------------------------------------------------------------


def equal(run: Evaluation, left: Any, right: Any) -> bool:
    """Whether two values are the same. All numbers compare as numbers; values of other types differ if the types do."""
    run.left -= 1
    if run.left < 0:
        raise TooCostly
    if type(left) is type(right):  # the usual case
        if type(left) is str:
            if len(left) != len(right):
                return False
            run.spend(len(left) // _LETTERS)
            return bool(left == right)
        if type(left) in _SCALARS:
            return bool(left == right)
    run.spend(2)
    kind, other = kind_of(left), kind_of(right)
    if kind != other:
        return kind in _NUMBERS and other in _NUMBERS and bool(left == right)
    if kind == TYPE:
        return bool(left.name == right.name)
    if kind in (NULL, BOOL, INT, UINT, DOUBLE, TIMESTAMP, DURATION):
        return bool(left == right)
    if len(left) != len(right):
        return False
    if kind in (STRING, BYTES):
        run.spend(len(left) // _LETTERS)
        return bool(left == right)
    return _same_items(run, left, right) if kind == LIST else _same_entries(run, left, right)


def _same_items(run: Evaluation, left: Any, right: Any) -> bool:
    for item, other in zip(left, right, strict=True):  # noqa: SIM110 - a generator costs as much as the comparison
        if not equal(run, item, other):
            return False
    return True


def _same_entries(run: Evaluation, left: Mapping[Any, Any], right: Mapping[Any, Any]) -> bool:
    for key, value in left.items():
        run.spend(1)
        other = right.get(key, ABSENT)
        if other is ABSENT or not equal(run, value, other):
            return False
    return True


def contained(run: Evaluation, item: Any, container: Any) -> bool:
    kind = kind_of(container)
    if kind == LIST:
        for member in container:  # noqa: SIM110 - as above
            if equal(run, item, member):
                return True
        return False
    if kind == MAP:
        return find(container, item) is not ABSENT
    raise no_overload("'in'", item, container)


_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _order(sign: str) -> Callable[[Evaluation, Any, Any], bool]:
    compare = _ORDERS[sign]

    def ordered(run: Evaluation, left: Any, right: Any) -> bool:
        kind, other = kind_of(left), kind_of(right)
        if (kind in _NUMBERS and other in _NUMBERS) or (kind == other and kind in _ORDERED):
            if kind in (STRING, BYTES):
                run.spend_on(left)
            return bool(compare(left, right))
        raise no_overload(f"'{sign}'", left, right)

    return ordered


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _in_range(kind: str, number: int) -> int:
    if kind == UINT:
        if 0 <= number <= LARGEST_UINT:
            return UInt(number)
    elif -LARGEST_INT - 1 <= number <= LARGEST_INT:
        return number
    raise Unevaluable("an integer is out of range")


def integer(number: int) -> int:
    return _in_range(INT, number)


def unsigned(number: int) -> int:
    return _in_range(UINT, number)


def _divide(left: Any, right: Any) -> Any:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: Any, right: Any) -> Any:
    return left - right * _divide(left, right)


def _divide_doubles(left: float, right: float) -> float:
    if right:
        return left / right
    if not left or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": _remainder,
}
_DOUBLES: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide_doubles,
}
_TIMES = {
    "+": frozenset({(TIMESTAMP, DURATION), (DURATION, TIMESTAMP), (DURATION, DURATION)}),
    "-": frozenset({(TIMESTAMP, DURATION), (TIMESTAMP, TIMESTAMP), (DURATION, DURATION)}),
}


def _arithmetic(sign: str) -> Callable[[Evaluation, Any, Any], Any]:
    integers, doubles, times = _INTEGERS[sign], _DOUBLES.get(sign), _TIMES.get(sign, frozenset())

    def compute(run: Evaluation, left: Any, right: Any) -> Any:
        kind, other = kind_of(left), kind_of(right)
        if kind == other:
            if kind in (INT, UINT):
                _in_range(kind, left), _in_range(kind, right)
                if not right and sign in "/%":
                    raise Unevaluable("division by zero")
                return _in_range(kind, integers(left, right))
            if kind == DOUBLE and doubles is not None:
                return doubles(left, right)
            if sign == "+" and kind in (STRING, BYTES, LIST):
                return joined(run, kind, left, right)
        if (kind, other) in times:
            try:
                return integers(left, right)
            except OverflowError:
                raise Unevaluable("a time is out of range") from None
        raise no_overload(f"'{sign}'", left, right)

    return compute


def joined(run: Evaluation, kind: str, left: Any, right: Any) -> Any:
    length = len(left) + len(right)
    run.spend(length if kind == LIST else 1 + length // _LETTERS)
    return BuiltList((*left, *right)) if kind == LIST else left + right


def negative(value: Any) -> Any:
    kind = kind_of(value)
    if kind == INT:
        return _in_range(INT, -value)
    if kind == DOUBLE:
        return -value
    raise no_overload("'-'", value)


OPERATORS: dict[str, Callable[[Evaluation, Any, Any], Any]] = {
    "==": equal,
    "!=": lambda run, left, right: not equal(run, left, right),
    "in": contained,
    **{sign: _order(sign) for sign in _ORDERS},
    **{sign: _arithmetic(sign) for sign in _INTEGERS},
}


# -- export to Python --------------------------------------------------------------------------------------------------


def exported(run: Evaluation, value: Any) -> Any:
    """A value for Python. A part of the data is returned as it is. A value that the expression built is copied, and
    paid for as often as it occurs: a list that contains another one twice is twice as large when it is written."""
    if kind_of(value) in (LIST, MAP) and type(value) not in (BuiltList, BuiltMap):
        return value
    return _copied(run, value, 0)


def _copied(run: Evaluation, value: Any, depth: int) -> Any:
    run.left -= 1
    if run.left < 0:
        raise TooCostly
    if type(value) in _SCALARS:
        return value
    run.spend(2)
    if depth > DEEPEST:
        raise Unevaluable(f"its value is nested more than {DEEPEST} deep")
    kind = kind_of(value)
    if kind == LIST:
        return [_copied(run, item, depth + 1) for item in value]
    if kind == MAP:
        return {_exported_key(run, key): _copied(run, item, depth + 1) for key, item in value.items()}
    if kind in (STRING, BYTES):
        run.spend(len(value) // _LETTERS)
    if kind == UINT:
        return int(value)
    return value.name if kind == TYPE else value


def _exported_key(run: Evaluation, key: Any) -> Any:
    if type(key) is str:
        run.spend_on(key)
    return key.value if type(key) is _BoolKey else key
