"""The label of a run: what people call it. Given when it is created, or filled from its input by a template.

A run without a label is shown by what it does: the task of its plan, or the values of its input (``shown_label``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from asterism.core.errors import AsterismError
from asterism.core.run.run import Run

LONGEST_LABEL = 200
"""The longest label that is made from an input, in characters."""

PLAN_PREFIX = "plan:"
"""Prefix of the keys of runs that are tasks of a plan: ``plan:NAME/TASK/EPOCH``."""


class InvalidTemplate(AsterismError):
    """A text is not a template."""


class UnknownField(AsterismError):
    """A template names a field that an input does not have. ``field`` is its name."""

    def __init__(self, template: str, field: str, names: Sequence[str]) -> None:
        self.template, self.field = template, field
        has = f"it has {', '.join(names[:10])}{' and more' if len(names) > 10 else ''}" if names else "it has no fields"
        super().__init__(f"{template!r} names {{{field}}}, but the input has no such field: {has}")


class TextTemplate:
    """A text with fields of the input: ``{file}``, or ``{video.title}`` for a field of an object in it. ``{{`` and
    ``}}`` are braces. Raises InvalidTemplate."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise InvalidTemplate(f"{text!r} is not a valid template: {error} (example: '{{file}}')") from None
        self._parts: list[tuple[str, tuple[str, ...] | None]] = []
        for before, field, form, conversion in parts:
            path = None if field is None else tuple(field.split("."))
            if (path is not None and not all(path)) or form or conversion:
                raise InvalidTemplate(f"{text!r} is not a valid template: a field is written as {{name}}")
            self._parts.append((before, path))
        self.fields = tuple(".".join(path) for _, path in self._parts if path is not None)

    def fill(self, values: Mapping[str, Any]) -> str:
        """The text for one input. Raises UnknownField."""
        return "".join([before if path is None else before + self._value(values, path) for before, path in self._parts])

    def _value(self, values: Mapping[str, Any], path: tuple[str, ...]) -> str:
        value: Any = values
        for name in path:
            if not isinstance(value, Mapping) or name not in value:
                raise UnknownField(self.text, ".".join(path), list(values))
            value = value[name]
        return value_text(value)


def key_template(text: str) -> TextTemplate:
    """A template for keys. Raises InvalidTemplate for one without a field, which gives every run the same key."""
    template = TextTemplate(text)
    if not template.fields:
        raise InvalidTemplate(f"{text!r} gives every run the same key: name a field of the input, such as {{id}}")
    return template


def value_text(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    return value if type(value) is str else json.dumps(value, ensure_ascii=False)


def tidy_label(text: str) -> str | None:
    """A label made from data: on one line, printable, at most LONGEST_LABEL characters, cut in the middle. None if
    nothing is left."""
    if not text.isprintable():
        on_one_line = (" " if letter.isspace() else letter for letter in text)
        text = "".join(letter if letter.isprintable() else "·" for letter in on_one_line)
    text = text.strip()
    if len(text) > LONGEST_LABEL:
        half = LONGEST_LABEL // 2
        text = f"{text[:half]}…{text[len(text) - half + 1 :]}"
    return text or None


def shown_label(run: Run, run_input: Any = None) -> str:
    """The label of a run; else the name of its task in a plan; else the values of its input, or of ``run_input`` in
    place of it, such as an input with its secrets masked. Empty if there is nothing."""
    if run.label is not None:
        return run.label
    if (task := task_name(run)) is not None:
        return task
    value = run.input if run_input is None else run_input
    if not isinstance(value, Mapping) or "$blob" in value:
        return ""
    plain = [value_text(item) for item in value.values() if not isinstance(item, Mapping | list)]
    return tidy_label(", ".join(plain)) or ""


def task_name(run: Run) -> str | None:
    """The name of the task that a run of a plan executes; None for other runs."""
    return (task_of(run.key) or "") if run.key is not None and run.key.startswith(PLAN_PREFIX) else None


def plan_variables(run: Run) -> dict[str, str]:
    """The environment variables that name the plan and the task of a run; none if it is not of a plan."""
    task = task_name(run)
    if not task or run.workflow != f"{PLAN_PREFIX}{run.created_by}":
        return {}
    return {"ASTERISM_PLAN": run.created_by, "ASTERISM_TASK": task}


def task_of(key: str) -> str | None:
    """The name of the task in the key of a plan's run."""
    _, _, rest = key.partition("/")
    return rest.rpartition("/")[0] or None
