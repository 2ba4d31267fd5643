"""Tests of maintenance: orphans and counts of runs, blobs, and retention."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asterism.core.run import transitions
from asterism.core.run.run import Run, RunStatus
from asterism.core.run.session import ENDED, REPLACED
from asterism.store.protocol import BLOB_USES, Notice, PutRegister, PutSession, Query, Store, WaitingRuns
from asterism.testing.conformance import StoreTests
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
    ids,
    joined,
    offer,
    released,
    series_of,
    session_in,
    started,
    taking,
)

# -- orphans and counts ------------------------------------------------------------------------------------------------


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
        patient = replace(FLOW, name="patient", heartbeat_timeout=4 * TIMEOUT)
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
            transitions.pause(a_run(9), 9.0, "ann"),
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
            transitions.cancel(a_run(7), 8.0, "ann"),
            transitions.cancel(a_run(8), 9.0, "ann"),
            released(held_by(a_run(9), session)),
        ]
        await added(store, *runs)
        await store.commit([series_of("x", queue=["r0002"])])
        counted = _present(await store.counts())
        assert counted == Counter(run.status for run in runs)
        assert all(type(status) is RunStatus for status in counted)
        await store.commit([after(runs[0], transitions.cancel(runs[0], 10.0, "ann"))])
        assert (await store.counts())[RunStatus.FAILED] == 3
        await store.prune(FAR, 100)
        assert _present(await store.counts()) == Counter(run.status for run in runs[1:] if not run.ended)


# -- blobs and retention -----------------------------------------------------------------------------------------------


LARGE = 10 * 1024 * 1024


def _reference(name: str, data: bytes) -> dict[str, Any]:
    return {"$blob": name, "size": len(data)}


def _ended(number: int, at: float, **more: Any) -> Run:
    return transitions.cancel(a_run(number, **more), at, "ann")


async def _pruned(store: Store, before: float, limit: int = 100) -> int:
    """Prune until no run is left to prune."""
    total = 0
    while number := await store.prune(before, limit):
        total += number
    return total


async def _a_moment(store: Store) -> float:
    """Return a time by the store's clock with no event near it: that clock is real, and may have coarse steps. It is
    the time of a heartbeat as the store recorded it, since ``store.clock`` is only an estimate for a server."""
    await joined(store, a_session("moment-1", "moment"))
    await asyncio.sleep(0.03)  # time has to pass; there is no event to wait for
    await store.heartbeat("moment-1", {}, [])
    await asyncio.sleep(0.03)
    return (await session_in(store, "moment-1")).beat_at


class RetentionTests(StoreTests):
    """Tests of ``put_blob``, ``blob`` and ``prune``."""

    async def test_a_blob_comes_back_byte_for_byte(self, store: Store, other: Store) -> None:
        large = os.urandom(LARGE)
        name = await store.put_blob(large)
        assert await store.blob(name) == large
        assert await other.blob(name) == large

    async def test_blobs_may_be_empty_and_hold_anything(self, store: Store) -> None:
        for data in (b"", b"\0", bytes(range(256)), b"\r\n", "häuser 😀".encode()):
            assert await store.blob(await store.put_blob(data)) == data

    async def test_the_same_bytes_have_the_same_name(self, store: Store, other: Store) -> None:
        names = {await one.put_blob(b"the same") for one in (store, other, store)}
        assert len(names) == 1
        assert await store.put_blob(b"another") not in names
        many = await asyncio.gather(*(one.put_blob(b"at once") for one in (store, other) for _ in range(10)))
        assert len(set(many)) == 1
        assert await store.blob(many[0]) == b"at once"

    async def test_an_unknown_name_has_no_blob(self, store: Store) -> None:
        # names come from inputs, which any user writes: an engine with files must not read other files
        name = await store.put_blob(b"something")
        for wrong in (
            "", ".", "..", "/", "unknown", name[:-1], name + "0", name.upper() + "x", "../" + name, f"./{name}",
            "../../../../etc/hostname", "/etc/hostname", __file__, "a\0b", "\ud800", "x" * 5000, "%",
            name[:2] + "/" + name,
        ):  # fmt: skip
            assert await store.blob(wrong) is None, wrong
        assert await store.blob(name) == b"something"

    async def test_only_runs_that_ended_long_ago_are_pruned(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        remaining = [
            a_run(1),
            a_run(2, series="x"),
            held_by(a_run(3), session),
            started(held_by(a_run(4), session)),
            transitions.pause(a_run(5), 5.0, "ann"),
            _ended(6, 100.0),
            completed(held_by(a_run(7), session), now=150.0),
        ]
        await added(store, *remaining, _ended(8, 99.0), completed(held_by(a_run(9), session), now=99.5))
        await store.commit([series_of("x", queue=["r0002"])])
        assert await store.prune(100.0, 100) == 2
        assert await store.find(Query()) == remaining
        assert await store.run("r0008") is None
        assert await store.prune(100.0, 100) == 0
        assert await _pruned(store, FAR) == 2
        assert await store.find(Query()) == remaining[:5]

    async def test_only_runs_of_a_prefix_are_pruned_and_nothing_else(self, store: Store) -> None:
        runs = [_ended(number, 50.0).changed(key=key) for number, key in enumerate(("a/1", "a/2", "ab/1", None))]
        await added(store, *runs)
        await store.commit([Notice(1.0, "late", "old")])
        assert await store.prune(math.inf, 1, only="a/") == 1
        assert await store.prune(math.inf, 10, only="a/") == 1
        assert await store.prune(math.inf, 10, only="a/") == 0
        assert await store.find(Query()) == runs[2:]
        assert [notice.message for _, notice in await store.notices()] == ["old"]

    async def test_a_limit_bounds_how_many_runs_are_pruned(self, store: Store) -> None:
        await added(store, *(_ended(number, 50.0) for number in range(10)), a_run(11))
        assert await store.prune(FAR, 4) == 4
        assert sum((await store.counts()).values()) == 7
        assert await store.prune(FAR, 4) == 4
        assert await store.prune(FAR, 4) == 2
        assert await store.prune(FAR, 4) == 0
        assert ids(await store.find(Query())) == ["r0011"]

    async def test_runs_whose_key_has_a_kept_prefix_are_not_pruned(self, store: Store) -> None:
        keys = {1: "plan:a/x/1", 2: "plan:ab/x/1", 3: "plan:%/x/1", 4: None, 5: "pl"}
        await added(store, *(_ended(number, 50.0, key=key) for number, key in keys.items()))
        assert await store.prune(FAR, 10, keep=["plan:a/", "plan:%/"]) == 3
        assert ids(await store.find(Query())) == ["r0001", "r0003"]
        assert await store.prune(FAR, 10, keep=["plan:a/"]) == 1
        assert await store.prune(FAR, 10) == 1

    async def test_blobs_are_kept_as_long_as_a_run_refers_to_them(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        names = {data: await store.put_blob(data) for data in (b"input", b"output", b"both", b"nobody's", b"old")}
        given = _reference(names[b"input"], b"input")
        run = a_run(1, given=given)
        done = completed(held_by(a_run(2), session), _reference(names[b"output"], b"output"), now=200.0)
        both = a_run(3, given=_reference(names[b"both"], b"both"))
        old = _ended(4, 50.0, given=_reference(names[b"both"], b"both"))
        older = _ended(5, 40.0, given=_reference(names[b"old"], b"old"))
        odd = a_run(6, given={"$blob": ["no name"], "size": 1})
        await added(store, run, done, both, old, older, odd)
        assert await store.prune(100.0, 1) == 1
        assert await store.blob(names[b"both"]) == b"both"
        assert await _pruned(store, 100.0) == 1
        for data in (b"input", b"output", b"both"):
            assert await store.blob(names[data]) == data
        assert await _pruned(store, FAR) == 1
        left = {data for data, name in names.items() if await store.blob(name) is not None}
        assert left == {b"input", b"both"}
        await store.commit([after(run, transitions.cancel(run, 300.0, "ann"))])
        await store.commit([after(both, transitions.cancel(both, 300.0, "ann"))])
        assert await _pruned(store, FAR) == 2
        assert [await store.blob(name) for name in names.values()] == [None] * 5

    async def test_a_register_keeps_a_blob(self, store: Store) -> None:
        names = [await store.put_blob(data) for data in (b"kept", b"missing", b"nobody's")]
        kept, missing = (PutRegister(f"{BLOB_USES}plan/{name}", _reference(name, b"kept"), None) for name in names[:2])
        named = PutRegister("other", _reference(names[2], b"nobody's"), None)
        await store.commit([kept, named])
        assert await _pruned(store, FAR) == 0
        assert [await store.blob(name) for name in names] == [b"kept", None, None]
        assert await store.check() == []
        await store.commit([missing])
        (problem,) = await store.check()
        assert problem == f"register {missing.key} refers to blob {names[1]}, which does not exist"
        await store.commit([PutRegister(one.key, None, 1) for one in (kept, missing)])
        assert await _pruned(store, FAR) == 0
        assert await store.blob(names[0]) is None

    async def test_a_blob_of_a_run_that_is_not_written_yet_is_not_pruned(self, store: Store) -> None:
        """A blob is put before the run that refers to it is written."""
        fresh = await store.put_blob(b"fresh")
        assert await _pruned(store, store.clock() - 3600.0) == 0
        assert await store.blob(fresh) == b"fresh"

    async def test_a_blob_that_was_put_again_counts_as_new(self, store: Store) -> None:
        """The bytes may exist from an old run: putting them again makes them durable anew."""
        name = await store.put_blob(b"again")
        await added(store, _ended(1, 10.0, given=_reference(name, b"again")))
        stranger = await store.put_blob(b"not again")
        then = await _a_moment(store)
        assert await store.put_blob(b"again") == name
        assert await _pruned(store, then) == 1
        assert await store.blob(name) == b"again"
        assert await store.blob(stranger) is None

    async def test_a_blob_without_a_run_is_pruned_however_long_runs_are_kept(self, store: Store) -> None:
        """Anybody may store blobs to which no run will ever refer."""
        kept, stranger = [await store.put_blob(data) for data in (b"of a run", b"of nobody")]
        run = _ended(1, 10.0, given=_reference(kept, b"of a run"))
        await added(store, run)
        then = await _a_moment(store)
        later = await store.put_blob(b"of a run to come")
        assert await store.prune(0.0, 100, blobs_before=then) == 0
        assert [await store.blob(name) is not None for name in (kept, stranger, later)] == [True, False, True]

    async def test_a_blob_that_was_pruned_can_be_put_again(self, store: Store) -> None:
        name = await store.put_blob(b"something")
        assert await _pruned(store, FAR) == 0
        assert await store.blob(name) is None
        assert await store.put_blob(b"something") == name
        assert await store.blob(name) == b"something"

    async def test_ended_sessions_are_pruned_when_they_own_nothing(self, store: Store) -> None:
        sessions = [
            a_session("open"),
            a_session("replaced", state=REPLACED),
            a_session("ended", state=ENDED),
            a_session("owner", state=ENDED),
        ]
        await joined(store, *sessions)
        orphan = held_by(a_run(1), sessions[3])
        await added(store, orphan, completed(held_by(a_run(2), sessions[2]), now=60.0))
        assert await _pruned(store, 100.0) == 1
        assert len(await store.sessions(ended=True)) == 4  # their heartbeats are of this moment
        assert await _pruned(store, FAR) == 0
        assert {session.id for session in await store.sessions(ended=True)} == {"open", "replaced", "owner"}
        await store.commit([after(orphan, transitions.cancel(orphan, 70.0, "ann"))])
        assert {run.id for run, _ in await store.orphans(FAR, 10)} == {
            "r0001"
        }  # it was claimed: pausing it is a request, not an end

    async def test_old_notices_are_pruned_and_recent_ones_are_not(self, store: Store) -> None:
        notices = [Notice(10.0, "info", "old"), Notice(500.0, "info", "new"), Notice(20.0, "info", "gone", "r0001")]
        await added(store, _ended(1, 30.0))
        await store.commit(notices)
        assert await store.prune(100.0, 10) == 1
        assert await _pruned(store, 100.0) == 0
        assert [notice for _, notice in await store.notices()] == [notices[1]]

    async def test_registers_are_never_pruned(self, store: Store) -> None:
        await store.commit([PutRegister("a", 1, None)])
        assert await _pruned(store, FAR) == 0
        assert await store.register("a") is not None

    async def test_pruning_twice_at_once_counts_each_run_once(self, store: Store, other: Store) -> None:
        await added(store, *(_ended(number, 50.0, key=f"k{number}") for number in range(30)), a_run(40))
        counted = await asyncio.gather(*(_pruned(one, FAR, limit=7) for one in (store, other)))
        assert sum(counted) == 30
        assert ids(await store.find(Query())) == ["r0040"]
