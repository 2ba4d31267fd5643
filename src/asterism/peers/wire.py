"""A message of two peers as bytes: lines of JSON. The first line is the message; each of its records, workflows and
devices follows in a line of its own.

So each is read by itself, and strictly: what is not JSON as everybody understands it (NaN and Infinity, a number beyond
all bounds, a key that is there twice, half a character, nesting without end) costs its sender that one record, and
never the rest of the meeting. Such a line stands among the records as Unreadable, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

LISTS = {"records": "record", "workflows": "workflow", "devices": "device"}
"""What is told in lines of its own, and what such a line is called."""

_KINDS = {kind: name for name, kind in LISTS.items()}

DEEPEST = 220
"""How deep a value may be nested: as deep as core/json_values.py allows, and what stands around it."""

MOST_DIGITS = 400
"""How many digits a whole number may have."""


class NotStrictJson(ValueError):
    """A text that is not JSON, or not as everybody understands it."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that could not be read."""

    why: str


def encode(message: Mapping[str, Any]) -> bytes:
    """Raises ValueError for what is not JSON."""
    lines = [{name: [] if name in LISTS and value is not None else value for name, value in message.items()}]
    lines += [{kind: one} for name, kind in LISTS.items() for one in message.get(name) or ()]
    return "\n".join(json.dumps(line, separators=(",", ":"), allow_nan=False) for line in lines).encode("ascii")


def decode(data: bytes) -> dict[str, Any]:
    """Raises NotStrictJson if the first line is no message."""
    first, *lines = data.split(b"\n")
    message = strict(first)
    if not isinstance(message, dict):
        raise NotStrictJson("a message is a JSON object")
    lists: dict[str, list[Any]] = {name: [] for name in LISTS}
    for line in lines:
        name, value = _read(line)
        lists[name].append(value)
    for name, values in lists.items():
        if message.get(name) or (values and message.get(name, ()) is None):
            raise NotStrictJson(f"{name} are not told in lines of their own")
        if values:
            message[name] = values
    return message


def _read(line: bytes) -> tuple[str, Any]:
    try:
        match strict(line):
            case dict(one) if len(one) == 1 and (kind := next(iter(one))) in _KINDS:
                return _KINDS[kind], one[kind]
        why = f"a line is one of {', '.join(_KINDS)}"
    except NotStrictJson as error:
        why = str(error)
    return "records", Unreadable(f"it is not JSON as peers write it: {why}")


def strict(text: bytes | str) -> Any:
    """The value of a JSON text. Raises NotStrictJson."""
    try:
        words = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            words, parse_constant=_no_number, parse_float=_finite, parse_int=_bounded, object_pairs_hook=_unique
        )
        _check(value, 0)
    except RecursionError:
        raise NotStrictJson("it is nested too deep") from None
    except NotStrictJson:
        raise
    except ValueError as error:
        raise NotStrictJson(str(error)[:200]) from None
    return value


def _no_number(word: str) -> Any:
    raise NotStrictJson(f"{word} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise NotStrictJson(f"{text[:40]} is beyond all numbers")
    return value


def _bounded(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise NotStrictJson(f"a number has more than {MOST_DIGITS} digits")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotStrictJson("a key is there twice")
    return found


def _check(value: Any, depth: int) -> None:
    """What json itself lets pass: half a character, and nesting up to where it gives up."""
    if isinstance(value, str):
        _must_be_text(value)
    elif isinstance(value, list | dict):
        if depth >= DEEPEST:
            raise NotStrictJson("it is nested too deep")
        for one in value.values() if isinstance(value, dict) else value:
            _check(one, depth + 1)
        for key in value if isinstance(value, dict) else ():
            _must_be_text(key)


def _must_be_text(value: str) -> None:
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise NotStrictJson("it has half a character")
