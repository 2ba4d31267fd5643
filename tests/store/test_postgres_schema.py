"""Schema in PostgreSQL: created once, migrated forward only, refused if it is of a later version."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from asterism.store.postgres import PostgresStore, schema
from asterism.store.postgres.schema import Migration, migrations
from asterism.store.protocol import Notice, PutRegister
from asterism.store.store_errors import StoreForeign, StoreMissing, StoreReadOnly, UnknownSchema
from tests.long_tests import rest_long
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
FIRST = (Migration(1, "tables", migrations()[0].sql),)
"""Those of an earlier version of Asterism."""

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


@pytest.mark.long
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
    stores.append(await PostgresStore.open(postgres_url))  # the tables of the new version are known, too
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


async def test_a_store_of_an_earlier_version_is_refused_and_says_what_to_do(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: FIRST)
        async with opened(postgres_url):
            pass
    with pytest.raises(UnknownSchema, match=r"schema version 1, .* versions from 2 on: let the plans and runs"):
        await PostgresStore.open(postgres_url)


async def test_without_create_a_missing_store_is_not_found(postgres_server: Server) -> None:
    url = postgres_server.url(schema="never_made")
    with pytest.raises(StoreMissing, match="no store in schema 'never_made'"):
        await PostgresStore.open(url, create=False)
    assert postgres_server.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'never_made'").strip() == "0"


async def test_two_schemas_are_two_stores(postgres_server: Server) -> None:
    first, second = postgres_server.url(schema="first_of_two"), postgres_server.url()
    async with opened(first) as store, opened(second, schema="second_of_two") as other:
        await store.commit([PutRegister("a", 1, None)])
        assert await other.register("a") is None
        watch = other.watch(frozenset({"offered"}))
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
    first = migrations()[0].version
    assert [migration.version for migration in migrations()] == list(range(first, first + len(migrations())))


def test_the_sql_comes_with_the_package() -> None:
    folder = Path(schema.__file__).parent
    assert (folder / "statements.sql").exists()
    assert sorted(folder.glob("migrations/*.sql"))


# -- schemas that somebody else has prepared ---------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def roles(url: str) -> AsyncIterator[tuple[Any, str]]:
    """A connection of the superuser, and the name of a role without rights that may connect."""
    async with looking(url) as admin:
        low = f"low_{os.getpid()}_{schema_of(url)}"  # workers share the server, and a role is one of all databases
        await admin.execute(f"CREATE ROLE {low} LOGIN")
        try:
            yield admin, low
        finally:
            await admin.execute(f"DROP SCHEMA IF EXISTS {schema_of(url)} CASCADE; DROP OWNED BY {low}; DROP ROLE {low}")


def schema_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][-1]


async def test_a_schema_of_another_owner_is_not_adopted(postgres_url: str) -> None:
    name = schema_of(postgres_url)
    async with roles(postgres_url) as (admin, low):
        await admin.execute(f"CREATE SCHEMA {name} AUTHORIZATION {low}")
        with pytest.raises(StoreForeign, match=f"schema '{name}' belongs to role '{low}', not to 'postgres'"):
            await PostgresStore.open(postgres_url)
        await admin.execute(f"ALTER SCHEMA {name} OWNER TO postgres")
        async with opened(postgres_url) as store:
            assert await store.check() == []


async def test_without_the_check_the_trigger_of_another_owner_runs_with_our_rights(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = schema_of(postgres_url)
    async with roles(postgres_url) as (admin, low):
        await admin.execute(f"CREATE SCHEMA {name} AUTHORIZATION {low}")
        await admin.execute(f"SET ROLE {low}")
        await admin.execute(schema._RECORD.format(schema=name))
        await admin.execute(
            f"CREATE FUNCTION {name}.steal() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN ALTER ROLE {low} SUPERUSER; RETURN new; END $$; "
            f"CREATE TRIGGER steal AFTER INSERT ON {name}.migrations FOR EACH ROW EXECUTE FUNCTION {name}.steal()"
        )
        await admin.execute("RESET ROLE")
        with pytest.raises(StoreForeign, match="belongs to role"):
            await PostgresStore.open(postgres_url)
        is_super = f"SELECT rolsuper FROM pg_roles WHERE rolname = '{low}'"
        assert await admin.fetchval(is_super) is False

        async def unchecked(*_: object) -> list[str]:
            return []

        monkeypatch.setattr(schema, "refuse_foreign_schema", unchecked)
        monkeypatch.setattr(schema, "foreign_objects", lambda *_: [])
        async with opened(postgres_url):
            assert await admin.fetchval(is_super) is True


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("CREATE FUNCTION helpful() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new; END $$", "function"),
        ("CREATE VIEW helpful AS SELECT 1", "view"),
        ("CREATE TABLE helpful (a int)", "table"),
        ("CREATE RULE helpful AS ON INSERT TO registers DO INSTEAD NOTHING", "rule"),
        ("CREATE POLICY helpful ON registers USING (false)", "policy"),
        (
            "CREATE TRIGGER helpful BEFORE UPDATE ON runs EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "trigger",
        ),
    ],
)
async def test_a_schema_with_anything_that_is_not_of_the_store_is_refused(
    postgres_url: str, statement: str, kind: str
) -> None:
    async with opened(postgres_url) as store:
        async with looking(postgres_url) as other:
            await other.execute(statement.replace("EXECUTE FUNCTION", "FOR EACH ROW EXECUTE FUNCTION"))
        [problem] = await store.check()
        assert f"has the {kind} 'helpful', which is not one of the store" in problem
    with pytest.raises(StoreForeign, match=f"has the {kind} 'helpful', which is not one of the store; remove it"):
        await PostgresStore.open(postgres_url)


CHANGED = [
    (
        "CREATE OR REPLACE FUNCTION pin_hash(device text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS "
        "$$ SELECT 0::bigint $$",
        "the function 'pin_hash(device text)' in schema {schema} is not as the store creates it",
    ),
    (
        "ALTER TABLE runs ADD CONSTRAINT never CHECK (priority > 0)",
        "schema {schema} has the constraint 'never', which is not one of the store",
    ),
    (
        "DROP INDEX runs_by_key; CREATE INDEX runs_by_key ON runs (key) WHERE key IS NOT NULL",
        "the index 'runs_by_key' in schema {schema} is not as the store creates it",
    ),
    (
        "ALTER TABLE registers ALTER revision TYPE integer",
        "the column 'registers.revision' in schema {schema} is not as the store creates it",
    ),
    (
        "CREATE OR REPLACE TRIGGER plan_removed AFTER DELETE ON registers FOR EACH ROW WHEN (false) "
        "EXECUTE FUNCTION follow_head()",
        "the trigger 'plan_removed' in schema {schema} is not as the store creates it",
    ),
    ("ALTER TABLE runs ENABLE ROW LEVEL SECURITY", "the table 'runs' in schema {schema} is not as the store creates"),
    (
        "ALTER FUNCTION refuse(text) SECURITY DEFINER",
        "the function 'refuse(what text)' in schema {schema} is not as the store creates it",
    ),
    (
        "CREATE FUNCTION refuse(what integer) RETURNS void LANGUAGE sql AS ''",
        "schema {schema} has the function 'refuse(what integer)', which is not one of the store",
    ),
    ("ALTER TABLE registers DROP CONSTRAINT registers_pkey", "schema {schema} lacks the constraint 'registers_pkey'"),
    ("DROP INDEX runs_by_key", "schema {schema} lacks the index 'runs_by_key'"),
    (
        "ALTER TABLE registers ALTER value DROP NOT NULL",
        "the column 'registers.value' in schema {schema} is not as the store creates it",
    ),
    (
        "ALTER TABLE registers ALTER value SET DEFAULT 'x'",
        "the column 'registers.value' in schema {schema} is not as the store creates it",
    ),
    (
        'ALTER TABLE reports ALTER run TYPE text COLLATE "POSIX"',
        "the column 'reports.run' in schema {schema} is not as the store creates it",
    ),
    ("ALTER TABLE sessions DROP COLUMN terms", "schema {schema} lacks the column 'sessions.terms'"),
    ("ALTER TYPE new_run ADD ATTRIBUTE more text", "schema {schema} has the column 'new_run.more'"),
    ("DROP TRIGGER plan_removed ON registers", "schema {schema} lacks the trigger 'plan_removed'"),
    ("ALTER TABLE runs SET UNLOGGED", "the table 'runs' in schema {schema} is not as the store creates it"),
]


@pytest.mark.parametrize(
    ("statement", "problem"), rest_long(CHANGED, 6), ids=[statement[:50] for statement, _ in CHANGED]
)
async def test_a_definition_that_was_changed_is_found(postgres_url: str, statement: str, problem: str) -> None:
    async with opened(postgres_url), looking(postgres_url) as other:
        await other.execute(statement)
    async with opened(postgres_url) as store:
        assert any(problem.format(schema=repr(schema_of(postgres_url))) in line for line in await store.check())


async def test_the_check_of_definitions_leaves_nothing_behind_and_lets_operators_tune(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await other.execute("ALTER TABLE runs SET (fillfactor = 90); ALTER TABLE runs ALTER input SET STORAGE MAIN")
        assert await store.check() == []
        assert await other.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'asterism_check_%'") == 0


async def test_a_user_who_cannot_create_a_schema_is_told_that_definitions_were_not_compared(
    postgres_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    postgres_server.sql(
        "DROP ROLE IF EXISTS visitor; CREATE ROLE visitor LOGIN; CREATE SCHEMA lent AUTHORIZATION visitor; "
        "REVOKE CREATE ON DATABASE postgres FROM public"
    )
    async with opened(postgres_server.url(schema="lent").replace("postgres@", "visitor@")) as store:
        assert await store.check() == []
    assert "were not compared with those of a new one: permission denied for database" in caplog.text


async def test_a_schema_in_which_others_may_create_objects_is_refused(postgres_url: str) -> None:
    name = schema_of(postgres_url)
    async with roles(postgres_url) as (admin, low), opened(postgres_url):
        await admin.execute(f"GRANT CREATE ON SCHEMA {name} TO {low}")
        with pytest.raises(StoreForeign, match=rf"others may create objects in schema '{name}' \({low}\)"):
            await PostgresStore.open(postgres_url)
        await admin.execute(f"REVOKE CREATE ON SCHEMA {name} FROM {low}; GRANT CREATE ON SCHEMA {name} TO PUBLIC")
        with pytest.raises(StoreForeign, match=r"\(PUBLIC\)"):
            await PostgresStore.open(postgres_url)


async def test_a_table_that_adds_its_rows_to_one_of_the_store_is_refused(postgres_url: str) -> None:
    """A child table in any schema: PostgreSQL reads its rows as those of the parent."""
    name = schema_of(postgres_url)
    async with roles(postgres_url) as (admin, low), opened(postgres_url) as store:
        await admin.execute(
            f"CREATE SCHEMA {name}_other; CREATE TABLE {name}_other.more () INHERITS ({name}.registers)"
        )
        try:
            await admin.execute(f"ALTER TABLE {name}_other.more OWNER TO {low}")
            with pytest.raises(
                StoreForeign, match=rf"has the child table '{name}_other.more', which is not one of the"
            ):
                await PostgresStore.open(postgres_url)
            [problem] = [line for line in await store.check() if "child table" in line]
            assert "is not one of the store" in problem
        finally:
            await admin.execute(f"DROP SCHEMA {name}_other CASCADE")


async def test_a_table_of_another_owner_and_a_view_as_the_record_of_versions_are_refused(postgres_url: str) -> None:
    name = schema_of(postgres_url)
    async with roles(postgres_url) as (admin, low):
        async with opened(postgres_url):
            pass
        await admin.execute(f"ALTER TABLE {name}.registers OWNER TO {low}")
        with pytest.raises(StoreForeign, match=r"the table 'registers' in schema .* does not belong to the owner"):
            await PostgresStore.open(postgres_url)
        await admin.execute(f"DROP TABLE {name}.migrations; CREATE VIEW {name}.migrations AS SELECT 1 AS version")
        with pytest.raises(StoreForeign, match=r"'migrations' in schema .* is not the table of a store"):
            await PostgresStore.open(postgres_url)


INERT = [
    ("CREATE SEQUENCE helpful", "sequence"),
    ("CREATE TYPE helpful AS ENUM ('a', 'b')", "type"),
    ("CREATE TYPE helpful AS (a int)", "type"),
    ("CREATE DOMAIN helpful AS int CHECK (value > 0)", "type"),
]


@pytest.mark.parametrize(("statement", "kind"), rest_long(INERT, 2), ids=[statement for statement, _ in INERT])
async def test_an_object_that_executes_nothing_is_reported_and_the_store_opens(
    postgres_url: str, statement: str, kind: str
) -> None:
    async with opened(postgres_url), looking(postgres_url) as other:
        await other.execute(statement)
    async with opened(postgres_url) as store:
        problems = await store.check()
    expected = f"schema {schema_of(postgres_url)!r} has the {kind} 'helpful', which is not one of the store; remove it"
    assert expected in problems


@pytest.mark.parametrize("way", rest_long(["DISABLE", "ENABLE REPLICA"], 1))
async def test_a_trigger_of_the_store_that_does_not_fire_is_reported(postgres_url: str, way: str) -> None:
    name = schema_of(postgres_url)
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await other.execute(f"ALTER TABLE registers {way} TRIGGER plan_written")
        [problem] = await store.check()
        text, mend = problem.split(": run ")
        assert text.startswith(f"the trigger 'plan_written' in schema {name!r} is disabled")
        assert mend == f"ALTER TABLE {name}.registers ENABLE TRIGGER plan_written"
        await other.execute(mend)
        assert await store.check() == []
        await other.execute("ALTER TABLE registers ENABLE ALWAYS TRIGGER plan_written")
        assert await store.check() == []


WIDE = [
    ("GRANT INSERT ON {schema}.runs TO PUBLIC", "every role has INSERT on 1 table of the store ({schema}.runs)"),
    (
        "GRANT TRIGGER, SELECT ON {schema}.runs TO {low}",
        "role {low} has TRIGGER on 1 table of the store ({schema}.runs), and so can execute anything as the user",
    ),
    (
        "GRANT UPDATE (value, revision) ON {schema}.registers TO PUBLIC",
        "every role has UPDATE (revision, value) on 1 table of the store ({schema}.registers)",
    ),
    (
        "GRANT DELETE, TRUNCATE ON {schema}.runs, {schema}.logs TO PUBLIC",
        "every role has DELETE, TRUNCATE on 2 tables of the store ({schema}.logs, {schema}.runs)",
    ),
]


@pytest.mark.parametrize(("statement", "expected"), rest_long(WIDE, 2), ids=[statement for statement, _ in WIDE])
async def test_access_that_nobody_needs_is_reported_with_what_revokes_it(
    postgres_url: str, statement: str, expected: str
) -> None:
    name = schema_of(postgres_url)
    async with roles(postgres_url) as (admin, low), opened(postgres_url) as store:
        await admin.execute(statement.format(schema=name, low=low))
        [problem] = await store.check()
        assert problem.startswith(expected.format(schema=name, low=low))
        await admin.execute(problem.split(": run ")[1])
        assert await store.check() == []


async def test_a_role_that_was_granted_write_access_is_a_warning_and_no_damage(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a second program that shares the store. What it only reads is not reported."""
    name = schema_of(postgres_url)
    async with roles(postgres_url) as (admin, low), opened(postgres_url) as store:
        await admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {low}")
        assert await store.check() == []
        assert "role" not in caplog.text
        await admin.execute(
            f"GRANT INSERT, UPDATE ON {name}.runs TO {low}; GRANT UPDATE (value) ON {name}.registers TO {low}"
        )
        assert await store.check() == []
        warnings = [record.getMessage() for record in caplog.records]
        assert [text.split("; ")[0].partition(": ")[2] for text in warnings] == [
            f"role {low} has INSERT, UPDATE on 1 table of the store ({name}.runs)",
            f"role {low} has UPDATE (value) on 1 table of the store ({name}.registers)",
        ]
        for text in warnings:
            await admin.execute(text.partition("run ")[2])
        caplog.clear()
        assert await store.check() == []
        assert not caplog.records


async def test_the_role_that_uses_the_store_has_its_access_by_grants(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A superuser owns the tables, and the application has what it needs, itself or through a group."""
    name = schema_of(postgres_url)
    async with roles(postgres_url) as (admin, low):
        async with opened(postgres_url):
            pass
        group = f"group_{low}"
        await admin.execute(f"CREATE ROLE {group}; GRANT {group} TO {low}")
        try:
            await admin.execute(
                f"GRANT USAGE ON SCHEMA {name} TO {low}; "
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {group}; "
                f"GRANT INSERT, UPDATE ON {name}.runs TO {low}"
            )
            async with opened(postgres_url.replace("postgres@", f"{low}@")) as store:
                await store.commit([PutRegister("a", 1, None), Notice(1.0, "refused", "text")])
                assert await store.check() == []
            assert "role " not in caplog.text
        finally:
            await admin.execute(f"DROP OWNED BY {group}; DROP ROLE {group}")


async def test_an_event_trigger_of_the_database_is_a_warning(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = schema_of(postgres_url)
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await other.execute(
            f"CREATE FUNCTION public.{name}() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$; "
            f"CREATE EVENT TRIGGER {name} ON ddl_command_end EXECUTE FUNCTION public.{name}()"
        )
        try:
            assert await store.check() == []
            assert f"event trigger {name!r} of the database calls public.{name}()" in caplog.text
        finally:
            await other.execute(f"DROP EVENT TRIGGER {name}; DROP FUNCTION public.{name}()")
