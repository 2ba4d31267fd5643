"""Records are written to JSON and read from it by the types of their fields."""

from __future__ import annotations

import doctest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest

from asterism.core import record_codec
from asterism.core.errors import PlanError
from asterism.core.record_codec import InvalidRecord, Record, read_record

Item = TypeVar("Item")


class Pair(NamedTuple):
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Part(Record, sparse=True):
    size: int = 0
    label: str | None = None

    @classmethod
    def unknown_fields(cls, names: str) -> PlanError:
        return PlanError(f"a part has no {names}")


class Title(str):
    """A field with a form of its own."""

    def to_json(self) -> str:
        return f"<{self}>"


@dataclass(frozen=True)
class Own(Record):
    text: str

    @classmethod
    def from_json(cls, data: Any) -> Own:
        return cls(f"read {data['text']}")


@dataclass(frozen=True, slots=True)
class Whole(Record, key="name", sparse=("more", "tags"), required=("first",), lenient=True):
    name: str
    title: Title
    first: Part = field(default_factory=Part)
    own: Own | None = None
    pairs: tuple[Pair, ...] = ()
    tags: frozenset[str] = frozenset()
    parts: Mapping[str, Part] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)
    items: Sequence[Part] = ()
    words: Sequence[str] | None = None
    shape: tuple[int, str] = (1, "a")
    state: Literal["on", "off"] = "on"
    more: str = ""
    seen: int = field(default=0, init=False)


WHOLE = Whole(
    "it",
    Title("t"),
    Part(3, "x"),
    Own("o"),
    (Pair("a", 1),),
    frozenset("ba"),
    {"p": Part(), "q": Part(label="y")},
    {"any": [1]},
    (Part(2),),
    ("w",),
    (2, "b"),
    "off",
    "more",
)
JSON = {
    "title": "<t>",
    "first": {"size": 3, "label": "x"},
    "own": {"text": "o"},
    "pairs": [["a", 1]],
    "tags": ["a", "b"],
    "parts": {"p": {}, "q": {"label": "y"}},
    "free": {"any": [1]},
    "items": [{"size": 2}],
    "words": ["w"],
    "shape": [2, "b"],
    "state": "off",
    "more": "more",
}


def test_a_record_is_written_in_the_order_of_its_fields() -> None:
    assert list(WHOLE.to_json().items()) == list(JSON.items())


def test_defaults_are_left_out_where_the_class_says_so() -> None:
    data = Whole("it", Title("t")).to_json()
    assert "more" not in data
    assert "tags" not in data
    assert data["first"] == {}  # required
    assert data["own"] is data["words"] is None
    assert Part().to_json() == {}


def test_a_record_is_read_with_its_key_and_without_what_it_does_not_know() -> None:
    read = Whole.from_json({**JSON, "name": "it", "of a later version": 1})
    assert read == Whole(**{**{name: getattr(WHOLE, name) for name in JSON}, "name": "it", "own": Own("read o"),
                            "title": "<t>", "items": [Part(2)], "words": ["w"]})  # fmt: skip
    assert type(read.pairs[0]) is Pair


def test_what_is_missing_or_unknown_is_refused() -> None:
    with pytest.raises(InvalidRecord, match=r"^first is missing$"):
        Whole.from_json({"name": "it", "title": "t"})
    with pytest.raises(InvalidRecord, match=r"^title is missing$"):
        Whole.from_json({"name": "it", "first": {}})
    with pytest.raises(PlanError, match=r"^a part has no colour, weight$"):
        Part.from_json({"weight": 1, "colour": 2})
    with pytest.raises(InvalidRecord, match=r"^a Plain has no z$"):
        Plain.from_json({"x": 1.0, "z": 2})
    with pytest.raises(InvalidRecord, match=r"^expected a Plain, not list$"):
        Plain.from_json([])


@dataclass(frozen=True)
class Plain(Record):
    x: float
    words: tuple[str, ...] = ()


def test_a_record_that_is_not_checked_takes_values_as_they_are() -> None:
    """So that its constructor can refuse them with a sentence of its own."""
    assert Plain.from_json({"x": "much"}) == Plain("much")  # type: ignore[arg-type]
    assert type(Plain.from_json({"x": 1}).x) is int


@pytest.mark.parametrize("value", [None, "abc", 5, {}])
def test_a_list_is_a_list_in_any_record(value: Any) -> None:
    """It would be written as another value, or fail then."""
    with pytest.raises(InvalidRecord, match=r"^words: expected a list, not "):
        Plain.from_json({"x": 1.0, "words": value})


@dataclass(frozen=True)
class Checked(Record, checked=True):
    number: int = 0
    share: float = 0.0
    loud: bool = False
    state: Literal["on", "off"] = "on"
    pairs: tuple[Pair, ...] = ()
    part: Part | None = None
    either: int | list[int] = 0
    shape: tuple[int, str] = (1, "a")
    objects: Mapping[str, Any] = field(default_factory=dict)
    doubles: Annotated[dict[str, float], "of anything"] = field(default_factory=dict)


@pytest.mark.parametrize(
    "value",
    [
        Checked(),
        Checked(1, 2.0, True, "off", (Pair("a", 1),), Part(2), [3], (4, "b"), {"a": None}, {"b": 1.5}),
    ],
)
def test_a_checked_record_survives_json(value: Checked) -> None:
    data = {name: getattr(value, name) for name in Checked.__dataclass_fields__}
    assert Checked.from_json({**data, "part": value.part and value.part.to_json()}) == value


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"number": "1"}, "number: expected int, not str"),
        ({"number": True}, "number: expected int, not bool"),
        ({"share": 10**400}, "share: expected float, not int"),
        ({"loud": 1}, "loud: expected bool, not int"),
        ({"state": "odd"}, "state: expected one of on, off"),
        ({"pairs": "ab"}, "pairs: expected a list, not str"),
        ({"pairs": [["a"]]}, "pairs: expected a list of 2"),
        ({"pairs": [["a", "b"]]}, "pairs: expected int, not str"),
        ({"part": {"size": "large"}}, "part: size: expected int, not str"),
        ({"part": 3}, "part: expected a Part, not int"),
        ({"either": "one"}, "either: expected a list, not str"),
        ({"shape": 3}, "shape: expected a list of 2"),
        ({"objects": []}, "objects: expected an object, not list"),
        ({"doubles": {"a": "b"}}, "doubles: expected float, not str"),
    ],
)
def test_a_checked_record_refuses_other_types_and_says_where(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRecord) as refused:
        Checked.from_json(data)
    assert str(refused.value) == problem


@dataclass
class Leaf:
    size: float


@dataclass
class Box(Generic[Item]):
    items: list[Item]
    last: Item = None  # type: ignore[assignment]


def test_dataclasses_that_are_no_records_are_checked_and_ignore_what_they_do_not_know() -> None:
    box = read_record(Box[Leaf], {"items": [{"size": 1, "colour": "red"}], "more": 1})
    assert box == Box([Leaf(1.0)])
    assert read_record(Box[Leaf], box) is box
    assert read_record(Box, {"items": ["anything"]}) == Box(["anything"])
    assert read_record(Any, box) is box  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord, match=r"^last: expected a Leaf, not str$"):
        read_record(Box[Leaf], {"items": [], "last": "x"})


def test_the_example_of_the_module_is_right() -> None:
    assert doctest.testmod(record_codec, extraglobs={"dataclass": dataclass}) == (0, 3)
