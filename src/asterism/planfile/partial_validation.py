"""What remains of a value when the parts that are wrong are taken out, so that the rest can be examined too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from asterism.planfile.models import Part, Shape
from asterism.planfile.validation_messages import place

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
