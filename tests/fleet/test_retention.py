"""Retention: old runs are removed in small steps, so that others can write in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.fleet import retention
from asterism.store.memory import MemoryStore

pytestmark = pytest.mark.virtual_time

RUNS = 3000


class SlowStore(MemoryStore):
    """Takes some seconds to remove each run, and records how many are removed in a commit, and when."""

    def __init__(self, seconds: float) -> None:
        super().__init__(clock=asyncio.get_running_loop().time)
        self._seconds, self._left = seconds, RUNS
        self.steps: list[tuple[float, float, int]] = []

    async def prune(self, ended_before: float, limit: int, **options: Any) -> int:
        number, began = min(limit, self._left), self.clock()
        await asyncio.sleep(number * self._seconds)
        self._left -= number
        self.steps.append((began, self.clock(), number))
        return number


@pytest.mark.parametrize(("seconds", "size"), [(0.001, 20), (0.0001, 200), (0.000001, retention.LARGEST_STEP)])
async def test_commits_of_a_removal_are_sized_by_the_time_that_they_take(seconds: float, size: int) -> None:
    store = SlowStore(seconds)
    assert await retention.prune(store, 1.0, RUNS + 1) == RUNS
    usual = [number for _, _, number in store.steps[3:-2]]
    assert usual
    assert all(abs(number - size) <= 1 for number in usual)


async def test_others_can_write_between_two_commits_of_a_removal() -> None:
    store = SlowStore(0.001)
    await retention.prune(store, 1.0, RUNS)
    for (began, ended, _), (following, _, _) in zip(store.steps, store.steps[1:], strict=False):
        assert following - ended >= 0.99 * (ended - began)


async def test_a_clock_that_is_set_back_does_not_stop_a_removal() -> None:
    store = SlowStore(0.0)
    times = iter(range(10_000, 0, -1))
    store.clock = lambda: float(next(times))
    assert await retention.prune(store, 1.0, RUNS) == RUNS
