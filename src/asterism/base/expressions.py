"""Conditions, rules and selections in CEL, the Common Expression Language: safe, standard, bounded, never ``eval``.

Expressions are evaluated inside steps that may not wait, such as the one that records the end of a task and begins its
hold. So they are not interrupted from outside but metered from inside: each has a number of steps, and one that needs
more is refused. See ``asterism.base.cel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

from asterism.base.cel import ExpressionError, InvalidExpression, Program, TooCostly, compile_expression
from asterism.core.plan.status import TaskStatus

STEPS = 100_000
"""What the selections of one task or run may cost together, in steps: a few hundredths of a second, and a few
megabytes."""

CONDITION_STEPS = 30_000
"""What a condition may cost: all those that follow a task are evaluated in the step that records its end."""

STEPS_TO_READ = 2
"""What each character of an expression costs that shares its steps with others."""

RULE_STEPS = 2_000
"""What a rule about devices and runs may cost: it is evaluated for many pairs of them."""


def _compiled(text: str) -> Program | str:
    try:
        return compile_expression(text)
    except InvalidExpression as error:
        return str(error)  # remembered too: to find out that it is refused may cost as much as to evaluate it


_short = lru_cache(maxsize=4096)(_compiled)
_long = lru_cache(maxsize=64)(_compiled)  # few, since the program of a long expression takes megabytes


def _program(text: str) -> Program | str:
    return _short(text) if len(text) <= 500 else _long(text)


def check(text: str) -> str | None:
    """What is wrong with an expression; None if it can be evaluated."""
    program = _program(text)
    return program if isinstance(program, str) else None


def select(text: str, names: Mapping[str, Any], steps: int = STEPS) -> Any:
    """The value of an expression over ``names``. Raises ValueError with what went wrong."""
    program = _program(text)
    try:
        if isinstance(program, str):
            raise InvalidExpression(program)
        return program.evaluate(names, steps)
    except ExpressionError as error:
        raise ValueError(f"{_shown(text)} could not be evaluated: {error}") from None


class Selections:
    """The selections of one task or run. They share their steps, so that many of them block no longer than one."""

    def __init__(self, steps: int = STEPS) -> None:
        self._steps = self._left = steps

    def __call__(self, text: str, names: Mapping[str, Any]) -> Any:
        """The value of an expression over ``names``. Raises ValueError with what went wrong."""
        self._left -= STEPS_TO_READ * len(text)
        program = _program(text) if self._left > 0 else None
        try:
            if isinstance(program, str):
                raise InvalidExpression(program)
            if program is None:
                raise TooCostly(f"the selections together need more than {self._steps:,} steps; use fewer of them")
            value, self._left = program.metered(names, self._left)
        except ExpressionError as error:
            raise ValueError(f"{_shown(text)} could not be evaluated: {error}") from None
        return value


def holds(text: str, names: Mapping[str, Any], steps: int = RULE_STEPS) -> bool | str:
    """Whether an expression is true, or why that cannot be told."""
    try:
        verdict = select(text, names, steps)
    except ValueError as error:
        return str(error)
    if isinstance(verdict, bool):
        return verdict
    return f"{_shown(text)} gives a value of type {type(verdict).__name__}, which is neither true nor false"


def evaluate(text: str, status: TaskStatus, result: Any) -> bool | str:
    """Whether a condition holds, or the reason why it cannot be told."""
    return holds(text, {"result": result, "status": str(status)}, CONDITION_STEPS)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 300 else f"{text[:299]}…")


class Conditions(Protocol):
    """What an orchestrator needs to judge conditions; this module is the default."""

    def check(self, text: str) -> str | None: ...

    def evaluate(self, text: str, status: TaskStatus, result: Any) -> bool | str: ...
