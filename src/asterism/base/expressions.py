"""Conditions, rules and selections in CEL, the Common Expression Language, with a bounded cost.

Expressions are evaluated inside steps that must not block, such as the one that records the end of a task and begins
its hold. So each has a budget of steps, and an expression that needs more is refused. See ``asterism.base.cel``, whose
compiler is imported with the first expression: most commands evaluate none.

``with_constants`` replaces names of an expression by constants, so that the text needs no other names when it is
evaluated later.

::

    with_constants("result.day == params.day", {"params": {"day": "2026-11-16"}}) == 'result.day == "2026-11-16"'

The conditions of a plan are text that is stored with the plan. A parameter of the plan becomes a literal in that text
when the plan is loaded, so every process that evaluates the condition later has the same value.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from asterism.base.cel.cel_values import ExpressionError, InvalidExpression, TooCostly

if TYPE_CHECKING:
    from asterism.base.cel.cel_program import Program
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
    from asterism.base.cel import cel_program

    return cel_program.compile_expression(text)


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


# -- names replaced by constants ---------------------------------------------------------------------------------------


NAMESPACES = ("params", "matrix")
"""Names whose fields are known: ``params.day`` becomes the value of ``day``, and an unknown field is an error."""

TICK = "tick"
"""A name that has a value itself, and fields, whose values have their own names: ``tick.date``."""


def with_constants(text: str, names: Mapping[str, Any]) -> str:
    """The expression with each of ``names`` replaced by its value, which is JSON. Raises InvalidExpression for text
    that is not an expression, and for an unknown field of a namespace."""
    out, done = [], 0
    for start, end, path in _mentions(text, names):
        out += [text[done:start], _literal(_value(names, path))]
        done = end
    return "".join([*out, text[done:]])


def names_used(text: str, names: Collection[str]) -> set[str]:
    """Which of ``names`` an expression mentions. Empty for text that is not an expression."""
    try:
        return {path[0] for _, _, path in _mentions(text, names)}
    except InvalidExpression:
        return set()


def _mentions(text: str, names: Collection[str]) -> list[tuple[int, int, list[str]]]:
    """Each mention of a name: where it begins and ends, and the name with its field, if it is a namespace."""
    from asterism.base.cel.cel_syntax import tokens  # most files have no expressions

    mentions: list[tuple[int, int, list[str]]] = []
    all_tokens = tokens(text)
    for number, token in enumerate(all_tokens):
        if token.kind != "name" or token.text not in names:
            continue
        if number and all_tokens[number - 1].text == ".":
            continue  # a field of another value
        path, last = [token.text], token
        if (
            token.text in (*NAMESPACES, TICK)
            and all_tokens[number + 1].text == "."
            and all_tokens[number + 2].kind == "name"
        ):
            last = all_tokens[number + 2]
            path.append(last.text)
        mentions.append((token.at, last.at + len(last.text), path))
    return mentions


def _value(names: Mapping[str, Any], path: list[str]) -> Any:
    if path[0] == TICK:
        fields = {name: value for name, value in names.items() if name.partition(".")[0] == TICK}
        if ".".join(path) not in fields:
            raise InvalidExpression(f"there is no {'.'.join(path)}; there is {', '.join(fields)}")
        return fields[".".join(path)]
    value = names[path[0]]
    for name in path[1:]:
        if name not in value:
            raise InvalidExpression(f"there is no {'.'.join(path)}; there is {', '.join(value) or 'nothing'}")
        value = value[name]
    return value


def _literal(value: Any) -> str:
    """JSON is CEL, except that a minus is an operator."""
    text = json.dumps(value, ensure_ascii=False)
    return f"({text})" if text.startswith("-") else text
