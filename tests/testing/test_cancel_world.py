"""Simulated plans that are cancelled while machines crash; and that the simulator notices a lost teardown."""

from __future__ import annotations

import pytest

from asterism.durable import schedule_port
from asterism.testing.simulator import simulate
from asterism.testing.simulator.cancel_world import CancelWorld
from asterism.testing.simulator.checker import Violation

pytestmark = pytest.mark.slow

FEW = 3


@pytest.mark.hunt(few=FEW, many=12)
def test_no_world_breaks_a_promise(seeds: range) -> None:
    worlds = [simulate(seed, world=CancelWorld) for seed in seeds]
    assert any(world.cancelled and world.absence for world in worlds)


def test_ablation_a_teardown_that_is_given_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_cancelling(store: object, name: str) -> bool:
        return False

    monkeypatch.setattr(schedule_port, "plan_cancelling", not_cancelling)
    monkeypatch.setattr("asterism.durable.fleet_device._must_run", lambda plan, work: False)

    def look() -> None:
        for seed in range(10 * FEW):
            simulate(seed, world=CancelWorld)

    with pytest.raises(Violation, match="was set up, and no device has executed"):
        look()


def test_one_seed_is_one_world() -> None:
    assert simulate(0, world=CancelWorld).log == simulate(0, world=CancelWorld).log
