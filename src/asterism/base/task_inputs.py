"""What a task's inputs stand for at the moment it runs: constants, upstream results, secrets.

Secrets are read from the environment before anything is evaluated, and live in no record. Whoever fills inputs does so
under the mask of these secrets: an expression that fails tells what it was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from asterism.base.expressions import Selections
from asterism.base.secret_mask import Mask
from asterism.core.errors import AsterismError
from asterism.core.json_values import plain

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}|\{\{|\}\}")


class MissingInput(AsterismError):
    """An input that cannot be filled."""


class Resolved(NamedTuple):
    """The inputs and environment of one execution, and the mask for whatever it says."""

    inputs: dict[str, Any]
    environment: dict[str, str]
    mask: Mask


NO_SECRETS = Mask()


def resolve(
    inputs: Mapping[str, Any], env: Mapping[str, Any], results: Mapping[str, Any], mask: Mask, select: Selections
) -> Resolved:
    """Fill inputs and environment; ``mask`` has the secrets. Raises MissingInput."""
    filled = {name: _fill(name, value, results, mask, select) for name, value in inputs.items()}
    environment = {name: as_text(_fill(name, value, results, mask, select)) for name, value in env.items()}
    return Resolved(filled, environment, mask)


def fill(value: Any, results: Mapping[str, Any], mask: Mask, select: Selections) -> Any:
    """References and secrets anywhere inside a nested value, such as the headers of a request."""
    if is_reference(value):
        return _fill("request", value, results, mask, select)
    if isinstance(value, Mapping):
        return {key: fill(item, results, mask, select) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill(item, results, mask, select) for item in value]
    return value


def is_reference(value: Any) -> bool:
    """Whether an input is ``{"from": …}`` or ``{"secret": …}`` rather than a constant."""
    return isinstance(value, Mapping) and (
        set(value) == {"secret"} or ("from" in value and set(value) <= {"from", "select"})
    )


def _fill(name: str, value: Any, results: Mapping[str, Any], mask: Mask, select: Selections) -> Any:
    if not is_reference(value):
        return value
    if "secret" in value:
        if value["secret"] not in mask.values:
            raise MissingInput(f"input {name!r}: the environment has no secret {value['secret']!r}")
        return mask.values[value["secret"]]
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


def names_in(text: str) -> set[str]:
    """The inputs that a text names."""
    return {match[1] for match in _PLACE.finditer(text) if match[1] is not None}


def in_url(text: str) -> str:
    return quote(text, safe="")


def as_text(value: Any) -> str:
    """An input as a command sees it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(plain(value))
