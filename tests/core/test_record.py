"""Records: their JSON form and back, strictly by the types of their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as part
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from asterism.core.record import (
    InvalidRecord,
    KeywordOnly,
    Meta,
    Record,
    decode,
    decode_json,
    defaults_of,
    encode,
    encode_json,
    expected,
    field,
    part_of,
    record_of,
    replace,
    repr_without,
    schema,
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


# -- classes of others, JSON texts and schemas -------------------------------------------------------------------------


class Named(Record, metaclass=KeywordOnly):
    """A record whose subclasses take their fields by name."""

    size: int = 0


class Lid(Record):
    weight: float = 0.0


class Shelf(Named):
    """A shelf
    of lids."""

    room: str
    lids: list[Lid] = field(default_factory=list)


@dataclass
class Foreign:
    name: str
    times: int = 1
    words: list[str] = part(default_factory=list)


def test_a_subclass_takes_its_fields_by_name() -> None:
    assert Shelf(room="hall").size == 0
    with pytest.raises(TypeError):
        Shelf("hall")  # type: ignore[misc]


def test_a_dataclass_of_others_is_read_as_a_record_is() -> None:
    kind = record_of(Foreign)
    assert encode(decode(kind, {"name": "a"})) == {"name": "a", "times": 1, "words": []}
    with pytest.raises(InvalidRecord, match="did you mean 'times'"):
        decode(kind, {"name": "a", "tmes": 2})


class Measured(float):
    """A number such as those of numpy, which are numbers of Python, too."""


class Word(str):
    __slots__ = ()


def test_subclasses_of_plain_types_are_written_as_these() -> None:
    notes = {"a": Measured(0.5), "b": [Word("x"), Measured(1.0)]}
    assert json.loads(encode_json(Box("a", notes=notes)))["notes"] == {"a": 0.5, "b": ["x", 1.0]}
    assert encode(Box("a", notes=notes))["notes"] == {"a": 0.5, "b": ["x", 1.0]}


def test_a_json_text_is_read_and_written() -> None:
    shelf = Shelf(room="hall", lids=[Lid(2.0)])
    assert decode_json(Shelf, encode_json(shelf)) == shelf
    with pytest.raises(InvalidRecord, match="room must be text"):
        decode_json(Shelf, b'{"room": 5}')
    with pytest.raises(InvalidRecord, match="it is not JSON"):
        decode_json(Shelf, b"{")


def test_the_schema_of_a_class_has_those_of_the_classes_that_it_refers_to() -> None:
    shelf = schema(Shelf)
    assert (shelf["description"], list(shelf["$defs"])) == ("A shelf\nof lids.", ["Lid"])
    assert "$defs" not in schema(Named)


def test_words_and_numbers_of_other_classes_are_plain_in_json() -> None:
    class Word(str):
        __slots__ = ()

    class Number(int):
        pass

    assert [type(value) for value in encode([Word("a"), Number(1)])] == [str, int]


def _about(value: Any) -> str | None:
    return "it has no colour" if value == "grey" else None


class Paint(Record):
    colour: Annotated[Literal["red", "blue"], expected("a colour", _about)] = "red"
    coats: Annotated[int, Meta(ge=1)] | Literal["many"] = 1
    litres: Annotated[Annotated[float, Meta(ge=0)], Meta(lt=9)] = 1.0
    mix: list[Annotated[str, Meta(min_length=1)] | int] = field(default_factory=list)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"colour": "grey"}, "colour: it has no colour"),
        ({"colour": "green"}, "colour must be a colour, not 'green'"),
        ({"coats": "few"}, "coats must be 'many', not 'few'"),
        ({"coats": 0}, "coats must be 1 or more, not 0"),
        ({"litres": 9.5}, "litres must be below 9, not 9.5"),
        ({"mix": [{}]}, r"mix\[0\] must be "),
    ],
)
def test_a_mistake_is_a_sentence(data: Any, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        decode(Paint, data)


def test_a_mapping_of_anything_says_which_part_is_wrong() -> None:
    with pytest.raises(InvalidRecord, match="must be"):
        decode(dict[str, Any | None], 5)  # type: ignore[arg-type]
