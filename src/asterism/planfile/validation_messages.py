"""Pydantic errors as sentences that say what to write; and the valid part of a value.

The valid part is checked further, so that all mistakes of a file are reported at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from asterism.base.durations import InvalidDuration
from asterism.base.text import describe_value, suggestion
from asterism.core.json_values import JsonObject
from asterism.planfile import models
from asterism.planfile.models import UNTAGGED, Part, Shape

MEANT = {
    "needs": "'after' (the tasks before it), or 'device: {needs: [gpu]}' (what its device can)",
    **dict.fromkeys(("depends_on", "dependencies", "requires"), "'after'"),
    **dict.fromkeys(("run", "script", "command", "cmd"), "'shell'"),
}
"""What the keys of other systems are called here."""


def error_path(error: Any) -> tuple[Part, ...]:
    """The path of an error in the file, as keys and indices."""
    path = tuple(part for part in error["loc"] if not (isinstance(part, str) and part.startswith(UNTAGGED)))
    return path[:-1] if path[-1:] == ("[key]",) else path  # the key itself is wrong


def error_text(error: Any, model: type[BaseModel]) -> str:
    """One error as a sentence that begins with its path."""
    path, kind = error_path(error), error["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path, model)
    if kind == "missing" and path == ("asterism",):
        return "the key 'asterism' is missing; a plan begins with 'asterism: 1'"
    if kind == "missing":
        return f"the key {format_path(path)!r} is missing"
    if isinstance(error.get("ctx", {}).get("error"), InvalidDuration):
        return f"{format_path(path)}: {error['ctx']['error']}"
    return f"{format_path(path)} {_expected(kind, error, path)}".lstrip()


def format_path(path: Sequence[Part]) -> str:
    """A path as people write it: ``after.fetch.on``, ``argv[1]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _unknown_key(path: tuple[Part, ...], model: type[BaseModel]) -> str:
    known = _keys(path[:-1], model)
    word = str(path[-1])
    meant = f"; did you mean {MEANT[word]}?" if model is models.Task and len(path) == 1 and word in MEANT else ""
    hint = meant or suggestion(word, known) or f"; the keys are {', '.join(known)}"
    return f"unknown key {format_path(path)!r}{hint}"


def _keys(parent: tuple[Part, ...], model: type[BaseModel]) -> list[str]:
    """The keys that are allowed under ``parent``."""
    inner: dict[tuple[Part, ...], type[BaseModel]] = {
        (): model,
        ("http",): models.Request,
        ("device",): models.Wanted,
        ("after",): models.Terms,
        ("foreach",): models.Over,
        ("skip_if_unchanged",): models.Unchanged,
        ("devices",): models.Device,
        ("params",): models.Parameter,
        ("defaults",): models.Defaults,
    }
    inner_model = inner.get(parent if parent[:1] == ("http",) else parent[:1])
    if inner_model is None:
        return ["secret", "from", "select", "failed"]
    keys = [field.alias or name for name, field in inner_model.model_fields.items()]
    return [*keys, "tasks"] if inner_model is models.Head else keys


def _expected(kind: str, error: Any, path: tuple[Part, ...]) -> str:
    value, context = error["input"], error.get("ctx", {})
    if kind in ("alternatives", "value_error"):
        return f"{context.get('error', error['msg'])}, not {describe_value(value)}"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'must be text; write it in quotes: "{describe_value(value)}"'
    if kind == "string_pattern_mismatch":
        wanted = "package.module:function" if path[-1] == "call" else "a word in capitals, such as POST"
        return f"must be {wanted}, not {describe_value(value)}"
    wanted = _WANTED.get(kind, "").format(**context)
    if not wanted:
        return f"is not valid: {error['msg']}"
    if kind in ("too_short", "string_too_short"):
        return f"is {wanted}"
    if kind == "string_too_long":
        return f"must have {wanted}, not {len(value):,}: shorten it, or keep the text in a file and name the file"
    return f"must be {wanted}, not {describe_value(value)}"


_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list, such as [one, two]",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "literal_error": "{expected}",
    "greater_than": "above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "too_short": "empty",
    "string_too_short": "empty",
    "string_too_long": "at most {max_length:,} characters",
}


AnyShape = TypeVar("AnyShape", bound=Shape)
ROUNDS = 4
"""The levels of the models: each round may leave the level above incomplete."""


def valid_part(model: type[AnyShape], value: Any, errors: Sequence[Any], least: dict[str, Any]) -> AnyShape:
    """The value as a model, without the parts that ``errors`` name; ``least`` has the keys that the model requires."""
    for _ in range(ROUNDS):
        if not isinstance(value, dict) or not all(map(_root, errors)):
            break
        value = _without(value, map(_root, errors)) | least
        try:
            return model.model_validate(value)
        except ValidationError as error:  # a removed part was required: remove what contains it
            errors = error.errors(include_url=False)
    return model.model_validate(least)


def _root(error: Any) -> tuple[Part, ...]:
    """The path of the part to remove: the faulty value, or the mapping that lacks a key. A list is removed as a whole,
    because positions count."""
    path = error_path(error)
    if error["type"] == "missing":
        path = path[:-1]
    index = next((number for number, part in enumerate(path) if isinstance(part, int)), len(path))
    return path[:index]


def _without(value: JsonObject, paths: Iterable[tuple[Part, ...]]) -> JsonObject:
    value = dict(value)
    for key, *rest in paths:
        if not rest:
            value.pop(str(key), None)
        elif isinstance(value.get(str(key)), dict):
            value[str(key)] = _without(value[str(key)], [tuple(rest)])
    return value
