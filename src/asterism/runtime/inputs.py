"""What a task's inputs stand for at the moment it runs: constants, upstream results, secrets.

Secrets are read from the environment just before the work begins, live in no record, and every text that comes back
from the work is searched for them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from asterism.core.errors import AsterismError
from asterism.core.jsonable import plain
from asterism.runtime.conditions import select

HIDDEN = "[secret]"
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}|\{\{|\}\}")


class MissingInput(AsterismError):
    """An input that cannot be filled."""


class Resolved:
    """The inputs and environment of one execution, with the secrets that were used."""

    __slots__ = ("environment", "inputs", "secrets")

    def __init__(self, inputs: dict[str, Any], environment: dict[str, str], secrets: frozenset[str]) -> None:
        self.inputs, self.environment, self.secrets = inputs, environment, secrets

    def hide(self, value: Any) -> Any:
        """``value`` with every secret blotted out, however it is written: plain, quoted for a URL or JSON, a number."""
        return _hide(value, _forms(self.secrets)) if self.secrets else value


def resolve(inputs: Mapping[str, Any], env: Mapping[str, Any], results: Mapping[str, Any]) -> Resolved:
    """Fill inputs and environment. Raises MissingInput."""
    secrets: set[str] = set()
    filled = {name: _fill(name, value, results, secrets) for name, value in inputs.items()}
    environment = {name: as_text(_fill(name, value, results, secrets)) for name, value in env.items()}
    return Resolved(filled, environment, frozenset(secrets - {""}))


def fill(value: Any, results: Mapping[str, Any], resolved: Resolved) -> Any:
    """References and secrets anywhere inside a nested value, such as the headers of a request."""
    secrets: set[str] = set()
    filled = _fill_deep(value, results, secrets)
    resolved.secrets |= secrets - {""}
    return filled


def _fill_deep(value: Any, results: Mapping[str, Any], secrets: set[str]) -> Any:
    if is_reference(value):
        return _fill("request", value, results, secrets)
    if isinstance(value, Mapping):
        return {key: _fill_deep(item, results, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_fill_deep(item, results, secrets) for item in value]
    return value


def is_reference(value: Any) -> bool:
    """Whether an input is ``{"from": …}`` or ``{"secret": …}`` rather than a constant."""
    return isinstance(value, Mapping) and (
        set(value) == {"secret"} or ("from" in value and set(value) <= {"from", "select"})
    )


def _fill(name: str, value: Any, results: Mapping[str, Any], secrets: set[str]) -> Any:
    if not is_reference(value):
        return value
    if "secret" in value:
        text = os.environ.get(value["secret"])
        if text is None:
            raise MissingInput(f"input {name!r}: the environment has no secret {value['secret']!r}")
        secrets.add(text)
        return text
    source = value["from"]
    if source not in results:
        raise MissingInput(f"input {name!r}: {source!r} is no task that this one depends on")
    expression = value.get("select")
    return results[source] if expression is None else select(expression, {"result": results[source]})


def template(text: str, inputs: Mapping[str, Any], quoted: Callable[[str], str] = str) -> str:
    """``{name}`` in a text stands for an input; ``{{`` and ``}}`` for braces."""

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return match.group(0)[0]
        if name not in inputs:
            raise MissingInput(f"{text!r} names {{{name}}}, and there is no such input")
        return quoted(as_text(inputs[name]))

    return _PLACE.sub(replace, text)


def in_url(text: str) -> str:
    return quote(text, safe="")


def as_text(value: Any) -> str:
    """An input as a command sees it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(plain(value))


def _forms(secrets: frozenset[str]) -> list[str]:
    """The ways in which a secret may come back, the longest first."""
    forms = {form for text in secrets for form in (text, quote(text), quote(text, safe=""), quote_plus(text))}
    forms |= {json.dumps(text)[1:-1] for text in secrets}
    return sorted(forms, key=len, reverse=True)


def _hide(value: Any, forms: list[str]) -> Any:
    if isinstance(value, str):
        for form in forms:
            value = value.replace(form, HIDDEN)
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return HIDDEN if str(value) in forms else value
    if isinstance(value, Mapping):
        return {_hide(key, forms): _hide(item, forms) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_hide(item, forms) for item in value)
    return value
