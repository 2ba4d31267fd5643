"""Tests of sessions: heartbeats, reports, orphans, and counts of runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, CLAIMED, PROCESSING, Progress, Run, RunStatus
from asterism.core.run.session import ENDED, OPEN, REPLACED
from asterism.store.protocol import ExpectSession, OwnedRun, ProgressReport, PutSession, Store, WaitingRuns
from asterism.testing.store_conformance.sample_records import (
    FAR,
    FLOW,
    TIMEOUT,
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
    series_of,
    session_in,
    started,
    taking,
    wins,
)
from asterism.testing.store_conformance.store_tests import StoreTests


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
        for name in ("old", "over", "never heard of", ""):
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

    async def test_the_reply_names_every_run_of_the_session(self, store: Store) -> None:
        session, other = a_session(), a_session("garage-1", "garage")
        await joined(store, session, other)
        runs = [a_run(number) for number in range(8)]
        wished = transitions.cancel(started(held_by(runs[3], session)), 65.0, "somebody")
        ended = completed(held_by(runs[4], session))
        owned = [assigned_to(runs[0], session), held_by(runs[1], session), started(held_by(runs[2], session)), wished]
        back = released(held_by(runs[5], session))
        await added(store, *owned, ended, back, held_by(runs[6], other), runs[7])
        answer = await store.heartbeat("kitchen-1", {}, [])
        assert sorted(answer.held) == [
            OwnedRun("r0000", 1, ASSIGNED, None),
            OwnedRun("r0001", 1, CLAIMED, None),
            OwnedRun("r0002", 1, PROCESSING, None),
            OwnedRun("r0003", 1, PROCESSING, "cancel"),
        ]
        assert all(type(held) is OwnedRun for held in answer.held)
        assert [held.run for held in (await store.heartbeat("garage-1", {}, [])).held] == ["r0006"]

    async def test_reports_are_stored(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        runs = [started(held_by(a_run(number), session)) for number in range(3)]
        await added(store, *runs)
        told = [
            ProgressReport("r0000", 1, Progress(3, 10), "the end of its output"),
            ProgressReport("r0001", 1, Progress(7), ""),
            ProgressReport("r0002", 1, None, "only words"),
        ]
        await store.heartbeat("kitchen-1", {}, told)
        assert await store.reports(ids(runs)) == {report.run: report for report in told}
        assert await store.reports(["r0001", "unknown"]) == {"r0001": told[1]}
        assert await store.reports([]) == {}
        await store.heartbeat("kitchen-1", {}, [ProgressReport("r0000", 1, Progress(4, 10), "more")])
        assert (await store.reports(["r0000"]))["r0000"] == ProgressReport("r0000", 1, Progress(4, 10), "more")
        assert (await store.reports(["r0001"]))["r0001"] == told[1]
        assert [run.progress for run in (await contents(store)).runs.values()] == [None] * 3

    async def test_a_report_of_another_epoch_or_about_anothers_run_is_dropped(self, store: Store) -> None:
        session, other = a_session(), a_session("garage-1", "garage")
        await joined(store, session, other)
        second = held_by(released(held_by(a_run(1), session)), session)
        assert second.epoch == 2
        free = released(held_by(a_run(2), session))
        ended = completed(held_by(a_run(3), session))
        await added(store, second, free, ended, held_by(a_run(4), other))
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

    async def test_a_report_lasts_as_long_as_its_epoch(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        runs: list[Run] = [started(held_by(a_run(number), session)) for number in range(3)]
        await added(store, *runs)
        await store.heartbeat("kitchen-1", {}, [ProgressReport(run.id, 1, Progress(1), "x") for run in runs])
        wished = transitions.pause(runs[2], 65.0, "somebody")
        back = released(runs[1])
        await store.commit([after(runs[0], completed(runs[0])), after(runs[1], back), after(runs[2], wished)])
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
        [run] = await store.take(offer(limit=1), taking(sessions[0]))
        assert (await session_in(store, "kitchen-1")).used == 3
        await store.commit([after(run, released(run))])
        assert (await session_in(store, "kitchen-1")).used == 2
        assert (await session_in(store, "kitchen-1")).room == 0

    async def test_a_run_named_in_a_reply_is_not_taken_away_on_older_knowledge(
        self, store: Store, other: Store
    ) -> None:
        """A device counts its lease from the heartbeat that was answered. Either the monitor is first, and the reply
        does not name the run; or the heartbeat is, and the monitor's ExpectSession fails."""
        session = a_session()
        await joined(store, session)
        for number in range(30):
            run = held_by(a_run(number), session)
            await added(store, run)
            revision = (await session_in(store, session.id)).revision
            lost = transitions.lose(run, FLOW, 500.0, "it was not heard of")

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
        beats = [one.heartbeat(session.id, {}, []) for session in sessions for one in (store, other, store)]
        assert all(answer.alive for answer in await asyncio.gather(*beats))
        assert {session.revision for session in await store.sessions()} == {4}


def _present(counts: Mapping[RunStatus, int]) -> dict[RunStatus, int]:
    return {status: number for status, number in counts.items() if number}


class OrphanTests(StoreTests):
    """Tests of ``orphans``, ``waiting`` and ``counts``."""

    async def test_the_runs_of_an_ended_session_are_orphans_at_once(self, store: Store) -> None:
        session, over = a_session(), a_session("garage-1", "garage", state=ENDED)
        await joined(store, session, over)
        theirs = [assigned_to(a_run(1), over), held_by(a_run(2), over), started(held_by(a_run(3), over))]
        await added(store, *theirs, held_by(a_run(4), session), completed(held_by(a_run(5), over)), a_run(6))
        found = await store.orphans(0.0, 10)
        assert sorted(run.id for run, _ in found) == ["r0001", "r0002", "r0003"]
        assert {run.id: run for run, _ in found} == {run.id: run for run in theirs}
        known = await session_in(store, "garage-1")
        assert [replace(owner, used=known.used) for _, owner in found] == [known] * 3

    async def test_an_owner_may_be_silent_exactly_as_long_as_the_timeout_of_its_runs(self, store: Store) -> None:
        session, old = a_session(), a_session("garage-1", "garage", state=REPLACED)
        await joined(store, session, old)
        patient = replace(FLOW, name="patient", timeout=4 * TIMEOUT)
        await added(store, held_by(a_run(1), session), held_by(a_run(2, patient), session, patient))
        await added(store, held_by(a_run(3), old), a_run(4), completed(held_by(a_run(5), session)))
        await store.heartbeat("kitchen-1", {}, [])
        silent_since = (await session_in(store, "garage-1")).beat_at
        beat_at = (await session_in(store, "kitchen-1")).beat_at
        for now, expected in [
            (0.0, []),
            (beat_at, []),
            (silent_since + TIMEOUT, []),
            (beat_at + TIMEOUT + 0.001, ["r0001", "r0003"]),
            (beat_at + 4 * TIMEOUT, ["r0001", "r0003"]),
            (beat_at + 4 * TIMEOUT + 0.001, ["r0001", "r0002", "r0003"]),
        ]:
            assert sorted(run.id for run, _ in await store.orphans(now, 10)) == expected, now - beat_at
        assert "r0001" not in [run.id for run, _ in await store.orphans(beat_at + TIMEOUT, 10)]

    async def test_an_assigned_run_is_not_an_orphan_of_a_silent_session(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        asked = assigned_to(a_run(1), session)
        await added(store, asked, held_by(a_run(2), session))
        assert [run.id for run, _ in await store.orphans(FAR, 10)] == ["r0002"]
        known = await session_in(store, session.id)
        await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        assert sorted(run.id for run, _ in await store.orphans(FAR, 10)) == ["r0001", "r0002"]

    async def test_a_heartbeat_saves_the_runs_of_a_session(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        await added(store, held_by(a_run(1), session))
        first = (await session_in(store, session.id)).beat_at
        while store.clock() <= first + 0.01:  # the store's clock is real, and has to advance
            await store.heartbeat(session.id, {}, [])
        await store.heartbeat(session.id, {}, [])
        last = (await session_in(store, session.id)).beat_at
        assert last > first
        assert await store.orphans(first + TIMEOUT + (last - first) / 2, 10) == []
        assert [run.id for run, _ in await store.orphans(last + TIMEOUT + 0.001, 10)] == ["r0001"]

    async def test_orphans_come_a_few_at_a_time(self, store: Store) -> None:
        over = a_session("garage-1", "garage", state=ENDED)
        await joined(store, over)
        runs = [held_by(a_run(number), over) for number in range(7)]
        await added(store, *runs)
        left = {run.id for run in runs}
        while left:
            found = await store.orphans(FAR, 3)
            assert len(found) == min(3, len(left))
            for run, _ in found:
                left.remove(run.id)
            await store.commit([after(run, transitions.lose(run, FLOW, 500.0, "its owner ended")) for run, _ in found])
        assert await store.orphans(FAR, 3) == []

    async def test_ending_a_session_orphans_its_runs(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        await added(store, held_by(a_run(1), session))
        known = await session_in(store, session.id)
        assert await store.orphans(known.beat_at, 10) == []
        await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        [(run, owner)] = await store.orphans(0.0, 10)
        assert run == held_by(a_run(1), session)
        assert (owner.id, owner.state, owner.revision) == (session.id, ENDED, known.revision + 1)

    async def test_waiting_runs_are_counted_by_kind_and_device(self, store: Store) -> None:
        assert await store.waiting() == []
        session = a_session()
        await joined(store, session)
        index = replace(FLOW, name="index")
        await added(
            store,
            a_run(1),
            a_run(2),
            a_run(3, FLOW.at_version(2)),
            a_run(4, index, device="garage"),
            a_run(5, index, device="kitchen"),
            a_run(6, index).changed(not_before=FAR),
            released(held_by(a_run(7, index), session), now=5.5),
            a_run(8, series="held"),
            transitions.pause(a_run(9), 9.0, "somebody"),
            held_by(a_run(10), session),
            completed(held_by(a_run(11), session)),
        )
        await store.commit([series_of("held", queue=["r0008"])])
        expected = {
            WaitingRuns("transcode", 1, None, 2, 1.0),
            WaitingRuns("transcode", 2, None, 1, 3.0),
            WaitingRuns("index", 1, "garage", 1, 4.0),
            WaitingRuns("index", 1, "kitchen", 1, 5.0),
            WaitingRuns("index", 1, None, 2, 5.5),
        }
        found = await store.waiting()
        assert len(found) == len(expected)
        assert set(found) == expected
        await store.take(offer("garage", limit=1, not_kinds=frozenset({"index@1"})), taking(session))
        assert WaitingRuns("transcode", 1, None, 1, 2.0) in await store.waiting()

    async def test_runs_are_counted_by_status(self, store: Store) -> None:
        assert _present(await store.counts()) == {}
        session = a_session()
        await joined(store, session)
        runs = [
            a_run(1),
            a_run(2, series="x"),
            assigned_to(a_run(3), session),
            held_by(a_run(4), session),
            started(held_by(a_run(5), session)),
            completed(held_by(a_run(6), session)),
            transitions.cancel(a_run(7), 8.0, "somebody"),
            transitions.cancel(a_run(8), 9.0, "somebody"),
            released(held_by(a_run(9), session)),
        ]
        await added(store, *runs)
        await store.commit([series_of("x", queue=["r0002"])])
        counted = _present(await store.counts())
        assert counted == Counter(run.status for run in runs)
        assert all(type(status) is RunStatus for status in counted)
        await store.commit([after(runs[0], transitions.cancel(runs[0], 10.0, "somebody"))])
        assert (await store.counts())[RunStatus.FAILED] == 3
        await store.prune(FAR, 100)
        assert _present(await store.counts()) == Counter(run.status for run in runs[1:] if not run.ended)
