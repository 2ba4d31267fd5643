"""Simulated fleets with low batteries; and that the simulator notices a missing safeguard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.placement import Placer
from asterism.core.run.session import Session
from tests.laboratory.simulator import Violation, simulate
from tests.laboratory.simulator.fleet_world import BatteryWorld

pytestmark = pytest.mark.slow

ABLATED = 60
"""The number of worlds in which a missing safeguard has to show."""


def hunt(seeds: range) -> None:
    for seed in seeds:
        simulate(seed, world=BatteryWorld)


@pytest.mark.hunt(few=2, many=25)
def test_no_run_fails_because_devices_rest(seeds: range) -> None:
    hunt(seeds)


def declines_that_count(patch: pytest.MonkeyPatch) -> None:
    """A resting device is chosen, and its decline counts."""
    patch.setattr(Session, "resting", property(lambda _: None))
    decline = transitions.decline
    patch.setattr(transitions, "decline", lambda *args, for_now: decline(*args))


def nobody_waits(patch: pytest.MonkeyPatch) -> None:
    """A run that only resting devices can do counts as one that no device can do."""
    patch.setattr(Placer, "waits_for", lambda *_: False)


@pytest.mark.parametrize(
    ("ablation", "first"),
    [(declines_that_count, 0), (nobody_waits, 19)],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.long
def test_a_missing_safeguard_is_noticed(
    ablation: Callable[[pytest.MonkeyPatch], Any], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ablation(monkeypatch)
    with pytest.raises(Violation, match=r"rounds|given up"):
        hunt(range(first, first + ABLATED))
