"""Heartbeats: one for all that a session owns, and the word of an old epoch counts for nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, CLAIMED, PROCESSING, Progress, Run
from asterism.core.run.session import ENDED, OPEN, REPLACED
from asterism.store.protocol import ExpectSession, Held, PutSession, Report, Store
from asterism.testing.store_conformance.engine_tests import EngineTests, with_store, with_two
from asterism.testing.store_conformance.sample_records import (
    FLOW,
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


class Beating(EngineTests):
    """Of ``beat``, ``reports`` and ``sessions``."""

    @with_store
    async def test_a_heartbeat_tells_the_store_that_a_session_is_there(self, store: Store) -> None:
        await joined(store, a_session(), a_session("garage-1", "garage", draining=True))
        before = await session_in(store, "kitchen-1")
        answer = await store.beat("kitchen-1", {"battery": 0.5, "labels": {"room": "küche"}}, [])
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
        await store.beat("kitchen-1", {}, [])
        again = await session_in(store, "kitchen-1")
        assert (again.revision, again.profile) == (now.revision + 1, {})
        assert (await store.beat("garage-1", {}, [])).draining

    @with_store
    async def test_a_session_that_is_not_the_device_any_more_is_told_so(self, store: Store) -> None:
        sessions = [a_session("old", state=REPLACED), a_session("over", state=ENDED), a_session("there")]
        await joined(store, *sessions)
        run = held_by(a_run(1), sessions[0])
        await added(store, run)
        before = await contents(store)
        for name in ("old", "over", "never heard of", ""):
            answer = await store.beat(name, {"x": 1}, [Report(run.id, run.epoch, Progress(1), "late")])
            assert not answer.alive
            assert list(answer.held) == []
            assert abs(answer.now - store.clock()) < 5.0
        assert await contents(store) == before
        assert await store.reports([run.id]) == {}

    @with_store
    async def test_a_session_that_is_replaced_is_told_so_with_its_next_heartbeat(self, store: Store) -> None:
        await joined(store, a_session())
        assert (await store.beat("kitchen-1", {}, [])).alive
        known = await session_in(store, "kitchen-1")
        await store.commit(
            [PutSession(known.changed(state=REPLACED), known.revision), PutSession(a_session("kitchen-2"), None)]
        )
        assert not (await store.beat("kitchen-1", {}, [])).alive
        assert (await store.beat("kitchen-2", {}, [])).alive

    @with_store
    async def test_a_heartbeat_is_a_change_of_the_session(self, store: Store) -> None:
        await joined(store, a_session())
        known = await session_in(store, "kitchen-1")
        await store.beat("kitchen-1", {}, [])
        with conflict("session kitchen-1"):
            await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        assert (await session_in(store, "kitchen-1")).state == OPEN

    @with_store
    async def test_the_answer_names_everything_the_session_owns(self, store: Store) -> None:
        session, other = a_session(), a_session("garage-1", "garage")
        await joined(store, session, other)
        runs = [a_run(number) for number in range(8)]
        wished = transitions.cancel(started(held_by(runs[3], session)), 65.0, "somebody")
        ended = completed(held_by(runs[4], session))
        owned = [assigned_to(runs[0], session), held_by(runs[1], session), started(held_by(runs[2], session)), wished]
        back = released(held_by(runs[5], session))
        await added(store, *owned, ended, back, held_by(runs[6], other), runs[7])
        answer = await store.beat("kitchen-1", {}, [])
        assert sorted(answer.held) == [
            Held("r0000", 1, ASSIGNED, None),
            Held("r0001", 1, CLAIMED, None),
            Held("r0002", 1, PROCESSING, None),
            Held("r0003", 1, PROCESSING, "cancel"),
        ]
        assert all(type(held) is Held for held in answer.held)
        assert [held.run for held in (await store.beat("garage-1", {}, [])).held] == ["r0006"]

    @with_store
    async def test_reports_are_kept_for_those_who_look(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        runs = [started(held_by(a_run(number), session)) for number in range(3)]
        await added(store, *runs)
        told = [
            Report("r0000", 1, Progress(3, 10), "the end of its output"),
            Report("r0001", 1, Progress(7), ""),
            Report("r0002", 1, None, "only words"),
        ]
        await store.beat("kitchen-1", {}, told)
        assert await store.reports(ids(runs)) == {report.run: report for report in told}
        assert await store.reports(["r0001", "unknown"]) == {"r0001": told[1]}
        assert await store.reports([]) == {}
        await store.beat("kitchen-1", {}, [Report("r0000", 1, Progress(4, 10), "more")])
        assert (await store.reports(["r0000"]))["r0000"] == Report("r0000", 1, Progress(4, 10), "more")
        assert (await store.reports(["r0001"]))["r0001"] == told[1]
        assert [run.progress for run in (await contents(store)).runs.values()] == [None] * 3

    @with_store
    async def test_a_report_of_another_epoch_or_about_anothers_run_is_dropped(self, store: Store) -> None:
        session, other = a_session(), a_session("garage-1", "garage")
        await joined(store, session, other)
        second = held_by(released(held_by(a_run(1), session)), session)
        assert second.epoch == 2
        free = released(held_by(a_run(2), session))
        ended = completed(held_by(a_run(3), session))
        await added(store, second, free, ended, held_by(a_run(4), other))
        wrong = [
            Report("r0001", 1, Progress(1), "too late"),
            Report("r0001", 3, Progress(1), "too early"),
            Report("r0002", 1, Progress(1), "given back"),
            Report("r0003", 1, Progress(1), "over"),
            Report("r0004", 1, Progress(1), "of another"),
            Report("unknown", 1, Progress(1), "of nobody"),
        ]
        assert (await store.beat("kitchen-1", {}, wrong)).alive
        assert await store.reports([report.run for report in wrong]) == {}
        await store.beat("kitchen-1", {}, [*wrong, Report("r0001", 2, Progress(2), "in time")])
        assert await store.reports(["r0001", "r0004"]) == {"r0001": Report("r0001", 2, Progress(2), "in time")}

    @with_store
    async def test_a_report_lasts_as_long_as_its_epoch(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        runs: list[Run] = [started(held_by(a_run(number), session)) for number in range(3)]
        await added(store, *runs)
        await store.beat("kitchen-1", {}, [Report(run.id, 1, Progress(1), "x") for run in runs])
        wished = transitions.pause(runs[2], 65.0, "somebody")
        back = released(runs[1])
        await store.commit([after(runs[0], completed(runs[0])), after(runs[1], back), after(runs[2], wished)])
        assert set(await store.reports(ids(runs))) == {"r0002"}
        await store.take(offer(), taking(session))
        assert set(await store.reports(ids(runs))) == {"r0002"}

    @with_store
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
        [run] = await store.take(offer(limit=1), taking(sessions[0]))
        assert (await session_in(store, "kitchen-1")).used == 3
        await store.commit([after(run, released(run))])
        assert (await session_in(store, "kitchen-1")).used == 2
        assert (await session_in(store, "kitchen-1")).room == 0

    @with_two
    async def test_a_run_that_a_heartbeat_was_answered_with_is_not_taken_away_by_one_who_did_not_hear_it(
        self, store: Store, other: Store
    ) -> None:
        """The device counts its lease from the heartbeat that was answered. So either the monitor comes first, and the
        answer does not name the run; or the heartbeat does, and the monitor's expectation fails."""
        session = a_session()
        await joined(store, session)
        for number in range(30):
            run = held_by(a_run(number), session)
            await added(store, run)
            revision = (await session_in(store, session.id)).revision
            lost = transitions.lose(run, FLOW, 500.0, "it was not heard of")

            beat = store.beat(session.id, {}, [])
            losing = other.commit([after(run, lost), ExpectSession(session.id, revision)])
            if number % 2:
                answer, taken = await asyncio.gather(beat, wins(losing, f"session {session.id}"))
            else:
                taken, answer = await asyncio.gather(wins(losing, f"session {session.id}"), beat)
            assert (run.id in [held.run for held in answer.held]) is not taken

    @with_two
    async def test_heartbeats_at_the_same_time_all_count(self, store: Store, other: Store) -> None:
        sessions = [a_session(f"d{number}-1", f"d{number}") for number in range(10)]
        await joined(store, *sessions)
        beats = [one.beat(session.id, {}, []) for session in sessions for one in (store, other, store)]
        assert all(answer.alive for answer in await asyncio.gather(*beats))
        assert {session.revision for session in await store.sessions()} == {4}
