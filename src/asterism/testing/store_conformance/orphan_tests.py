"""What a monitor asks for: runs whose owner is gone, what is waiting, and how many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from asterism.core.run import transitions
from asterism.core.run.run import RunStatus
from asterism.core.run.session import ENDED, REPLACED
from asterism.store.protocol import PutSession, Store, Waiting
from asterism.testing.store_conformance.engine_tests import EngineTests, with_store
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
    held_by,
    joined,
    offer,
    released,
    series_of,
    session_in,
    started,
    taking,
)


def _present(counts: Mapping[RunStatus, int]) -> dict[RunStatus, int]:
    return {status: number for status, number in counts.items() if number}


class Losing(EngineTests):
    """Of ``orphans``, ``waiting`` and ``counts``."""

    @with_store
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

    @with_store
    async def test_an_owner_may_be_silent_exactly_as_long_as_its_runs_allow(self, store: Store) -> None:
        session, old = a_session(), a_session("garage-1", "garage", state=REPLACED)
        await joined(store, session, old)
        patient = replace(FLOW, name="patient", timeout=4 * TIMEOUT)
        await added(store, held_by(a_run(1), session), held_by(a_run(2, patient), session, patient))
        await added(store, held_by(a_run(3), old), a_run(4), completed(held_by(a_run(5), session)))
        await store.beat("kitchen-1", {}, [])
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

    @with_store
    async def test_what_is_only_assigned_has_its_own_time_to_be_answered_in(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        asked = assigned_to(a_run(1), session)
        await added(store, asked, held_by(a_run(2), session))
        assert [run.id for run, _ in await store.orphans(FAR, 10)] == ["r0002"]
        known = await session_in(store, session.id)
        await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        assert sorted(run.id for run, _ in await store.orphans(FAR, 10)) == ["r0001", "r0002"]

    @with_store
    async def test_a_heartbeat_saves_the_runs_of_a_session(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        await added(store, held_by(a_run(1), session))
        first = (await session_in(store, session.id)).beat_at
        while store.clock() <= first + 0.01:  # the store's clock is real, and has to go on for the next one to be later
            await store.beat(session.id, {}, [])
        await store.beat(session.id, {}, [])
        last = (await session_in(store, session.id)).beat_at
        assert last > first
        assert await store.orphans(first + TIMEOUT + (last - first) / 2, 10) == []
        assert [run.id for run, _ in await store.orphans(last + TIMEOUT + 0.001, 10)] == ["r0001"]

    @with_store
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

    @with_store
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

    @with_store
    async def test_what_waits_is_counted_by_kind_and_device(self, store: Store) -> None:
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
            Waiting("transcode", 1, None, 2, 1.0),
            Waiting("transcode", 2, None, 1, 3.0),
            Waiting("index", 1, "garage", 1, 4.0),
            Waiting("index", 1, "kitchen", 1, 5.0),
            Waiting("index", 1, None, 2, 5.5),
        }
        found = await store.waiting()
        assert len(found) == len(expected)
        assert set(found) == expected
        await store.take(offer("garage", limit=1, not_kinds=frozenset({"index@1"})), taking(session))
        assert Waiting("transcode", 1, None, 1, 2.0) in await store.waiting()

    @with_store
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
