"""What pydantic found, in sentences that say what to write instead.

What remains of a value when the parts that are wrong are taken out, so that the rest can be examined too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from asterism.base.durations import InvalidDuration
from asterism.base.safe_text import describe_value
from asterism.planfile import models
from asterism.planfile.models import UNTAGGED, Part, Shape


def place(error: Any) -> tuple[Part, ...]:
    """Where an error is, as keys and indices of the file."""
    path = tuple(part for part in error["loc"] if not (isinstance(part, str) and part.startswith(UNTAGGED)))
    return path[:-1] if path[-1:] == ("[key]",) else path  # pydantic's way to say that the key itself is wrong


def sentence(error: Any, model: type[BaseModel]) -> str:
    """One error in words, beginning with what it is about."""
    path, kind = place(error), error["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path, model)
    if kind == "missing" and path == ("asterism",):
        return "there is no 'asterism'; a plan begins with 'asterism: 1'"
    if kind == "missing":
        return f"{written(path[:-1])}has no {str(path[-1])!r}" if path[:-1] else f"there is no {str(path[-1])!r}"
    if isinstance(error.get("ctx", {}).get("error"), InvalidDuration):
        return f"{written(path).rstrip()}: {error['ctx']['error']}"
    return f"{written(path)}{_expected(kind, error, path)}"


def written(path: Sequence[Part]) -> str:
    """A path as people write it: ``after.fetch.on``, ``argv[1]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    return f"{text} " if text else ""


def suggestion(word: str, known: Sequence[str]) -> str:
    """``; did you mean 'retries'?``, or nothing."""
    near = get_close_matches(word, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _unknown_key(path: tuple[Part, ...], model: type[BaseModel]) -> str:
    known = _keys(path[:-1], model)
    word = str(path[-1])
    hint = suggestion(word, known) or f"; the keys are {', '.join(known)}"
    return f"{written(path[:-1])}{'has' if path[:-1] else 'there is'} no key {word!r}{hint}"


def _keys(parent: tuple[Part, ...], model: type[BaseModel]) -> list[str]:
    """The keys that may stand under ``parent``."""
    inner: dict[tuple[Part, ...], type[BaseModel]] = {
        (): model,
        ("http",): models.Request,
        ("device",): models.Wanted,
        ("after",): models.Terms,
        ("devices",): models.Device,
    }
    found = inner.get(parent if parent[:1] == ("http",) else parent[:1])
    if found is None:
        return ["secret", "from", "select"]
    keys = [field.alias or name for name, field in found.model_fields.items()]
    return [*keys, "tasks"] if found is models.Head else keys


def _expected(kind: str, error: Any, path: tuple[Part, ...]) -> str:
    value, context = error["input"], error.get("ctx", {})
    if kind in ("alternatives", "value_error"):
        return str(context.get("error", error["msg"])) + f", not {describe_value(value)}"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'is text; write it in quotes: "{describe_value(value)}"'
    if kind == "string_pattern_mismatch":
        wanted = "package.module:function" if path[-1] == "call" else "a word in capitals, such as POST"
        return f"is {wanted}, not {describe_value(value)}"
    wanted = _WANTED.get(kind, "").format(**context)
    if not wanted:
        return f"is wrong: {error['msg']}"
    return f"is {wanted}" if kind in ("too_short", "string_too_short") else f"is {wanted}, not {describe_value(value)}"


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
}


AnyShape = TypeVar("AnyShape", bound=Shape)
ROUNDS = 4
"""As many as a shape has levels: each round can make what surrounds it incomplete."""


def salvage(model: type[AnyShape], value: Any, errors: Sequence[Any], least: dict[str, Any]) -> AnyShape:
    """The value in its shape, without what ``errors`` blame; ``least`` is what the model cannot do without."""
    for _ in range(ROUNDS):
        if not isinstance(value, dict) or not all(map(_root, errors)):
            break
        value = _without(value, map(_root, errors)) | least
        try:
            return model.model_validate(value)
        except ValidationError as error:  # what was taken out is missing now: its surroundings go too
            errors = error.errors(include_url=False)
    return model.model_validate(least)


def _root(error: Any) -> tuple[Part, ...]:
    """What has to go: what is wrong, or what lacks something. Of a list all has to go, for its places count."""
    path = place(error)
    if error["type"] == "missing":
        path = path[:-1]
    index = next((number for number, part in enumerate(path) if isinstance(part, int)), len(path))
    return path[:index]


def _without(value: dict[str, Any], paths: Iterable[tuple[Part, ...]]) -> dict[str, Any]:
    value = dict(value)
    for key, *rest in paths:
        if not rest:
            value.pop(str(key), None)
        elif isinstance(value.get(str(key)), dict):
            value[str(key)] = _without(value[str(key)], [tuple(rest)])
    return value
