"""JSON values: None, booleans, finite numbers, strings, lists (and tuples), mappings with string keys; their size."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from asterism.core.errors import NotJson, TooLarge, safe_repr

JsonObject = dict[str, Any]
"""A JSON object: names and JSON values. It is free, such as the inputs of a task, or the written form of a record."""

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""The empty object, shared and immutable."""

RESULT_LIMIT = 64 << 20
"""How large a result may be unless a limit is set, in bytes."""


class SizeLimit(NamedTuple):
    """How many bytes an input or a result may have, as text or as JSON. A larger one is refused, never cut."""

    size: int
    raise_with: str
    """The command or option that raises the limit."""

    def check(self, size: int, what: str) -> None:
        """Raises TooLarge."""
        if size > self.size:
            raise TooLarge(
                f"{what} has {size:,} bytes, and the limit is {self.size:,}: "
                f"write it to a file and pass on the name of the file, or raise the limit with: {self.raise_with}"
            )


_SCALARS = frozenset({type(None), bool, int, str})
_NAMES = frozenset({str})
MAX_DEPTH = 200  # the json module fails near the recursion limit of Python; this fails earlier, with a clear message
MAX_DIGITS = 4300  # Python neither prints nor reads longer numbers
_TOO_LONG = 10**MAX_DIGITS
_LONG = 10**20


LARGE = 10_000
"""How many parts a large value has; 100 characters of text count as one."""


SHORT = 200
"""How many parts a short object has at most; a character of text counts as one."""


def mappings_in(value: Any) -> Iterator[Mapping[Any, Any]]:
    """The objects in a value, however deep, itself among them."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, Mapping):
            yield part
            stack.extend(part.values())
        elif isinstance(part, list | tuple):
            stack.extend(part)


def is_large(value: Any) -> bool:
    """Whether a JSON value has so many parts that copying or encoding it takes more than a few milliseconds. The answer
    itself takes no longer than that."""
    if type(value) in _SCALARS:
        return type(value) is str and len(value) >= 100 * LARGE
    parts, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        parts += 1 + (len(item) // 100 if isinstance(item, str) else 0)
        if parts + len(waiting) > LARGE:
            return True
        if type(item) is dict or isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
    return False


def is_short(value: Mapping[str, Any]) -> bool:
    """Whether an object is plain JSON whose size need not be measured: some words and numbers, and lists of them."""
    length = len(value)
    for item in value.values():
        for part in item if type(item) is list else (item,):
            if type(part) is str:
                length += len(part)
            elif type(part) not in _SCALARS or (type(part) is int and abs(part) > _LONG):
                return False
            length += 1
        if length > SHORT:
            return False
    return True


def plain_object(value: Mapping[str, Any], where: str = "value") -> JsonObject:
    """As ``plain_json`` for an object; a flat one is copied at once. Raises NotJson."""
    if type(value) is dict and _NAMES.issuperset(map(type, value)) and _are_plain(value.values()):
        return value.copy()
    return plain_json(value, where)  # type: ignore[no-any-return]


def plain_json(value: Any, where: str = "value", depth: int = 0) -> Any:
    """A copy of ``value`` that consists of JSON types only. Raises NotJson with the place of the first other value."""
    if type(value) in _SCALARS or isinstance(value, int | str):
        if isinstance(value, int) and abs(value) >= _TOO_LONG:
            raise NotJson(
                f"{where} is a number with more than {MAX_DIGITS:,} digits, which most readers of JSON refuse"
            )
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise NotJson(f"{where} is {value}, which JSON cannot hold")
    if depth >= MAX_DEPTH:
        raise NotJson(f"{where} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, list | tuple):
        if _are_plain(value):
            return list(value)
        return [plain_json(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if type(value) is dict or isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise NotJson(f"{where} has the key {safe_repr(key)}, and JSON keys are strings")
        return {key: plain_json(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    raise NotJson(f"{where} is a {type(value).__name__}, which is not JSON")


def _are_plain(values: Collection[Any]) -> bool:
    """Whether these are scalars that need no closer look."""
    kinds = set(map(type, values))
    if not kinds <= _SCALARS:
        return False
    numbers = values if kinds == {int} else [value for value in values if type(value) is int]
    return not numbers or (max(numbers) < _TOO_LONG and min(numbers) > -_TOO_LONG)
