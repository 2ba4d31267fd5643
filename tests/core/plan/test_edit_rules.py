"""A rule about edits is read from its annotations: one parser, one check and one JSON form for all of them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import pytest

from asterism.core.errors import PlanError
from asterism.core.plan.edit_rules import Count, EditRule, Number, Words
from asterism.core.record import one_of


class Rule(EditRule):
    what = "a rule"
    shorthands: ClassVar = {"loud": {"loud": True}}
    examples = "loud, names=a,b"

    names: Words = ()
    colour: Annotated[str, one_of(("red", "blue"))] | None = None
    most: Count | None = None
    price: Number | None = None
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
        ("size=3", "a rule: unknown key 'size'; the keys are names, colour, most, price, loud, when"),
        ("colour=green", "a rule: colour must be red or blue, not 'green'"),
        ("most=2.5", "a rule: most must be a whole number, not '2.5'"),
        ("price=much", "a rule: price must be a number, not 'much'"),
        ("price=nan", "a rule: price must be"),
        ("loud=yes", "a rule: loud must be true or false, not 'yes'"),
    ],
)
def test_a_line_that_is_no_rule(text: str, problem: str) -> None:
    with pytest.raises(PlanError) as refused:
        Rule.parse(text)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"names": "abc"}, "a rule: names must be a list, such as [one, two], not 'abc'"),
        ({"most": True}, "a rule: most must be a whole number, not true"),
        ({"when": 3}, 'a rule: when must be text; write it in quotes: "3"'),
    ],
)
def test_data_that_is_no_rule(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError) as refused:
        Rule.from_json(data)
    assert str(refused.value) == problem


def test_a_rule_is_an_object() -> None:
    with pytest.raises(PlanError, match="a rule: must be a mapping, not 'loud'"):
        Rule.from_json("loud")
