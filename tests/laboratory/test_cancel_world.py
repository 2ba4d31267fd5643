"""Simulated plans that are cancelled while machines crash; and that the simulator notices a lost teardown."""

from __future__ import annotations

import pytest

from asterism.durable import plan_submissions
from tests.laboratory.simulator import simulate
from tests.laboratory.simulator.checker import Violation
from tests.laboratory.simulator.plan_world import CancelWorld

pytestmark = pytest.mark.slow


@pytest.mark.hunt(few=3, many=12)
def test_no_world_breaks_a_promise(seeds: range) -> None:
    worlds = [simulate(seed, world=CancelWorld) for seed in seeds]
    assert any(world.cancelled and world.absence for world in worlds)


@pytest.mark.long
def test_ablation_a_teardown_that_is_given_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_cancelling(store: object, name: str) -> bool:
        return False

    monkeypatch.setattr(plan_submissions, "plan_cancelling", not_cancelling)
    monkeypatch.setattr("asterism.durable.fleet_device._must_run", lambda plan, work: False)

    def look() -> None:
        for seed in range(16, 46):
            simulate(seed, world=CancelWorld)

    with pytest.raises(Violation, match="was set up, and no device has executed"):
        look()


@pytest.mark.long  # few worlds show it, and those are large
def test_ablation_the_teardown_of_a_set_up_that_was_only_queued_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.durable.fleet_device.was_executed", lambda run: True)

    with pytest.raises(Violation, match=r"no device has begun .*, and a device has executed"):
        simulate(67, world=CancelWorld)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(0, marks=pytest.mark.long)])  # seed 0 has a long absence
def test_one_seed_is_one_world(seed: int) -> None:
    assert simulate(seed, world=CancelWorld).log == simulate(seed, world=CancelWorld).log
