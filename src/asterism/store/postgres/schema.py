"""Schema of the PostgreSQL store: its migrations, forward only, and the SQL statements that use it.

All missing migrations are applied in one transaction, by one process at a time. The statements are read from
``statements.sql``, by name.
"""

from __future__ import annotations

import functools
import logging
import re
import secrets
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

import asyncpg

from asterism.base.text import plural
from asterism.store.postgres.connection import OLDEST_SERVER, Connection, ConnectionFactory
from asterism.store.postgres.error_mapping import translated
from asterism.store.row_codec import COLUMNS, SESSION_COLUMNS
from asterism.store.store_errors import StoreForeign, StoreMissing, StoreNotFound, check_schema

log = logging.getLogger(__name__)

_RECORD = """
CREATE TABLE IF NOT EXISTS "{schema}".migrations (
    version integer PRIMARY KEY, name text NOT NULL, applied_at double precision NOT NULL
);
"""
_APPLIED = "INSERT INTO migrations VALUES ($1, $2, extract(epoch FROM clock_timestamp()))"


class Migration(NamedTuple):
    """A step from one version of the schema to the next."""

    version: int
    name: str
    sql: str


@functools.cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations in order. A file name begins with the version."""
    scripts = []
    for file in (resources.files(__package__) / "migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            scripts.append(Migration(int(number), name, file.read_text("utf-8")))
    return tuple(sorted(scripts))


async def migrate(factory: ConnectionFactory, *, create: bool) -> None:
    """Apply missing migrations. Raises UnknownSchema for a store of another version, and StoreNotFound for one that
    does not exist and that ``create`` does not allow to create."""
    shown, schema = factory.address.shown, factory.address.schema
    connection = await factory.connect({})
    try:
        major = connection.get_server_version().major
        if major < OLDEST_SERVER:
            raise StoreMissing(f"{shown}: Asterism needs PostgreSQL {OLDEST_SERVER} or later, the server has {major}")
        objects = await refuse_foreign_schema(connection, shown, schema)
        version = await _version(connection, schema)
        if version is None and not create:
            raise StoreNotFound(f"{shown}: there is no store in schema {schema!r}")
        _refuse_other_version(version, shown)
        if problems := foreign_objects(objects, schema):
            raise StoreForeign(f"{shown}: {problems[0]}; remove it, or choose another schema with ?schema=…")
        if version != migrations()[-1].version:
            await _apply(connection, factory)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translated(error, shown) from error
    finally:
        connection.terminate()


_CREATES = re.compile(r"^CREATE (?:OR REPLACE )?(TABLE|FUNCTION|TRIGGER|TYPE) (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)


async def refuse_foreign_schema(connection: Connection, shown: str, schema: str) -> list[Any]:
    """Return the objects of the schema. Raises StoreForeign if somebody else owns the schema, may create objects in it,
    or has prepared the record of its version: whatever triggers, views and functions in it do, they do with the rights
    of who uses the store."""
    ownership = await connection.fetchrow(statements()["owner_of_schema"], schema)
    if ownership is None:
        return []
    owner, trusted, user, creators = ownership
    if not trusted:
        raise StoreForeign(
            f"{shown}: schema {schema!r} belongs to role {owner!r}, not to {user!r}: connect as its owner, choose "
            f"another schema with ?schema=…, or let a superuser run: ALTER SCHEMA {schema} OWNER TO {user}"
        )
    if creators:
        raise StoreForeign(
            f"{shown}: others may create objects in schema {schema!r} ({', '.join(creators)}), and so execute anything "
            "as the user of the store: revoke CREATE from them, or choose another schema with ?schema=…"
        )
    objects = await objects_of_schema(connection, schema)
    if [row for row in objects if row[1] == "migrations" and tuple(row) != ("table", "migrations", True)]:
        raise StoreForeign(f"{shown}: 'migrations' in schema {schema!r} is not the table of a store")
    return objects


async def objects_of_schema(connection: Connection, schema: str) -> list[Any]:
    return await connection.fetch(statements()["objects_of_schema"], schema)


def foreign_objects(objects: list[Any], schema: str) -> list[str]:
    """The objects of the schema that Asterism did not create, or that belong to another owner, as sentences."""
    own, problems = _created_by(migrations()), []
    for kind, name, by_owner in sorted(objects):
        if (kind, name) not in own:
            problems.append(_not_ours(schema, kind, name))
        elif not by_owner:
            problems.append(f"the {kind} {name!r} in schema {schema!r} does not belong to the owner of the schema")
    return problems


async def inert_objects(connection: Connection, schema: str) -> list[str]:
    """Objects that Asterism did not create, and that a store may be opened with, as sentences."""
    rows = await connection.fetch(statements()["inert_objects_of_schema"], schema)
    own = _created_by(migrations())
    return [f"{_not_ours(schema, kind, name)}; remove it" for kind, name in sorted(rows) if (kind, name) not in own]


@functools.cache
def _created_by(steps: tuple[Migration, ...]) -> set[tuple[str, str]]:
    """Kind and name of everything that these migrations create."""
    created = {(kind.lower(), name) for step in steps for kind, name in _CREATES.findall(step.sql)}
    return created | {("table", "migrations")}


def _not_ours(schema: str, kind: str, name: str) -> str:
    return f"schema {schema!r} has the {kind} {name!r}, which is not one of the store"


async def careless_settings(connection: Connection) -> list[str]:
    """The settings with which a crash of the server may lose acknowledged commits, as sentences."""
    return [
        f"the server runs with {name} = {value}: a crash may lose acknowledged commits"
        for name, value in await connection.fetch(statements()["careless_settings"])
    ]


async def missing_standby(connection: Connection, servers: int) -> list[str]:
    """The sentence that a failover may lose acknowledged commits, if there is another server and no commit waits for
    it. ``servers`` is the number of servers in the address."""
    synchronous, standbys = await connection.fetchrow(statements()["standbys"])
    if synchronous or (servers == 1 and not standbys):
        return []
    why = "a standby is connected" if standbys else f"the address names {servers} servers"
    advice = "a failover may lose acknowledged commits; name the standby there"
    return [f"{why}, but synchronous_standby_names is empty: {advice}"]


async def disabled_triggers(connection: Connection, schema: str) -> list[str]:
    """The triggers of the store that do not fire, as sentences."""
    return [
        f"the trigger {name!r} in schema {schema!r} is disabled, so lists of plans may be wrong: "
        f"run ALTER TABLE {table} ENABLE TRIGGER {quoted}"
        for name, quoted, table in await connection.fetch(statements()["disabled_triggers"], schema)
    ]


async def write_access(connection: Connection, shown: str, schema: str) -> list[str]:
    """Access of others that the owner of the store hardly meant to grant, as sentences. Roles that may write, as a
    second program that shares the store, and event triggers are what a superuser or owner has decided: the log has a
    warning of each."""
    problems = []
    for role, privileges, tables in await connection.fetch(statements()["write_grants"], schema):
        who, names = f"role {role}" if role else "every role", ", ".join(privileges)
        revoke = f"REVOKE {names} ON {', '.join(tables)} FROM {role or 'PUBLIC'}"
        what = f"{who} has {names} on {plural(len(tables), 'table')} of the store ({', '.join(tables)})"
        if "TRIGGER" in privileges:
            problems.append(f"{what}, and so can execute anything as the user of the store: run {revoke}")
        elif not role:
            problems.append(f"{what}: who can write to a store can execute anything on its devices: run {revoke}")
        else:
            log.warning("%s: %s; if it should not write to the store, run %s", shown, what, revoke)
    for name, quoted, function in await connection.fetch(statements()["event_triggers"]):
        what = f"event trigger {name!r} of the database calls {function} when the tables of the store are changed"
        log.warning("%s: %s; if it should not, run DROP EVENT TRIGGER %s", shown, what, quoted)
    return problems


async def changed_definitions(factory: ConnectionFactory) -> list[str]:
    """The differences between the schema and what the migrations create, as sentences.

    The migrations are applied to a schema of its own in a transaction that is rolled back, and the server describes
    both: so each version of the server may write definitions in its own way. That leaves dead rows in the catalogues of
    the server, so only ``check`` does it. Opening the store compares names and owners: who can change a definition is
    the owner of the schema or a superuser, and need not hide in it."""
    shown, schema, scratch = factory.address.shown, factory.address.schema, f"asterism_check_{secrets.token_hex(8)}"
    connection = await factory.connect({})
    try:
        await connection.execute("BEGIN")
        actual = await _definitions(connection, schema)
        await connection.execute(f"CREATE SCHEMA {scratch}; SET LOCAL search_path = {scratch}, pg_temp")
        await connection.execute(_RECORD.format(schema=scratch))
        for migration in migrations():
            await connection.execute(migration.sql)
        expected = await _definitions(connection, scratch)
    except asyncpg.InsufficientPrivilegeError as error:
        log.warning("%s: the definitions of its schema were not compared with those of a new one: %s", shown, error)
        return []
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translated(error, shown) from error
    finally:
        connection.terminate()  # rolls back
    problems = []
    for kind, name in sorted(expected.keys() | actual.keys()):
        if (kind, name) not in actual:
            problems.append(f"schema {schema!r} lacks the {kind} {name!r}")
        elif (kind, name) not in expected:
            problems.append(_not_ours(schema, kind, name))
        elif actual[kind, name] != expected[kind, name]:
            problems.append(f"the {kind} {name!r} in schema {schema!r} is not as the store creates it")
    return problems


async def _definitions(connection: Connection, schema: str) -> dict[tuple[str, str], str]:
    """The definition of each object, by kind and name."""
    rows = await connection.fetch(statements()["definitions_of_schema"], schema)
    return {(kind, name): definition for kind, name, definition in rows}


async def _version(connection: Connection, schema: str) -> int | None:
    """Return the version of the schema; None if there is no store."""
    if await connection.fetchval("SELECT to_regclass($1)", f'"{schema}".migrations') is None:
        return None
    version: int | None = await connection.fetchval(f'SELECT max(version) FROM "{schema}".migrations')
    return version or 0


def _refuse_other_version(version: int | None, shown: str) -> None:
    if version:
        check_schema(f"{shown}: the store", version, migrations()[0].version, migrations()[-1].version)


async def _apply(connection: Connection, factory: ConnectionFactory) -> None:
    shown, schema = factory.address.shown, factory.address.schema
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '60s'")
        await connection.fetchval("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"asterism {schema}")
        # not IF NOT EXISTS, which needs the privilege even if the schema exists
        if await connection.fetchval("SELECT to_regnamespace($1)", schema) is None:
            await connection.execute(f'CREATE SCHEMA "{schema}"')
        await connection.execute(_RECORD.format(schema=schema))
        version = await _version(connection, schema) or 0  # another process may have migrated it meanwhile
        _refuse_other_version(version, shown)
        for migration in migrations():
            if migration.version > version:
                log.info("%s: migration %d, %s", shown, migration.version, migration.name)
                await connection.execute(migration.sql)
                await connection.fetchval(_APPLIED + " RETURNING version", migration.version, migration.name)


# -- statements --------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_COLUMNS = {
    "{run}": ", ".join(COLUMNS),
    "{session}": ", ".join(SESSION_COLUMNS),
    "{run_of_runs}": ", ".join(f"runs.{name}" for name in COLUMNS),
    "{place}": (
        "pg_current_wal_insert_lsn(), pg_current_xact_id_if_assigned(), "
        "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
    ),
    "{session_of_sessions}": ", ".join(f"sessions.{name}" for name in SESSION_COLUMNS),
}


@functools.cache
def statements() -> Mapping[str, str]:
    text = (resources.files(__package__) / "statements.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    queries = {name: _COMMENT.sub("", sql).strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}
    for placeholder, columns in _COLUMNS.items():
        queries = {name: sql.replace(placeholder, columns) for name, sql in queries.items()}
    sql = queries.pop("prune_runs")
    queries["prune_runs"] = sql.replace("{only}", "").replace("{order}", "ended_at")
    queries["prune_runs_of"] = sql.replace("{only}", "AND key >= $3 AND key < $3 || chr(1114111)").replace(
        "{order}", "key"
    )
    sql = queries.pop("plans")
    between = " AND name BETWEEN $10 AND $11"
    queries["plans"] = sql.replace("{names}", "").replace("{order}", "created_at DESC, name DESC")
    queries["plans_between"] = sql.replace("{names}", between).replace("{order}", "name")
    for name in ("find", "scan_end"):
        sql = queries.pop(name)
        queries[f"{name}_oldest"] = sql.replace("{after}", "id >").replace("{until}", "id <=").replace("{order}", "")
        queries[f"{name}_newest"] = (
            sql.replace("{after}", "id <").replace("{until}", "id >=").replace("{order}", "DESC")
        )
    return queries
