"""Ticks: which are due after an absence or a jump of the clock, and that each is decided once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.schedule import ticks as ticks_module
from asterism.core.schedule.schedule import CATCH_UP, Schedule
from asterism.core.schedule.ticks import (
    HISTORY_LENGTH,
    LATE,
    MOST_CAUGHT_UP,
    MOST_OPEN,
    DueTick,
    NextTick,
    Overlap,
    TickEntry,
    decided,
    due_tick,
    entries_of,
    fires_at,
    history_of,
    interval_ticks,
    is_due,
    late_times,
    moved_to,
    overlap,
    recent_ticks,
    rewound,
    tick_key,
    tick_of,
    tick_text,
    with_entries,
    with_work,
    without_time,
)

START = 1_000_000


def scheduled(every: int = 300, start: int = START, **options: object) -> tuple[Schedule, NextTick]:
    """A schedule that was added at ``start``, and its ticks."""
    next_tick = interval_ticks(start, every)
    schedule = Schedule("s", workflow="w", every=every, start=start, **options)  # type: ignore[arg-type]
    return moved_to(schedule, float(start), next_tick), next_tick


def looks(
    schedule: Schedule, next_tick: NextTick, times: list[float], known: set[int] | None = None
) -> Iterator[tuple[float, int | None, list[int]]]:
    """Decide what is due at each of these times, as a coordinator does: (time, created tick, missed ticks)."""
    for now in times:
        if not is_due(schedule, now):
            continue
        schedule = rewound(schedule, now, next_tick)
        while (due := due_tick(schedule, now, next_tick)) is not None:
            schedule = decided(schedule, due, next_tick)
            again = known is not None and due.tick in known
            if known is not None and due.tick is not None:
                known.add(due.tick)
            yield now, None if again else due.tick, list(due.missed)


# -- the next tick ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.floats(-50_000, 50_000, allow_nan=False))
def test_the_next_tick_of_an_interval(every: int, offset: float) -> None:
    tick = interval_ticks(START, every)(START + offset)
    assert tick is not None
    assert (tick - START) % every == 0
    assert START + offset < tick <= START + offset + every + 1e-6


@given(st.integers(1, 500), st.integers(0, 5000), st.integers(0, 50_000), st.integers(1, 20))
def test_recent_ticks_are_the_newest(every: int, skipped: int, length: int, most: int) -> None:
    next_tick = interval_ticks(START, every)
    after, until = START + skipped, START + skipped + length
    everything = [tick for tick in range(START, until + 1, every) if tick > after]
    assert recent_ticks(after, until, most, next_tick) == (everything[-most:], len(everything) > most)


def test_a_long_absence_is_not_counted_tick_by_tick() -> None:
    calls = 0

    def counted(after: float) -> int | None:
        nonlocal calls
        calls += 1
        return interval_ticks(START, 1)(after)

    ticks, more = recent_ticks(START, START + 10**9, MOST_CAUGHT_UP, counted)
    assert ticks == list(range(START + 10**9 - 99, START + 10**9 + 1))
    assert more
    assert calls < 1000


def test_a_rare_tick_is_found_after_a_long_absence() -> None:
    def yearly(after: float) -> int | None:
        return next((tick for tick in (START + 100, START + 31_000_000) if tick > after), None)

    assert recent_ticks(START, START + 60_000_000, 100, yearly) == ([START + 100, START + 31_000_000], False)


@given(st.integers(2, 1000), st.floats(0.1, 5000), st.integers(0, 1000))
def test_jitter_delays_a_tick_and_never_past_the_next(every: int, jitter: float, number: int) -> None:
    schedule, next_tick = scheduled(every, jitter=jitter)
    tick = START + every * number
    fires = fires_at(schedule, tick, next_tick(tick))
    assert tick <= fires < tick + min(jitter, every)
    assert fires == fires_at(schedule, tick, next_tick(tick))


def test_jitter_of_a_last_tick_and_jitter_that_differs() -> None:
    schedule, _ = scheduled(jitter=100.0)
    assert START <= fires_at(schedule, START, None) < START + 100
    assert len({fires_at(schedule, START + n, None) - n for n in range(50)}) == 50


# -- what is due -----------------------------------------------------------------------------------------------------


def test_before_the_first_tick_nothing_is_due() -> None:
    schedule, next_tick = scheduled()
    assert (schedule.next, schedule.due) == (START + 300, START + 300.0)
    assert not is_due(schedule, START + 299.9)
    assert due_tick(schedule, START + 299.9, next_tick) is None
    assert is_due(schedule, START + 300.0)
    assert due_tick(schedule, START + 300.0, next_tick) == DueTick(START + 300, [], False)


def test_a_paused_schedule_and_one_without_a_next_tick_are_never_due() -> None:
    schedule, _ = scheduled(paused="by ann")
    assert not is_due(schedule, START + 10**6)
    ended = moved_to(schedule.changed(paused=None), START, lambda after: None)
    assert (ended.next, ended.due) == (None, None)
    assert not is_due(ended, START + 10**6)


def test_jitter_holds_the_newest_tick_back() -> None:
    schedule, next_tick = scheduled(jitter=200.0)
    assert schedule.due is not None
    assert START + 300 < schedule.due < START + 500
    assert not is_due(schedule, START + 300.0)
    assert due_tick(schedule, START + 300.0, next_tick) is None
    assert due_tick(schedule, schedule.due, next_tick) == DueTick(START + 300, [], False)


@pytest.mark.parametrize(
    ("catch_up", "created", "missed"),
    [("none", [], 3), ("last", [START + 900], 2), ("all", [START + 300, START + 600, START + 900], 0)],
)
def test_catch_up_after_an_absence(catch_up: str, created: list[int], missed: int) -> None:
    schedule, next_tick = scheduled(catch_up=catch_up)
    decisions = list(looks(schedule, next_tick, [START + 1000.0]))
    assert [tick for _, tick, _ in decisions if tick is not None] == created
    assert sum(len(missed_ticks) for *_, missed_ticks in decisions) == missed


def test_a_tick_on_time_takes_the_place_of_a_missed_one() -> None:
    schedule, next_tick = scheduled(catch_up="last")
    decisions = list(looks(schedule, next_tick, [START + 930.0]))
    assert decisions == [(START + 930.0, START + 900, [START + 300, START + 600])]


def test_catch_up_of_all_is_bounded() -> None:
    schedule, next_tick = scheduled(10, catch_up="all")
    first = due_tick(schedule, START + 100_000.0, next_tick)
    assert first == DueTick(START + 100_000 - 990, [START + 100_000 - 1000], True)


TIMES = st.lists(st.floats(0.1, 2000.0), min_size=1, max_size=40)


@given(st.sampled_from(CATCH_UP), st.integers(5, 400), st.sampled_from([0.0, 30.0]), TIMES)
def test_each_tick_is_decided_once_and_in_order(catch_up: str, every: int, jitter: float, pauses: list[float]) -> None:
    schedule, next_tick = scheduled(every, catch_up=catch_up, jitter=jitter)
    times, now = [], float(START)
    for pause in pauses:
        now += pause
        times.append(now)
    decisions = list(looks(schedule, next_tick, times))
    order = [tick for _, made, missed in decisions for tick in (*missed, *([made] if made is not None else []))]
    assert order == sorted(set(order))
    for at, made, _ in decisions:
        if made is not None:
            assert made <= at
            assert catch_up != "none" or at - made <= LATE + min(jitter, every)
    if catch_up == "all" and max(pauses) < every * (MOST_CAUGHT_UP - 1):
        last = times[-1] - (every if jitter else 0)
        assert [tick for tick in order if tick <= last] == list(range(START + every, int(last) + 1, every))


# -- the clock is set back -------------------------------------------------------------------------------------------


JUMPS = st.lists(st.tuples(st.floats(1.0, 300.0), st.sampled_from([0.0] * 6 + [3600.0, -3600.0, 90_000.0, -90_000.0])))


def jumping(steps: list[tuple[float, float]]) -> list[float]:
    """The times that a clock shows which jumps."""
    now, times = START + 200_000.0, []
    for pause, jump in steps:
        now += pause + jump
        times.append(now)
    return times


@given(JUMPS)
def test_each_tick_is_created_once_when_the_clock_jumps(steps: list[tuple[float, float]]) -> None:
    schedule, next_tick = scheduled(300, START + 200_000, catch_up="all")
    made = [tick for _, tick, _ in looks(schedule, next_tick, jumping(steps), set()) if tick is not None]
    assert len(made) == len(set(made))


AHEAD_AND_BACK = [START + 200_310.0, START + 290_100.0, *(START + 200_400.0 + 100 * n for n in range(20))]
"""A tick on time; the clock jumps ahead by a day; it is set right again."""


def made_with(catch_up: str, known: set[int] | None) -> list[int]:
    schedule, next_tick = scheduled(300, START + 200_000, catch_up=catch_up)
    return [tick for _, tick, _ in looks(schedule, next_tick, AHEAD_AND_BACK, known) if tick is not None]


def test_a_schedule_continues_after_the_clock_was_set_back() -> None:
    assert made_with("none", set()) == [START + 200_000 + 300 * n for n in (1, 2, 3, 4, 5, 6, 7)]


def test_without_rewinding_a_schedule_is_silent_until_the_clock_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ticks_module, "rewound", lambda schedule, now, next_tick: schedule)
    patch.setitem(globals(), "rewound", lambda schedule, now, next_tick: schedule)
    assert made_with("none", set()) == [START + 200_300]


def test_without_keys_a_tick_is_created_twice_when_the_clock_was_set_back() -> None:
    times = [START + 300.0, START + 600.0, START + 310.0, START + 610.0]
    schedule, next_tick = scheduled(300)
    made = [tick for _, tick, _ in looks(schedule, next_tick, times) if tick is not None]
    assert made == [START + 300, START + 600, START + 600]
    made = [tick for _, tick, _ in looks(schedule, next_tick, times, set()) if tick is not None]
    assert made == [START + 300, START + 600]


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


def test_without_a_cursor_each_look_creates_the_tick_again() -> None:
    schedule, next_tick = scheduled(300)
    due = [due_tick(schedule, now, next_tick) for now in (START + 300.0, START + 305.0)]
    assert due[0] == due[1]  # only ``decided`` moves on


# -- overlap and history ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "open_work", "expected"),
    [
        ("skip", [], Overlap(True)),
        ("skip", ["a", "b"], Overlap(False, "b has not ended")),
        ("queue", ["a"], Overlap(True)),
        ("queue", ["a"] * MOST_OPEN, Overlap(False, "100 earlier ones have not ended, and more may not wait")),
        ("replace", ["a", "b"], Overlap(True, "", ("a", "b"))),
        ("allow", ["a"] * 500, Overlap(True)),
    ],
)
def test_overlap(policy: str, open_work: list[str], expected: Overlap) -> None:
    schedule, _ = scheduled(overlap=policy)
    assert overlap(schedule, open_work) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", Overlap(False, "c has not ended")),
        ("queue", Overlap(True)),
        ("replace", Overlap(True, "", ("a", "b"))),
        ("allow", Overlap(True)),
    ],
)
def test_an_overlap_is_what_may_not_run_in_parallel(policy: str, expected: Overlap) -> None:
    plans = Schedule("s", plan="etl", every=60, overlap=policy, parallel=2)
    assert overlap(plans, ["a"]) == Overlap(True)
    assert overlap(plans, ["a", "b", "c"]) == expected


def test_plans_are_not_forgotten_because_there_are_many() -> None:
    plans = Schedule("s", plan="etl", every=60, overlap="allow")
    assert overlap(plans, ["a"] * (MOST_OPEN - 1)) == Overlap(True)
    assert not overlap(plans, ["a"] * MOST_OPEN).create


def test_work_is_counted_and_the_lists_are_bounded() -> None:
    schedule, _ = scheduled(overlap="replace")
    first = with_work(schedule, [], "a", [])
    second = with_work(first, ["a"], "b", ["a"])
    assert (second.open, second.replaced, second.made) == (("a", "b"), ("a",), 2)
    assert with_work(second, ["a", "b"], "c", ["a", "b"]).replaced == ("a", "b")
    assert len(with_work(schedule, [str(n) for n in range(500)], "x", []).open) == MOST_OPEN


def test_a_history_keeps_the_newest_entries() -> None:
    entry = TickEntry(START + 0.5, START, "created", "run-1")
    data = with_entries(None, [entry])
    assert history_of(data) == [entry]
    for number in range(200):
        data = with_entries(data, [TickEntry(START + 1.0, START + number, "skipped", None, "busy")])
    assert len(data) == HISTORY_LENGTH
    assert history_of(data)[-1].tick == START + 199
    assert history_of({"bad": 1}) == []


def test_missed_ticks_have_one_entry() -> None:
    assert entries_of(DueTick(START, [], False), START) == []
    missed = TickEntry(START + 9.0, START + 2, "missed", None, "", 2)
    assert entries_of(DueTick(None, [START + 1, START + 2], False), START + 9.0) == [missed]
    assert entries_of(DueTick(None, [START], True), START)[0].why == "and older ones"


def test_keys_name_the_schedule_and_the_tick_in_utc() -> None:
    assert tick_key("nightly", 1_763_258_400) == "schedule:nightly/20251116T020000Z"


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_ticks_have_different_keys(first: int, other: int) -> None:
    assert (tick_key("s", first) == tick_key("s", other)) == (first == other)


def test_the_name_of_a_plan_without_its_tick() -> None:
    assert without_time(f"nightly-{tick_text(0)}") == "nightly"
    assert without_time("nightly-20261101") == without_time("nightly-20261101-2") == "nightly"
    assert without_time("nightly") == "nightly"


def test_the_name_of_a_plan_tells_its_tick() -> None:
    assert tick_of(f"nightly-{tick_text(START)}") == START
    assert tick_of("nightly-a1b2c3") is None


def test_open_plans_are_late_a_time_after_their_tick_until_they_were_looked_at() -> None:
    names = (f"s-{tick_text(START)}", f"s-{tick_text(START + 60)}", "s-a1b2c3")
    plans = Schedule("s", plan="p", every=60, open=names)
    assert late_times(plans) == {}
    timed = plans.changed(late_after=10.0)
    assert late_times(timed) == {names[0]: START + 10.0, names[1]: START + 70.0}
    assert late_times(timed.changed(late=names[:1])) == {names[1]: START + 70.0}
