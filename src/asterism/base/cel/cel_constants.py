"""Names of an expression replaced by constants, so that the text needs no other names when it is evaluated later.

::

    with_constants("result.day == params.day", {"params": {"day": "2026-11-16"}}) == 'result.day == "2026-11-16"'

The conditions of a plan are text that is stored with the plan. A parameter of the plan becomes a literal in that text
when the plan is loaded, so every process that evaluates the condition later has the same value.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from asterism.base.cel.cel_values import InvalidExpression

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
