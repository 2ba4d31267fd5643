"""Strict JSON: what other machines send.

Beside what the codec refuses (NaN, numbers out of range, lone surrogates), keys that occur twice and deep nesting are
refused. The values of a JSON text that arrives in parts are counted before anybody parses it.

To parse a value takes far longer than to send it: 32 MB hold millions of empty objects. The count is the number of
brackets, braces and commas outside of strings, so it is never lower than the number of values but one. It is that of a
text in UTF-8; a byte 0, which JSON in UTF-8 never has and each other encoding of JSON has for each bracket, counts too.

An event of a stream (server-sent events) may have its data in many lines, which are joined before they are parsed. So
an event ends only at an empty line. Its lines end wherever a reader may end them, and a string does not go on in the
next line: otherwise a quotation mark in a comment would hide what follows.
"""

from __future__ import annotations

import re
from typing import Any

from asterism.core.record import InvalidRecord, decode_json

MAX_DEPTH = 220
"""How deep a value may be nested: the limit of core/json_values.py, and the levels around it."""


class NotStrictJson(ValueError):
    """A text that is not strict JSON."""


def parse_strict(text: bytes | str, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value of a JSON text, nested at most ``max_depth`` deep. Raises NotStrictJson."""
    try:
        data = text.encode() if isinstance(text, str) else text
        value = decode_json(Any, data)
        if _count_members(value, max_depth) != _STRING.sub(b"", data).count(b":"):
            raise NotStrictJson("a key occurs twice")
    except RecursionError:
        raise NotStrictJson("it is nested too deeply") from None
    except (InvalidRecord, UnicodeError) as error:
        raise NotStrictJson(str(error).removeprefix("it is not JSON: ")[:200]) from None
    return value


def _count_members(value: Any, depth: int) -> int:
    """How many members all objects of a value have. Refuses a value that is nested more than ``depth`` deep."""
    if not isinstance(value, list | dict):
        return 0
    if depth <= 0:
        raise NotStrictJson("it is nested too deeply")
    values = value.values() if isinstance(value, dict) else value
    return len(values) * isinstance(value, dict) + sum(_count_members(member, depth - 1) for member in values)


# -- json count --------------------------------------------------------------------------------------------------------


_STRING = re.compile(rb'"(?:[^"\\\n]++|\\.)*+(?:"|\\?\Z|(?=\n))')
_ESCAPE = re.compile(rb"\\.")
_STRUCTURE = re.compile(rb"[\[{,]")
_LINE_END = re.compile(rb"(\n)")
_EVENT_LINE_END = re.compile(rb"([\n\r\x0b\x0c\x1c-\x1e]|\xc2\x85|\xe2\x80[\xa8\xa9])")
"""Where ``str.splitlines`` ends a line, with which clients read streams of events."""

_PART_OF_LINE_END = re.compile(rb"(?:\xc2|\xe2\x80?)\Z")


class JsonCount:
    """``add`` returns how many values there are so far. With ``events``, each event of a stream is counted on its own:
    the result is that of the longest one in the part. A line break ends a string, in which JSON allows none."""

    def __init__(self, events: bool = False) -> None:
        self._events = events
        self._count = 0
        self._rest = b""  # a string, or an escape in it, that is not complete
        self._cut = b""  # the beginning of a line break that is not complete
        self._empty = True  # whether nothing has come since the last line feed

    def add(self, part: bytes) -> int:
        if self._events:
            part = self._cut + part
            cut = _PART_OF_LINE_END.search(part)
            self._cut = cut[0] if cut else b""
            part = part[: len(part) - len(self._cut)]
        most = 0
        *lines, last = (_EVENT_LINE_END if self._events else _LINE_END).split(part)
        for line, end in zip(lines[::2], lines[1::2], strict=True):
            self._add_text(line + b"\n")
            most = max(most, self._count)
            self._end_line(bool(line), end)
        self._add_text(last)
        self._empty = self._empty and not last
        return max(most, self._count)

    def _end_line(self, filled: bool, end: bytes) -> None:
        """Only an empty line between two line feeds ends an event for certain: ``\\r`` and ``\\n`` may be one break."""
        if filled or end not in (b"\n", b"\r"):
            self._empty = False
        if end == b"\n":
            if self._empty and self._events:
                self._count = 0
            self._empty = True

    def _add_text(self, text: bytes) -> None:
        if self._rest:
            text, self._rest = self._rest + text, b""
        self._count += len(_STRUCTURE.findall(_STRING.sub(b"", text))) + text.count(0)
        plain = _ESCAPE.sub(b"", text)
        if plain.count(b'"') % 2 and not text.endswith(b"\n"):
            self._rest = b'"\\' if plain.endswith(b"\\") else b'"'
