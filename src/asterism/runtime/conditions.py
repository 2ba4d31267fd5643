"""Conditions and selections in CEL, the Common Expression Language: safe, standard, never ``eval``.

A condition on a dependency sees ``result`` (what the source returned) and ``status``. It is compiled once and kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

from asterism.core.jsonable import plain
from asterism.core.status import TaskStatus
from asterism.runtime.cel_library import cel

LONGEST = 10_000
"""How long an expression may be, in characters."""


@lru_cache(maxsize=4096)
def _program(text: str) -> Any:
    return cel().compile(text)


def check(text: str) -> str | None:
    """What is wrong with an expression; None if it parses."""
    if len(text) > LONGEST:
        return f"it is longer than {LONGEST:,} characters"
    try:
        _program(text)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the parser is foreign code: a panic in it is no Exception
        return " ".join(str(error).split())
    return None


def select(text: str, names: dict[str, Any]) -> Any:
    """The value of an expression over ``names``. Raises ValueError with what went wrong."""
    try:
        return _program(text).execute(plain(names))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"{text!r} could not be evaluated: {' '.join(str(error).split())}") from None


def evaluate(text: str, status: TaskStatus, result: Any) -> bool | str:
    """Whether a condition holds, or the reason why it cannot be told."""
    try:
        verdict = select(text, {"result": result, "status": str(status)})
    except ValueError as error:
        return str(error)
    if isinstance(verdict, bool):
        return verdict
    return f"{text!r} gives {verdict!r}, which is neither true nor false"


class Conditions(Protocol):
    """What an orchestrator needs to judge conditions; this module is the default."""

    def check(self, text: str) -> str | None: ...

    def evaluate(self, text: str, status: TaskStatus, result: Any) -> bool | str: ...
