"""Tests of logs: what attempts print is written with heartbeats and commits, read in order, pruned with its run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from asterism.store.memory import MemoryStore
from asterism.store.protocol import (
    HeartbeatReply,
    Notice,
    ProgressReport,
    PutLog,
    PutRegister,
    PutRun,
    Store,
    StoredChunk,
)
from asterism.store.store_errors import StoreCorrupt
from asterism.testing.conformance import StoreTests
from asterism.testing.store_conformance.sample_records import (
    FAR,
    a_run,
    a_session,
    added,
    after,
    completed,
    conflict,
    held_by,
    joined,
    lines_of,
    raising,
    started,
)


def a_chunk(epoch: int, first: int, *lines: str) -> StoredChunk:
    return StoredChunk(epoch, first, len(lines), [[1.5, "stdout", "\n".join(lines)]])


def put(run: str, *chunks: StoredChunk, drop: tuple[int, int] | None = None) -> PutLog:
    return PutLog(run, chunks[0].epoch, chunks, drop)


ODD = "nul \0, escape \x1b[2J, half a pair \udc80, grün 😀, \u2028 and \\u0000"


class LogTests(StoreTests):
    """Tests of ``PutLog`` and ``log``."""

    async def test_chunks_come_back_in_order_and_from_a_line_on(self, store: Store, other: Store) -> None:
        await added(store, a_run(1), a_run(2))
        run = a_run(1).id
        one, two, three = a_chunk(1, 1, "a", "b"), a_chunk(1, 3, ODD), a_chunk(2, 1, "again", "")
        await store.commit([put(run, two)])
        await store.commit([put(run, three), Notice(1.0, "failed", "noted")])
        await store.commit([put(run, one)])
        assert await other.log(run) == [one, two, three]
        assert await other.log(run, after=(1, 1)) == [one, two, three]
        assert await other.log(run, after=(1, 2)) == [two, three]
        assert await other.log(run, after=(1, 3)) == [three]
        assert await other.log(run, after=(2, 2)) == []
        assert await other.log(a_run(2).id) == []
        assert await other.log("nobody\0") == []
        assert await store.check() == []

    async def test_writing_twice_changes_nothing_and_a_chunk_may_grow(self, store: Store) -> None:
        await added(store, a_run(1))
        run = a_run(1).id
        for write in (put(run, a_chunk(1, 1, "a")), put(run, a_chunk(1, 1, "a")), put(run, a_chunk(1, 1, "a", "b"))):
            await store.commit([write])
        assert await store.log(run) == [a_chunk(1, 1, "a", "b")]

    async def test_dropped_chunks_are_gone_and_no_others(self, store: Store) -> None:
        await added(store, a_run(1), a_run(2))
        run, neighbour = a_run(1).id, a_run(2).id
        chunks = [a_chunk(1, first, str(first)) for first in range(1, 7)]
        await store.commit([put(run, *chunks), put(run, a_chunk(2, 3, "x")), put(neighbour, a_chunk(1, 3, "y"))])
        await store.commit([put(run, a_chunk(1, 7, "new"), drop=(2, 5))])
        assert [(chunk.epoch, chunk.first) for chunk in await store.log(run)] == [
            (1, 1),
            (1, 5),
            (1, 6),
            (1, 7),
            (2, 3),
        ]
        assert len(await store.log(neighbour)) == 1

    async def test_a_log_is_part_of_its_commit(self, store: Store) -> None:
        session = a_session()
        working = started(held_by(a_run(1), session))
        await joined(store, session)
        await added(store, working)
        done = completed(working, "done")
        with conflict(f"run {working.id}"):
            await store.commit([PutRun(done, working.revision + 5), put(working.id, a_chunk(1, 1, "lost"))])
        assert await store.log(working.id) == []
        await store.commit([after(working, done), put(working.id, a_chunk(1, 1, "kept"))])
        assert await store.log(working.id) == [a_chunk(1, 1, "kept")]
        assert await store.run(working.id) == done

    async def test_the_log_of_a_run_that_does_not_exist_is_refused(self, store: Store) -> None:
        await added(store, a_run(1))
        with conflict(f"run {a_run(2).id}"):
            await store.commit([put(a_run(1).id, a_chunk(1, 1, "a")), put(a_run(2).id, a_chunk(1, 1, "b"))])
        assert await store.log(a_run(1).id) == []
        await store.commit([PutRun(a_run(3), None), put(a_run(3).id, a_chunk(1, 1, "new"))])
        assert await store.log(a_run(3).id) == [a_chunk(1, 1, "new")]
        with raising(ValueError):
            await store.commit([put(a_run(1).id, a_chunk(1, 1, "a")), put(a_run(1).id, a_chunk(1, 2, "b"))])

    async def test_a_heartbeat_writes_the_logs_of_what_its_session_owns(self, store: Store) -> None:
        session, another = a_session(), a_session("garage-1", "garage")
        await joined(store, session, another)
        mine, theirs = started(held_by(a_run(1), session)), started(held_by(a_run(2), another))
        await added(store, mine, theirs)

        def report(run: str, epoch: int, *chunks: StoredChunk, **more: Any) -> ProgressReport:
            return ProgressReport(run, epoch, None, "", put(run, *chunks, **more))

        await store.heartbeat(
            session.id,
            {},
            [
                report(mine.id, 1, a_chunk(1, 1, ODD), a_chunk(1, 2, "b")),
                report(theirs.id, 1, a_chunk(1, 1, "not mine")),
            ],
        )
        await store.heartbeat(session.id, {}, [report(mine.id, 1, a_chunk(1, 3, "c"), drop=(2, 3))])
        await store.heartbeat(session.id, {}, [report(mine.id, 9, a_chunk(9, 1, "an old grant"))])
        assert not (await store.heartbeat("gone", {}, [report(mine.id, 1, a_chunk(1, 9, "a dead session"))])).alive
        assert await store.log(mine.id) == [a_chunk(1, 1, ODD), a_chunk(1, 3, "c")]
        assert await store.log(theirs.id) == []
        assert (await store.reports([mine.id]))[mine.id] == ProgressReport(mine.id, 1, None, "")

    async def test_a_log_that_cannot_be_stored_fails_its_heartbeat_and_no_other_write(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        mine = started(held_by(a_run(1), session))
        await added(store, mine)
        for number in range(3):  # also while commits are in groups
            report = ProgressReport(mine.id, 1, None, "", put(mine.id, a_chunk(1, 1, "a"), a_chunk(1, 10**30, "b")))
            refused, *outcomes = await asyncio.gather(
                store.heartbeat(session.id, {}, [report]),
                *(store.commit([PutRegister(f"{number}/{place}", 1, None)]) for place in range(4)),
                store.heartbeat(session.id, {"load": number}, []),
                return_exceptions=True,
            )
            assert isinstance(refused, ValueError | OverflowError | HeartbeatReply), refused
            assert outcomes[:4] == [None] * 4
            assert isinstance(outcomes[4], HeartbeatReply), outcomes[4]
            assert len(await store.registers(f"{number}/")) == 4
            chunks = [chunk.first for chunk in await store.log(mine.id)]
            assert chunks == ([1, 10**30] if isinstance(refused, HeartbeatReply) else [])

    async def test_a_log_is_pruned_with_its_run_and_its_blobs_after_it(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        old = completed(started(held_by(a_run(1), session)))
        await added(store, old, a_run(2))
        blobs = {run: await store.put_blob(f"large {run}".encode()) for run in (old.id, a_run(2).id)}
        for run, name in blobs.items():
            await store.commit([put(run, StoredChunk(1, 1, 9, {"$blob": name, "size": 7}))])
        assert await store.check() == []
        while await store.prune(FAR, 100):
            pass
        assert await store.log(old.id) == []
        assert len(await store.log(a_run(2).id)) == 1
        assert await store.blob(blobs[old.id]) is None
        assert await store.blob(blobs[a_run(2).id]) is not None
        assert await store.check() == []

    async def test_logs_are_part_of_a_backup(self, store: Store) -> None:
        await added(store, a_run(1))
        run = a_run(1).id
        blob = await store.put_blob(b'[[1.0, "stdout", "large"]]')
        chunks = [a_chunk(1, 1, "a", ODD), StoredChunk(2, 1, 1, {"$blob": blob, "size": 26})]
        for chunk in chunks:
            await store.commit([put(run, chunk)])
        dumped = [json.loads(json.dumps(line)) async for line in store.dump()]
        copy = MemoryStore()
        await copy.load(lines_of(dumped))
        assert await copy.log(run) == chunks
        assert await copy.blob(blob) is not None
        assert await copy.check() == []
        back = await self.open_store()
        try:
            await back.load(copy.dump())
            assert await back.log(run) == chunks
            assert await back.check() == []
        finally:
            await back.close()
        with raising(StoreCorrupt):
            await MemoryStore().load(lines_of([line for line in dumped if "run" not in line]))
