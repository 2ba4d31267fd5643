"""Patterns of JSON Schemas: in linear time, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.base.schema_patterns import UnsupportedPattern, check_patterns, is_found


def test_a_pattern_is_found_anywhere_in_a_text() -> None:
    assert is_found("b", "abc")
    assert not is_found("^b", "abc")
    assert is_found(r"^\d{4}-\d{2}$", "2026-11")
    assert not is_found(r"^\d{4}$", "2026\n")
    assert not is_found("a", "b\ud800")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "^(.*a){20}$", "^([a-z]+)*$"])
def test_no_pattern_backtracks(pattern: str) -> None:
    """With ``re``, each of these takes years."""
    assert not is_found(pattern, "a" * 100_000 + "!")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"pattern": "(?=a)b"}, "the pattern '(?=a)b' is not supported: look-around"),
        ({"properties": {"pattern": {"pattern": r"(a)\1"}}}, "backreferences are not supported"),
        ({"anyOf": [{"items": {"patternProperties": {"[": {}}}}]}, "unclosed character class"),
        ({"$defs": {"x": {"pattern": "(a{1000}){1000}"}}}, "exceeds size limit"),
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
