"""Counts the values of a JSON text that arrives in parts, before anybody parses it.

To parse a value takes far longer than to send it: 32 MB hold millions of empty objects. The count is the number of
brackets, braces and commas outside of strings, so it is never lower than the number of values but one.
"""

from __future__ import annotations

import re

_STRING = re.compile(rb'"(?:[^"\\\n]++|\\.)*+(?:"|\\?\Z|(?=\n))')
_ESCAPE = re.compile(rb"\\.")
_STRUCTURE = re.compile(rb"[\[{,]")


class JsonCount:
    """``add`` returns how many values there are so far. With ``lines``, each line is counted on its own: the result is
    that of the longest one. A line break ends a string, in which JSON allows none."""

    def __init__(self, lines: bool = False) -> None:
        self._lines = lines
        self._count = 0
        self._rest = b""  # a string, or an escape in it, that is not complete

    def add(self, part: bytes) -> int:
        most = 0
        *before, last = part.split(b"\n")
        for line in before:
            self._add_line(line + b"\n")
            most = max(most, self._count)
            if self._lines:
                self._count = 0
        self._add_line(last)
        return max(most, self._count)

    def _add_line(self, text: bytes) -> None:
        if self._rest:
            text, self._rest = self._rest + text, b""
        self._count += len(_STRUCTURE.findall(_STRING.sub(b"", text)))
        plain = _ESCAPE.sub(b"", text)
        if plain.count(b'"') % 2 and not text.endswith(b"\n"):
            self._rest = b'"\\' if plain.endswith(b"\\") else b'"'
