"""``mistakes`` returns everything wrong in a value, as sentences that begin with the place."""

from __future__ import annotations

import doctest
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

import pytest

from asterism.core import record
from asterism.core.record import InvalidRecord, Meta, Record, decode, expected, field, mistakes, schemas

Item = TypeVar("Item")


class Part(Record, forbid_unknown_fields=True):
    """A part,
    on two lines."""

    name: Annotated[str, Meta(min_length=1)]
    source: str | None = field(default=None, name="from")

    def __post_init__(self) -> None:
        if self.name == self.source:
            raise ValueError("a part cannot come from itself")


class Page(Record, Generic[Item]):
    items: list[Item]


class Whole(Record, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    share: Annotated[float, Meta(gt=0, lt=1)] | None = None
    kind: Literal["small", "large"] = "small"
    sure: bool = False
    words: Annotated[tuple[str, ...], Meta(max_length=2)] = ()
    parts: dict[Annotated[str, Meta(min_length=1)], Part] = field(default_factory=dict)
    either: str | list[str] | Part | None = None
    place: Annotated[str | list[int], expected("a name or two numbers")] = ""
    code: Annotated[str, Meta(pattern="^[A-Z]+$"), expected("a word in capitals")] = "A"
    free: Mapping[str, Any] = {}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"count": "many"}, "count must be a whole number, not 'many'"),
        ({"count": True}, "count must be a whole number, not true"),
        ({"count": 0}, "count must be 1 or more, not 0"),
        ({"count": 10_001}, "count must be 10,000 or less, not 10001"),
        ({"share": 0}, "share must be above 0, not 0"),
        ({"share": 1.5}, "share must be below 1, not 1.5"),
        ({"share": "x"}, "share must be a number, not 'x'"),
        ({"kind": "huge"}, "kind must be 'small' or 'large', not 'huge'"),
        ({"sure": None}, "sure must be true or false, not nothing"),
        ({"words": {}}, "words must be a list, such as [one, two], not a mapping"),
        ({"words": ["a", 5]}, 'words[1] must be text; write it in quotes: "5"'),
        ({"words": ["a", "b", "c"]}, "words must have at most 2 items, not 3"),
        ({"parts": {"a": 5}}, "parts.a must be a mapping, not 5"),
        ({"parts": {"a": {}}}, "the key 'parts.a.name' is missing"),
        ({"parts": {"a": {"name": ""}}}, "parts.a.name is empty"),
        ({"parts": {"a": {"name": "x", "nme": 1}}}, "unknown key 'parts.a.nme'; did you mean 'name'?"),
        ({"parts": {"a": {"name": "x", "from": "x"}}}, "parts.a: a part cannot come from itself"),
        ({"parts": {"": {"name": "x"}}}, "a key of parts is empty"),
        ({"either": 5}, "either must be text, a list, such as [one, two] or a mapping, not 5"),
        ({"either": {"name": 5}}, 'either.name must be text; write it in quotes: "5"'),
        ({"either": [[]]}, "either[0] must be text, not a list"),
        ({"place": {}}, "place must be a name or two numbers, not a mapping"),
        ({"place": [1, "x"]}, "place[1] must be a whole number, not 'x'"),
        ({"code": "a"}, "code must be a word in capitals, not 'a'"),
        ({"zzz": 1}, "unknown key 'zzz'; the keys are count, share, kind"),
        ([], "must be a mapping, not a list"),
    ],
)
def test_a_mistake_is_a_sentence(value: Any, sentence: str) -> None:
    [mistake] = mistakes(Whole, value)
    assert mistake.text.startswith(sentence)
    with pytest.raises(InvalidRecord) as refused:
        decode(Whole, value)
    assert str(refused.value) == mistake.text


def test_all_mistakes_are_told_at_once_with_their_places() -> None:
    found = mistakes(list[Whole], [{}, {"count": 0, "either": ["a", 5], "qqq": 1, "parts": {"a": {"from": 5}}}])
    assert [mistake.place for mistake in found] == [
        (1, "count"),
        (1, "parts", "a", "from"),
        (1, "parts", "a", "name"),
        (1, "either", 1),
        (1, "qqq"),
    ]


def test_the_items_of_a_generic_record_have_their_type() -> None:
    assert decode(Page[int], {"items": [1]}) == Page([1])
    assert [mistake.text for mistake in mistakes(Page[Part], {"items": [{"name": 5}]})] == [
        'items[0].name must be text; write it in quotes: "5"'
    ]


def test_the_description_in_a_schema_has_no_indentation() -> None:
    _, definitions = schemas([Part], "#/{name}")
    assert definitions["Part"]["description"] == "A part,\non two lines."


def test_the_examples() -> None:
    assert doctest.testmod(record).failed == 0
