"""Records: their JSON form and back, strictly by the types of their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from asterism.core.record import (
    InvalidRecord,
    Record,
    decode,
    defaults_of,
    encode,
    field,
    part_of,
    replace,
    repr_without,
)


class Place(NamedTuple):
    room: str
    shelf: int | None = None


class Box(Record, forbid_unknown_fields=True):
    name: str
    weight: float = 0.0
    places: tuple[Place, ...] = ()
    labels: frozenset[str] = frozenset()
    notes: Mapping[str, Any] = MappingProxyType({})
    parts: list[str] = field(default_factory=list)


FULL = Box("a", 1.5, (Place("kitchen", 2), Place("hall")), frozenset({"red"}), {"b": [1, {"c": None}], "a": 2}, ["x"])


@pytest.mark.parametrize("box", [Box("a"), FULL])
def test_a_checked_record_survives_json(box: Box) -> None:
    assert Box.from_json(json.loads(json.dumps(box.to_json()))) == box


def test_objects_keep_the_order_of_their_names() -> None:
    assert list(encode(FULL)["notes"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "must be"),
        ({}, "'name' is missing"),
        ({"name": 5}, "name must be text"),
        ({"name": "a", "weight": "1"}, "weight must be a number"),
        ({"name": "a", "weight": True}, "weight must be a number"),
        ({"name": "a", "weight": 10**400}, "weight"),
        ({"name": "a", "places": {}}, "places must be"),
        ({"name": "a", "places": [["kitchen", "2"]]}, "places"),
        ({"name": "a", "lables": []}, "did you mean 'labels'"),
    ],
)
def test_a_checked_record_refuses_other_types_and_says_where(data: Any, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        decode(Box, data)


def test_what_is_no_json_has_no_json_form() -> None:
    with pytest.raises(TypeError, match="a object has no JSON form"):
        encode(Box("a", notes={"x": object()}))


def test_a_record_never_changes_and_a_copy_has_other_fields() -> None:
    with pytest.raises(AttributeError):
        FULL.name = "b"  # type: ignore[misc]
    assert (replace(FULL, name="b").name, FULL.name) == ("b", "a")


def test_the_defaults_and_a_part_of_a_class() -> None:
    assert defaults_of(Box) == {"weight": 0.0, "places": (), "labels": frozenset(), "notes": {}, "parts": []}
    part = part_of(Box, ("name", "weight"))
    assert encode(part("a", 0.0)) == {"name": "a"}
    assert encode(part("a", 2.0)) == {"name": "a", "weight": 2.0}


def test_a_secret_is_not_shown() -> None:
    assert "kitchen" not in repr_without(FULL, "places")
    assert "'a'" in repr_without(FULL, "places")
