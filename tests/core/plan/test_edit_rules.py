"""A rule about edits is read from its annotations: one parser, one check and one JSON form for all of them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from asterism.core.errors import PlanError
from asterism.core.plan.edit_rules import EditRule
from asterism.core.record import InvalidRecord


class Rule(EditRule):
    what = "a rule"
    shorthands: ClassVar = {"loud": {"loud": True}}
    examples = "loud, names=a,b"
    known_words: ClassVar = {"colour": ("red", "blue")}

    names: tuple[str, ...] = ()
    colour: str | None = None
    most: int | None = None
    price: float | None = None
    loud: bool = False
    when: str | None = None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("loud", Rule(loud=True)),
        ("names=a,b colour=red", Rule(("a", "b"), "red")),
        ("most=3 price=0.5", Rule(most=3, price=0.5)),
        ("names=a  when=x == 'names=b c' || y", Rule(("a",), when="x == 'names=b c' || y")),
    ],
)
def test_a_rule_in_one_line(text: str, rule: Rule) -> None:
    assert Rule.parse(text) == rule
    assert Rule.from_json(rule.to_json()) == rule
    assert rule.loud or Rule.parse(str(rule)) == rule


def test_a_rule_without_fields_is_empty_text_if_no_word_stands_for_it() -> None:
    assert str(Rule()) == ""
    assert Rule().to_json() == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("soft", "'soft' is not a rule (examples: loud, names=a,b)"),
        ("names=a when=", "is not a rule"),
        ("size=3", "a rule has no size; its fields are names, colour, most, price, loud, when"),
        ("colour=green", "colour of a rule cannot be green (known: red, blue)"),
        ("most=2.5", "most of a rule is a whole number, 0 or more, not '2.5'"),
        ("price=much", "price of a rule is a number, 0 or more, not 'much'"),
        ("price=nan", "price of a rule is a number, 0 or more, not nan"),
        ("loud=yes", "loud of a rule is true or false, not ('yes',)"),
    ],
)
def test_a_line_that_is_no_rule(text: str, problem: str) -> None:
    with pytest.raises(PlanError) as refused:
        Rule.parse(text)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"names": "abc"}, "names of a rule is a list of words, not 'abc'"),
        ({"most": True}, "most of a rule is a whole number, 0 or more, not True"),
        ({"when": 3}, "when of a rule is a word, not 3"),
    ],
)
def test_data_that_is_no_rule(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError) as refused:
        Rule.from_json(data)
    assert str(refused.value) == problem


def test_a_rule_is_an_object() -> None:
    with pytest.raises(InvalidRecord, match="a rule is an object, not 'loud'"):
        Rule.from_json("loud")
