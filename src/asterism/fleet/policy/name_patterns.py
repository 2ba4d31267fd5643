"""Patterns of names: ``*`` stands for any text, ``?`` for one character, everything else for itself.

Where names have parts (a path, an import path) neither reaches past the end of a part. Patterns are a device's own, but
the names come from anybody, so that no name may take long to compare, whatever the pattern: what has been matched is
never tried again.
"""

from __future__ import annotations

import re
from functools import lru_cache


def is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


@lru_cache(maxsize=1024)
def compiled(pattern: str, separator: str = "") -> re.Pattern[str]:
    """To be used with ``fullmatch``. ``separator`` is the character that the wildcards do not stand for."""
    one = f"[^{re.escape(separator)}]" if separator else "."
    parts = pattern.split(separator) if separator else [pattern]
    return re.compile(re.escape(separator).join(_part(part, one) for part in parts), re.DOTALL)


def _part(text: str, one: str) -> str:
    """The first place where the text between two stars occurs is as good as any later one: no way back is needed."""
    first, *rest = (_plain(chunk, one) for chunk in text.split("*"))
    if not rest:
        return first
    between = "".join(f"(?>{one}*?{chunk})" for chunk in rest[:-1] if chunk)
    return f"{first}{between}{one}*{rest[-1]}"


def _plain(text: str, one: str) -> str:
    return "".join(one if letter == "?" else re.escape(letter) for letter in text)


class Names:
    """A list of names and patterns."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        each = "|".join(f"(?:{compiled(entry).pattern})" for entry in entries)
        self._found = re.compile(each, re.DOTALL) if entries else None

    def __contains__(self, name: object) -> bool:
        return self._found is not None and isinstance(name, str) and self._found.fullmatch(name) is not None
