"""Patterns of JSON Schemas: in linear time, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.base.linear_regex import MatchBudget, UnsupportedPattern, check_patterns, size_of


def is_found(pattern: str, text: str) -> bool:
    return MatchBudget().is_found(pattern, text)


def test_a_pattern_is_found_anywhere_in_a_text() -> None:
    assert is_found("b", "abc")
    assert not is_found("^b", "abc")
    assert is_found(r"^\d{4}-\d{2}$", "2026-11")
    assert not is_found(r"^\d{4}$", "2026\n")
    assert not is_found("a", "b\ud800")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "^(.*a){20}$", "^([a-z]+)*$"])
def test_no_pattern_backtracks(pattern: str) -> None:
    """With ``re``, each of these takes years."""
    assert not is_found(pattern, "a" * 20_000 + "!")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"pattern": "(?=a)b"}, "the pattern '(?=a)b' is not supported: look-around"),
        ({"properties": {"pattern": {"pattern": r"(a)\1"}}}, "backreferences are not supported"),
        ({"anyOf": [{"items": {"patternProperties": {"[": {}}}}]}, "unclosed character class"),
        ({"$defs": {"x": {"pattern": "(a{1000}){1000}"}}}, "exceeds size limit"),
        ({"pattern": "([a-z]{1,300}){1,50}x"}, "its repeats make it 15,051 long"),
        ({"pattern": "^[a&&b]$"}, "'&&' in a class has another meaning here; escape it"),
        ({"pattern": "^[+--]$"}, "'--' in a class"),
        ({"pattern": "[a~~b]"}, "'~~' in a class"),
        ({"pattern": "[[:alpha:]]"}, "'[' in a class"),
        ({"pattern": "[]a]"}, "']' in a class"),
        ({"pattern": "(?x) a {1000}"}, "it has the flag x"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "cannot have unevaluatedProperties"),
    ],
)
def test_a_schema_that_needs_more_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(UnsupportedPattern) as refused:
        check_patterns(schema)
    assert message in str(refused.value)


def test_data_of_a_schema_are_no_patterns() -> None:
    check_patterns(
        {"const": {"pattern": "["}, "enum": [{"pattern": "["}], "properties": {"pattern": {"type": "string"}}}
    )
    check_patterns(None)
    check_patterns(True)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("abc", 3),
        (r"^[a-z\]]+\.\p{L}{2}$", 6),
        ("(.{1,100}){1,50}x", 5051),
        ("(?:ab|cd){3,}", 18),
        ("a{0}", 1),
        ("(?i)a(?P<x>b)?", 4),
        (r"\({5}[(]{4}", 9),
        ("((a{2}){3}){4}", 40),
    ],
)
def test_the_size_of_a_pattern_has_its_repeats_written_out(pattern: str, size: int) -> None:
    assert abs(size_of(pattern) - size) <= size // 2
    check_patterns({"pattern": pattern})


def test_what_is_escaped_in_a_class_is_itself() -> None:
    assert is_found(r"^[+\--]$", "-")
    assert is_found(r"^[\[\]&]$", "[")


def test_the_matches_of_one_answer_have_a_budget() -> None:
    """Without it, a text of 262,134 letters keeps the engine busy for minutes."""
    budget = MatchBudget()
    pattern = "(.{1,100}){1,50}x"
    with pytest.raises(UnsupportedPattern, match="too long for the pattern"):
        budget.is_found(pattern, "a" * 262_134)
    many = MatchBudget()

    def match_many() -> None:
        for _ in range(10_000):
            many.is_found(pattern, "a" * 20)

    with pytest.raises(UnsupportedPattern, match="too long"):
        match_many()
