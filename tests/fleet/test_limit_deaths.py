"""A limit of 4 is never exceeded, and nothing is held by the dead: in one process, and by processes that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asterism.base.clock import BootClock
from asterism.core.limits import Limit
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.fleet.stored_limits import LimitedQueue, StoredLimits, set_limit
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRun, PutSession, Query, TakeRequest, Write
from tests.watched_commits import commits, watched_process

SIZE = 4
FLOW = Workflow("load", argv=("true",), uses={"warehouse": 1}, losses=1_000_000, backoff=0.0)


def in_use(runs: Sequence[Run]) -> int:
    return sum(run.session is not None for run in runs)


class ShakyStore(MemoryStore):
    """Every request takes a random number of turns of the event loop, and every commit is checked."""

    def __init__(self, seed: int) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(lambda: 1_000_000.0 + loop.time())
        self._chance = random.Random(seed)
        self.acquired = self.most = 0

    async def commit(self, writes: Sequence[Write]) -> None:
        await self.turns()
        await super().commit(writes)
        for write in writes:
            if isinstance(write, PutRun) and write.run.session is not None:
                self.acquired += 1
                self.most = max(self.most, in_use(list(self._runs.values())))

    async def registers(self, prefix: str, most: int | None = None) -> Any:
        await self.turns()
        return await super().registers(prefix, most)

    async def limited_runs(self, group: Any, limit: int, *, after: str = "") -> list[Run]:
        await self.turns()
        return await super().limited_runs(group, limit, after=after)

    async def turns(self) -> None:
        for _ in range(self._chance.randint(0, 3)):
            await asyncio.sleep(0)


async def acquire(store: ShakyStore, seed: int, number: int) -> None:
    """Devices take runs, complete some of them, give some back, and die with others, which are then lost."""
    chance = random.Random(seed)
    await set_limit(store, Limit("warehouse", SIZE))
    fleet = Fleet(store, by="ann", chance=random.Random(seed))
    flow = await fleet.workflows.add(FLOW)

    async def work(name: str) -> None:
        queue, session = LimitedQueue(store, BootClock()), Session(name, name, 1.0, slots=2)
        await store.commit([PutSession(session, None)])
        while store.acquired < number:
            request = TakeRequest(name, frozenset(), store.clock() + 1.0, 2)
            for run in (await queue.take(request, partial(_taken, session.owner, store.clock()), 2)).runs:
                await store.turns()
                await fleet.ledger.change(run.id, partial(_ended, chance.random(), run))
            await store.prune(1e12, 1000)
            if sum(not run.ended for run in store._runs.values()) < 20:
                await fleet.create_many(flow, [{}] * 20)
        queue.close()

    await asyncio.gather(*(work(f"device {device}") for device in range(8)))


def _taken(owner: Owner, now: float, run: Run) -> Run:
    return transitions.take(run, owner, now, starts=True)


def _ended(share: float, run: Run, stored: Run) -> Run:
    """How a run ends, by a share from 0 to 1: it completes, is lost with its device, is released, or fails."""
    grant, now = run.grant, 1_000_000.0
    assert grant is not None
    if share < 0.3:
        return transitions.complete(stored, grant, None, now)
    if share < 0.7:
        return transitions.lose(stored, now, "no heartbeat arrived", counted=False)
    if share < 0.9:
        return transitions.release(stored, grant, "released", "", now)
    return transitions.fail(stored, grant, "no luck", now)


def most_at_once(seed: int, number: int) -> int:
    async def play() -> int:
        store = ShakyStore(seed)
        await acquire(store, seed, number)
        assert store.acquired >= number
        return store.most

    return asyncio.run(play())


def test_a_limit_is_never_exceeded_whoever_dies() -> None:
    assert most_at_once(seed=1, number=1000) == SIZE


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_limit_is_not_exceeded_in_100_000_acquisitions(seed: int) -> None:
    """Ten parts of 10,000."""
    assert most_at_once(seed, number=10_000) == SIZE


@pytest.mark.long
def test_without_the_accounts_it_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredLimits, "account_writes", lambda self, book: [])
    assert most_at_once(seed=1, number=1000) > SIZE


# -- processes ---------------------------------------------------------------------------------------------------------


async def work_off(url: str, name: str, told: int) -> None:
    """Take runs and complete them until none is left, and write a byte before each commit."""
    async with await Fleet.open(url) as fleet:
        commit = fleet.store.commit

        async def telling(writes: Sequence[Write]) -> None:
            os.write(told, b".")
            await commit(writes)

        fleet.store.commit = telling  # type: ignore[method-assign]
        session = Session(f"{name} {os.getpid()}", name, fleet.store.clock(), slots=2)
        await commit([PutSession(session, None)])
        queue = LimitedQueue(fleet.store, fleet.clock)
        while await fleet.store.waiting():
            now = fleet.store.clock()
            request = TakeRequest(name, frozenset(), now, 2)
            for run in (await queue.take(request, partial(_taken, session.owner, now), 2)).runs:
                await fleet.ledger.change(run.id, partial(_ended, 0.0, run))


async def prepare(url: str, runs: int) -> None:
    async with await Fleet.open(url) as fleet:
        await set_limit(fleet.store, Limit("warehouse", SIZE))
        await fleet.create_many(FLOW, [{}] * runs)


async def lose_the_dead(url: str) -> int:
    """Lose what the killed processes held, as the monitor does. Returns how much that was."""
    async with await Fleet.open(url) as fleet:
        held = [run for run in await fleet.store.find(Query()) if run.session is not None]
        for run in held:
            await fleet.ledger.change(run.id, partial(_lost, fleet.store.clock()))
        return len(held)


def _lost(now: float, run: Run) -> Run:
    return transitions.lose(run, now, "its process was killed", counted=False)


def kill_repeatedly(url: str, kills: int, runs: int) -> None:
    chance = random.Random(kills)
    asyncio.run(prepare(url, runs))
    for _ in range(kills):
        with ExitStack() as processes:
            work = [partial(work_off, url, f"device {number}") for number in range(3)]
            started = [processes.enter_context(watched_process(job)) for job in work]
            assert commits(started[0][1], chance.randint(1, runs // (4 * kills))), (
                "no run was left before the last kill"
            )
            for child, _ in started:
                os.kill(child, signal.SIGKILL)
        assert asyncio.run(lose_the_dead(url)) <= SIZE
    with ExitStack() as processes:
        for number in range(2):
            processes.enter_context(watched_process(partial(work_off, url, f"device {number}")))
    asyncio.run(check(url, runs))


async def check(url: str, runs: int) -> None:
    async with await Fleet.open(url) as fleet:
        assert await fleet.store.limited() == []
        ended = await fleet.store.find(Query())
        assert [run.status for run in ended] == ["completed"] * runs
        assert await fleet.store.check() == []


def test_processes_on_sqlite_are_killed_and_leak_nothing(tmp_path: Path) -> None:
    kill_repeatedly(f"sqlite:///{tmp_path}/fleet.db", kills=3, runs=60)


def test_processes_on_postgresql_are_killed_and_leak_nothing(postgres_url: str) -> None:
    kill_repeatedly(postgres_url, kills=3, runs=60)


@pytest.mark.long
def test_many_processes_are_killed(tmp_path: Path) -> None:
    kill_repeatedly(f"sqlite:///{tmp_path}/fleet.db", kills=30, runs=600)
