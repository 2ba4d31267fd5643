"""Durations: what can be parsed, what is refused, and how seconds are shown."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.base.durations import InvalidDuration, format_age, format_delay, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("0.3", 0.3),
        ("500ms", 0.5),
        ("15m", 900),
        ("36h", 129_600),
        ("1d", 86_400),
        ("1w", 604_800),
    ],
)
def test_text_is_a_number_with_an_optional_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["90", "0.3", "0"])
def test_text_in_a_file_needs_a_unit(text: str) -> None:
    assert parse_duration(f"{text}s", unit_required=True) == float(text)
    with pytest.raises(InvalidDuration, match=f"'{text}' is not a valid duration"):
        parse_duration(text, unit_required=True)


@pytest.mark.parametrize("number", [0, 90, 1.5])
def test_a_number_is_seconds(number: float) -> None:
    assert parse_duration(number) is number


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", "''"),
        ("5x", "'5x'"),
        ("-5", "'-5'"),
        (" 5m", "' 5m'"),
        ("5 minutes", "'5 minutes'"),
        ("1e9", "'1e9'"),
        ("9" * 400, f"'{'9' * 58}…"),
        (f"{'9' * 306}w", f"'{'9' * 58}…"),
        ("nan", "'nan'"),
        ("inf", "'inf'"),
        ("\u0663", "'\u0663'"),
        ("5m\n", r"'5m\n'"),
        (True, "true"),
        (None, "nothing"),
        ([1], "a list"),
        ({"s": 1}, "a mapping"),
    ],
)
def test_anything_else_is_refused(value: Any, shown: str) -> None:
    with pytest.raises(InvalidDuration) as refusal:
        parse_duration(value)
    assert str(refusal.value) == f"{shown} is not a valid duration (examples: 30s, 5m, 2h)"


def test_a_refused_text_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidDuration, match=r"^'x{58}… is not a valid duration"):
        parse_duration("x" * 1000)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.00042, "0.42 ms"),
        (0.34, "340 ms"),
        (0.9999, "1.0 s"),
        (12.34, "12.3 s"),
        (59.97, "1 min 00 s"),
        (125.0, "2 min 05 s"),
        (3_780.0, "1 h 03 min"),
        (-2.0, "-2.0 s"),
    ],
)
def test_a_duration_is_shown_in_up_to_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (-3, "0 s"),
        (0.01, "0 s"),
        (1.26, "1.3 s"),
        (12.3, "12 s"),
        (120, "2 min"),
        (7200, "2 h"),
        (864_000, "10 d"),
    ],
)
def test_an_age_is_shown_in_one_unit(seconds: float | None, text: str) -> None:
    assert format_age(seconds) == text


def test_a_delay_of_nothing_is_at_once() -> None:
    assert [format_delay(seconds) for seconds in (-1, 0.01, 3, 180)] == ["at once", "at once", "in 3.0 s", "in 3 min"]
