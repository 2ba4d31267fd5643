"""Regular expressions of JSON Schemas, in linear time.

Python's ``re`` backtracks, and a text that somebody else wrote may keep it busy for ever: ``(a+)+$`` and fifty letters.
So the patterns of a schema (``pattern``, ``patternProperties``) are matched by the engine of pydantic, which does not
backtrack. It has neither look-around nor references to groups; a schema with those is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from asterism.core.errors import AsterismError

_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""The keywords whose values are schemas by name."""

_VALUES = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})
"""The keywords whose values are no schemas."""


class UnsupportedPattern(AsterismError, ValueError):
    """A regular expression that cannot be matched in linear time, or is not valid."""


def is_found(pattern: str, text: str) -> bool:
    """Whether a text has a match of a pattern anywhere. Raises UnsupportedPattern."""
    found: bool = _compiled(pattern).isinstance_python(text)
    return found


def check_patterns(schema: Any) -> None:
    """Raises UnsupportedPattern for a schema whose patterns cannot all be matched in linear time."""
    schemas = list(_schemas(schema))
    for part in schemas:
        named = part.get("patternProperties")
        for pattern in [part.get("pattern"), *(named if isinstance(named, Mapping) else ())]:
            if isinstance(pattern, str):
                _compiled(pattern)
    if any("patternProperties" in part for part in schemas) and any(
        "unevaluatedProperties" in part for part in schemas
    ):
        raise UnsupportedPattern("a schema with patternProperties cannot have unevaluatedProperties")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    from pydantic_core import SchemaError, SchemaValidator, core_schema  # commands without schemas need not import it

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True))
    except SchemaError as error:
        why = str(error).rstrip().rpartition("\n")[2].strip().removeprefix("error: ").removeprefix("SchemaError: ")
        raise UnsupportedPattern(f"the pattern {pattern[:200]!r} is not supported: {why}") from None


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
