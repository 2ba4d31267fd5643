"""The encoding of messages between peers: lines of strict JSON.

The first line is the message; each of its records, workflows and devices follows in a line of its own, and is parsed on
its own. A line that is not strict JSON (NaN and Infinity, numbers out of range, duplicate keys, lone surrogates, deep
nesting) costs the sender that one record, and not the rest of the sync. It becomes an UnreadableLine among the records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

LINE_LISTS = {"records": "record", "workflows": "workflow", "devices": "device"}
"""The lists whose elements have lines of their own, and the key of such a line."""

_LIST_OF = {kind: name for name, kind in LINE_LISTS.items()}

MAX_DEPTH = 220
"""How deep a value may be nested: the limit of core/json_values.py, and the levels around it."""

MAX_DIGITS = 400
"""The most digits of an integer."""


class NotStrictJson(ValueError):
    """A text that is not strict JSON."""


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """A line that is not strict JSON, and the reason."""

    error: str


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Raises ValueError for a value that is not JSON."""
    lines = [{name: [] if name in LINE_LISTS and value is not None else value for name, value in message.items()}]
    lines += [{kind: one} for name, kind in LINE_LISTS.items() for one in message.get(name) or ()]
    return "\n".join(json.dumps(line, separators=(",", ":"), allow_nan=False) for line in lines).encode("ascii")


def decode_message(data: bytes) -> dict[str, Any]:
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
            case dict(one) if len(one) == 1 and (kind := next(iter(one))) in _LIST_OF:
                return _LIST_OF[kind], one[kind]
        reason = f"a line has to be one of {', '.join(_LIST_OF)}"
    except NotStrictJson as error:
        reason = str(error)
    return "records", UnreadableLine(f"it is not a valid JSON line: {reason}")


def parse_strict(text: bytes | str) -> Any:
    """The value of a JSON text. Raises NotStrictJson."""
    try:
        words = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            words,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
            object_pairs_hook=_unique_keys,
        )
        _check_value(value, 0)
    except RecursionError:
        raise NotStrictJson("it is nested too deeply") from None
    except NotStrictJson:
        raise
    except ValueError as error:
        raise NotStrictJson(str(error)[:200]) from None
    return value


def _reject_constant(word: str) -> Any:
    raise NotStrictJson(f"{word} is not a valid number")


def _parse_float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise NotStrictJson(f"{text[:40]} is out of range")
    return value


def _parse_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise NotStrictJson(f"an integer has more than {MAX_DIGITS} digits")
    return int(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotStrictJson("a key occurs twice")
    return found


def _check_value(value: Any, depth: int) -> None:
    """Refuse what the json module lets pass: lone surrogates, and deep nesting."""
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, list | dict):
        if depth >= MAX_DEPTH:
            raise NotStrictJson("it is nested too deeply")
        for one in value.values() if isinstance(value, dict) else value:
            _check_value(one, depth + 1)
        for key in value if isinstance(value, dict) else ():
            _check_text(key)


def _check_text(value: str) -> None:
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise NotStrictJson("it has a lone surrogate")
