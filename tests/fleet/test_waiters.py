"""Waiting for runs that end elsewhere: how soon an end is seen, and how often the store is asked, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.fleet import waiters
from asterism.fleet.waiters import RunWaiters
from asterism.store.watches import LocalWatch, Watches
from asterism.testing import virtual_time
from tests.laboratory.store_conformance.sample_records import a_run


class LoopClock:
    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class CountingStore:
    """A store whose reads take ``cost`` seconds, and are counted."""

    def __init__(self, *runs: Run, cost: float = 0.0) -> None:
        self.runs = {run.id: run for run in runs}
        self.watches = Watches()
        self.cost, self.reads = cost, 0

    def watch(self, topics: frozenset[str]) -> LocalWatch:
        return self.watches.add(topics)

    async def run(self, run_id: str) -> Run | None:
        self.reads += 1
        await asyncio.sleep(self.cost)
        return self.runs.get(run_id)

    def end(self, run: Run) -> None:
        self.runs[run.id] = transitions.cancel(run, 5.0, "ann")
        self.watches.wake({"ended"})


def in_virtual_time(work: Any) -> Any:
    return virtual_time.run(work())


def test_an_end_is_seen_as_soon_as_it_is_announced() -> None:
    async def work() -> float:
        store = CountingStore(a_run(1))
        waiting = asyncio.create_task(RunWaiters(store, LoopClock()).wait(a_run(1).id))  # type: ignore[arg-type]
        await asyncio.sleep(0.4)
        ended = asyncio.get_running_loop().time()
        store.end(a_run(1))
        assert (await waiting).ended
        return asyncio.get_running_loop().time() - ended

    assert in_virtual_time(work) == 0.0


def test_a_wake_for_another_run_delays_the_next_look_by_little() -> None:
    async def work() -> float:
        store = CountingStore(a_run(1), a_run(2))
        waiting = asyncio.create_task(RunWaiters(store, LoopClock()).wait(a_run(1).id))  # type: ignore[arg-type]
        await asyncio.sleep(0.4)
        store.end(a_run(2))
        await asyncio.sleep(0.001)
        ended = asyncio.get_running_loop().time()
        store.end(a_run(1))
        await waiting
        return asyncio.get_running_loop().time() - ended

    assert in_virtual_time(work) < 0.01


@pytest.mark.parametrize("cost", [0.0, 0.001, 0.02])
def test_a_busy_store_is_asked_at_most_twenty_times_a_second(cost: float) -> None:
    async def work() -> int:
        store = CountingStore(a_run(1), cost=cost)
        waiters = RunWaiters(store, LoopClock())  # type: ignore[arg-type]
        waiting = asyncio.create_task(waiters.wait(a_run(1).id))
        for _ in range(10_000):  # ends of other runs, one each millisecond
            await asyncio.sleep(0.001)
            store.watches.wake({"ended"})
        waiting.cancel()
        await waiters.close()
        return store.reads

    assert in_virtual_time(work) <= 20 * 10 + 6  # the first pauses are shorter


@pytest.mark.long
def test_without_the_growing_pause_a_busy_store_is_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "PAUSE", 0.0)
    with pytest.raises(AssertionError):
        test_a_busy_store_is_asked_at_most_twenty_times_a_second(0.0)


def test_many_ends_one_after_the_other_are_seen_together() -> None:
    """Each look reads every run that is waited for, so looks that take long are rare."""

    async def work() -> int:
        runs = [a_run(number) for number in range(100)]
        store = CountingStore(*runs, cost=0.0005)
        waiters = RunWaiters(store, LoopClock())  # type: ignore[arg-type]
        waiting = [asyncio.create_task(waiters.wait(run.id)) for run in runs]
        await asyncio.sleep(0.2)
        for run in runs:
            await asyncio.sleep(0.01)
            store.end(run)
        await asyncio.gather(*waiting)
        return store.reads

    assert in_virtual_time(work) <= 100 + 100 * 20


def test_ends_in_this_process_wake_no_looks() -> None:
    async def work() -> int:
        store = CountingStore()
        waiters = RunWaiters(store, LoopClock())  # type: ignore[arg-type]
        woken = 0

        class Watch(LocalWatch):
            async def wait(self, timeout: float) -> bool:
                nonlocal woken
                woken += 1
                return await super().wait(timeout)

        store.watch = lambda topics: Watch(topics, lambda watch: None)  # type: ignore[method-assign]
        for number in range(1000):
            waiting = asyncio.create_task(waiters.wait(a_run(number).id, here=True))
            await asyncio.sleep(0.001)
            waiters.ended(transitions.cancel(a_run(number), 5.0, "ann"))
            store.watches.wake({"ended"})
            await waiting
        return woken

    assert in_virtual_time(work) <= 20 * 1 + 1


def test_an_end_just_before_the_watch_is_open_is_seen_soon() -> None:
    class Late(CountingStore):
        """Its first answer is on its way while the run ends."""

        async def run(self, run_id: str) -> Run | None:
            stored = self.runs.get(run_id)
            if self.reads == 0:
                self.end(a_run(1))
            self.reads += 1
            return stored

    async def work() -> float:
        await RunWaiters(Late(a_run(1)), LoopClock()).wait(a_run(1).id)  # type: ignore[arg-type]
        return asyncio.get_running_loop().time()

    assert in_virtual_time(work) <= waiters.PAUSE + 0.001


def test_an_end_that_nobody_announces_is_seen_within_a_second() -> None:
    async def work() -> float:
        store = CountingStore(a_run(1))
        waiting = asyncio.create_task(RunWaiters(store, LoopClock()).wait(a_run(1).id))  # type: ignore[arg-type]
        await asyncio.sleep(0.4)
        store.runs[a_run(1).id] = transitions.cancel(a_run(1), 5.0, "ann")
        await waiting
        return asyncio.get_running_loop().time()

    assert in_virtual_time(work) <= 1.1
