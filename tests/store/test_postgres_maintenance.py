"""Maintenance in PostgreSQL: the dump, the integrity check, and retention."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from asterism.core.run.session import ENDED
from asterism.store.postgres.connection import ConnectionFactory
from asterism.store.postgres.store import PostgresStore
from asterism.store.protocol import ChangeFeed, Notice, ProgressReport, PutRegister, PutRun, PutSession, Query
from tests.laboratory.store_conformance.sample_records import (
    FAR,
    a_run,
    a_session,
    added,
    completed,
    contents,
    held_by,
    ids,
    joined,
    lines_of,
    session_in,
    started,
)
from tests.long_tests import rest_long
from tests.store.postgres_fixtures import looking, opened, without_definitions
from tests.store.postgres_server import Server

KITCHEN = a_session()


async def test_a_dump_is_of_one_instant_however_slowly_it_is_read(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await added(store, *(a_run(number) for number in range(500)))
        await store.commit([PutRegister("state", "before", None)])
        lines: list[Mapping[str, Any]] = []
        async for line in store.dump():
            if len(lines) == 3:
                await store.commit([PutRun(a_run(9999), None), PutRegister("state", "after", 1)])
            lines.append(line)
        runs = [line["run"][0] for line in lines if "run" in line]
        assert runs == [f"r{number:04d}" for number in range(500)]
        assert [line["register"]["value"] for line in lines if "register" in line] == ["before"]


async def test_an_unfinished_dump_blocks_nothing(postgres_url: str) -> None:
    async with opened(postgres_url, connections=2) as store:
        await added(store, *(a_run(number) for number in range(500)))
        for _ in range(3):
            lines = store.dump()
            await anext(lines)
            await anext(lines)
            await lines.aclose()  # type: ignore[attr-defined]
        assert len(await store.find(Query())) == 500


async def test_a_dump_can_be_loaded_into_another_schema(postgres_url: str, postgres_server: Server) -> None:
    async with opened(postgres_url) as store, opened(postgres_server.url(schema="restored")) as other:
        await added(store, *(a_run(number, input={"text": "\0 \ud83d ü"}) for number in range(1200)))
        blob = await store.put_blob(b"\0" * 100_000)
        await added(store, a_run("with-blob", input={"$blob": blob, "size": 100_000}))
        lines = [line async for line in store.dump()]
        assert await other.load(lines_of(lines)) == 1201
        assert (await contents(other)).comparable() == (await contents(store)).comparable()
        assert await other.blob(blob) == b"\0" * 100_000
        assert await other.check() == []


DAMAGE = [
    ("UPDATE runs SET state = '{' WHERE id = 'r0001'", "run r0001 cannot be read"),
    ("UPDATE runs SET session = 'who' WHERE id = 'r0002'", "run r0002 belongs to session who, which does not exist"),
    ("UPDATE sessions SET terms = '[]'", "session kitchen-1 cannot be read"),
    ("UPDATE registers SET value = '{'", "register a cannot be read"),
    ("UPDATE notices SET notice = '{}'", "notice 1 cannot be read"),
    ("DELETE FROM blobs", "run r0001 refers to blob "),
    ("UPDATE runs SET status = 'lost' WHERE id = 'r0001'", "run r0001 cannot be read"),
    ("UPDATE runs SET session = NULL WHERE id = 'r0002'", "run r0002 is claimed, but its owner is missing"),
    ("UPDATE runs SET offered = 1 WHERE id = 'r0002'", "run r0002 is offered, but should not be"),
    ("UPDATE runs SET ended_at = NULL WHERE id = 'r0003'", "run r0003 is completed, but has no end time"),
    ("UPDATE runs SET ended_at = 5 WHERE id = 'r0001'", "run r0001 is created, but has an end time"),
    ("UPDATE blobs SET data = 'other'", "does not match its name"),
]


@pytest.mark.parametrize(("damage", "message"), rest_long(DAMAGE, 6))
async def test_damage_is_found(postgres_url: str, damage: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_definitions(monkeypatch)
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        blob = await store.put_blob(b"something")
        await joined(store, KITCHEN)
        await added(
            store,
            a_run(1, input={"$blob": blob, "size": 9}),
            held_by(a_run(2), KITCHEN),
            completed(held_by(a_run(3), KITCHEN)),
        )
        await store.commit([PutRegister("a", 1, None), Notice(1.0, "kind", "message")])
        assert await store.check() == []
        await other.execute(damage)
        [problem] = await store.check()
        assert message in problem


async def test_unsafe_server_settings_are_reported() -> None:
    with Server({"full_page_writes": "off", "fsync": "off"}) as server:
        async with opened(server.url()) as store:
            problems = await store.check()
            assert [problem.split(":")[0] for problem in problems] == [
                "the server runs with fsync = off",
                "the server runs with full_page_writes = off",
            ]


async def test_a_commit_is_durable_even_if_the_servers_default_is_not(postgres_server: Server) -> None:
    postgres_server.sql("CREATE DATABASE careless")
    postgres_server.sql("ALTER DATABASE careless SET synchronous_commit = off")
    postgres_server.sql("ALTER DATABASE careless SET default_transaction_isolation = 'serializable'")
    async with opened(postgres_server.url("careless")) as store, store._quick.borrowed() as connection:
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
        assert await connection.fetchval("SHOW transaction_isolation") == "read committed"


async def test_a_blob_that_was_put_a_moment_ago_is_not_pruned(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        name = await store.put_blob(b"something")
        before = store.clock() - 3600.0
        assert await store.prune(before, 100) == 0
        assert await store.blob(name) == b"something"
        await added(store, a_run(1, input={"$blob": name, "size": 9}))
        await store.prune(FAR, 100)
        assert await store.blob(name) == b"something"  # a run refers to it


async def test_a_blob_is_pruned_with_the_last_run_that_refers_to_it(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN)
        name = hashlib.sha256(b"something").hexdigest()
        assert await store.put_blob(b"something") == name
        output = {"$blob": name, "size": 9}
        run = started(held_by(a_run(1), KITCHEN))
        await added(store, run, completed(held_by(a_run(2, input=output), KITCHEN), now=100.0))
        await store.commit([PutRun(completed(run, output, now=200.0), run.revision)])
        assert await store.prune(150.0, 100) == 1
        assert await store.prune(150.0, 100) == 0
        assert await store.blob(name) is not None
        assert await store.prune(FAR, 100) == 1
        assert await store.prune(FAR, 100) == 0
        assert await store.blob(name) is None
        assert await other.fetchval("SELECT count(*) FROM blob_uses") == 0


async def test_two_concurrent_prunes_share_the_work(postgres_url: str) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        await joined(store, KITCHEN)
        await added(store, *(completed(held_by(a_run(number), KITCHEN)) for number in range(50)))
        numbers = await asyncio.gather(*(engine.prune(FAR, 10) for engine in (store, other, store, other)))
        assert sum(numbers) + len(await store.find(Query())) == 50
        while await store.prune(FAR, 10):
            pass
        assert ids(await store.find(Query())) == []


async def test_a_limit_bounds_how_many_are_pruned_whatever_plan_the_server_makes(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that evaluates the subquery again for each run would delete more runs each time."""
    usual = ConnectionFactory._limits
    poor = dict.fromkeys((f"enable_{way}" for way in ("hashjoin", "mergejoin", "hashagg", "material", "sort")), "off")
    monkeypatch.setattr(ConnectionFactory, "_limits", lambda self: usual(self) | poor)
    async with opened(postgres_url) as store:
        await joined(store, KITCHEN)
        await added(store, *(completed(held_by(a_run(number), KITCHEN)) for number in range(10)))
        assert [await store.prune(FAR, 4) for _ in range(4)] == [4, 4, 2, 0]


async def test_reports_of_an_ended_session_are_deleted_with_it(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN)
        run = started(held_by(a_run(1), KITCHEN))
        await added(store, run)
        await store.heartbeat(KITCHEN.id, {}, [ProgressReport(run.id, run.epoch, None, "half-way")])
        known = await session_in(store, KITCHEN.id)
        await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        await store.prune(FAR, 100)
        assert await other.fetchval("SELECT count(*) FROM reports") == 1  # the session still owns the run
        await store.commit([PutRun(completed(run), run.revision)])
        while await store.prune(FAR, 100):
            pass
        await store.prune(FAR, 100)
        assert await store.sessions(ended=True) == []
        assert await other.fetchval("SELECT count(*) FROM reports") == 0


def test_every_read_of_the_change_feed_has_an_answer() -> None:
    asked = [name for name, member in vars(ChangeFeed).items() if callable(member) and not name.startswith("_")]
    for name in asked:
        here, meant = inspect.signature(getattr(PostgresStore, name)), inspect.signature(getattr(ChangeFeed, name))
        assert list(here.parameters) == list(meant.parameters), name
