"""A store behind PgBouncer in transaction mode, and a store without notifications: both keep every promise."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from typing import ClassVar

import pytest

from asterism.core.run.run import COMPLETED
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.store.postgres import PostgresStore, notifications
from asterism.store.postgres.connection import PooledConnection
from asterism.store.protocol import PutRun, Query, Store
from tests.laboratory.store_conformance import ProcessOpener, SharedStoreConformance
from tests.laboratory.store_conformance.sample_records import a_run, a_session, ids, joined, offer, taking
from tests.long_tests import rest_long
from tests.store import store_engines
from tests.store.pgbouncer import PgBouncer, needs_pgbouncer
from tests.store.postgres_fixtures import opened
from tests.store.postgres_server import RunningServer, Server

KITCHEN = a_session()


@pytest.fixture(scope="module")
def pooler(postgres_server: Server) -> Iterator[PgBouncer]:
    with PgBouncer(postgres_server) as pooler:
        yield pooler


def _is_pooled(store: PostgresStore) -> bool:
    return all(isinstance(connection, PooledConnection) for _, connection in store._quick._idle)


@needs_pgbouncer
async def test_many_clients_share_few_sessions_of_the_server(pooler: PgBouncer) -> None:
    url = pooler.url(schema="few_sessions")
    async with opened(url) as one, opened(url) as two:
        assert one._factory.pooled
        await joined(one, KITCHEN)
        runs = [a_run(number) for number in range(200)]
        await asyncio.gather(*((one, two)[number % 2].commit([PutRun(run, None)]) for number, run in enumerate(runs)))
        await one.commit([PutRun(a_run(number), None) for number in range(1000, 1200)])  # with COPY
        taken = await asyncio.gather(*(store.take(offer(limit=100), taking(KITCHEN)) for store in (one, two) * 2))
        assert sorted(itertools.chain.from_iterable(map(ids, taken))) == ids(await two.find(Query()))
        assert len((await two.heartbeat(KITCHEN.id, {}, ())).held) == 400
        assert _is_pooled(one)
        assert await one.check() == []
        settings = await one._quick.fetchrow("SELECT current_setting('synchronous_commit'), current_setting('jit')")
        assert tuple(settings) == ("on", "off")


@needs_pgbouncer
async def test_a_pooler_that_ignores_settings_is_recognised(postgres_server: Server) -> None:
    names = "search_path, statement_timeout, lock_timeout, idle_in_transaction_session_timeout, tcp_keepalives_idle"
    more = f"ignore_startup_parameters = {names}, default_transaction_isolation, synchronous_commit, jit"
    with PgBouncer(postgres_server, more=more) as pooler:
        async with opened(pooler.url(schema="ignored")) as store:
            assert store._factory.pooled
            await store.commit([PutRun(a_run(1), None)])
            assert ids(await store.find(Query())) == ["r0001"]


CHECKS = """
import asyncio, sys
from asterism.store.postgres import PostgresStore

async def main():
    store = await PostgresStore.open(sys.argv[1])
    assert await store.check() == []
    print(len([line async for line in store.dump()]))
    await store.close()

asyncio.run(main())
"""


@pytest.mark.long
@needs_pgbouncer
async def test_two_processes_check_and_dump_over_the_same_session(postgres_server: Server) -> None:
    """Both number the statements that they prepare from one on."""
    with PgBouncer(postgres_server, sessions=2) as pooler:
        url = pooler.url(schema="same_session")
        async with opened(url) as store:
            await store.commit([PutRun(a_run(number), None) for number in range(500)])
        for _ in range(2):
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CHECKS, url, stdout=asyncio.subprocess.PIPE
            )
            output, _errors = await child.communicate()
            assert output == b"501\n"


async def _completes(url: str) -> None:
    """A run is created by one client, executed by a device, and waited for by the first."""
    async with await Fleet.open(url) as fleet, await Fleet.open(url) as of_device:
        workflow = await fleet.workflows.add(Workflow("greet", shell="echo hello"))
        agent = asyncio.create_task(DeviceAgent(of_device, "kitchen", slots=1).run())
        for _ in range(2):
            run = await fleet.create(workflow, {})
            await fleet.wait(run.id)
            assert (await fleet.run(run.id)).status is COMPLETED
        agent.cancel()
        await asyncio.wait([agent])


@needs_pgbouncer
@pytest.mark.parametrize("mode", rest_long(["transaction", "session"], 1))
async def test_a_fleet_works_behind_a_pooler(postgres_server: Server, mode: str) -> None:
    with PgBouncer(postgres_server, mode=mode, sessions=3 if mode == "transaction" else 60) as pooler:
        await _completes(pooler.url(schema=f"fleet_{mode}"))


@pytest.mark.slow
@pytest.mark.long
async def test_nothing_rests_on_notifications(postgres_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them get lost, and nobody listens: devices and waiters look from time to time."""
    monkeypatch.setattr(notifications.NotificationSender, "send", lambda self, topics: None)
    monkeypatch.setattr(notifications.Listener, "start", lambda self: None)
    await _completes(postgres_server.url(schema="silent_fleet"))


@needs_pgbouncer
@pytest.mark.long
class TestPgBouncer(SharedStoreConformance):
    """The conformance suite behind PgBouncer."""

    has_feed = False
    _numbers: ClassVar = itertools.count()

    @pytest.fixture(autouse=True)
    def _behind_a_pooler(self, pooler: PgBouncer) -> None:
        self._server: RunningServer = pooler
        self._opened: dict[int, str] = {}

    async def open_store(self) -> Store:
        url = self._server.url(schema=f"pooled_{next(self._numbers)}")
        store = await store_engines.open_postgres(url)
        self._opened[id(store)] = url
        return store

    async def open_another(self, store: Store) -> Store:
        return await store_engines.open_postgres(self._opened[id(store)])

    async def process_opener(self, store: Store) -> ProcessOpener:
        return ProcessOpener("tests.store.store_engines:open_postgres", self._opened[id(store)])
