"""Simulated fleets whose runs are moved; and that the simulator notices a missing safeguard."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import PROCESSING, Run
from asterism.fleet import fleet
from tests.laboratory.simulator import Violation, simulate
from tests.laboratory.simulator.fleet_world import MoveWorld

pytestmark = pytest.mark.slow

ABLATED = 30
"""The seed below which a missing safeguard has to show."""


@pytest.mark.hunt(few=4, many=60)
def test_runs_that_are_moved_have_one_owner_at_a_time(seeds: range) -> None:
    assert sum(simulate(seed, world=MoveWorld).moves for seed in seeds) > 0


def no_stop(patch: pytest.MonkeyPatch) -> None:
    """A run is moved while its device works on it."""
    move: Any = transitions.move

    def at_once(run: Run, *arguments: Any, now: float, **options: Any) -> Run:
        if run.status is PROCESSING:
            run = transitions.reassign(run, now, "released", "moved")
        return move(run, *arguments, now=now, **options)  # type: ignore[no-any-return]

    patch.setattr(transitions, "move", at_once)
    patch.setattr(fleet, "PROCESSING", None)


def no_new_epoch(patch: pytest.MonkeyPatch) -> None:
    """A run keeps its epoch when it is moved, so the device before is not fenced."""
    move: Any = transitions.move

    def same_epoch(run: Run, *arguments: Any, **options: Any) -> Run:
        after = move(run, *arguments, **options)
        return after if after is run else after.changed(epoch=max(run.epoch, 1))  # type: ignore[no-any-return]

    patch.setattr(transitions, "move", same_epoch)


@pytest.mark.parametrize(
    ("ablation", "first", "words"),
    # below these seeds, the fault may be noticed as the step of a stranger: "but … owned it"
    [(no_stop, 13, "still executed it"), (no_new_epoch, 19, "two owners")],
    ids=["no_stop", "no_new_epoch"],
)
@pytest.mark.long
def test_a_missing_safeguard_is_noticed(ablation: Any, first: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ablation(monkeypatch)

    def look() -> None:
        for seed in range(first, ABLATED):
            simulate(seed, world=MoveWorld)

    with pytest.raises(Violation, match=words):
        look()
