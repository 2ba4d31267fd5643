"""Schema in PostgreSQL: created once, migrated forward only, refused if it is of a later version."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from asterism.store.postgres import PostgresStore, schema
from asterism.store.postgres.schema import Migration, migrations
from asterism.store.protocol import PutRegister
from asterism.store.store_errors import StoreMissing, StoreReadOnly, UnknownSchema
from tests.store.postgres_fixtures import looking, opened
from tests.store.postgres_server import Server

OPENS = """
import asyncio, sys
from asterism.store.postgres import PostgresStore
from asterism.store.protocol import PutRegister

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    store = await PostgresStore.open(sys.argv[1])
    await store.commit([PutRegister(sys.argv[2], 1, None)])
    await store.close()

asyncio.run(main())
"""
MORE = (
    *migrations(),
    Migration(1002, "more", "CREATE TABLE more (a int); INSERT INTO more VALUES (1);"),
    Migration(1003, "even_more", "ALTER TABLE more ADD COLUMN b int;"),
)


async def _process(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", OPENS, *arguments, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def test_two_processes_may_create_the_store_at_the_same_time(postgres_url: str) -> None:
    processes = [await _process(postgres_url, name) for name in ("one", "two")]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
    await asyncio.gather(*(process.communicate() for process in processes))
    assert [process.returncode for process in processes] == [0, 0]
    async with opened(postgres_url, create=False) as store, looking(postgres_url) as other:
        assert [register.key for register in await store.registers("")] == ["one", "two"]
        assert await other.fetchval("SELECT count(*) FROM migrations") == len(migrations())


async def test_many_may_open_a_new_store_at_the_same_time(postgres_url: str) -> None:
    stores = await asyncio.gather(*(PostgresStore.open(postgres_url) for _ in range(5)))
    await asyncio.gather(*(store.close() for store in stores))
    async with looking(postgres_url) as other:
        assert await other.fetchval("SELECT count(*) FROM migrations") == len(migrations())


async def test_an_older_store_is_migrated_and_keeps_its_records(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url) as store:
        await store.commit([PutRegister("kept", 1, None)])
    monkeypatch.setattr(schema, "migrations", lambda: MORE)
    stores = await asyncio.gather(*(PostgresStore.open(postgres_url) for _ in range(3)))
    assert (await stores[0].register("kept")) is not None
    await asyncio.gather(*(store.close() for store in stores))
    async with looking(postgres_url) as other:
        versions = await other.fetch("SELECT version, name FROM migrations ORDER BY version")
        assert [tuple(row) for row in versions[-2:]] == [(1002, "more"), (1003, "even_more")]
        assert [tuple(row) for row in await other.fetch("SELECT * FROM more")] == [(1, None)]


async def test_a_migration_that_fails_leaves_everything_as_it_was(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url):
        pass
    broken = (*MORE, Migration(1004, "broken", "DROP TABLE more; SELECT no_such_function();"))
    monkeypatch.setattr(schema, "migrations", lambda: broken)
    with pytest.raises(Exception, match="no_such_function"):
        await PostgresStore.open(postgres_url)
    monkeypatch.undo()
    async with looking(postgres_url) as other:
        assert await other.fetchval("SELECT max(version) FROM migrations") == migrations()[-1].version
        assert await other.fetchval("SELECT to_regclass('more')") is None
    async with opened(postgres_url):
        pass


async def test_a_store_of_a_later_version_is_refused_and_both_versions_named(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: MORE)
        async with opened(postgres_url):
            pass
    newest = migrations()[-1].version
    with pytest.raises(UnknownSchema, match=rf"schema version 1003.*up to {newest}"):
        await PostgresStore.open(postgres_url)


async def test_without_create_a_missing_store_is_not_found(postgres_server: Server) -> None:
    url = postgres_server.url(schema="never_made")
    with pytest.raises(StoreMissing, match="no store in schema 'never_made'"):
        await PostgresStore.open(url, create=False)
    assert postgres_server.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'never_made'").strip() == "0"


async def test_two_schemas_are_two_stores(postgres_server: Server) -> None:
    first, second = postgres_server.url(schema="first_of_two"), postgres_server.url()
    async with opened(first) as one, opened(second, schema="second_of_two") as two:
        await one.commit([PutRegister("a", 1, None)])
        assert await two.register("a") is None
        watch = two.watch(frozenset({"offered"}))
        watch.close()


async def test_a_user_without_the_privilege_to_create_schemas_can_be_given_one(postgres_server: Server) -> None:
    postgres_server.sql(
        "DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN; CREATE SCHEMA given AUTHORIZATION guest; "
        "REVOKE CREATE ON DATABASE postgres FROM public"
    )
    async with opened(postgres_server.url(schema="given").replace("postgres@", "guest@")) as store:
        await store.commit([PutRegister("a", 1, None)])
    with pytest.raises(StoreReadOnly, match="lacks a privilege"):
        await PostgresStore.open(postgres_server.url(schema="not_given").replace("postgres@", "guest@"))


async def test_missing_tables_are_reported(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await other.execute("DROP TABLE registers")
        with pytest.raises(StoreMissing, match="tables of the store are missing"):
            await store.register("a")


def test_migrations_are_numbered_without_gaps() -> None:
    assert [one.version for one in migrations()] == list(range(1, len(migrations()) + 1))


def test_the_sql_comes_with_the_package() -> None:
    folder = Path(schema.__file__).parent
    assert (folder / "statements.sql").exists()
    assert sorted(folder.glob("migrations/*.sql"))
