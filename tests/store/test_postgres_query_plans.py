"""Query plans: frequent statements use indexes, and ended runs cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asterism.core.run.run import ASSIGNED, CLAIMED, CREATED
from asterism.store.postgres import PostgresStore
from asterism.store.postgres.schema import statements
from asterism.store.protocol import ExpectSession, ProgressReport, PutRegister, PutRun, Query
from tests.laboratory.store_conformance.sample_records import (
    a_run,
    a_session,
    added,
    completed,
    held_by,
    joined,
    offer,
    started,
    taking,
)
from tests.store.postgres_fixtures import looking, opened

KITCHEN = a_session()
LARGE = ("runs", "sessions", "registers", "reports", "blobs", "blob_uses", "notices")


async def _settle(store: PostgresStore) -> None:
    """Make every connection of the store flush its statistics."""
    for pool in (store._quick, store._broad):
        flush = "SELECT pg_stat_force_next_flush()"
        # all at once, so that each call has its own connection
        await asyncio.gather(*(pool.fetchrow(flush) for _ in list(pool._idle)))


async def test_frequent_statements_never_read_a_whole_table(postgres_url: str) -> None:
    """Also with plans that were made when the tables were empty."""
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        scans = "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE relid = ANY ($1::regclass[]) AND seq_scan > 0"
        await store.check()  # which reads whole tables
        await _settle(store)
        before = {tuple(row) for row in await other.fetch(scans, LARGE)}
        for round_ in range(3):
            name = f"session-{round_}"
            session = a_session(name)
            await joined(store, session)
            runs = [a_run(f"{round_}-{number}", key=f"{round_}-{number}") for number in range(200)]
            await asyncio.gather(*(store.commit([PutRun(run, None)]) for run in runs))
            taken = await store.take(offer(limit=50), taking(session))
            reports = [ProgressReport(run.id, run.epoch, None, "half-way") for run in taken]
            await store.heartbeat(name, {}, reports)
            await store.reports([run.id for run in taken])
            output = {"$blob": await store.put_blob(name.encode()), "size": len(name)}
            await asyncio.gather(
                *(store.commit([PutRun(completed(started(run), output), run.revision)]) for run in taken[:40]),
                return_exceptions=True,
            )
            ends = [completed(run, output).changed(revision=run.revision + 1) for run in taken[40:]]
            await store.commit([PutRun(run, run.revision - 1) for run in ends])
            await store.commit([PutRegister(name, 1, None), ExpectSession(name, 2)])
            await store.register(name)
            await store.registers("session-")
            await store.run(taken[0].id)
            await store.notices()
            await store.blob(output["$blob"])
        await _settle(store)
        assert {tuple(row) for row in await other.fetch(scans, LARGE)} == before


@pytest.mark.long
async def test_ended_runs_cost_nothing(postgres_url: str) -> None:
    """Reads of a monitor and of a live table read only open runs, however many have ended."""
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN)
        await added(store, *(a_run(f"o{number}").changed(avoid=("x",)) for number in range(20)))
        await added(store, *(held_by(a_run(f"h{number}"), KITCHEN) for number in range(20)))
        for start in range(0, 5000, 1000):
            ended = (a_run(number, series="old", key=f"{number}") for number in range(start, start + 1000))
            await added(store, *(completed(held_by(run, KITCHEN)) for run in ended))
        await other.execute("ANALYZE runs")
        asks: dict[str, Callable[[], Awaitable[Any]]] = {
            "overdue": lambda: store.find(Query(statuses=frozenset({ASSIGNED, CLAIMED}), due_before=1e9, limit=100)),
            "created": lambda: store.find(Query(statuses=frozenset({CREATED}), limit=100)),
            "offered": lambda: store.find(Query(offered=True, limit=100)),
            "avoiding": lambda: store.find(Query(offered=True, avoiding=True, limit=100)),
            "waiting": lambda: store.find(Query(workflow="transcode", offered=True, waiting_before=1e9, limit=100)),
            "of a session": lambda: store.find(Query(session=KITCHEN.id)),
            "by key": lambda: store.find(Query(key="no such key")),
            "orphans": lambda: store.orphans(1e12, 100),
            "kinds": lambda: store.waiting(),
            "sessions": lambda: store.sessions(),
            "old ones": lambda: store.prune(0.0, 100),
        }
        for name, ask in asks.items():
            await _settle(store)
            before = await other.fetchval(_READ)
            await ask()
            await _settle(store)
            assert await other.fetchval(_READ) - before <= 200, name


@pytest.mark.long
async def test_a_removal_reads_the_runs_by_their_end_or_key_and_the_head_of_each(postgres_url: str) -> None:
    """The planner took a comparison with the names of 10,000 plans for one that no run passes: it read and sorted
    all."""
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        for start in range(0, 5000, 1000):
            runs = (a_run(number, key=f"plan:{number}/x/1") for number in range(start, start + 1000))
            await added(store, *(completed(held_by(run, KITCHEN)) for run in runs))
        await store.commit([PutRegister(f"plan/{number}", {}, None) for number in range(5000)])
        await other.execute("ANALYZE")
        for name, index, prefix in (("prune_runs", "runs_by_end", []), ("prune_runs_of", "runs_by_key", ["plan:7/"])):
            steps = [row[0] for row in await other.fetch(f"EXPLAIN {statements()[name]}", 1e12, 50, *prefix)]
            assert any(f"Index Scan using {index} " in step for step in steps), steps
            assert any("Index Scan using registers_pkey" in step for step in steps), steps


_READ = """
SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables WHERE relid = 'runs'::regclass
"""


async def test_sessions_are_read_by_index_without_statistics(postgres_url: str) -> None:
    """A table that was filled a moment ago is not analyzed yet."""
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN)
        await added(store, *(held_by(a_run(f"h{number}"), KITCHEN) for number in range(20)))
        await store.commit([PutRun(a_run(number), None) for number in range(5000)])
        await _settle(store)
        before = await other.fetchval(_READ)
        assert [session.used for session in await store.sessions()] == [20]
        await _settle(store)
        assert await other.fetchval(_READ) - before <= 200


async def test_starting_a_run_and_a_heartbeat_touch_no_index(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN)
        runs = [held_by(a_run(number), KITCHEN) for number in range(3)]  # their updates fit on their page
        await added(store, *runs)
        await asyncio.gather(*(store.commit([PutRun(started(run), run.revision)]) for run in runs))
        for _ in range(20):
            await store.heartbeat(KITCHEN.id, {}, ())
        await _settle(store)
        updates = "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = ANY ($1::regclass[])"
        counts = {row[0]: (row[1], row[2]) for row in await other.fetch(updates, ("runs", "sessions"))}
        assert counts == {"runs": (3, 3), "sessions": (20, 20)}
