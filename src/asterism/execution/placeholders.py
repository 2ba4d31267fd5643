"""Placeholders in the texts of a task: ``{params.day}``, ``{tick.date}``, ``{item}``, ``{index}``, ``{matrix.os}``.

A plan file writes them where a value is known only when the plan is loaded (a parameter), when a list is expanded into
tasks (``foreach``), or when a schedule creates the plan (``with_tick``). ``fill_task`` returns the task with the values
in their place:

- in a text: the value as text, others than text as JSON; a text that is nothing but one placeholder becomes the value
  itself, with its type;
- in a word of ``argv``: as text, never split; in a URL: percent-encoded, except at its beginning;
- in a shell line: not at all, since the shell would interpret the value. The line uses the variable ``$day``, ``$item``
  or ``$os``, which becomes an input of the task;
- in an expression (``when``, ``select``): without braces, as ``params.day``; see ``base/expressions``.

``{{item}}`` stands for the text ``{item}``. A text without these names stays as it is, whatever braces it contains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from asterism.base.expressions import NAMESPACES, with_constants
from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject, mappings_in
from asterism.core.plan.awaited import with_zone
from asterism.core.plan.task import Task
from asterism.core.plan.task_files import is_files_reference
from asterism.core.record import replace
from asterism.execution.task_inputs import input_text, is_reference, refers_to_variable, url_quoted

Scope = Mapping[str, Any]
"""The values by the first word of a placeholder: ``{"params": {…}, "item": …}``; those of a tick by their paths."""

_PATH = r"(?:params|matrix|item|index|tick)(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_IN_TEXT = re.compile(rf"\{{\{{({_PATH})\}}\}}|\{{({_PATH})\}}")
_IN_TEMPLATE = re.compile(rf"(\{{\{{|\}}\}})|\{{({_PATH})\}}")
_WHOLE = re.compile(rf"\{{({_PATH})\}}")
_TICK = re.compile(r"(\{tick(?:\.[a-z]+)?\})")

TICK_FOLLOWS = "tick follows"
"""A name in the scope of a plan file whose tick is put in later: a tick in the value of a parameter stays one."""


class UnknownPlaceholder(AsterismError):
    """A placeholder names something that does not exist, or that cannot stand there."""


def placeholders(text: str, *, template: bool = False) -> Iterator[str]:
    """The paths in a text, such as ``params.day``. In a ``template``, ``{{`` and ``}}`` are braces."""
    for match in (_IN_TEMPLATE if template else _IN_TEXT).finditer(text):
        if match[2] is not None:
            yield match[2]


def value_of(path: str, scope: Scope) -> Any:
    """The value that a path stands for. Raises UnknownPlaceholder."""
    if path in scope:
        return scope[path]
    first, *rest = path.split(".")
    value = scope[first]
    for number, name in enumerate(rest):
        if not isinstance(value, Mapping) or name not in value:
            above = ".".join([first, *rest[:number]])
            has = f"it has {', '.join(value) or 'nothing'}" if isinstance(value, Mapping) else "it is not a mapping"
            raise UnknownPlaceholder(f"{{{path}}} has no value: {above} has no {name!r}; {has}")
        value = value[name]
    return value


def fill_text(text: str, scope: Scope) -> str:
    """A text with the values in place of the placeholders."""

    def replaced(match: re.Match[str]) -> str:
        escaped, path = match[1], match[2]
        if (escaped or path).partition(".")[0] not in scope:
            return match[0]
        return f"{{{escaped}}}" if escaped else input_text(value_of(path, scope))

    return _IN_TEXT.sub(replaced, text)


def _fill_template(text: str, scope: Scope, shown: Callable[[str, int], str]) -> str:
    """A text that is still a template of inputs afterwards. ``shown`` gets a value and its position in the text."""

    def replaced(match: re.Match[str]) -> str:
        path = match[2]
        if path is None or path.partition(".")[0] not in scope:
            return match[0]
        value = input_text(value_of(path, scope))
        parts = _TICK.split(value) if TICK_FOLLOWS in scope else [value]
        return "".join(part if place % 2 else shown(part, match.start()) for place, part in enumerate(parts))

    return _IN_TEMPLATE.sub(replaced, text)


def _with_braces(text: str, at: int) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _in_url(text: str, at: int) -> str:
    return url_quoted(text) if at else _with_braces(text, at)


def fill_word(word: str, scope: Scope) -> str:
    """A word of a command."""
    return _fill_template(word, scope, _with_braces)


def fill_value(value: Any, scope: Scope) -> Any:
    """A value with all texts in it filled. A text that is one placeholder becomes its value."""
    if isinstance(value, str):
        whole = _WHOLE.fullmatch(value)
        if whole is not None and whole[1].partition(".")[0] in scope:
            return _constant(whole[1], value_of(whole[1], scope))
        return fill_text(value, scope)
    if is_reference(value):
        select = value.get("select")
        return {**value, "select": with_constants(select, scope)} if isinstance(select, str) else value
    if isinstance(value, Mapping):
        return {key: fill_value(item, scope) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill_value(item, scope) for item in value]
    return value


def _constant(path: str, value: Any) -> Any:
    """The value, if no part of it would be resolved as a reference: a value that comes from outside the plan, such as
    the result of a request, must not name a secret."""
    for part in mappings_in(value):
        if is_reference(part) or is_files_reference(part):
            raise UnknownPlaceholder(
                f"{{{path}}} is a mapping with the keys {', '.join(part)}, which would be a reference; use a part of it"
            )
    return value


def _fill_scalar(value: Any, scope: Scope) -> Any:
    """A variable, header or parameter of a request: lists and mappings become text."""
    filled = fill_value(value, scope)
    return input_text(filled) if isinstance(filled, list | Mapping) and not is_reference(value) else filled


def _fill_request(http: Mapping[str, Any], scope: Scope) -> JsonObject:
    filled = dict(http)
    filled["url"] = _fill_template(http["url"], scope, _in_url)
    for part in ("headers", "params"):
        if http.get(part):
            filled[part] = {name: _fill_scalar(value, scope) for name, value in http[part].items()}
    if "json" in http:
        filled["json"] = fill_value(http["json"], scope)
    if isinstance(http.get("body"), str):
        filled["body"] = fill_text(http["body"], scope)
    return filled


def _fill_paths(files: Mapping[str, Any], scope: Scope) -> JsonObject:
    return {
        name: fill_text(value, scope) if isinstance(value, str) else [fill_text(path, scope) for path in value]
        for name, value in files.items()
    }


def _fill_agent(agent: Mapping[str, Any], scope: Scope) -> JsonObject:
    """The schema of the result stays as it is: braces have a meaning in patterns."""
    filled = {**agent, "description": fill_text(agent["description"], scope)}
    if "tips" in agent:
        filled["tips"] = [fill_text(tip, scope) for tip in agent["tips"]]
    return filled


def variables(scope: Scope) -> dict[str, Any]:
    """The values that a shell line can use as variables, by name."""
    named: dict[str, Any] = {}
    for namespace in NAMESPACES:
        named |= scope.get(namespace, {})
    return named | {name: scope[name] for name in ("item", "index") if name in scope}


def _fill_inputs(task: Task, scope: Scope) -> JsonObject:
    inputs = {name: fill_value(value, scope) for name, value in task.inputs.items()}
    if task.shell is None:
        return inputs
    own = {*inputs, *task.env}
    for name, value in variables(scope).items():
        if name not in own and refers_to_variable(task.shell, name):
            inputs[name] = _constant(name, value)
    return inputs


def _fill_wait(wait: Mapping[str, Any], scope: Scope) -> JsonObject:
    """A time without an offset is in the time zone of the tick, once there is a tick."""
    filled = {name: fill_text(value, scope) if isinstance(value, str) else value for name, value in wait.items()}
    if "until" in filled and scope.get("tick.zone"):
        filled["until"] = with_zone(filled["until"], _zone(scope["tick.zone"]))
    return filled


def _zone(name: str) -> tzinfo:
    """The time zone of a tick, by its name or its offset."""
    if name[0] in "+-":
        return datetime.fromisoformat(f"2000-01-01T00:00{name}").tzinfo or UTC
    from asterism.base.cron import time_zone

    return UTC if name == "UTC" else time_zone(name)


def fill_task(task: Task, scope: Scope, task_id: str | None = None) -> Task:
    """The task with the values of ``scope`` in place of its placeholders, under another id if one is given. Raises
    UnknownPlaceholder, and InvalidExpression for an expression that names an unknown parameter."""
    return replace(
        task,
        id=task_id or task.id,
        argv=None if task.argv is None else tuple(fill_word(word, scope) for word in task.argv),
        http=None if task.http is None else _fill_request(task.http, scope),
        inputs=_fill_inputs(task, scope),
        env={name: _fill_scalar(value, scope) for name, value in task.env.items()},
        cwd=None if task.cwd is None else fill_text(task.cwd, scope),
        description=fill_text(task.description, scope),
        device=None if task.device is None else fill_text(task.device, scope),
        needs=frozenset(fill_text(need, scope) for need in task.needs),
        skip_if_unchanged=None if task.skip_if_unchanged is None else _fill_paths(task.skip_if_unchanged, scope),
        agent=None if task.agent is None else _fill_agent(task.agent, scope),
        plugin=None if task.plugin is None else fill_value(task.plugin, scope),
        outputs={name: fill_text(path, scope) for name, path in task.outputs.items()},
        uses={fill_text(name, scope): amount for name, amount in task.uses.items()},
        wait_for=None if task.wait_for is None else _fill_wait(task.wait_for, scope),
        approval=None if task.approval is None else fill_value(task.approval, scope),
    )
