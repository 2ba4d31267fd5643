"""The times of a story never go backwards, whatever the clock says; deadlines are counted by the clock that judges
them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core import history
from asterism.core.errors import AsterismError, RunRefused
from asterism.core.history import MAX_CLOCK_STEP_BACK, step_time
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, replay
from asterism.core.plan.status import COMPLETED
from asterism.core.plan.task import Task
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.work import Workflow
from asterism.core.series.machine import Series

FLOW = Workflow("work", argv=["true"], retries=50, losses=50, rounds=50)
KITCHEN = Owner("kitchen", "kitchen-1")
HOUR = 3600.0
TIMES = st.floats(1_000_000.0, 1_000_000.0 + MAX_CLOCK_STEP_BACK)


def own(step: str, run: Run, now: float) -> Run:
    """One step of a party that may take it."""
    grant = run.grant or transitions.Grant(run.id, "", 0)
    steps: dict[str, Any] = {
        "assign": lambda: transitions.assign(run, KITCHEN, by="ann", now=now),
        "take": lambda: transitions.take(run, KITCHEN, now),
        "take and start": lambda: transitions.take(run, KITCHEN, now, starts=True),
        "claim": lambda: transitions.claim(run, grant, now),
        "start": lambda: transitions.start(run, grant, now),
        "complete": lambda: transitions.complete(run, grant, None, now),
        "fail": lambda: transitions.fail(run, grant, "out of paper", now),
        "decline": lambda: transitions.decline(run, grant, "no", now),
        "release": lambda: transitions.release(run, grant, "released", "", now),
        "lose": lambda: transitions.lose(run, now, "gone"),
        "next round": lambda: transitions.offer_again(run, now),
        "pause": lambda: transitions.pause(run, now, "ann"),
        "resume": lambda: transitions.resume(run, now, "ann"),
        "cancel": lambda: transitions.cancel(run, now, "ann"),
        "adopt": lambda: transitions.adopt(run, now, "a peer is gone"),
        "give up": lambda: transitions.give_up(run, now, "nobody can"),
    }
    return steps[step]()  # type: ignore[no-any-return]


STEPS = (
    *("assign", "take", "take and start", "claim", "start", "complete", "fail", "decline", "release", "lose"),
    *("next round", "pause", "resume", "cancel", "adopt", "give up"),
)
PROGRAMS = st.lists(st.tuples(st.sampled_from(STEPS), TIMES), max_size=40)


def played(program: list[tuple[str, float]], created: float) -> list[Run]:
    """Every record on the way; what is refused does not happen."""
    records = [transitions.create("r1", FLOW, {}, by="ann", now=created)]
    for step, now in program:
        try:
            records.append(own(step, records[-1], now))
        except RunRefused:
            continue
    return records


def in_order(*times: float | None) -> bool:
    known = [time for time in times if time is not None]
    return all(earlier <= later for earlier, later in pairwise(known))


def is_in_order(run: Run) -> bool:
    told = in_order(*(entry.at for entry in run.story))
    assignments = all(assignment.assigned_at <= assignment.ended_at for assignment in run.previous)
    return (
        told and assignments and in_order(run.created_at, run.assigned_at, run.claimed_at, run.started_at, run.ended_at)
    )


@given(PROGRAMS, TIMES)
def test_no_time_of_a_run_goes_backwards(program: list[tuple[str, float]], created: float) -> None:
    for run in played(program, created):
        assert is_in_order(run), run


@given(PROGRAMS, TIMES)
def test_deadlines_are_counted_from_the_clock_that_judges_them(
    program: list[tuple[str, float]], created: float
) -> None:
    run = transitions.create("r1", FLOW, {}, by="ann", now=created)
    for step, now in program:
        try:
            after = own(step, run, now)
        except RunRefused:
            continue
        longest = max(FLOW.assignment_timeout, FLOW.claim_timeout, FLOW.backoff_most)
        for name in ("due_at", "not_before", "waiting_since"):
            before, value = getattr(run, name), getattr(after, name)
            assert value is None or value == before or value <= max(now + longest, run.not_before), (step, name)
        run = after


def test_without_it_a_run_ends_before_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation."""
    program = [("take and start", 1_000_000.0 + HOUR), ("complete", 1_000_000.0)]
    assert is_in_order(played(program, 1_000_000.0)[-1])
    monkeypatch.setattr(history, "step_time", lambda last, now: now)
    monkeypatch.setattr("asterism.core.run.run.step_time", lambda last, now: now)
    assert not is_in_order(played(program, 1_000_000.0)[-1])


def test_a_clock_that_is_wrong_by_more_than_a_week_is_not_followed() -> None:
    assert step_time(1_000_000.0 + MAX_CLOCK_STEP_BACK, 1_000_000.0) == 1_000_000.0 + MAX_CLOCK_STEP_BACK
    assert step_time(1_000_001.0 + MAX_CLOCK_STEP_BACK, 1_000_000.0) == 1_000_000.0


def test_a_round_begins_in_time_although_the_clock_was_set_back() -> None:
    run = transitions.create("r1", FLOW, {}, by="ann", now=1_000_000.0)
    run = transitions.assign(run, KITCHEN, by="ann", now=1_000_000.0 + HOUR)
    assert run.grant is not None
    run = transitions.decline(run, run.grant, "no", 1_000_000.0 + HOUR)
    again = transitions.offer_again(run, 1_000_000.0)
    assert 1_000_000.0 <= again.not_before <= 1_000_000.0 + FLOW.backoff_most


# -- plans -------------------------------------------------------------------------------------------------------------


def two_tasks() -> RecordedConstellation:
    plan = RecordedConstellation("p")
    plan.add(Task("a", argv=["true"]))
    plan.add(Task("b", argv=["true"]), after="a")
    return plan


@given(st.lists(TIMES, min_size=12, max_size=12))
def test_no_time_of_a_plan_goes_backwards_and_a_journal_tells_the_same(times: list[float]) -> None:
    steps: list[Any] = []
    plan, again = two_tasks(), two_tasks()
    lock, lock_again = (RecordedLock(recorded, "scoped", 4) for recorded in (plan, again))
    plan.record = steps.append
    clock = iter(times)
    plan.begin(next(clock))
    for name in "ab":
        node = plan.node(name)
        plan.start(node, "here", next(clock))
        plan.retry(node, next(clock), "out of paper")
        plan.start(node, "here", next(clock))
        lock.finish(node, COMPLETED, next(clock))
    plan.note(next(clock), "seen")
    plan.close(next(clock))
    assert in_order(*(entry.at for entry in plan.story()))
    nodes = [plan.node(name) for name in "ab"]
    assert in_order(
        plan.started_at, *(time for node in nodes for time in (node.started_at, node.ended_at)), plan.ended_at
    )
    assert all(node.worked >= 0.0 for node in nodes)
    replay(again, lock_again, steps)
    assert again.to_json() == plan.to_json()


def test_a_plan_in_memory_tells_its_times_as_they_are() -> None:
    plan = Constellation("p")
    plan.add(Task("a", argv=["true"]))
    plan.begin(1.0)
    plan.start(plan.node("a"), "here", 2.0)
    plan.finish(plan.node("a"), COMPLETED, 3.0)
    assert [entry.at for entry in plan.story()] == [1.0, 2.0, 3.0]


@given(st.lists(st.tuples(st.sampled_from(["claim", "release", "promote", "pause", "resume"]), TIMES), max_size=20))
def test_no_change_of_a_series_is_older_than_the_one_before(program: list[tuple[str, float]]) -> None:
    series = Series("RFC-1")
    for number, (step, now) in enumerate(program):
        before = series
        try:
            series = {
                "claim": lambda s, now, number: s.claim(number, now),
                "release": lambda s, now, number: s.leave(s.active, now) if s.active is not None else s,
                "promote": lambda s, now, number: s.promote(now),
                "pause": lambda s, now, number: s.pause(now, "ann"),
                "resume": lambda s, now, number: s.resume(now),
            }[step](series, now, number)
        except AsterismError:
            continue
        assert series.updated_at >= before.updated_at
