"""When most of a fleet vanishes at once, nothing is taken away for a while; and only for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asterism.core.run.circuit_breaker import MASS_LOSS_MINIMUM, mass_loss_hold_until
from asterism.core.run.session import Session

HOLD = 60.0


def fleet(*beats: float, state: str = "open") -> list[Session]:
    return [Session(f"s{n}", f"d{n}", 0.0, timeout=90.0, beat_at=beat, state=state) for n, beat in enumerate(beats)]


def test_a_fleet_that_is_heard_of_is_not_braked() -> None:
    assert mass_loss_hold_until(fleet(1000.0, 990.0, 950.0), 1000.0, HOLD) is None


def test_most_of_a_fleet_that_falls_silent_at_once_is_braked_from_the_last_of_them() -> None:
    assert mass_loss_hold_until(fleet(900.0, 905.0, 900.0, 1000.0), 1000.0, HOLD) == 905.0 + 90.0 + HOLD


def test_one_of_many_is_simply_gone() -> None:
    assert mass_loss_hold_until(fleet(900.0, 1000.0, 1000.0, 1000.0), 1000.0, HOLD) is None


def test_half_of_a_fleet_is_not_most_of_it() -> None:
    assert mass_loss_hold_until(fleet(900.0, 900.0, 900.0, 1000.0, 1000.0, 1000.0), 1000.0, HOLD) is None


def test_a_small_fleet_has_no_majority() -> None:
    assert mass_loss_hold_until(fleet(*[900.0] * (MASS_LOSS_MINIMUM - 1)), 1000.0, HOLD) is None
    assert mass_loss_hold_until(fleet(*[900.0] * MASS_LOSS_MINIMUM), 1000.0, HOLD) is not None


def test_those_that_are_long_gone_do_not_count() -> None:
    assert mass_loss_hold_until(fleet(10.0, 20.0, 30.0, 1000.0), 1000.0, HOLD) is None
    assert mass_loss_hold_until(fleet(10.0, 20.0, 900.0, 900.0, 900.0, 1000.0), 1000.0, HOLD) is not None


def test_sessions_that_ended_do_not_count() -> None:
    assert mass_loss_hold_until(fleet(900.0, 900.0, 900.0, state="ended"), 1000.0, HOLD) is None


@given(st.lists(st.floats(0.0, 2000.0), max_size=12), st.floats(0.0, 3000.0))
def test_the_brake_never_lasts_longer_than_stated(beats: list[float], now: float) -> None:
    until = mass_loss_hold_until(fleet(*beats), now, HOLD)
    assert until is None or until <= max(beats) + 90.0 + HOLD
