"""Simulated fleets whose machines reach the store through a gateway only; and that a missing safeguard is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.fleet.device import device_connection
from tests.laboratory.simulator import Violation, simulate
from tests.laboratory.simulator.gateway_world import GatewayWorld

pytestmark = pytest.mark.slow

ABLATED = 400
"""The number of worlds in which a missing safeguard has to show."""


@pytest.mark.hunt(few=2, many=40)
def test_no_world_with_a_gateway_breaks_a_promise(seeds: range) -> None:
    hunt(seeds)


def hunt(seeds: range) -> None:
    for seed in seeds:
        simulate(seed, world=GatewayWorld)


@pytest.mark.long
def test_one_seed_is_one_world() -> None:
    first, second = (simulate(3, world=GatewayWorld).checker.log for _ in range(2))
    assert first == second


def no_fencing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transitions, "_fence", lambda *_: None)


def repeated_steps_are_not_recognised(patch: pytest.MonkeyPatch) -> None:
    """A result whose answer was lost is sent again, and refused."""
    patch.setattr(device_connection.Complete, "was_applied", lambda step, run: False)


def a_result_counts_for_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """The grant of a result is not compared with the run."""

    def applied(step: Any, run: Any, now: float) -> Any:
        return transitions.complete(run, run.grant or step.grant, step.output, now)

    patch.setattr(device_connection.Complete, "apply", applied)


@pytest.mark.parametrize(
    ("ablation", "first"),
    [(no_fencing, 45), (repeated_steps_are_not_recognised, 54), (a_result_counts_for_any_epoch, 118)],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.long
def test_a_missing_safeguard_of_the_gateway_is_noticed(
    ablation: Callable[[pytest.MonkeyPatch], Any], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``first`` is the seed of the first world: not far below the first that shows it."""
    ablation(monkeypatch)
    with pytest.raises(Violation, match=r"--world gateway"):
        hunt(range(first, first + ABLATED))
