"""Cron expressions: the next tick, daylight saving, and expressions that cannot be used."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.base import cron
from asterism.base.cron import InvalidCron, check_cron, cron_ticks, time_zone

BERLIN = "Europe/Berlin"
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()


def at(text: str, zone: str = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def local_ticks(expression: str, start: str, number: int, zone: str = BERLIN) -> list[str]:
    """The next ticks in local time, with the offset from UTC."""
    next_tick, tick, times = cron_ticks(expression, zone), at(start, zone), []
    for _ in range(number):
        following = next_tick(tick)
        assert following is not None
        tick = float(following)
        times.append(datetime.fromtimestamp(tick, ZoneInfo(zone)).strftime("%m-%d %H:%M%z"))
    return times


def test_a_time_of_day_is_in_its_time_zone() -> None:
    assert local_ticks("0 3 * * *", "2026-11-16 12:00", 2) == ["11-17 03:00+0100", "11-18 03:00+0100"]
    assert cron_ticks("0 3 * * *", "UTC")(NOW) == datetime(2026, 11, 17, 3, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(("name", "same"), list(cron.NAMED.items()))
def test_names_of_expressions(name: str, same: str) -> None:
    assert cron_ticks(name.upper(), "UTC")(NOW) == cron_ticks(same, "UTC")(NOW)


# -- daylight saving: in Berlin 02:00 to 03:00 does not exist on 29 March 2026, and comes twice on 25 October --------


def test_a_time_that_does_not_exist_fires_at_the_first_minute_that_does() -> None:
    assert local_ticks("30 2 * * *", "2026-03-28 12:00", 2) == ["03-29 03:00+0200", "03-30 02:30+0200"]


def test_several_times_that_do_not_exist_fire_once() -> None:
    assert local_ticks("0,30 2 * * *", "2026-03-28 12:00", 2) == ["03-29 03:00+0200", "03-30 02:00+0200"]
    assert local_ticks("0 2,3 * * *", "2026-03-28 12:00", 2) == ["03-29 03:00+0200", "03-30 02:00+0200"]


def test_a_time_that_comes_twice_fires_at_the_first() -> None:
    assert local_ticks("30 2 * * *", "2026-10-24 12:00", 2) == ["10-25 02:30+0200", "10-26 02:30+0100"]


def test_between_the_two_times_the_second_is_no_tick() -> None:
    between = at("2026-10-25 02:45")
    again = at("2026-10-25 02:15", fold=1)
    tomorrow = at("2026-10-26 02:30")
    assert cron_ticks("30 2 * * *", BERLIN)(between) == cron_ticks("30 2 * * *", BERLIN)(again) == tomorrow


def test_every_half_hour_goes_by_the_time_that_passes() -> None:
    assert local_ticks("*/30 * * * *", "2026-03-29 01:15", 3) == [
        *("03-29 01:30+0100", "03-29 03:00+0200", "03-29 03:30+0200"),
    ]
    assert local_ticks("*/30 * * * *", "2026-10-25 01:45", 5) == [
        *("10-25 02:00+0200", "10-25 02:30+0200", "10-25 02:00+0100", "10-25 02:30+0100", "10-25 03:00+0100"),
    ]


EXPRESSIONS = st.sampled_from(
    ["30 2 * * *", "*/7 * * * *", "0,30 1-3 * * *", "15 */2 * * *", "59 23 31 * *", "0 2,3 * * 0", "* 2 * 3,10 *"]
)
ZONES = st.sampled_from([BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
DST_DAYS = [at("2026-03-28 18:00"), at("2026-10-24 18:00"), at("2026-03-07 18:00"), at("2026-04-04 06:00")]


@given(EXPRESSIONS, ZONES, st.sampled_from(DST_DAYS), st.integers(0, 90_000), st.integers(0, 90_000))
@settings(max_examples=200)
def test_ticks_do_not_depend_on_where_the_search_begins(
    expression: str, zone: str, day: float, first: int, more: int
) -> None:
    next_tick = cron_ticks(expression, zone)
    tick = next_tick(day + first)
    assert tick is not None
    assert tick > day + first
    later = day + first + more
    if later < tick:
        assert next_tick(later) == tick
    else:
        following = next_tick(later)
        assert following is not None
        assert following > tick


# -- what cannot be used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 0 30 2 *", "never fires: no month that it names has such a day"),
        ("0 0 31 4,6,9,11 *", "never fires: no month that it names has such a day"),
        ("0 0 * 2 1#6", "its day of week cannot be read"),
        ("0 24 * * *", "its hour cannot be read"),
        ("0 0 32 * *", "its day of month cannot be read"),
        ("0 0 32 2 *", "its day of month cannot be read"),
        ("x * * * *", "its minute cannot be read"),
        ("*/0 * * * *", "its minute cannot be read"),
        ("* * *", "has 3 fields; it must have 5: minute, hour, day of month, month and day of week"),
        ("*", "has 1 field; it must have 5"),
        ("", "has 0 fields; it must have 5"),
        ("* * * * * *", "has 6 fields; it must have 5: .*; for times within a minute use an interval"),
        ("@reboot", "has 1 field"),
        ("1" * 501, "longer than 500 characters"),
    ],
)
def test_an_expression_that_cannot_be_used(expression: str, words: str) -> None:
    with pytest.raises(InvalidCron, match=words):
        check_cron(expression, "UTC", NOW)


def test_an_expression_that_matches_no_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron, "cron_ticks", lambda expression, zone: lambda after: None)
    with pytest.raises(InvalidCron, match="'0 0 29 2 1#5' never fires: it matches no day of the next 50 years"):
        check_cron("0 0 29 2 1#5", "UTC", NOW)


def test_a_rare_expression_is_accepted() -> None:
    check_cron("0 0 * 2 MON#5", "UTC", NOW)
    assert cron_ticks("0 0 * 2 MON#5", "UTC")(NOW) == datetime(2044, 2, 29, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Europe/Berln", "there is no time zone 'Europe/Berln'; did you mean Europe/Berlin?"),
        ("berlin", "did you mean Europe/Berlin?"),
        ("nowhere at all", r"there is no time zone 'nowhere at all' \(examples: UTC, Europe/Berlin\)"),
        ("../../etc/passwd", "there is no time zone"),
        ("Europe", "there is no time zone 'Europe'"),
        ("", "there is no time zone ''"),
        ("Europe/" * 500_000, r"^the name of a time zone has at most 255 characters, not 3,500,000$"),
    ],
)
def test_a_time_zone_that_does_not_exist(name: str, words: str) -> None:
    with pytest.raises(InvalidCron, match=words):
        time_zone(name)


def test_a_machine_without_time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(InvalidCron, match="no time zone database; install the package tzdata"):
        time_zone("Europe/Nowhere")
