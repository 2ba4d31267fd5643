"""Regular expressions of JSON Schemas, in bounded time.

The patterns of a schema (``pattern``, ``patternProperties``) are matched in linear time (``linear_regex``). A pattern
has a greatest size, and a ``MatchBudget`` bounds the time of all matches in one answer to about a second.

A schema with look-around or references to groups is refused. So is what the engine reads otherwise than JSON Schema
(ECMA 262) does, without an error: ``&&``, ``--``, ``~~`` and ``[`` in a class, which make sets of classes, a class that
begins with ``]``, and the flag ``x``. Other differences stay: the classes of digits, words and spaces, and word
boundaries, know all of Unicode, and a text with half of a surrogate pair has no match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from asterism.base.linear_regex import TOKENS, LinearPattern, NotAPattern, size_of
from asterism.core.errors import AsterismError

_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""The keywords whose values are schemas by name."""

_VALUES = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})
"""The keywords whose values are no schemas."""


MOST_SIZE = 10_000
"""The greatest size of a pattern, with its repeats written out."""

MOST_WORK = 10_000_000
"""The greatest sum of length times size of all matches in one answer: about a second."""


class UnsupportedPattern(AsterismError, ValueError):
    """A regular expression that is not valid, that could take too long, or that the engine reads otherwise."""


class MatchBudget:
    """What the matches in one answer may still cost."""

    def __init__(self) -> None:
        self._left = MOST_WORK

    def is_found(self, pattern: str, text: str) -> bool:
        """Whether a text has a match of a pattern anywhere. Raises UnsupportedPattern, also if the texts of the answer
        are too long for their patterns."""
        compiled, size = _compiled(pattern)
        self._left -= size * len(text)
        if self._left < 0:
            raise UnsupportedPattern(
                f"the texts are too long for the pattern {pattern[:200]!r}; the last has {len(text):,} characters"
            )
        return compiled.is_found(text)


def check_patterns(schema: Any) -> bool:
    """Returns whether a schema has patterns. Raises UnsupportedPattern if one of them is not supported."""
    schemas, patterns = list(_schemas(schema)), 0
    for part in schemas:
        named = part.get("patternProperties")
        for pattern in [part.get("pattern"), *(named if isinstance(named, Mapping) else ())]:
            if isinstance(pattern, str):
                _compiled(pattern)
                patterns += 1
    if any("patternProperties" in part for part in schemas) and any(
        "unevaluatedProperties" in part for part in schemas
    ):
        raise UnsupportedPattern("a schema with patternProperties cannot have unevaluatedProperties")
    return patterns > 0


_SETS = ("&&", "--", "~~")


def _check_syntax(pattern: str) -> None:
    """Raises UnsupportedPattern for what the engine reads otherwise than JSON Schema."""
    for token in TOKENS.finditer(pattern):
        if token["class"] is not None:
            _check_class(pattern, token["class"])
        if "x" in (token["flags"] or "").partition("-")[0]:
            raise UnsupportedPattern(f"the pattern {pattern[:200]!r} is not supported: it has the flag x")


def _check_class(pattern: str, content: str) -> None:
    plain = re.sub(r"\\.", "a", content, flags=re.DOTALL)
    wrong = next((mark for mark in (*_SETS, "[") if mark in plain), None if plain else "]")
    if wrong is not None:
        raise UnsupportedPattern(
            f"the pattern {pattern[:200]!r} is not supported: {wrong!r} in a class has another meaning here; escape it"
        )


@lru_cache(maxsize=32)  # each may take megabytes
def _compiled(pattern: str) -> tuple[LinearPattern, int]:
    """The compiled pattern, and its size."""
    try:
        compiled = LinearPattern(pattern)
    except NotAPattern as error:
        raise UnsupportedPattern(f"the pattern {pattern[:200]!r} is not supported: {error}") from None
    _check_syntax(pattern)
    size = size_of(pattern)
    if size > MOST_SIZE:
        raise UnsupportedPattern(
            f"the pattern {pattern[:200]!r} is not supported: its repeats make it {size:,} long; "
            f"{MOST_SIZE:,} is the most"
        )
    return compiled, size


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and all that are part of it."""
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, list | tuple):
            stack += part
        elif isinstance(part, Mapping):
            yield part
            for keyword, value in part.items():
                if keyword in _NAMED and isinstance(value, Mapping):
                    stack += value.values()
                elif keyword not in _VALUES:
                    stack.append(value)
