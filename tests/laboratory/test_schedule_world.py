"""Simulated fleets with schedules; and that the simulator notices a missing safeguard."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.schedule import ticks
from asterism.fleet import scheduled_work
from asterism.fleet.scheduled_work import ScheduledWork, schedule_key
from tests.laboratory.simulator import Violation, simulate
from tests.laboratory.simulator.fleet_world import ScheduleWorld

pytestmark = pytest.mark.slow

ABLATED = 30
"""The number of worlds in which a missing safeguard has to show."""


def hunt(seeds: range) -> None:
    for seed in seeds:
        simulate(seed, world=ScheduleWorld)


@pytest.mark.hunt(few=3, many=20)
def test_each_tick_is_created_once_and_schedules_go_on(seeds: range) -> None:
    hunt(seeds)


def no_key(patch: pytest.MonkeyPatch) -> None:
    """A run has a key of its own, so a tick that comes again is not recognised."""
    number = itertools.count()
    patch.setattr(scheduled_work, "tick_key", lambda name, tick: f"{ticks.tick_key(name, tick)}#{next(number)}")


def no_revision(patch: pytest.MonkeyPatch) -> None:
    """The schedule is written whatever its revision is. The key alone would still recognise the tick."""
    no_key(patch)
    writes = ScheduledWork._writes

    async def whatever(self: ScheduledWork, stored: Any, after: Any, entries: Any) -> Any:
        now = await self._store.register(schedule_key(stored.schedule.name))
        return await writes(self, stored._replace(revision=now.revision), after, entries)  # type: ignore[union-attr]

    patch.setattr(ScheduledWork, "_writes", whatever)


def no_rewinding(patch: pytest.MonkeyPatch) -> None:
    """A schedule whose cursor is in the future waits until the clock has caught up."""
    patch.setattr(scheduled_work, "rewound", lambda schedule, now, next_tick: schedule)
    patch.setattr(ticks, "LATE", float("inf"))  # so that nothing seems to be due


@pytest.mark.parametrize(
    ("ablation", "words", "first"),
    [(no_key, "times", 0), (no_revision, "times", 0), (no_rewinding, "decided about no tick", 57)],
    ids=["no_key", "no_revision", "no_rewinding"],
)
@pytest.mark.long
def test_a_missing_safeguard_is_noticed(
    ablation: Callable[[pytest.MonkeyPatch], Any], words: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ablation(monkeypatch)
    with pytest.raises(Violation, match=words):
        hunt(range(first, first + ABLATED))
