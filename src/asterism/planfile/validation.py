"""A value of a file as a shape: all its mistakes, and its valid part, which is checked further."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from asterism.core.json_values import JsonObject
from asterism.core.record import InvalidRecord, Mistake, Place, Record, decode, mistakes
from asterism.planfile import models

MEANT = {
    "needs": "'after' (the tasks before it), or 'device: {needs: [gpu]}' (what its device can)",
    **dict.fromkeys(("depends_on", "dependencies", "requires"), "'after'"),
    **dict.fromkeys(("run", "script", "command", "cmd"), "'shell'"),
}
"""What the keys of other systems are called here."""

AnyShape = TypeVar("AnyShape", bound=Record)
ROUNDS = 4
"""The levels of the shapes: each round may leave the level above incomplete."""


def validate(
    shape: type[AnyShape], value: Any, blame: Callable[[Place, str], None], least: JsonObject
) -> tuple[AnyShape, set[str]]:
    """The value as a shape, without its faulty parts, and the keys that have some. ``least`` has the keys that the
    shape requires."""
    try:
        return decode(shape, value), set()
    except InvalidRecord:
        found = mistakes(shape, value)
    for mistake in found:
        blame(mistake.place, _sentence(mistake, shape))
    faulty = {str(mistake.place[0]) for mistake in found if mistake.place}
    return _valid_part(shape, value, found, least), faulty


def _sentence(mistake: Mistake, shape: type[Record]) -> str:
    if mistake.text == "the key 'asterism' is missing":
        return f"{mistake.text}; a plan begins with 'asterism: 1'"
    if shape is models.Task and len(mistake.place) == 1 and mistake.place[0] in MEANT:
        return f"unknown key {mistake.place[0]!r}; did you mean {MEANT[str(mistake.place[0])]}?"
    if shape is models.Task and mistake.place == ("description",) and "at most" in mistake.text:
        return f"{mistake.text}: shorten it, or keep the text in a file and name the file"
    return mistake.text


def _valid_part(shape: type[AnyShape], value: Any, found: list[Mistake], least: JsonObject) -> AnyShape:
    for _ in range(ROUNDS):
        if not isinstance(value, dict) or not all(mistake.place for mistake in found):
            break
        value = _without(value, (mistake.place for mistake in found)) | least
        found = mistakes(shape, value)
        if not found:  # else a removed part was required: remove what contains it
            return decode(shape, value)
    return decode(shape, least)


def _without(value: JsonObject, places: Iterable[Place]) -> JsonObject:
    """A mapping without the values at these places. A list is removed as a whole, because positions count, and so is a
    mapping that lacks a key."""
    value = dict(value)
    for key, *rest in places:
        inner = value.get(str(key))
        if isinstance(inner, dict) and rest and rest[0] in inner:
            value[str(key)] = _without(inner, [tuple(rest)])
        else:
            value.pop(str(key), None)
    return value
