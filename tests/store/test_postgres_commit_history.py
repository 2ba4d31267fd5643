"""What a process says of a server that may lack commits, and connections that it does not trust."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from asterism.store.postgres import PostgresStore, connection
from asterism.store.postgres.commit_history import CommitHistory
from asterism.store.postgres.connection import PooledConnection
from asterism.store.store_errors import StoreBusy, StoreCorrupt, StoreError, StoreUnavailable
from tests.laboratory.store_conformance.sample_records import a_run, added
from tests.store.postgres_fixtures import looking, opened
from tests.store.postgres_server import Server


class ServerWithAnswers:
    """Answers verifications in turn, and counts notices."""

    def __init__(self, *answers: tuple[int, str, bool, int]) -> None:
        self._answers: Iterator[tuple[int, str, bool, int]] = iter(answers)
        self.notices: list[str] = []

    async def fetchrow(self, *_: object) -> tuple[int, str, bool, int]:
        await asyncio.sleep(0)
        return next(self._answers)

    async def fetchval(self, _: str) -> float:
        await asyncio.sleep(0)
        return 1.0

    async def execute(self, _: str, rows: str) -> None:
        await asyncio.sleep(0)
        self.notices.append(rows)


async def _history(server: ServerWithAnswers) -> CommitHistory:
    history = CommitHistory("the store")
    await history.verify(server)
    history.acknowledged(100, 7, "00000001")
    return history


FIRST = (1, "00000001", False, 0)


@pytest.mark.parametrize(
    ("timeline", "knows_its_beginning", "words"),
    [
        ("00000002", True, "it has all that this process saw committed"),
        ("00000003", True, "whether it has all that this process saw committed cannot be told"),
        ("00000002", False, "whether it has all that this process saw committed cannot be told"),
    ],
    ids=["one failover", "two failovers", "restarted since"],
)
async def test_a_process_says_only_what_it_knows_of_the_server_that_took_over(
    caplog: pytest.LogCaptureFixture, timeline: str, knows_its_beginning: bool, words: str
) -> None:
    server = ServerWithAnswers(FIRST, (1, timeline, knows_its_beginning, 0))
    await (await _history(server)).verify(server)
    assert caplog.messages == [f"the store: another server has taken over; {words}"]


async def test_another_cluster_is_named_as_such() -> None:
    server = ServerWithAnswers(FIRST, (2, "00000001", False, 1))
    history = await _history(server)
    with pytest.raises(StoreCorrupt, match="another database cluster; restart the processes if that was meant"):
        await history.verify(server)


async def test_verifications_at_the_same_time_leave_one_notice() -> None:
    server = ServerWithAnswers(FIRST, *[(1, "00000002", True, 1)] * 3)
    history = await _history(server)
    outcomes = await asyncio.gather(*(history.verify(server) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreCorrupt] * 3
    assert len(server.notices) == 1


async def test_a_commit_on_another_timeline_is_a_reason_to_ask() -> None:
    history = await _history(ServerWithAnswers(FIRST))
    assert not history.in_doubt
    history.acknowledged(50, 8, "00000002")
    assert history.in_doubt


# -- connections -------------------------------------------------------------------------------------------------------


async def test_a_new_connection_asks_the_server_about_no_type(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver asks when it meets an array other than ``text[]``. That takes longer than to connect."""
    async with opened(postgres_url) as store:
        await added(store, a_run(1))

        async def refused(*_: object) -> None:
            pytest.fail("the driver asks about types")

        monkeypatch.setattr(asyncpg.Connection, "_introspect_types", refused)
        store._quick._close_idle(0.0)
        assert await store.run("r0001") is not None


@contextlib.asynccontextmanager
async def _open_store(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    async with opened(url, **options) as store:
        await added(store, a_run(1))
        await store._sender.close()
        yield store


async def test_a_connection_that_could_not_be_verified_is_not_used(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _open_store(postgres_url) as store:
        store._quick._close_idle(0.0)

        async def cancelled(self: CommitHistory, connection: object) -> None:
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")

        with monkeypatch.context() as patch:
            patch.setattr(CommitHistory, "verify", cancelled)
            with pytest.raises(StoreBusy):
                await store.run("r0001")
        assert store._quick._idle == []
        assert await store.run("r0001") is not None


async def test_a_cancelled_statement_has_an_unknown_outcome(postgres_url: str) -> None:
    async with _open_store(postgres_url) as store, looking(postgres_url) as server:
        sleeping = asyncio.create_task(store._quick.fetch("SELECT pg_sleep(100)"))
        while not await server.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND application_name = 'asterism'"
        ):
            pass
        assert not store._factory.history.in_doubt
        sleeping.cancel()
        await asyncio.wait([sleeping])
        assert store._factory.history.in_doubt
        assert await store.run("r0001") is not None
        assert not store._factory.history.in_doubt


async def test_only_a_cancelled_wait_for_the_standby_makes_a_commit_uncertain(postgres_url: str) -> None:
    async with _open_store(postgres_url) as store:
        await store._quick.fetch("DO $$ BEGIN RAISE WARNING 'database must be vacuumed soon'; END $$")
        with contextlib.suppress(ValueError):
            async with store._quick.borrowed() as lent:
                store._quick._unsure.add(lent)
                raise ValueError("of the caller")
        assert store._quick._unsure == set()
        assert await store.run("r0001") is not None


async def test_waiting_for_a_connection_and_its_verification_have_a_limit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _open_store(postgres_url, connections=1) as store:
        usual = store._factory.timeout
        async with store._quick.borrowed(whole=False):
            store._factory.timeout = 0.01
            with pytest.raises(StoreBusy, match="all connections of this process are in use"):
                await store.run("r0001")

        async def endless(self: CommitHistory, connection: Any) -> None:
            await connection.fetchval("SELECT pg_sleep(100)")

        store._factory.history.doubt()
        with monkeypatch.context() as patch:
            patch.setattr(CommitHistory, "verify", endless)
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                await store.run("r0001")
        store._factory.timeout = usual
        assert await store.run("r0001") is not None


async def test_a_connection_whose_settings_cannot_be_read_is_closed(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def cancelled(connection: Any, settings: object) -> bool:
        seen.append(connection)
        raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")

    monkeypatch.setattr(connection, "_has_settings", cancelled)
    with pytest.raises(StoreError):
        await PostgresStore.open(postgres_server.url(schema="unread"))
    assert [opened.is_closed() for opened in seen] == [True]


async def test_the_first_error_behind_a_pooler_is_the_one_that_counts() -> None:
    class Broken:
        async def execute(self, query: str) -> None:
            if query == "ROLLBACK":
                raise asyncpg.InterfaceError("connection is closed")

        async def fetch(self, query: str) -> None:
            raise ValueError("the first")

        def is_in_transaction(self) -> bool:
            return False

        def is_closed(self) -> bool:
            return False

    with pytest.raises(ValueError, match="the first"):
        await PooledConnection(Broken(), {}).fetch("SELECT 1")
