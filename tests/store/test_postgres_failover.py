"""Failover: a server is killed during commits, its standby is promoted, and the same store continues."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from asterism.store.postgres import PostgresStore
from asterism.store.protocol import PutRun, Query
from asterism.store.store_errors import StoreReadOnly, StoreUnavailable
from asterism.testing.store_conformance.sample_records import a_run, added
from tests.store.postgres_fixtures import opened
from tests.store.postgres_server import Server


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A server, and a synchronous standby."""
    with Server() as primary, Server(standby_of=primary) as standby:
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.sql("SELECT pg_reload_conf()")
        while primary.sql("SELECT sync_state FROM pg_stat_replication").strip() != "sync":
            pass
        yield primary, standby


def _url(*servers: Server) -> str:
    return f"postgresql://postgres@/postgres?host={','.join(str(server.folder) for server in servers)}"


async def test_a_store_is_not_opened_on_a_standby(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    async with opened(_url(primary)) as store:
        await added(store, a_run(1))
    with pytest.raises(StoreReadOnly, match="the server is a standby"):
        await PostgresStore.open(_url(standby))
    with pytest.raises(StoreReadOnly, match="the server is a standby"):
        await PostgresStore.open(_url(standby) + "&target_session_attrs=any")


async def test_a_failover_in_the_middle_of_commits_loses_nothing_that_was_acknowledged(
    pair: tuple[Server, Server],
) -> None:
    primary, standby = pair
    # the standby is named first: it is tried, and passed over
    async with opened(_url(standby, primary), schema="failover") as store:
        acknowledged: set[str] = set()
        enough = asyncio.Event()

        async def write(writer: int) -> None:
            for number in itertools.count():
                run = a_run(f"w{writer}-{number}")
                try:
                    await store.commit([PutRun(run, None)])
                except StoreUnavailable:
                    return
                acknowledged.add(run.id)
                if len(acknowledged) == 100:
                    enough.set()

        writers = [asyncio.create_task(write(writer)) for writer in range(4)]
        await enough.wait()
        await asyncio.to_thread(primary.kill)
        await asyncio.gather(*writers)
        with pytest.raises(StoreUnavailable):  # the standby does not take writes yet
            await store.commit([PutRun(a_run("between"), None)])
        with pytest.raises(StoreUnavailable):
            await PostgresStore.open(_url(primary, standby))
        await asyncio.to_thread(standby.promote)
        await store.commit([PutRun(a_run("after"), None)])
        found = {run.id for run in await store.find(Query())}
        assert acknowledged <= found
        assert len(found - acknowledged) <= 5
        assert await store.check() == []
