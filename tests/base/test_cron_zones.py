"""Cron in every time zone, compared with a reference that walks from minute to minute around each change of clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest

from asterism.base.cron import cron_ticks
from tests.long_tests import every_seed, rest_long

EXPRESSIONS = (
    *("30 2 * * *", "0,15,45 0-3 * * *", "59 23 * * *", "10 2 * * 0", "0 0 1 * *"),  # times of the day
    *("*/7 * * * *", "15 */2 * * *", "* 2 * * *", "5 * * * *", "*/20 1-3 * * 0,6"),  # by the time that passes
)
FIRST, LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2017, 2027))
AROUND = 27 * 60
"""How many minutes before and after a change are walked."""


PARTS = 16
"""How many tests share the zones of the world."""


def members(field: str, low: int, high: int) -> frozenset[int]:
    numbers: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        numbers.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return frozenset(numbers)


class Reference:
    """The rules of the module ``cron`` as they are written, minute by minute."""

    def __init__(self, expression: str) -> None:
        fields = expression.split()
        ranges = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
        self._sets = [members(field, *limits) for field, limits in zip(fields, ranges, strict=True)]
        self._passes = fields[0].startswith("*") or fields[1].startswith("*")

    def matches(self, local: datetime) -> bool:
        values = (local.minute, local.hour, local.day, local.month, local.isoweekday() % 7)
        return all(value in allowed for value, allowed in zip(values, self._sets, strict=True))

    def ticks(self, minutes: list[tuple[int, datetime, int]]) -> list[int]:
        """The ticks among consecutive minutes: the instant, its local time, and its fold."""
        instants = []
        for (_, before, _), (instant, local, fold) in pairwise(minutes):
            skipped = (local - before) // timedelta(minutes=1) - 1
            if self._passes:
                fires = self.matches(local)
            else:
                missed = [before + timedelta(minutes=number) for number in range(1, skipped + 1)]
                fires = (fold == 0 and self.matches(local)) or any(map(self.matches, missed))
            if fires:
                instants.append(instant)
        return instants


def changes(place: ZoneInfo, first: int, last: int) -> list[int]:
    """The hours in which the offset from UTC changes."""
    offsets = [(at, datetime.fromtimestamp(at, place).utcoffset()) for at in range(first, last, 3600)]
    return [at for (_, before), (at, after) in pairwise(offsets) if before != after]


@lru_cache(4)
def walked(zone: str, middle: int) -> tuple[tuple[int, datetime, int], ...]:
    place = ZoneInfo(zone)
    minutes = []
    for number in range(-AROUND, AROUND):
        instant = middle + 60 * number
        local = datetime.fromtimestamp(instant, place)
        minutes.append((instant, local.replace(tzinfo=None, fold=0), local.fold))
    return tuple(minutes)


def compare(zone: str, first: int = FIRST, last: int = LAST) -> int:
    """Compare all ticks around each change of a zone. Returns how many there are."""
    total = 0
    for middle in changes(ZoneInfo(zone), first, last):
        minutes = walked(zone, middle)
        for expression in EXPRESSIONS:
            expected = Reference(expression).ticks(list(minutes))
            next_tick, ticks, tick = cron_ticks(expression, zone), [], float(minutes[0][0])
            while (following := next_tick(tick)) is not None and following <= minutes[-1][0]:
                ticks.append(following)
                tick = following
            assert ticks == expected, (zone, expression, datetime.fromtimestamp(middle, UTC))
            total += len(ticks)
    return total


ZONES = (
    "Australia/Lord_Howe", "Europe/Berlin", "Asia/Pyongyang", "Africa/Casablanca", "Asia/Tehran", "Pacific/Apia",
    "America/Caracas", "America/New_York", "America/St_Johns", "Antarctica/Troll",
)  # fmt: skip


@pytest.mark.parametrize("zone", rest_long(ZONES, 3))
def test_ticks_are_those_of_a_walk_from_minute_to_minute(zone: str) -> None:
    first, last = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2026, 2027))
    assert compare(zone, first, last) or not changes(ZoneInfo(zone), first, last)


@pytest.mark.parametrize(
    ("year", "zone"), rest_long([(2018, "Asia/Pyongyang"), (2011, "Pacific/Apia"), (2016, "America/Caracas")], 1)
)
def test_clocks_that_are_set_by_a_day_or_by_half_an_hour_for_good(year: int, zone: str) -> None:
    first, last = (int(datetime(start, 1, 1, tzinfo=UTC).timestamp()) for start in (year, year + 1))
    assert compare(zone, first, last)


def test_lord_howe_misses_no_tick_on_the_days_of_its_changes() -> None:
    """Its clocks are set by half an hour: 02:00 to 02:30 does not exist on 4 October, 01:30 to 02:00 comes twice on
    5 April 2026."""

    def local_ticks(expression: str, after: datetime, number: int) -> list[str]:
        place, times = ZoneInfo("Australia/Lord_Howe"), []
        tick = after.replace(tzinfo=place).timestamp()
        for _ in range(number):
            following = cron_ticks(expression, place.key)(tick)
            assert following is not None
            tick = float(following)
            times.append(datetime.fromtimestamp(tick, place).strftime("%H:%M%z"))
        return times

    spring, autumn = datetime(2026, 10, 4, 1, 45), datetime(2026, 4, 5, 1, 15)
    assert local_ticks("15 * * * *", spring, 2) == ["03:15+1100", "04:15+1100"]
    assert local_ticks("45 * * * *", spring - timedelta(hours=1), 3) == ["01:45+1030", "02:45+1100", "03:45+1100"]
    assert local_ticks("15 2 * * *", spring, 1) == ["02:30+1100"]
    assert local_ticks("45 * * * *", autumn, 3) == ["01:45+1100", "01:45+1030", "02:45+1030"]
    assert local_ticks("45 1 * * *", autumn, 2) == ["01:45+1100", "01:45+1030"]  # the second one is of the next day


@lru_cache(1)
def different_zones() -> tuple[str, ...]:
    """The zones whose clocks were changed; of those that agree on every change, one."""
    zones: dict[tuple[object, ...], str] = {}
    for zone in sorted(available_timezones()):
        place = ZoneInfo(zone)
        if times := changes(place, FIRST, LAST):
            zones[tuple((at, datetime.fromtimestamp(at, place).utcoffset()) for at in (FIRST, *times))] = zone
    return tuple(zones.values())


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_zone_over_ten_years(part: int) -> None:
    assert len(different_zones()) > 50
    assert sum(compare(zone) for zone in different_zones()[part :: PARTS * every_seed()])
