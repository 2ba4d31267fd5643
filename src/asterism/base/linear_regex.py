"""Regular expressions in linear time, for texts and patterns that somebody else wrote.

Python's ``re`` backtracks, and a text may keep it busy for ever: ``(a+)+$`` and fifty letters. The engine of pydantic
(the crate ``regex`` of Rust) does not. Its time is at most the length of the text times the size of the pattern, with
repeats written out: ``(.{1,100}){1,50}`` has the size 5,000. The engine holds the interpreter while it matches, in a
thread as well, so the caller has to bound both. It has neither look-around nor references to groups.

The patterns of a JSON Schema (``pattern``, ``patternProperties``) are matched with it. A pattern has a greatest size,
and a ``MatchBudget`` bounds the time of all matches in one answer to about a second. A schema with look-around or
references to groups is refused. So is what the engine reads otherwise than JSON Schema (ECMA 262) does, without an
error: ``&&``, ``--``, ``~~`` and ``[`` in a class, which make sets of classes, a class that begins with ``]``, and the
flag ``x``. Other differences stay: the classes of digits, words and spaces, and word boundaries, know all of Unicode,
and a text with half of a surrogate pair has no match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from asterism.core.errors import AsterismError

TOKENS = re.compile(
    r"""\\(?:[pPxu]\{[^}]*\}|.)                # an escape
      | \[\^?(?P<class>(?:\\.|[^\]\\])*)\]     # a class
      | \{(?P<least>\d+)(?:,(?P<most>\d*))?\}  # a repeat
      | \((?:\?P?<[^>=!]*>|\?(?P<flags>[a-zA-Z-]*)[:)])?
      | .""",
    re.DOTALL | re.VERBOSE,
)
"""The parts of a pattern that is valid."""


class NotAPattern(ValueError):
    """A text that the engine refuses. The message says why, and does not repeat the text."""


class LinearPattern:
    """A compiled pattern. Raises NotAPattern."""

    def __init__(self, pattern: str) -> None:
        from pydantic_core import SchemaError, SchemaValidator, core_schema  # most commands need not import it

        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        try:
            self._engine: Any = SchemaValidator(schema)
            return
        except SchemaError as error:
            why = str(error).rstrip().rpartition("\n")[2].strip().removeprefix("error: ").removeprefix("SchemaError: ")
        raise NotAPattern(why)  # out here: the error that the engine raised repeats the pattern, which may be a secret

    def is_found(self, text: str) -> bool:
        """Whether the pattern is found anywhere in a text. A text with half of a surrogate pair has no match."""
        matches: bool = self._engine.isinstance_python(text)
        return matches


def size_of(pattern: str) -> int:
    """The size of a pattern, with its repeats written out."""
    sums, last = [0], 0  # of each open group; the last part, which a repeat multiplies
    for token in TOKENS.finditer(pattern):
        text, part = token[0], 1
        if token["least"] is not None:
            times = int(token["most"] or token["least"])
            sums[-1] += last * max(times - 1, 0)
            last *= max(times, 1)
        elif text.startswith("(") and not text.endswith(")"):
            sums.append(0)
        elif text not in ("*", "+", "?"):
            if text == ")" and len(sums) > 1:
                part = sums.pop() + 1
            sums[-1] += part
            last = part
    return sum(sums)


# -- patterns of JSON Schemas ------------------------------------------------------------------------------------------

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
