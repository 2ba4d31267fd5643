"""How tests and their processes open each engine; and engines that break a promise, for the suite to notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asterism.core.record import replace
from asterism.core.run.run import Run
from asterism.store.memory import MemoryStore
from asterism.store.protocol import (
    ExpectRegister,
    ExpectSession,
    HeartbeatReply,
    ProgressReport,
    PutRegister,
    PutRun,
    Query,
    Store,
    TakeRequest,
    Watch,
    Write,
)
from asterism.store.store_errors import Conflict


async def open_sqlite(path: str) -> Store:
    from asterism.store.sqlite import SqliteStore

    # by default an unreferenced blob is kept for an hour, and no test lasts that long
    return await SqliteStore.open(path, blob_age=0.0, busy_timeout=120.0)


async def open_postgres(url: str) -> Store:
    """Open a store; ``url`` names the schema too. The long timeout makes no wait longer."""
    from asterism.store.postgres.store import PostgresStore

    return await PostgresStore.open(url, timeout=120.0)


async def empty_postgres(server: str, schema: str) -> None:
    """Empty all tables and count from 1 again, which is faster than creating them again."""
    import asyncpg

    connection = await asyncpg.connect(server, server_settings={"search_path": schema})  # for triggers
    try:
        if await connection.fetchval("SELECT to_regclass('migrations')") is None:
            return
        if not _EMPTYING:  # the schemas are all alike
            tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
            sequences = await connection.fetch("SELECT sequencename FROM pg_sequences WHERE schemaname = $1", schema)
            _EMPTYING.extend(f"DELETE FROM {table}" for (table,) in tables if table != "migrations")
            _EMPTYING.extend(f"SELECT setval('{sequence}', 1, false)" for (sequence,) in sequences)
        await connection.execute("; ".join(_EMPTYING))
    finally:
        await connection.close()


_EMPTYING: list[str] = []


class OneByOne(MemoryStore):
    """Performs the writes of a batch one by one, and stops at a conflict."""

    async def commit(self, writes: Sequence[Write]) -> None:
        for write in writes:
            await super().commit([write])


class Trusting(MemoryStore):
    """Overwrites a register without comparing revisions."""

    async def commit(self, writes: Sequence[Write]) -> None:
        await asyncio.sleep(0)
        known = {write.key: await self.register(write.key) for write in writes if isinstance(write, PutRegister)}
        now = {key: register.revision if register else None for key, register in known.items()}
        await super().commit(
            [replace(write, expected=now[write.key]) if isinstance(write, PutRegister) else write for write in writes]
        )


class Hasty(MemoryStore):
    """Ignores ExpectSession."""

    async def commit(self, writes: Sequence[Write]) -> None:
        await super().commit([write for write in writes if not isinstance(write, ExpectSession)])


class Unmindful(MemoryStore):
    """Ignores ExpectRegister."""

    async def commit(self, writes: Sequence[Write]) -> None:
        await super().commit([write for write in writes if not isinstance(write, ExpectRegister)])


class Generous(MemoryStore):
    """Lets two concurrent takes take the same run."""

    async def take(self, offer: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        taken = [step(run) for run in await self.find(Query(offered=True, limit=offer.limit))]
        await asyncio.sleep(0)
        for run in taken:
            try:
                await self.commit([PutRun(run, run.revision - 1)] if run is not None else [])
            except Conflict:
                continue
        return [run for run in taken if run is not None]


class Credulous(MemoryStore):
    """Accepts reports of any epoch."""

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        epochs = {run.id: run.epoch for run in await self.find(Query())}
        current = [report._replace(epoch=epochs.get(report.run, 0)) for report in reports]
        return await super().heartbeat(session, profile, current)


class Sleepy(MemoryStore):
    """Wakes no watch."""

    def watch(self, topics: frozenset[str]) -> Watch:
        return super().watch(frozenset())


class Greedy(MemoryStore):
    """Prunes unreferenced blobs that were put a moment ago."""

    async def prune(self, ended_before: float, limit: int, **more: Any) -> int:
        return await super().prune(1e12, limit, **more)


class Slow(MemoryStore):
    """Dumps more than one instant."""

    async def dump(self) -> Any:
        yield {"asterism": "store", "version": 2}
        for register in await self.registers(""):
            yield {"register": register._asdict()}
        async for line in super().dump():
            if "run" in line:
                yield line


BROKEN: list[tuple[type[MemoryStore], str]] = [
    (OneByOne, "test_one_conflict_anywhere_in_a_batch_undoes_all_of_it"),
    (OneByOne, "test_a_batch_that_names_a_record_twice_is_refused"),
    (Trusting, "test_a_register_counts_its_changes"),
    (Trusting, "test_fifty_increments_of_one_register_lose_nothing"),
    (Unmindful, "test_an_expected_register_was_not_changed_since"),
    (Hasty, "test_an_expected_session_has_sent_no_heartbeat_since"),
    (Hasty, "test_a_run_named_in_a_reply_is_not_taken_away_on_older_knowledge"),
    (Generous, "test_takes_at_the_same_time_never_get_the_same_run"),
    (Generous, "test_any_sequence_has_the_same_effect_on_the_engine_as_on_the_reference"),
    (Credulous, "test_a_report_of_another_epoch_or_about_anothers_run_is_dropped"),
    (Credulous, "test_any_sequence_has_the_same_effect_on_the_engine_as_on_the_reference"),
    (Greedy, "test_a_blob_of_a_run_that_is_not_written_yet_is_not_pruned"),
    (Slow, "test_a_backup_is_of_one_instant_while_others_write"),
]
"""Engines, each with a test that has to fail. Sleepy fails only after a long wait, and has a test of its own."""
