"""The circuit breaker of a device: what opens it, what closes it, and that work which fails stops no whole fleet."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.run.circuit_breaker import (
    CLOSED,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MAX_QUICK_FAILURES,
    MAX_TROUBLES,
    Breaker,
    Completion,
)

FULL = "No space left on device"


def troubled(times: int, breaker: Breaker = CLOSED, now: float = 0.0) -> Breaker:
    for _ in range(times):
        breaker = breaker.trouble(now, FULL)
    return breaker


def failing(times: int, breaker: Breaker = CLOSED, now: float = 0.0, at: float = 100.0) -> Breaker:
    for _ in range(times):
        breaker = breaker.failed(now, at, "build")
    return breaker


def ended(device: str, at: float, workflow: str = "build") -> Completion:
    return Completion(workflow, device, at)


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_troubles_in_a_row_open_it_and_it_says_why() -> None:
    assert troubled(MAX_TROUBLES - 1).closed
    breaker = troubled(MAX_TROUBLES)
    assert not breaker.closed
    assert breaker.why == f"it could not begin work, 3 times in a row: {FULL}"


def test_a_good_end_forgets_the_troubles_before_it() -> None:
    assert troubled(MAX_TROUBLES - 1, troubled(MAX_TROUBLES - 1).good()).closed


def test_work_that_fails_has_begun_so_the_device_has_done_its_part() -> None:
    assert troubled(MAX_TROUBLES - 1, troubled(MAX_TROUBLES - 1).failed(0.0, 100.0, "build")).closed


def test_nothing_comes_in_for_a_pause_and_then_one_run() -> None:
    breaker = troubled(MAX_TROUBLES)
    assert breaker.allowance(FIRST_PAUSE - 0.1, 0) == 0
    assert breaker.allowance(FIRST_PAUSE, 0) == 1
    assert breaker.allowance(FIRST_PAUSE, 1) == 0
    assert CLOSED.allowance(0.0, 7) is None


def test_one_more_trouble_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    breaker, now, pauses = troubled(MAX_TROUBLES), 0.0, []
    for _ in range(10):
        assert breaker.retry_at is not None
        pauses.append(breaker.retry_at - now)
        now = breaker.retry_at
        breaker = breaker.trouble(now, FULL)
    assert pauses[:4] == [10.0, 20.0, 40.0, 80.0]
    assert pauses[-1] == LONGEST_PAUSE


def test_what_was_taken_before_it_opened_makes_the_pause_no_longer() -> None:
    breaker = troubled(MAX_TROUBLES)
    assert troubled(5, breaker, now=1.0).retry_at == breaker.retry_at


def test_a_run_that_succeeds_closes_it_and_the_next_pause_is_short_again() -> None:
    breaker = troubled(MAX_TROUBLES).trouble(FIRST_PAUSE, FULL).good()
    assert breaker == CLOSED


def test_a_run_that_begins_and_fails_closes_what_trouble_had_opened() -> None:
    assert failing(1, troubled(MAX_TROUBLES), now=FIRST_PAUSE).closed


# -- failures ----------------------------------------------------------------------------------------------------------


def test_failures_alone_open_nothing() -> None:
    breaker = failing(1000)
    assert breaker.closed
    assert breaker.suspicious


@pytest.mark.parametrize(
    ("run", "contradicts"),
    [
        (ended("attic", 101.0), True),
        (ended("kitchen", 101.0), False),  # itself
        (ended("attic", 99.0), False),  # before it began to fail here
        (ended("attic", 101.0, "deploy"), False),  # other work
    ],
)
def test_another_device_contradicts_it_by_completing_the_same_work_since(run: Completion, contradicts: bool) -> None:
    breaker = failing(MAX_QUICK_FAILURES, at=100.0)
    assert (breaker.contradicted_by("kitchen", [run]) is run) == contradicts


def test_a_contradiction_opens_it_after_failures_in_a_row_and_not_before() -> None:
    assert failing(MAX_QUICK_FAILURES - 1).contradicted(0.0, "attic can").closed
    assert not failing(MAX_QUICK_FAILURES).contradicted(0.0, "attic can").closed


def test_one_more_failure_opens_again_what_failures_had_opened() -> None:
    breaker = failing(1, failing(MAX_QUICK_FAILURES).contradicted(0.0, "attic can"), now=FIRST_PAUSE)
    assert breaker.retry_at == FIRST_PAUSE + 2 * FIRST_PAUSE
    assert breaker.why == "attic can"


def test_the_row_of_failures_begins_with_the_first_one() -> None:
    breaker = failing(3, failing(1, at=100.0), at=200.0)
    assert breaker.failing_since == 100.0
    assert failing(1, breaker.good(), at=300.0).failing_since == 300.0


# -- a whole fleet -----------------------------------------------------------------------------------------------------


@dataclass
class Fleet:
    """Devices that execute, each with its breaker, and what was completed."""

    breakers: dict[str, Breaker]
    completed: list[Completion] = field(default_factory=list)
    now: float = 0.0

    def step(self, device: str, end: str, wait: float) -> None:
        self.now += 1.0 + wait
        breaker = self.breakers[device]
        if breaker.allowance(self.now, 0) == 0:
            return
        if end == "good":
            self.completed.append(ended(device, self.now))
            self.breakers[device] = breaker.good()
            return
        breaker = breaker.failed(self.now, self.now, "build")
        if breaker.suspicious and breaker.contradicted_by(device, self.completed) is not None:
            breaker = breaker.contradicted(self.now, "another can")
        self.breakers[device] = breaker

    @property
    def stopped(self) -> set[str]:
        return {device for device, breaker in self.breakers.items() if not breaker.closed}


STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(["good", "bad", "bad", "bad"]), st.sampled_from([0.0, 0.0, 400.0])
    ),
    max_size=120,
)


@given(STEPS)
def test_work_that_fails_here_and_there_never_stops_every_device(steps: list[tuple[str, str, float]]) -> None:
    fleet = Fleet(dict.fromkeys("abc", CLOSED))
    for device, end, wait in steps:
        fleet.step(device, end, wait)
        assert fleet.stopped != set("abc")


@given(st.lists(st.sampled_from("abc"), max_size=200))
def test_work_that_fails_everywhere_stops_nobody(devices: list[str]) -> None:
    fleet = Fleet(dict.fromkeys("abc", CLOSED))
    for device in devices:
        fleet.step(device, "bad", 0.0)
        assert not fleet.stopped


def test_without_the_comparison_work_that_fails_everywhere_would_stop_everybody() -> None:
    """The ablation: every row of failures counts as contradicted."""
    fleet = Fleet(dict.fromkeys("abc", CLOSED))
    fleet.completed.append(ended("nobody", float("inf")))
    for device in "abc" * MAX_QUICK_FAILURES:
        fleet.step(device, "bad", 0.0)
    assert fleet.stopped == set("abc")


def test_a_sick_device_stops_beside_healthy_ones() -> None:
    fleet = Fleet(dict.fromkeys("abc", CLOSED))
    for _ in range(MAX_QUICK_FAILURES + 1):
        fleet.step("a", "bad", 0.0)
        fleet.step("b", "good", 0.0)
    assert fleet.stopped == {"a"}


@given(
    st.lists(st.sampled_from(["good", "trouble", "failed"]), max_size=60), st.lists(st.floats(0.0, 500.0), max_size=60)
)
def test_it_always_tries_again(ends: list[str], waits: list[float]) -> None:
    breaker, now = CLOSED, 0.0
    for end, wait in zip(ends, waits, strict=False):
        now += wait
        if end == "good":
            breaker = breaker.good()
        elif end == "trouble":
            breaker = breaker.trouble(now, FULL)
        else:
            breaker = breaker.failed(now, now, "build").contradicted(now, "another can")
        assert breaker.retry_at is None or breaker.retry_at <= now + LONGEST_PAUSE
        assert breaker.allowance(now + LONGEST_PAUSE, 0) in (None, 1)
