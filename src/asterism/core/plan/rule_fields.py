"""Rules about edits as a person writes them: ``edits=add_task,cancel_task tasks=fix-*``.

A rule is a dataclass with lists of words. Patterns are those of file names. The same rule is data in a store, one line
in a terminal, and fields in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any

from asterism.core.errors import PlanError


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_words(rule: object, what: str, known: Mapping[str, Iterable[str]], but: Iterable[str] = ()) -> None:
    """Make every field of a rule a tuple of words, except those in ``but``. ``known`` has the words that some fields
    may have. Raises PlanError."""
    for field in fields(rule):  # type: ignore[arg-type]
        if field.name in but:
            continue
        values = getattr(rule, field.name)
        if isinstance(values, str) or not all(isinstance(value, str) and value for value in values):
            raise PlanError(f"{field.name} of {what} is a list of words, not {values!r}")
        object.__setattr__(rule, field.name, tuple(values))
    for name, words in known.items():
        unknown = sorted(set(getattr(rule, name)) - set(words))
        if unknown:
            raise PlanError(f"{name} of {what} are among {', '.join(words)}, not {', '.join(unknown)}")


def check_names(cls: type, what: str, data: Mapping[str, Any]) -> None:
    """Raise PlanError if the JSON form of a rule has unknown fields."""
    allowed = [field.name for field in fields(cls)]
    unknown = sorted(set(data) - set(allowed))
    if unknown:
        raise PlanError(f"{what} has no {', '.join(unknown)}; its fields are {', '.join(allowed)}")


def parse_fields(text: str, what: str, examples: str) -> dict[str, tuple[str, ...]]:
    """The fields of a rule in one line. Raises PlanError."""
    given = [part.partition("=") for part in text.split()]
    if not given or not all(equals and values for _, equals, values in given):
        raise PlanError(f"{text!r} is not {what} (examples: {examples})")
    return {name: tuple(filter(None, values.split(","))) for name, _, values in given}
