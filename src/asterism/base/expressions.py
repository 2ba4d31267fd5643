"""Conditions, rules and selections in CEL, the Common Expression Language, with a bounded cost.

Expressions are evaluated inside steps that must not block, such as the one that records the end of a task and begins
its hold. So each has a budget of steps, and an expression that needs more is refused. See ``asterism.base.cel``, whose
compiler is imported with the first expression: most commands evaluate none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from asterism.base.cel.cel_values import ExpressionError, InvalidExpression, TooCostly

if TYPE_CHECKING:
    from asterism.base.cel import Program
    from asterism.core.plan.status import TaskStatus

STEPS = 100_000
"""The budget of all selections of one task or run, in steps: a few hundredths of a second, and a few megabytes."""

CONDITION_STEPS = 30_000
"""The budget of a condition: all conditions on a task are evaluated in the step that records its end."""

STEPS_TO_READ = 2
"""The cost of each character of an expression that shares its budget with others."""

RULE_STEPS = 2_000
"""The budget of a rule about devices and runs: it is evaluated for many pairs of them."""


def compile_expression(text: str) -> Program:
    """Compile an expression. Raises InvalidExpression."""
    from asterism.base import cel

    return cel.compile_expression(text)


def _compiled(text: str) -> Program | str:
    try:
        return compile_expression(text)
    except InvalidExpression as error:
        return str(error)  # cached too: to refuse an expression may cost as much as to evaluate it


_short = lru_cache(maxsize=4096)(_compiled)
_long = lru_cache(maxsize=64)(_compiled)  # few, since a long expression compiles to megabytes


def _program(text: str) -> Program | str:
    return _short(text) if len(text) <= 500 else _long(text)


def check(text: str) -> str | None:
    """The problem of an expression; None if it is valid."""
    program = _program(text)
    return program if isinstance(program, str) else None


def select(text: str, names: Mapping[str, Any], steps: int = STEPS) -> Any:
    """The value of an expression over ``names``. Raises ValueError with the reason."""
    program = _program(text)
    try:
        if isinstance(program, str):
            raise InvalidExpression(program)
        return program.evaluate(names, steps)
    except ExpressionError as error:
        raise ValueError(f"{_shown(text)} could not be evaluated: {error}") from None


class Selections:
    """The selections of one task or run. They share one budget, so that many of them block no longer than one."""

    def __init__(self, steps: int = STEPS) -> None:
        self._steps = self._left = steps

    def __call__(self, text: str, names: Mapping[str, Any]) -> Any:
        """The value of an expression over ``names``. Raises ValueError with the reason."""
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
    """Whether an expression is true, or why it cannot be evaluated."""
    try:
        verdict = select(text, names, steps)
    except ValueError as error:
        return str(error)
    if isinstance(verdict, bool):
        return verdict
    return f"{_shown(text)} gives a value of type {type(verdict).__name__}, not true or false"


def evaluate(text: str, status: TaskStatus, result: Any) -> bool | str:
    """Whether a condition holds, or why it cannot be evaluated."""
    return holds(text, {"result": result, "status": str(status)}, CONDITION_STEPS)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 300 else f"{text[:299]}…")


class Conditions(Protocol):
    """What an orchestrator needs to evaluate conditions. This module is the default."""

    def check(self, text: str) -> str | None: ...

    def evaluate(self, text: str, status: TaskStatus, result: Any) -> bool | str: ...
