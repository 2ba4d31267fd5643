"""Tests of what connects a device to its store: sessions with heartbeats and reports, and watches."""

from __future__ import annotations

import asyncio
from unittest import SkipTest

from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, CLAIMED, PROCESSING, Progress, Run

# -- sessions ----------------------------------------------------------------------------------------------------------
from asterism.core.run.session import ENDED, OPEN, REPLACED, Session
from asterism.store.protocol import ENDED as ENDED_TOPIC
from asterism.store.protocol import (
    OFFERED,
    ExpectSession,
    Notice,
    OwnedRun,
    ProgressReport,
    PutRegister,
    PutRun,
    PutSession,
    Store,
    Watch,
    Write,
    for_device,
)
from tests.laboratory.store_conformance.sample_records import (
    WAKE_TIMEOUT,
    StoreTests,
    a_run,
    a_session,
    added,
    after,
    assigned_to,
    completed,
    conflict,
    contents,
    held_by,
    ids,
    joined,
    offer,
    released,
    session_in,
    started,
    taking,
    wins,
)


class HeartbeatTests(StoreTests):
    """Tests of ``heartbeat``, ``reports`` and ``sessions``."""

    async def test_a_heartbeat_tells_the_store_that_a_session_is_there(self, store: Store) -> None:
        await joined(store, a_session(), a_session("garage-1", "garage", draining=True))
        before = await session_in(store, "kitchen-1")
        answer = await store.heartbeat("kitchen-1", {"battery": 0.5, "labels": {"room": "küche"}}, [])
        assert answer.alive
        assert not answer.draining
        assert list(answer.held) == []
        now = await session_in(store, "kitchen-1")
        assert now.beat_at >= before.beat_at
        assert abs(answer.now - now.beat_at) < 5.0
        assert now.revision == before.revision + 1
        assert now == replace(
            before, revision=now.revision, beat_at=now.beat_at, profile={"battery": 0.5, "labels": {"room": "küche"}}
        )
        await store.heartbeat("kitchen-1", {}, [])
        again = await session_in(store, "kitchen-1")
        assert (again.revision, again.profile) == (now.revision + 1, {})
        assert (await store.heartbeat("garage-1", {}, [])).draining

    async def test_the_reply_to_an_ended_or_replaced_session_says_so(self, store: Store) -> None:
        sessions = [a_session("old", state=REPLACED), a_session("over", state=ENDED), a_session("there")]
        await joined(store, *sessions)
        run = held_by(a_run(1), sessions[0])
        await added(store, run)
        before = await contents(store)
        for name in ("old", "over", "unknown", ""):
            answer = await store.heartbeat(name, {"x": 1}, [ProgressReport(run.id, run.epoch, Progress(1), "late")])
            assert not answer.alive
            assert list(answer.held) == []
            assert abs(answer.now - store.clock()) < 5.0
        assert await contents(store) == before
        assert await store.reports([run.id]) == {}

    async def test_a_replaced_session_learns_it_with_its_next_heartbeat(self, store: Store) -> None:
        await joined(store, a_session())
        assert (await store.heartbeat("kitchen-1", {}, [])).alive
        known = await session_in(store, "kitchen-1")
        await store.commit(
            [PutSession(known.changed(state=REPLACED), known.revision), PutSession(a_session("kitchen-2"), None)]
        )
        assert not (await store.heartbeat("kitchen-1", {}, [])).alive
        assert (await store.heartbeat("kitchen-2", {}, [])).alive

    async def test_a_heartbeat_is_a_change_of_the_session(self, store: Store) -> None:
        await joined(store, a_session())
        known = await session_in(store, "kitchen-1")
        await store.heartbeat("kitchen-1", {}, [])
        with conflict("session kitchen-1"):
            await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        assert (await session_in(store, "kitchen-1")).state == OPEN

    async def test_the_reply_names_every_run_of_the_session(
        self, store: Store, session: Session, garage: Session
    ) -> None:
        runs = [a_run(number) for number in range(8)]
        requested = transitions.cancel(started(held_by(runs[3], session)), 65.0, "ann")
        ended = completed(held_by(runs[4], session))
        owned = [
            assigned_to(runs[0], session),
            held_by(runs[1], session),
            started(held_by(runs[2], session)),
            requested,
        ]
        back = released(held_by(runs[5], session))
        await added(store, *owned, ended, back, held_by(runs[6], garage), runs[7])
        answer = await store.heartbeat("kitchen-1", {}, [])
        assert sorted(answer.held) == [
            OwnedRun("r0000", 1, ASSIGNED, None),
            OwnedRun("r0001", 1, CLAIMED, None),
            OwnedRun("r0002", 1, PROCESSING, None),
            OwnedRun("r0003", 1, PROCESSING, "cancel"),
        ]
        assert all(type(held) is OwnedRun for held in answer.held)
        assert [held.run for held in (await store.heartbeat("garage-1", {}, [])).held] == ["r0006"]

    async def test_reports_are_stored(self, store: Store, session: Session) -> None:
        runs = [started(held_by(a_run(number), session)) for number in range(3)]
        await added(store, *runs)
        reports = [
            ProgressReport("r0000", 1, Progress(3, 10), "the end of its output"),
            ProgressReport("r0001", 1, Progress(7), ""),
            ProgressReport("r0002", 1, None, "only words"),
        ]
        await store.heartbeat("kitchen-1", {}, reports)
        assert await store.reports(ids(runs)) == {report.run: report for report in reports}
        assert await store.reports(["r0001", "unknown"]) == {"r0001": reports[1]}
        assert await store.reports([]) == {}
        await store.heartbeat("kitchen-1", {}, [ProgressReport("r0000", 1, Progress(4, 10), "more")])
        assert (await store.reports(["r0000"]))["r0000"] == ProgressReport("r0000", 1, Progress(4, 10), "more")
        assert (await store.reports(["r0001"]))["r0001"] == reports[1]
        assert [run.progress for run in (await contents(store)).runs.values()] == [None] * 3

    async def test_a_report_of_another_epoch_or_about_anothers_run_is_dropped(
        self, store: Store, session: Session, garage: Session
    ) -> None:
        second = held_by(released(held_by(a_run(1), session)), session)
        assert second.epoch == 2
        free = released(held_by(a_run(2), session))
        ended = completed(held_by(a_run(3), session))
        await added(store, second, free, ended, held_by(a_run(4), garage))
        wrong = [
            ProgressReport("r0001", 1, Progress(1), "too late"),
            ProgressReport("r0001", 3, Progress(1), "too early"),
            ProgressReport("r0002", 1, Progress(1), "given back"),
            ProgressReport("r0003", 1, Progress(1), "over"),
            ProgressReport("r0004", 1, Progress(1), "of another"),
            ProgressReport("unknown", 1, Progress(1), "of nobody"),
        ]
        assert (await store.heartbeat("kitchen-1", {}, wrong)).alive
        assert await store.reports([report.run for report in wrong]) == {}
        await store.heartbeat("kitchen-1", {}, [*wrong, ProgressReport("r0001", 2, Progress(2), "in time")])
        assert await store.reports(["r0001", "r0004"]) == {"r0001": ProgressReport("r0001", 2, Progress(2), "in time")}

    async def test_a_report_lasts_as_long_as_its_epoch(self, store: Store, session: Session) -> None:
        runs: list[Run] = [started(held_by(a_run(number), session)) for number in range(3)]
        await added(store, *runs)
        await store.heartbeat("kitchen-1", {}, [ProgressReport(run.id, 1, Progress(1), "x") for run in runs])
        requested = transitions.pause(runs[2], 65.0, "ann")
        back = released(runs[1])
        await store.commit([after(runs[0], completed(runs[0])), after(runs[1], back), after(runs[2], requested)])
        assert set(await store.reports(ids(runs))) == {"r0002"}
        await store.take(offer(), taking(session))
        assert set(await store.reports(ids(runs))) == {"r0002"}

    async def test_sessions_are_listed_with_what_they_own(self, store: Store) -> None:
        sessions = [
            a_session(),
            a_session("garage-1", "garage", state=REPLACED),
            a_session("garage-0", "garage", state=ENDED),
        ]
        await joined(store, *sessions)
        await added(store, assigned_to(a_run(1), sessions[0]), held_by(a_run(2), sessions[0]))
        await added(store, started(held_by(a_run(3), sessions[1])), completed(held_by(a_run(4), sessions[0])), a_run(5))
        listed = {session.id: session.used for session in await store.sessions()}
        assert listed == {"kitchen-1": 2, "garage-1": 1}
        assert {session.id for session in await store.sessions(ended=True)} == {session.id for session in sessions}
        assert {session.id: session.used for session in await store.sessions(device="garage")} == {"garage-1": 1}
        assert {session.id for session in await store.sessions(ended=True, device="garage")} == {"garage-0", "garage-1"}
        assert await store.sessions(device="attic\0") == []
        [run] = await store.take(offer(limit=1), taking(sessions[0]))
        assert (await session_in(store, "kitchen-1")).used == 3
        await store.commit([after(run, released(run))])
        assert (await session_in(store, "kitchen-1")).used == 2
        assert (await session_in(store, "kitchen-1")).room == 0

    async def test_a_run_named_in_a_reply_is_not_taken_away_on_older_knowledge(
        self, store: Store, other: Store, session: Session
    ) -> None:
        """A device counts its lease from the heartbeat that was answered. Either the monitor is first, and the reply
        does not name the run; or the heartbeat is, and the monitor's ExpectSession fails."""
        for number in range(30):
            run = held_by(a_run(number), session)
            await added(store, run)
            revision = (await session_in(store, session.id)).revision
            lost = transitions.lose(run, 500.0, "no heartbeat arrived")

            beat = store.heartbeat(session.id, {}, [])
            losing = other.commit([after(run, lost), ExpectSession(session.id, revision)])
            if number % 2:
                answer, taken = await asyncio.gather(beat, wins(losing, f"session {session.id}"))
            else:
                taken, answer = await asyncio.gather(wins(losing, f"session {session.id}"), beat)
            assert (run.id in [held.run for held in answer.held]) is not taken

    async def test_heartbeats_at_the_same_time_all_count(self, store: Store, other: Store) -> None:
        sessions = [a_session(f"d{number}-1", f"d{number}") for number in range(10)]
        await joined(store, *sessions)
        beats = [
            connection.heartbeat(session.id, {}, []) for session in sessions for connection in (store, other, store)
        ]
        assert all(answer.alive for answer in await asyncio.gather(*beats))
        assert {session.revision for session in await store.sessions()} == {4}


# -- watches -----------------------------------------------------------------------------------------------------------


async def _waiting(watch: Watch) -> asyncio.Task[bool]:
    """Start a task that is waiting when this returns."""
    task = asyncio.create_task(watch.wait(WAKE_TIMEOUT))
    await asyncio.sleep(0)
    return task


async def _becomes_quiet(watch: Watch) -> bool:
    """Whether a watch stops being woken without commits: it may be woken without need, but not without end."""
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
        assert await _becomes_quiet(watch)
        await added(store, a_run(1))
        assert await watch.wait(WAKE_TIMEOUT)
        assert await _becomes_quiet(watch)
        assert not all([await watch.wait(0.0) for _ in range(10)])
        watch.close()

    async def test_a_watch_is_woken_by_another_connection(self, store: Store, other: Store) -> None:
        for number, (here, there) in enumerate([(store, other), (other, store)]):
            watch = here.watch(frozenset({OFFERED}))
            waiting = await _waiting(watch)
            await added(there, a_run(number))
            assert await waiting
            watch.close()

    async def test_every_topic_is_woken_by_its_commits(self, store: Store, other: Store, session: Session) -> None:
        runs = [a_run(number) for number in range(6)]
        working = started(held_by(runs[3], session))
        paused = transitions.pause(runs[4], 4.0, "ann")
        await added(store, runs[0], runs[1], held_by(runs[2], session), working, paused)
        known = await session_in(store, session.id)
        kitchen = for_device("kitchen")
        concerned: list[tuple[str, Write]] = [
            (kitchen, after(runs[0], assigned_to(runs[0], session))),
            (ENDED_TOPIC, after(runs[1], transitions.cancel(runs[1], 5.0, "ann"))),
            (OFFERED, after(held_by(runs[2], session), released(held_by(runs[2], session)))),
            (kitchen, after(working, transitions.cancel(working, 70.0, "ann"))),
            (OFFERED, after(paused, transitions.resume(paused, 5.0, "ann"))),
            (ENDED_TOPIC, PutRun(completed(held_by(runs[5], session)), None)),
            (kitchen, PutSession(known.changed(draining=True), known.revision)),
        ]
        for number, (topic, write) in enumerate(concerned):
            watches = [connection.watch(frozenset({topic, "another"})) for connection in (store, other)]
            await (store, other)[number % 2].commit([PutRegister(f"a{number}", 1, None), write])
            for watch in watches:
                assert await watch.wait(WAKE_TIMEOUT), (topic, number)
                watch.close()

    async def test_a_watch_is_not_woken_by_commits_of_other_topics(
        self, store: Store, other: Store, session: Session
    ) -> None:
        if not self.tells_topics_apart:
            raise SkipTest("this engine does not tell topics apart")
        first = store.watch(frozenset({OFFERED}))
        await added(other, a_run(9))
        assert await first.wait(
            WAKE_TIMEOUT
        )  # an engine wakes all watches when it begins to listen, and now it has begun
        first.close()
        garage, last = store.watch(frozenset({for_device("garage"), ENDED_TOPIC})), store.watch(frozenset({OFFERED}))
        run = a_run(1)
        await store.commit([PutRun(run, None), Notice(1.0, "info", "x"), PutRegister("a", 1, None)])
        await store.take(offer(), taking(session))
        await store.heartbeat(session.id, {}, [])
        await store.commit([PutRun(assigned_to(a_run(2), session), None)])
        with conflict("run r0001"):  # a refused commit wakes no watch
            await added(store, completed(held_by(run, session)))
        assert await _becomes_quiet(last)
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

    async def test_waiting_and_reading_again_misses_nothing(self, store: Store, other: Store, session: Session) -> None:
        """Devices read, wait and read again, while twenty runs arrive."""
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
