"""Checks of the placeholders and names in a task: every ``{params.day}`` and every ``params.day`` exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from asterism.base.cel import InvalidExpression
from asterism.base.cel.cel_constants import NAMESPACES, with_constants
from asterism.base.text import suggestion
from asterism.execution.placeholders import placeholders
from asterism.planfile import models
from asterism.planfile.models import Part

Found = tuple[tuple[Part, ...], str]


def constants_problem(text: str, scope: Mapping[str, Any]) -> str | None:
    """The unknown name in a valid expression; None if there is none."""
    try:
        with_constants(text, scope)
    except InvalidExpression as error:
        return str(error)
    return None


def unknown_placeholders(task: models.Task, scope: Mapping[str, Any]) -> Iterator[tuple[tuple[Part, ...], str, bool]]:
    """Every placeholder that names nothing in ``scope``, and every one in a shell line."""
    for path, text in _texts(task):
        template = path[0] == "argv" or path == ("http", "url")
        for name in placeholders(text, template=template):
            first, _, rest = name.partition(".")
            known = scope.get(first)
            if first in NAMESPACES and first in scope and rest.partition(".")[0] not in (known or {}):
                what = f"there is no {_noun(first)} {rest!r}" if rest else f"{{{first}}} needs a name"
                hint = suggestion(rest, list(known or {})) or f"; there is {', '.join(known or {})}"
                yield path, f"{{{name}}}: {what}{hint}", False
    if task.shell is not None:
        for name in placeholders(task.shell):
            if name.partition(".")[0] in scope:
                variable = name.rpartition(".")[2]
                words = f'a shell line takes values as variables: write "${variable}" instead of {{{name}}}'
                yield ("shell",), words, False


def _noun(namespace: str) -> str:
    return "parameter" if namespace == "params" else "matrix variable"


def _texts(task: models.Task) -> Iterator[Found]:
    """Every text of a task that may have placeholders, with its path."""
    for index, word in enumerate(task.argv or ()):
        yield ("argv", index), word
    for key in ("inputs", "env"):
        for name, value in (getattr(task, key) or {}).items():
            yield from _deep((key, name), value)
    for key in ("cwd", "description"):
        if getattr(task, key):
            yield (key,), getattr(task, key)
    for text in (task.wanted.id, *(task.wanted.needs or ())):
        if text is not None:
            yield ("device",), text
    if task.skip_if_unchanged is not None:
        yield from _deep(("skip_if_unchanged",), task.skip_if_unchanged.model_dump(exclude_none=True))
    if isinstance(task.agent, str):
        yield ("agent",), task.agent
    elif task.agent is not None:
        yield ("agent", "description"), task.agent.description
        yield from _deep(("agent", "tips"), task.agent.tips)
    if task.http is not None:
        yield ("http", "url"), task.http.url
        for key, value in (("headers", task.http.headers), ("params", task.http.params), ("json", task.http.content)):
            yield from _deep(("http", key), value)
        yield from _deep(("http", "body"), task.http.body)


def _deep(path: tuple[Part, ...], value: Any) -> Iterator[Found]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _deep((*path, key), item)
