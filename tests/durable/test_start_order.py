"""The order in which tasks get slots: the most urgent first, then the one that has waited longest, in every engine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asterism import Orchestrator
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.status import ConstellationState
from asterism.core.plan.task import Priority, Task
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.devices import LocalDevice
from tests.durable import durable_work

pytestmark = pytest.mark.slow

ROOTS = 9


class Work:
    """A random plan: roots, and what follows from each of them. A task runs until the test ends it."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.plan = Constellation(f"night-{seed}")
        self.priorities: dict[str, int] = {}
        self.children: dict[str, list[str]] = {}
        for number in range(ROOTS):
            root = self._add(f"t{number}", chance.randint(1, 4))
            children = range(chance.randint(1, 2))  # of each: among equals, the longest path is the same
            self.children[root] = [
                self._add(f"{root}-{child}", chance.randint(1, self.priorities[root]), root) for child in children
            ]

    def _add(self, name: str, priority: int, parent: str | None = None) -> str:
        work = "tests.durable.durable_work:in_order"
        self.plan.add(Task(name, call=work, inputs={"name": name}, priority=Priority(priority)), parent)
        self.priorities[name], self.children[name] = priority, []
        return name

    def roots(self) -> list[str]:
        return [name for name in self.priorities if "-" not in name]

    def best(self, waiting: list[str]) -> str:
        return min(waiting, key=lambda name: (-self.priorities[name], waiting.index(name)))


@asynccontextmanager
async def running(url: str | None, plan: Constellation, slots: int) -> AsyncIterator[Any]:
    """The plan in this process, in memory or in a store."""
    if url is None:
        yield asyncio.ensure_future(Orchestrator([LocalDevice("here", slots=slots)]).run(plan))
        return
    async with await Fleet.open(url) as fleet:
        yield asyncio.ensure_future(DurableOrchestrator(fleet, local=slots).run(plan))


async def until(condition: Callable[[], Any], job: asyncio.Future[Any]) -> None:
    async with asyncio.timeout(300.0):
        while not condition():
            if job.done():
                job.result()
            await asyncio.sleep(0.005)


async def check_order(url: str | None, slots: int, seed: int) -> None:
    durable_work.reset()
    work, chance, begun = Work(seed), random.Random(seed), durable_work.BEGUN
    waiting, active = work.roots(), list[str]()

    async def next_begins(*, also: str | None = None) -> None:
        place = len(active) + sum(durable_work.DONE.values())
        await until(lambda: len(begun) > place, job)
        assert begun[place] in (work.best(waiting), also), (begun, waiting)
        waiting.remove(begun[place])
        active.append(begun[place])

    async with running(url, work.plan, slots) as job:
        while len(active) < slots:
            await next_begins()
        while active:
            ended = active.pop(chance.randrange(len(active)))
            durable_work.gate(ended).set()
            await until(lambda name=ended: durable_work.DONE[name], job)
            longest = work.best(waiting) if waiting else None
            waiting += work.children[ended]
            while len(active) < slots and waiting:
                await next_begins(also=longest)  # one that is more urgent becomes ready in the same moment
        assert (await job).state is ConstellationState.COMPLETED


@pytest.mark.hunt(few=3, many=60)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres"])
async def test_a_free_slot_goes_to_the_most_urgent_and_then_to_the_oldest(
    engine: str, slots: int, seeds: range, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = {"memory": None, "sqlite": f"sqlite:///{tmp_path}/fleet.db"}.get(engine)
    if engine == "postgres":
        url = request.getfixturevalue("postgres_url")
    for seed in seeds:
        await check_order(url, slots, seed)
