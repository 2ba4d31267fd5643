"""Backfills: each tick is decided once, in its order, and the end is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asterism.base.cron import cron_ticks
from asterism.core.schedule.ticks import (
    MOST_FAILURES,
    Backfill,
    due_for_backfill,
    interval_ticks,
    settle,
    ticks_between,
)

HOURLY = interval_ticks(0, 3600)


def hours(number: int, **options: object) -> Backfill:
    fields = {"parallel": 1, "created_by": "ann", "started_at": 0.0, "after": 3599.0, **options}
    return Backfill("s", 3600, number * 3600, number, **fields)  # type: ignore[arg-type]


@given(st.integers(1, 30), st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=80))
def test_each_tick_is_created_once_in_order_and_no_more_at_once(
    number: int, parallel: int, ends: list[tuple[int, bool]]
) -> None:
    backfill, created = hours(number, parallel=parallel), list[int]()
    for place, success in [*ends, *[(0, True)] * number]:
        while (tick := due_for_backfill(backfill, HOURLY)) is not None:
            created.append(tick)
            backfill = backfill.changed(after=float(tick), open=(*backfill.open, str(tick)))
            assert len(backfill.open) <= parallel
        if backfill.open:
            backfill = settle(backfill, {backfill.open[place % len(backfill.open)]: success}, 9.0)
    assert created == [hour * 3600 for hour in range(1, number + 1)]
    assert backfill.ended_at == 9.0
    assert backfill.decided == backfill.succeeded + backfill.failed == number


def test_ticks_are_counted_with_both_ends() -> None:
    assert list(ticks_between(3600, 7200, HOURLY)) == [3600, 7200]
    assert list(ticks_between(3601, 7199, HOURLY)) == []
    assert list(ticks_between(0, 10, lambda after: None)) == []
    assert list(ticks_between(0, 100, lambda after: 5 if after < 5 else None)) == [5]


def test_a_year_of_days_has_one_tick_a_day_whatever_the_clocks_do() -> None:
    next_tick = cron_ticks("30 2 * * *", "Europe/Berlin")
    first = 1_767_222_000  # of the year 2026 of Berlin
    assert len(list(ticks_between(first, first + 365 * 86_400 - 1, next_tick))) == 365


def test_a_step_of_its_own_counts_from_the_first_tick() -> None:
    backfill = hours(3, every=1800)
    assert due_for_backfill(backfill, HOURLY) == 3600
    assert due_for_backfill(backfill.changed(after=3600.0), HOURLY) == 5400


def test_a_cancelled_backfill_creates_nothing_and_ends_with_its_last_plan() -> None:
    backfill = hours(5, after=3600.0, open=("a",), parallel=2).changed(cancelled="by ann")
    assert due_for_backfill(backfill, HOURLY) is None
    assert settle(backfill, {}, 7.0).ended_at is None
    ended = settle(backfill, {"a": False}, 7.0)
    assert (ended.ended_at, ended.failed, ended.failures) == (7.0, 1, ("a",))
    assert settle(ended, {}, 8.0).ended_at == 7.0
    assert due_for_backfill(hours(5, ended_at=1.0), HOURLY) is None


def test_only_the_last_failures_are_named() -> None:
    names = tuple(map(str, range(MOST_FAILURES + 5)))
    settled = settle(hours(100, open=names, parallel=50), dict.fromkeys(names, False), 1.0)
    assert (settled.failed, settled.failures) == (MOST_FAILURES + 5, names[5:])


def test_the_time_left_follows_the_pace_and_skipped_ticks_took_none() -> None:
    assert hours(10).time_left(50.0) is None
    backfill = hours(10, succeeded=1, failed=1, skipped=4)
    assert (backfill.decided, backfill.time_left(60.0)) == (6, 120.0)
    assert backfill.changed(ended_at=60.0).time_left(60.0) is None


def test_a_backfill_is_read_as_it_was_written() -> None:
    backfill = hours(3, open=("a",), failures=("b",), cancelled="by ann")
    assert Backfill.from_json(backfill.to_json()) == backfill
