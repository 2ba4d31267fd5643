"""Regular expressions of JSON Schemas, in bounded time.

Python's ``re`` backtracks, and a text that somebody else wrote may keep it busy for ever: ``(a+)+$`` and fifty letters.
So the patterns of a schema (``pattern``, ``patternProperties``) are matched by the engine of pydantic, which does not
backtrack. Its time is at most the length of the text times the size of the pattern, with repeats written out:
``(.{1,100}){1,50}`` has the size 5,000. So a pattern has a greatest size, and a ``MatchBudget`` bounds the time of all
matches in one answer to about a second. The engine holds the interpreter while it matches, in a thread as well.

It has neither look-around nor references to groups; a schema with those is refused. So is what it reads otherwise than
JSON Schema (ECMA 262) does, without an error: ``&&``, ``--``, ``~~`` and ``[`` in a class, which make sets of classes,
a class that begins with ``]``, and the flag ``x``. Other differences stay: the
classes of digits, words and spaces, and word boundaries, know all of Unicode, and a text with half of a surrogate pair
has no match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

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
        engine, size = _compiled(pattern)
        self._left -= size * len(text)
        if self._left < 0:
            raise UnsupportedPattern(
                f"the texts are too long for the pattern {pattern[:200]!r}; the last has {len(text):,} characters"
            )
        found: bool = engine.isinstance_python(text)
        return found


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


_TOKENS = re.compile(
    r"""\\(?:[pPxu]\{[^}]*\}|.)                # an escape
      | \[\^?(?P<class>(?:\\.|[^\]\\])*)\]     # a class
      | \{(?P<least>\d+)(?:,(?P<most>\d*))?\}  # a repeat
      | \((?:\?P?<[^>=!]*>|\?(?P<flags>[a-zA-Z-]*)[:)])?
      | .""",
    re.DOTALL | re.VERBOSE,
)
_SETS = ("&&", "--", "~~")


def _size(pattern: str) -> int:
    """The size of a valid pattern, with its repeats written out. Raises UnsupportedPattern for what the engine reads
    otherwise than JSON Schema."""
    sums, last = [0], 0  # of each open group; the last part, which a repeat multiplies
    for token in _TOKENS.finditer(pattern):
        text, part = token[0], 1
        if token["class"] is not None:
            _check_class(pattern, token["class"])
        if token["least"] is not None:
            times = int(token["most"] or token["least"])
            sums[-1] += last * max(times - 1, 0)
            last *= max(times, 1)
            continue
        if "x" in (token["flags"] or "").partition("-")[0]:
            raise UnsupportedPattern(f"the pattern {pattern[:200]!r} is not supported: it has the flag x")
        if text.startswith("(") and not text.endswith(")"):
            sums.append(0)
            continue
        if text == ")" and len(sums) > 1:
            part = sums.pop() + 1
        if text in ("*", "+", "?"):
            continue
        sums[-1] += part
        last = part
    return sum(sums)


def _check_class(pattern: str, content: str) -> None:
    plain = re.sub(r"\\.", "a", content, flags=re.DOTALL)
    wrong = next((mark for mark in (*_SETS, "[") if mark in plain), None if plain else "]")
    if wrong is not None:
        raise UnsupportedPattern(
            f"the pattern {pattern[:200]!r} is not supported: {wrong!r} in a class has another meaning here; escape it"
        )


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> tuple[Any, int]:
    """The engine for a pattern, and its size."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema  # commands without schemas need not import it

    try:
        engine = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True))
    except SchemaError as error:
        why = str(error).rstrip().rpartition("\n")[2].strip().removeprefix("error: ").removeprefix("SchemaError: ")
        raise UnsupportedPattern(f"the pattern {pattern[:200]!r} is not supported: {why}") from None
    size = _size(pattern)
    if size > MOST_SIZE:
        raise UnsupportedPattern(
            f"the pattern {pattern[:200]!r} is not supported: its repeats make it {size:,} long; "
            f"{MOST_SIZE:,} is the most"
        )
    return engine, size


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
