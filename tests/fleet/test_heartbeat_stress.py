"""A device whose store, workflows or executions ask much of it: it keeps its work, and its life."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asterism.core.run.run import COMPLETED, FAILED, Progress, Run
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.executor import RunWork
from asterism.fleet.device.lease import Lease
from asterism.fleet.fleet import Fleet
from asterism.store.memory import MemoryStore
from asterism.store.store_errors import StoreUnavailable
from tests.laboratory.simulator.fleet_world import SimHost

pytestmark = pytest.mark.virtual_time


class VirtualClock:
    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Worker:
    """Calls a function, and counts the executions."""

    def __init__(self, work: Callable[[RunWork], Coroutine[Any, Any, Any]]) -> None:
        self._work = work
        self.begun = 0

    def objection(self, run: Run) -> None:
        return None

    def check(self, run: Run) -> None:
        return None

    def judges_each(self, run: Run) -> bool:
        return False

    async def probe(self) -> None:
        """All is well."""

    def allow(self, run_id: str, seconds: float) -> None:
        """Nothing to guard."""

    async def execute(self, work: RunWork) -> Any:
        self.begun += 1
        return await self._work(work)

    def close(self) -> None:
        """Nothing to close."""


async def sleeps(work: RunWork) -> str:
    await asyncio.sleep(work.input.get("seconds", 0.0))
    return "done"


class Scene:
    """One device on a store in memory, in virtual time."""

    def __init__(self, worker: Worker, store: MemoryStore | None = None, **options: Any) -> None:
        loop = asyncio.get_running_loop()
        self.store = store or MemoryStore(lambda: 1_000_000.0 + loop.time())
        self.fleet = Fleet(self.store, clock=VirtualClock(), chance=random.Random(7))
        self.agent = DeviceAgent(
            self.fleet, "kitchen", executor=worker, host=SimHost("here"), grace=0.5, measure=dict, **options
        )
        self.person = Fleet(self.store, clock=VirtualClock(), chance=random.Random(8))
        self.task = asyncio.create_task(self.agent.run())

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def short_lease_on_a_slow_heart() -> tuple[str, int, int]:
    """How a run ended, in which epoch, and how often it was begun."""
    scene = Scene(worker := Worker(sleeps))
    await scene.agent.joined.wait()
    await asyncio.sleep(3.0)  # its heartbeat has just begun to wait, for half a minute
    flow = Workflow("quick", call="a:b", heartbeat=2.0, heartbeat_timeout=6.0, losses=0)
    run = await scene.person.create(flow, {"seconds": 60.0})
    ended = await scene.person.wait(run.id)
    await scene.end()
    return ended.status, ended.epoch, worker.begun


@pytest.mark.virtual_time(seed=1)
async def test_a_device_with_a_slow_heart_keeps_up_with_a_short_lease() -> None:
    assert await short_lease_on_a_slow_heart() == (COMPLETED, 1, 1)


@pytest.mark.virtual_time(seed=1)
async def test_if_it_did_not_hurry_it_would_lose_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "require", Lease.is_fresh)
    assert await short_lease_on_a_slow_heart() == (FAILED, 1, 1)


@pytest.mark.virtual_time(seed=1)
async def test_one_heartbeat_that_is_never_answered_costs_no_work() -> None:
    class Deaf(MemoryStore):
        deaf = False

        async def heartbeat(self, *args: Any) -> Any:
            if self.deaf:
                self.deaf = False
                await asyncio.get_running_loop().create_future()
            return await super().heartbeat(*args)

    loop = asyncio.get_running_loop()
    store = Deaf(lambda: 1_000_000.0 + loop.time())
    scene = Scene(worker := Worker(sleeps), store)
    await scene.agent.joined.wait()
    flow = Workflow("quick", call="a:b", heartbeat=2.0, heartbeat_timeout=6.0)
    run = await scene.person.create(flow, {"seconds": 30.0})
    await asyncio.sleep(5.0)
    store.deaf = True
    ended = await scene.person.wait(run.id)
    assert (ended.status, ended.epoch, worker.begun) == (COMPLETED, 1, 1), ended.story
    await scene.end()


@pytest.mark.virtual_time(seed=1)
async def test_an_invalid_report_of_an_execution_never_ends_the_device() -> None:
    async def boasts(work: RunWork) -> str:
        work.on_progress(Progress(10**5000))
        await asyncio.sleep(20.0)
        return "done"

    class Strict(MemoryStore):
        async def heartbeat(self, session: str, profile: Any, reports: Any) -> Any:
            for report in reports:
                str(report.progress.step)  # as an engine does that writes it down: too many digits
            return await super().heartbeat(session, profile, reports)

    loop = asyncio.get_running_loop()
    scene = Scene(Worker(boasts), Strict(lambda: 1_000_000.0 + loop.time()))
    await scene.agent.joined.wait()
    run = await scene.person.create(Workflow("w", call="a:b"), {})
    await asyncio.sleep(10.0)
    assert not scene.task.done(), "the device died of it"
    await scene.person.cancel(run.id)
    assert (await scene.person.wait(run.id)).ended
    await scene.end()


@pytest.mark.virtual_time(seed=1)
async def test_an_input_that_cannot_be_read_is_a_loss_with_a_delay_and_a_cap() -> None:
    class Unreadable(MemoryStore):
        async def blob(self, name: str) -> bytes:
            raise StoreUnavailable("input/output error")

    loop = asyncio.get_running_loop()
    scene = Scene(worker := Worker(sleeps), Unreadable(lambda: 1_000_000.0 + loop.time()))
    await scene.agent.joined.wait()
    flow = Workflow("w", call="a:b", losses=3, backoff=1.0)
    run = await scene.person.create(flow, {"text": "x" * 100_000})
    ended = await scene.person.wait(run.id)
    assert (ended.status, ended.losses, worker.begun) == (FAILED, 4, 0)
    assert "its input could not be read" in (ended.error or "")
    assert ended.ended_at is not None
    assert ended.ended_at - ended.created_at > 1.0 + 2.0, "there was no delay between the tries"
    await scene.end()


@pytest.mark.virtual_time(seed=1)
@pytest.mark.long
async def test_a_retry_keeps_the_blob_of_a_pruned_run() -> None:
    scene = Scene(Worker(sleeps))
    await scene.agent.joined.wait()
    first = await scene.person.create(Workflow("w", call="a:b"), {"text": "x" * 100_000})
    await scene.person.wait(first.id)
    await asyncio.sleep(10_000.0)
    again = await scene.person.retry(first.id)
    await scene.person.prune(0.0)
    assert (await scene.person.blobs.fetch(again.input))["text"] == "x" * 100_000
    await scene.end()


@pytest.mark.virtual_time(seed=1)
async def test_a_device_waits_while_an_empty_store_replaces_its_own() -> None:
    class Moved(MemoryStore):
        away = False

        async def heartbeat(self, *args: Any) -> Any:
            answer = await super().heartbeat(*args)
            return answer._replace(alive=False, held=()) if self.away else answer

        async def register(self, key: str) -> Any:
            return None if self.away else await super().register(key)

    loop = asyncio.get_running_loop()
    store = Moved(lambda: 1_000_000.0 + loop.time())
    scene = Scene(Worker(sleeps), store, monitor_every=None)
    await scene.agent.joined.wait()
    run = await scene.person.create(Workflow("w", call="a:b"), {"seconds": 70.0})
    store.away = True
    await asyncio.sleep(40.0)
    assert not scene.task.done(), "it took an empty store for one that had thrown it out"
    store.away = False
    assert (await scene.person.wait(run.id)).status is COMPLETED
    await scene.end()
