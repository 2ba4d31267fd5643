"""Errors of PostgreSQL: a server that is full, busy, read-only or too old, and stores that cannot be opened."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from asterism.core.run.run import Run
from asterism.store.postgres import PostgresStore, schema
from asterism.store.postgres import connection as connection_module
from asterism.store.protocol import PutRegister, PutRun, Query
from asterism.store.store_errors import (
    Conflict,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
    StoreUnavailable,
)
from tests.laboratory.store_conformance.sample_records import a_run, a_session, added, held_by, joined, started
from tests.store.postgres_fixtures import connected, limited, looking, opened
from tests.store.postgres_server import Server

KITCHEN = a_session()


@pytest.fixture(scope="module")
def fragile() -> Iterator[Server]:
    """A server that tests may damage."""
    with Server({"max_connections": 12, "superuser_reserved_connections": 0}) as server:
        yield server


# -- the server refuses ------------------------------------------------------------------------------------------------


async def _with_trouble(url: str, body: str) -> None:
    """Make the server execute this whenever a run is written whose id begins with x."""
    async with looking(url) as other:
        await other.execute(
            f"""
            CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$;
            CREATE TRIGGER trouble BEFORE INSERT OR UPDATE ON runs
            FOR EACH ROW WHEN (NEW.id LIKE 'x%') EXECUTE FUNCTION trouble();
            """
        )


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ("53100", StoreFull, "disk of the server is full"),
        ("53200", StoreUnavailable, "no memory"),
        ("57P01", StoreUnavailable, "shutting down"),
        ("58030", StoreUnavailable, "input"),
        ("XX001", StoreCorrupt, "damaged"),
        ("XX000", StoreUnavailable, "strange"),
    ],
)
async def test_each_error_of_the_server_has_its_store_error(
    postgres_url: str, state: str, kind: type[Exception], words: str
) -> None:
    said = {"53200": "no memory", "58030": "input", "XX000": "strange"}.get(state, "said")
    async with opened(postgres_url) as store:
        await _with_trouble(postgres_url, f"RAISE EXCEPTION '{said}' USING ERRCODE = '{state}'")
        with pytest.raises(kind, match=words):
            await store.commit([PutRun(a_run("x1"), None)])
        assert await store.find(Query()) == []
        await store.commit([PutRun(a_run("r1"), None)])


async def test_a_full_disk_fails_the_whole_group_and_loses_nothing(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await _with_trouble(postgres_url, "RAISE EXCEPTION 'no space' USING ERRCODE = '53100'")
        came = await asyncio.gather(
            *(store.commit([PutRun(run, None)]) for run in (a_run(1), a_run("x1"))), return_exceptions=True
        )
        assert [type(error) for error in came] == [StoreFull, StoreFull]
        assert await store.find(Query()) == []


async def test_a_statement_that_takes_too_long_is_cancelled(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(postgres_url, timeout=60.0) as store, store._quick.borrowed() as connection:
        assert await connection.fetchval("SHOW statement_timeout") == "54s"  # before our own timeout
    limited(monkeypatch, statement_timeout=3.0)
    async with opened(postgres_url) as store:
        await _with_trouble(postgres_url, "PERFORM pg_sleep(600)")
        with pytest.raises(StoreBusy, match="took too long"):
            await store.commit([PutRun(a_run("x1"), None)])
        await store.commit([PutRun(a_run("r1"), None)])


async def test_a_server_set_to_read_only_is_waited_for_and_not_opened(fragile: Server) -> None:
    url = fragile.url(schema="read_only")
    async with opened(url) as store:
        await added(store, a_run(1))
        fragile.sql("ALTER SYSTEM SET default_transaction_read_only = on")
        await _reloaded(fragile, store, "on")
        try:
            with pytest.raises(StoreUnavailable, match="the server refuses writes"):
                await store.commit([PutRun(a_run(2), None)])
            with pytest.raises(StoreUnavailable, match="needs a server that takes writes"):
                await store.commit([PutRun(a_run(2), None)])  # over a new connection, which is refused
            with pytest.raises(StoreReadOnly, match="needs a server that takes writes"):
                await PostgresStore.open(url)
        finally:
            fragile.tool(
                "psql", "-XAtq", "-d", fragile.url(), "-c", "SET default_transaction_read_only = off",
                "-c", "ALTER SYSTEM RESET default_transaction_read_only", "-c", "SELECT pg_reload_conf()",
            )  # fmt: skip
        while True:
            try:
                await store.commit([PutRun(a_run(2), None)])
                break
            except StoreUnavailable:
                continue  # the server has not read its configuration yet


async def _reloaded(server: Server, store: PostgresStore, value: str) -> None:
    server.sql("SELECT pg_reload_conf()")
    async with store._quick.borrowed() as connection:
        while await connection.fetchval("SHOW default_transaction_read_only") != value:
            pass


async def test_a_user_without_write_privilege_gets_read_only(postgres_server: Server) -> None:
    url = postgres_server.url(schema="reader")
    async with opened(url):
        pass
    postgres_server.sql(
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA reader TO reader; "
        "GRANT SELECT ON ALL TABLES IN SCHEMA reader TO reader"
    )
    async with opened(url.replace("postgres@", "reader@")) as store:
        assert await store.find(Query()) == []
        with pytest.raises(StoreReadOnly, match="lacks a privilege"):
            await store.commit([PutRun(a_run(1), None)])
    postgres_server.sql("DROP OWNED BY reader; DROP ROLE reader")


_CLIENTS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"


async def _one_more(url: str) -> Any:
    try:
        return await connected(url)
    except asyncpg.TooManyConnectionsError:
        return None


async def test_a_server_with_too_many_connections_is_unavailable_for_now(fragile: Server) -> None:
    url = fragile.url(schema="crowded")
    async with opened(url) as store:
        store._quick._close_idle(0.0)
        crowd = [await connected(url)]
        try:
            while await crowd[0].fetchval(_CLIENTS) > 1:  # closed connections may still exist on the server
                pass
            while (another := await _one_more(url)) is not None:
                crowd.append(another)
            with pytest.raises(StoreUnavailable, match="too many connections"):
                await store.commit([PutRun(a_run(1), None)])
            with pytest.raises(StoreUnavailable, match="too many connections"):
                await PostgresStore.open(url)
        finally:
            for connection in crowd:
                await connection.close()
        await store.commit([PutRun(a_run(1), None)])


# -- opening fails -----------------------------------------------------------------------------------------------------


async def test_a_missing_database_is_store_missing(postgres_server: Server) -> None:
    with pytest.raises(StoreMissing, match="database does not exist"):
        await PostgresStore.open(postgres_server.url("nothing_here"))


async def test_an_unknown_host_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(StoreUnavailable, match="Name or service not known"):
        await PostgresStore.open("postgresql://me:secret@nowhere/fleet")


async def test_a_server_that_is_too_old_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "OLDEST_SERVER", 99)
    with pytest.raises(StoreMissing, match="needs PostgreSQL 99 or later, the server has 1"):
        await PostgresStore.open(postgres_url)


async def test_a_wrong_password_is_refused_and_never_repeated() -> None:
    with Server(password="right one") as server:
        async with opened(server.url()) as store:
            assert store.url.startswith("postgresql://postgres:***@/postgres?host=")
            await store.commit([PutRegister("a", 1, None)])
        with pytest.raises(StoreMissing, match="refuses the login") as caught:
            await PostgresStore.open(server.url().replace("right%20one", "quite-wrong"))
        chain: BaseException | None = caught.value
        while chain is not None:
            assert "quite-wrong" not in str(chain)
            chain = chain.__cause__ or chain.__context__


async def test_a_closed_store_is_unavailable(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        pass
    await store.close()
    for attempt in (
        lambda: store.commit([PutRun(a_run(1), None)]),
        lambda: store.run("a"),
        lambda: store.find(Query()),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            await attempt()


async def test_idle_connections_are_closed_after_a_while(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IDLE", 0.0)
    async with opened(postgres_url) as store:
        await store.find(Query())
        [(_, connection)] = store._broad._idle
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        await gone.wait()
        assert await store.find(Query()) == []


def _held(number: int) -> Run:
    return held_by(a_run(number), KITCHEN)


async def test_a_conflict_and_a_refusal_leave_the_connection_as_it_is(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await joined(store, KITCHEN)
        await added(store, _held(1))
        [(_, before)] = store._quick._idle
        with pytest.raises(Conflict):
            await store.commit([PutRun(started(_held(1)), 7), PutRegister("a", 1, None)])
        with pytest.raises(ValueError, match="cannot be stored"):
            await store.commit([PutRegister("a \0", 1, None)])
        assert [connection for _, connection in store._quick._idle] == [before]
