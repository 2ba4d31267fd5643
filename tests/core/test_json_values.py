"""What counts as JSON, and what is said about the rest."""

from __future__ import annotations

import json
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from asterism.core.errors import NotJson, TooLarge
from asterism.core.json_values import LARGE, MAX_DEPTH, SHORT, SizeLimit, is_large, is_short, plain_json, plain_object

TOO_LONG = "is a number with more than 4,300 digits, which most readers of JSON refuse"
HUGE = "a int that cannot be shown"


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (None, None),
        (True, True),
        (5, 5),
        ([10**4299, "x"], [10**4299, "x"]),
        (0.5, 0.5),
        ("é\n", "é\n"),
        ((1, (2,)), [1, [2]]),
        (MappingProxyType({"a": OrderedDict(b=())}), {"a": {"b": []}}),
    ],
)
def test_json_types_pass_and_their_relatives_become_json_types(value: Any, same: Any) -> None:
    assert plain_json(value) == same
    assert json.loads(json.dumps(plain_json(value))) == same


def test_the_answer_is_a_copy() -> None:
    value = {"list": [1]}
    copy = plain_json(value)
    value["list"].append(2)
    assert copy == {"list": [1]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1}, "value is a set, which is not JSON"),
        (b"x", "value is a bytes, which is not JSON"),
        (object(), "value is a object, which is not JSON"),
        ({"a": [1, {"b": {2}}]}, "value.a[1].b is a set, which is not JSON"),
        ({"a": {5: 1}}, "value.a has the key 5, and JSON keys are strings"),
        ([float("nan")], "value[0] is nan, which JSON cannot hold"),
        (float("-inf"), "value is -inf, which JSON cannot hold"),
        pytest.param({10**4300: 1}, f"value has the key {HUGE}, and JSON keys are strings", id="a long key"),
        pytest.param(10**4300, f"value {TOO_LONG}", id="a long number"),
        ({"a": -(10**4300)}, f"value.a {TOO_LONG}"),
        (["b", 1, 10**4300], f"value[2] {TOO_LONG}"),
        ([-(10**4300), 1], f"value[0] {TOO_LONG}"),
    ],
)
def test_anything_else_is_refused_with_the_place_that_is_in_the_way(value: Any, words: str) -> None:
    with pytest.raises(NotJson) as caught:
        plain_json(value)
    assert str(caught.value) == words


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_depth_is_limited_so_that_json_itself_never_gives_up() -> None:
    assert json.dumps(plain_json(nested(MAX_DEPTH)))
    with pytest.raises(NotJson, match=f"is nested more than {MAX_DEPTH} deep"):
        plain_json(nested(MAX_DEPTH + 1))


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    with pytest.raises(NotJson, match="nested more than"):
        plain_json(value)


def test_an_object_is_copied_flat_or_deep() -> None:
    flat, deep = {"a": 1, "b": None}, {"a": [1, {"b": 2}]}
    for value in (flat, deep):
        copied = plain_object(value)
        assert copied == value
        assert copied is not value
    assert plain_object(deep)["a"] is not deep["a"]


@pytest.mark.parametrize(
    ("value", "large"),
    [
        (None, False),
        ("x" * 999_000, False),
        ("x" * 1_000_000, True),
        ([0] * (LARGE - 2), False),
        ([0] * LARGE, True),
        ({str(number): number for number in range(LARGE)}, True),
        ([[["x" * 1000] * 100] * 100], True),
        ({"a": [{"b": (1, 2)}]}, False),
    ],
)
def test_a_value_is_large_by_its_parts_and_its_text(value: Any, large: bool) -> None:
    assert is_large(value) is large


@pytest.mark.parametrize(
    ("value", "short"),
    [
        ({}, True),
        ({"a": 1, "b": None, "c": "text", "d": ["x", 2, True]}, True),
        ({"a": "x" * SHORT}, False),
        ({"a": ["x"] * SHORT}, False),
        ({str(number): None for number in range(SHORT)}, False),
        ({"a": 10**21}, False),
        ({"a": 0.5}, False),
        ({"a": {}}, False),
        ({"a": [[]]}, False),
    ],
)
def test_a_short_object_is_plain_json_of_some_words(value: Any, short: bool) -> None:
    assert is_short(value) is short
    assert not short or plain_json(value) == value


def test_a_limit_refuses_with_size_limit_and_what_to_do() -> None:
    limit = SizeLimit(1000, "set --most SIZE")
    limit.check(1000, "it")
    with pytest.raises(TooLarge, match=r"^it has 1,001 bytes, and the limit is 1,000: .*: set --most"):
        limit.check(1001, "it")
