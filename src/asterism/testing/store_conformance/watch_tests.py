"""Tests of watches: a commit wakes the waiters of its topics, also on another connection."""

from __future__ import annotations

import asyncio
from unittest import SkipTest

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.store.protocol import (
    ENDED,
    OFFERED,
    Notice,
    PutRegister,
    PutRun,
    PutSession,
    Store,
    Watch,
    Write,
    for_device,
)
from asterism.testing.store_conformance.sample_records import (
    a_run,
    a_session,
    added,
    after,
    assigned_to,
    completed,
    conflict,
    held_by,
    joined,
    offer,
    released,
    session_in,
    started,
    taking,
)
from asterism.testing.store_conformance.store_tests import WAKE_TIMEOUT, StoreTests


async def _waiting(watch: Watch) -> asyncio.Task[bool]:
    """Start a task that is waiting when this returns."""
    task = asyncio.create_task(watch.wait(WAKE_TIMEOUT))
    await asyncio.sleep(0)
    return task


async def _comes_to_rest(watch: Watch) -> bool:
    """Whether a watch stops being woken without commits: it may be woken without need, but not for ever."""
    for _ in range(10):
        if not await watch.wait(0.01):
            return True
    return False


class WatchTests(StoreTests):
    """Tests of ``watch``."""

    async def test_a_watch_is_woken_by_a_commit(self, store: Store) -> None:
        watch = store.watch(frozenset({OFFERED}))
        try:
            waiting = await _waiting(watch)
            assert not waiting.done()
            await added(store, a_run(1))
            assert await waiting
        finally:
            watch.close()

    async def test_a_wake_before_the_wait_counts(self, store: Store) -> None:
        watch = store.watch(frozenset({OFFERED}))
        await added(store, a_run(1))
        assert await watch.wait(WAKE_TIMEOUT)
        watch.close()

    async def test_a_watch_is_not_woken_without_a_commit(self, store: Store) -> None:
        watch = store.watch(frozenset({OFFERED}))
        assert await _comes_to_rest(watch)
        await added(store, a_run(1))
        assert await watch.wait(WAKE_TIMEOUT)
        assert await _comes_to_rest(watch)
        assert not all([await watch.wait(0.0) for _ in range(10)])
        watch.close()

    async def test_a_watch_is_woken_by_another_connection(self, store: Store, other: Store) -> None:
        for number, (here, there) in enumerate([(store, other), (other, store)]):
            watch = here.watch(frozenset({OFFERED}))
            waiting = await _waiting(watch)
            await added(there, a_run(number))
            assert await waiting
            watch.close()

    async def test_every_topic_is_woken_by_its_commits(self, store: Store, other: Store) -> None:
        session = a_session()
        await joined(store, session)
        runs = [a_run(number) for number in range(6)]
        working = started(held_by(runs[3], session))
        paused = transitions.pause(runs[4], 4.0, "somebody")
        await added(store, runs[0], runs[1], held_by(runs[2], session), working, paused)
        known = await session_in(store, session.id)
        kitchen = for_device("kitchen")
        concerned: list[tuple[str, Write]] = [
            (kitchen, after(runs[0], assigned_to(runs[0], session))),
            (ENDED, after(runs[1], transitions.cancel(runs[1], 5.0, "somebody"))),
            (OFFERED, after(held_by(runs[2], session), released(held_by(runs[2], session)))),
            (kitchen, after(working, transitions.cancel(working, 70.0, "somebody"))),
            (OFFERED, after(paused, transitions.resume(paused, 5.0, "somebody"))),
            (ENDED, PutRun(completed(held_by(runs[5], session)), None)),
            (kitchen, PutSession(known.changed(draining=True), known.revision)),
        ]
        for number, (topic, write) in enumerate(concerned):
            watches = [one.watch(frozenset({topic, "another"})) for one in (store, other)]
            await (store, other)[number % 2].commit([PutRegister(f"a{number}", 1, None), write])
            for watch in watches:
                assert await watch.wait(WAKE_TIMEOUT), (topic, number)
                watch.close()

    async def test_a_watch_is_not_woken_by_commits_of_other_topics(self, store: Store, other: Store) -> None:
        if not self.tells_topics_apart:
            raise SkipTest("this engine does not tell topics apart")
        session = a_session()
        await joined(store, session)
        first = store.watch(frozenset({OFFERED}))
        await added(other, a_run(9))
        # an engine wakes all watches when it begins to listen, and now it has begun
        assert await first.wait(WAKE_TIMEOUT)
        first.close()
        garage, last = store.watch(frozenset({for_device("garage"), ENDED})), store.watch(frozenset({OFFERED}))
        run = a_run(1)
        await store.commit([PutRun(run, None), Notice(1.0, "told", "x"), PutRegister("a", 1, None)])
        await store.take(offer(), taking(session))
        await store.heartbeat(session.id, {}, [])
        await store.commit([PutRun(assigned_to(a_run(2), session), None)])
        with conflict("run r0001"):  # a refused commit wakes no watch
            await added(store, completed(held_by(run, session)))
        assert await _comes_to_rest(last)
        await added(store, a_run(3))
        assert await last.wait(WAKE_TIMEOUT)  # commits wake in order, so earlier wakes have arrived
        assert not await garage.wait(0.0)
        garage.close()
        last.close()

    async def test_a_closed_watch_is_not_woken(self, store: Store) -> None:
        closed, other = store.watch(frozenset({OFFERED})), store.watch(frozenset({OFFERED}))
        closed.close()
        closed.close()
        await added(store, a_run(1))
        assert await other.wait(WAKE_TIMEOUT)
        assert not await closed.wait(0.0)
        other.close()

    async def test_all_watches_of_a_topic_are_woken(self, store: Store) -> None:
        watches = [store.watch(frozenset({OFFERED, f"device {number}"})) for number in range(20)]
        tasks = [await _waiting(watch) for watch in watches]
        twice = await _waiting(watches[0])
        await added(store, a_run(1))
        assert all(await asyncio.gather(*tasks, twice))
        for watch in watches:
            watch.close()

    async def test_a_wait_that_is_cancelled_loses_nothing(self, store: Store) -> None:
        watch = store.watch(frozenset({OFFERED}))
        waiting = await _waiting(watch)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await added(store, a_run(1))
        assert await watch.wait(WAKE_TIMEOUT)
        watch.close()

    async def test_waiting_and_reading_again_misses_nothing(self, store: Store, other: Store) -> None:
        """Devices read, wait and read again, while twenty runs arrive."""
        session = a_session()
        await joined(store, session)
        taken: list[Run] = []
        watch = store.watch(frozenset({OFFERED}))

        async def work() -> None:
            while True:
                while some := await store.take(offer(), taking(session)):
                    taken.extend(some)
                if len(taken) == 20:
                    return
                await watch.wait(1.0)

        async def create() -> None:
            for number in range(20):
                await added(other, a_run(number))

        await asyncio.gather(work(), create())
        assert sorted(run.id for run in taken) == [f"r{number:04d}" for number in range(20)]
        watch.close()
