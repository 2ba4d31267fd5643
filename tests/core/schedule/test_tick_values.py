"""What a plan learns of its tick: nominal times in a zone, also where clocks are set forward and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asterism.base.cron import cron_ticks
from asterism.core.schedule.tick_values import (
    InvalidTick,
    Tick,
    parse_time,
    previous_tick,
    read_tick,
    tick_on_request,
    tick_values,
    tick_variables,
)
from asterism.core.schedule.ticks import interval_ticks

BERLIN = ZoneInfo("Europe/Berlin")
FORWARD, BACK = datetime(2026, 3, 29, tzinfo=BERLIN), datetime(2026, 10, 25, tzinfo=BERLIN)
"""The days on which Berlin sets its clocks: at 02:00 to 03:00, and at 03:00 to 02:00."""

EXPRESSIONS = ("0 3 * * *", "30 2 * * *", "*/30 * * * *", "0 * * * *", "15 1-4 * * *", "0 0 1 * *", "59 23 * * SUN")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def of_berlin(expression: str, tick: str) -> list[str]:
    values = tick_values(at(tick), cron_ticks(expression, "Europe/Berlin"), BERLIN)
    return [values[path] for path in ("tick.date", "tick.previous", "tick", "tick.end")]


def test_a_day_is_an_hour_short_when_clocks_are_set_forward_and_long_when_they_are_set_back() -> None:
    assert of_berlin("0 3 * * *", "2026-03-29T03:00+02:00") == [
        "2026-03-29",
        "2026-03-28T03:00:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T03:00:00+02:00",
    ]
    assert of_berlin("0 3 * * *", "2026-10-25T03:00+01:00") == [
        "2026-10-25",
        "2026-10-24T03:00:00+02:00",
        "2026-10-25T03:00:00+01:00",
        "2026-10-26T03:00:00+01:00",
    ]


def test_both_hours_that_a_clock_shows_twice_have_their_own_text() -> None:
    first, second = "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"
    assert of_berlin("0 * * * *", first)[1:] == ["2026-10-25T01:00:00+02:00", first, second]
    assert of_berlin("0 * * * *", second)[1:] == [first, second, "2026-10-25T03:00:00+01:00"]


def test_a_time_that_does_not_exist_is_the_first_one_after_it() -> None:
    moved = "2026-03-29T03:00:00+02:00"
    assert of_berlin("30 2 * * *", moved)[1:] == ["2026-03-28T02:30:00+01:00", moved, "2026-03-30T02:30:00+02:00"]


@given(st.sampled_from(EXPRESSIONS), st.sampled_from([FORWARD, BACK]), st.integers(-3 * 86_400, 3 * 86_400))
@example("30 2 * * *", FORWARD, 0)
@example("30 2 * * *", BACK, 0)
def test_around_a_change_of_the_clock_ticks_follow_each_other_without_gap(
    expression: str, day: datetime, shift: int
) -> None:
    next_tick = cron_ticks(expression, "Europe/Berlin")
    tick = next_tick(day.timestamp() + shift)
    assert tick is not None
    following = next_tick(tick)
    assert following is not None
    values, after = tick_values(tick, next_tick, BERLIN), tick_values(following, next_tick, BERLIN)
    assert values["tick.end"] == after["tick"]
    assert after["tick.previous"] == values["tick"]
    assert at(values["tick.previous"]) < at(values["tick"]) == tick < at(values["tick.end"]) == following
    assert values["tick"].startswith(values["tick.date"])


@given(st.integers(0, 4_000_000_000), st.integers(1, 10_000_000), st.integers(-500, 500))
def test_the_ticks_of_an_interval_are_an_interval_apart(start: int, every: int, number: int) -> None:
    next_tick, tick = interval_ticks(start, every), start + number * every
    assert previous_tick(tick, next_tick) == tick - every
    assert next_tick(tick) == tick + every


def test_the_first_and_the_last_tick_have_no_neighbour() -> None:
    values = tick_values(60, lambda after: 60 if after < 60 else None, UTC)
    assert values == {"tick": "1970-01-01T00:01:00+00:00", "tick.date": "1970-01-01", "tick.zone": "UTC"}
    assert (Tick(values).previous, Tick(values).end) == (None, None)


def test_the_ticks_beside_a_tick_on_request_are_a_day_away() -> None:
    assert tick_on_request("2026-11-17") == {
        "tick": "2026-11-17T00:00:00+00:00",
        "tick.date": "2026-11-17",
        "tick.previous": "2026-11-16T00:00:00+00:00",
        "tick.end": "2026-11-18T00:00:00+00:00",
        "tick.zone": "UTC",
    }
    assert tick_on_request("2026-11-17T03:00+01:00")["tick.zone"] == "+01:00"
    assert tick_on_request("2026-11-17 03:00+01:00")["tick"] == "2026-11-17T03:00:00+01:00"
    assert tick_on_request("2026-11-17T03:00:30Z")["tick"] == "2026-11-17T03:00:30+00:00"


def test_a_time_without_an_offset_is_in_the_zone() -> None:
    assert parse_time("2026-07-01", BERLIN) == (datetime(2026, 7, 1, tzinfo=BERLIN), True)
    morning, whole = parse_time(" 2026-07-01T08:30 ", BERLIN)
    assert (morning.utcoffset(), whole) == (timedelta(hours=2), False)


@pytest.mark.parametrize(
    "text", ["5x", "", "2026-02-30", "2026-11-17T25:00", "20261117", "1969-12-31", "9999-12-31", None]
)
def test_what_is_no_tick_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidTick) as refusal:
        tick_on_request(text)
    examples = "2026-11-17, 2026-11-17T03:00, 2026-11-17T03:00+01:00"
    assert str(refusal.value) == f"{text!r} is not a valid tick (examples: {examples})"


def test_a_function_gets_the_text_with_the_others_as_attributes() -> None:
    tick = Tick(tick_on_request("2026-11-17"))
    assert tick == "2026-11-17T00:00:00+00:00"
    assert (tick.date, tick.end) == ("2026-11-17", "2026-11-18T00:00:00+00:00")


def test_a_command_gets_variables() -> None:
    values = tick_on_request("2026-11-17")
    assert tick_variables(values)["ASTERISM_TICK_PREVIOUS"] == "2026-11-16T00:00:00+00:00"
    assert set(tick_variables(values)) == {f"ASTERISM_TICK{end}" for end in ("", "_DATE", "_PREVIOUS", "_END", "_ZONE")}


@pytest.mark.parametrize("data", [None, "x", {}, {"tick": "x"}, {"tick": "x", "tick.date": 1}, {"tick": "x", "y": "z"}])
def test_an_input_that_merely_has_the_name_is_no_tick(data: object) -> None:
    assert read_tick(data) == {}


def test_a_tick_is_read_as_it_was_written() -> None:
    values = tick_on_request("2026-11-17")
    assert read_tick(dict(values)) == values
