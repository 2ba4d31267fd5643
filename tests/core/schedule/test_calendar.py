"""The calendar of a schedule: each tick has one state, and no more is claimed than is known."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from asterism.core.schedule.schedule import Schedule
from asterism.core.schedule.tick_values import InvalidTick, time_until
from asterism.core.schedule.ticks import HISTORY_LENGTH, Calendar, CalendarTick, TickEntry, TickWork

HOUR = 3600


def state(tick: int, *, now: float, history: list[TickEntry] | None = None, **fields: object) -> tuple[str, str]:
    """The state of a tick without work, and why. The schedule was added at 10 h."""
    options = {"start": 10 * HOUR, "after": 10.0 * HOUR, **fields}
    schedule = Schedule("s", plan="p", every=HOUR, **options)  # type: ignore[arg-type]
    known = Calendar(schedule, history or [], now).tick(tick, None)
    assert (known.work, known.late) == (None, False)
    return known.state, known.why


def test_a_tick_with_work_has_its_state() -> None:
    calendar = Calendar(Schedule("s", plan="p", every=HOUR), [], now=5.0)
    work = TickWork("s-1", "failed", 1.0, 2.0, "it is damaged")
    assert calendar.tick(0, work) == CalendarTick(0, "failed", work, False, "it is damaged")


@pytest.mark.parametrize(("ended_at", "now", "late"), [(None, 161, True), (None, 160, False), (161.0, 900, True)])
def test_work_is_late_after_the_time_of_the_schedule(ended_at: float | None, now: float, late: bool) -> None:
    calendar = Calendar(Schedule("s", plan="p", every=HOUR, late_after=60), [], now)
    assert calendar.tick(100, TickWork("s-1", "running", 101.0, ended_at)).late is late


def test_a_backfill_of_the_time_before_the_schedule_is_not_late() -> None:
    calendar = Calendar(Schedule("s", plan="p", every=HOUR, late_after=60, start=2 * HOUR), [], 9.0 * HOUR)
    late = [calendar.tick(hour * HOUR, TickWork("s-1", "succeeded", None, 8.0 * HOUR)).late for hour in (1, 2)]
    assert late == [False, True]


def test_a_tick_that_is_not_decided_is_due_until_it_was_missed() -> None:
    assert state(12 * HOUR, now=11.5 * HOUR) == ("due", "")
    assert state(12 * HOUR, now=12 * HOUR + 59) == ("due", "")
    assert state(12 * HOUR, now=12 * HOUR + 60) == ("missed", "")
    assert state(12 * HOUR, now=12 * HOUR + 60, jitter=10.0) == ("due", "")


def test_a_decided_tick_without_work_was_missed() -> None:
    assert state(12 * HOUR, now=12 * HOUR + 1, after=12.0 * HOUR) == ("missed", "")


def test_a_tick_of_a_pause_says_so() -> None:
    assert state(12 * HOUR, now=14 * HOUR, paused="by ann") == ("missed", "the schedule was paused by ann")
    assert state(11 * HOUR, now=14 * HOUR, paused="by ann", after=12.0 * HOUR) == ("missed", "")


def test_the_history_says_why_nothing_was_created() -> None:
    history = [
        TickEntry(0.0, 11 * HOUR, "skipped", None, "s-10 has not ended"),
        TickEntry(0.0, 12 * HOUR, "failed", None, "no such workflow"),
        TickEntry(0.0, 13 * HOUR, "missed"),
        TickEntry(0.0, None, "created", "s-x"),
    ]
    known = {hour: state(hour * HOUR, now=20 * HOUR, history=history, after=13.0 * HOUR) for hour in (11, 12, 13)}
    assert known == {11: ("skipped", "s-10 has not ended"), 12: ("failed", "no such workflow"), 13: ("missed", "")}


def test_of_ticks_before_the_schedule_and_before_the_history_nothing_is_claimed() -> None:
    long = [TickEntry(0.0, hour * HOUR, "created", "s") for hour in range(20, 20 + HISTORY_LENGTH)]
    now, after = 200.0 * HOUR, 150.0 * HOUR
    assert state(9 * HOUR, now=now, after=after) == ("none", "")
    assert state(15 * HOUR, now=now, after=after) == ("missed", "")
    assert state(15 * HOUR, now=now, after=after, history=long) == ("none", "")
    assert state(125 * HOUR, now=now, after=after, history=long) == ("missed", "")
    on_request = [TickEntry(0.0, None, "created", "s")] * HISTORY_LENGTH
    assert state(15 * HOUR, now=now, after=after, history=on_request) == ("missed", "")


def test_a_day_ends_with_its_last_second_also_when_clocks_change() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    for day, hours in {"2026-03-28": 24, "2026-03-29": 23, "2026-10-25": 25}.items():
        begin = time_until(f"{day}T00:00", berlin)
        assert time_until(day, berlin) - begin == hours * HOUR - 1
    assert time_until("2026-03-29T12:00", UTC) == 1_774_785_600
    with pytest.raises(InvalidTick):
        time_until("yesterday", UTC)


def test_a_missed_tick_that_will_be_caught_up_is_due() -> None:
    schedule = Schedule("s", plan="p", every=HOUR, start=10 * HOUR, after=10.0 * HOUR)
    known = Calendar(schedule, [], 20.0 * HOUR, caught_up=12 * HOUR).tick(13 * HOUR, None)
    assert (known.state, known.why) == ("due", "it was missed, and is created when a coordinator is back")
