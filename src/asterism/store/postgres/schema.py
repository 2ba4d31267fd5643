"""Bringing the schema to the version of this program: forward only, in one transaction, one process at a time."""

from __future__ import annotations

import functools
import logging
from importlib import resources
from typing import NamedTuple

import asyncpg

from asterism.store.postgres.connection_pool import OLDEST_SERVER, Connection, ConnectionFactory
from asterism.store.postgres.error_mapping import translated
from asterism.store.store_errors import StoreMissing, StoreNotFound, UnknownSchema

log = logging.getLogger(__name__)

_RECORD = """
CREATE TABLE IF NOT EXISTS "{schema}".migrations (
    version integer PRIMARY KEY, name text NOT NULL, applied_at double precision NOT NULL
);
"""
_APPLIED = "INSERT INTO migrations VALUES ($1, $2, extract(epoch FROM clock_timestamp()))"


class Migration(NamedTuple):
    version: int
    name: str
    sql: str


@functools.cache
def migrations() -> tuple[Migration, ...]:
    """In order; the number at the beginning of the file's name is the version."""
    found = []
    for file in (resources.files(__package__) / "migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    return tuple(sorted(found))


async def migrate(factory: ConnectionFactory, *, create: bool) -> None:
    """Raises UnknownSchema for a store that is ahead of this program, and StoreMissing for one that is not there and
    shall not be made."""
    shown, schema = factory.address.shown, factory.address.schema
    connection = await factory.connect({})
    try:
        major = connection.get_server_version().major
        if major < OLDEST_SERVER:
            raise StoreMissing(f"{shown}: PostgreSQL {OLDEST_SERVER} or later is needed, and the server is {major}")
        version = await _version(connection, schema)
        if version is None and not create:
            raise StoreNotFound(f"{shown}: there is no store in schema {schema!r}")
        _refuse_the_unknown(version, shown)
        if version != migrations()[-1].version:
            await _apply(connection, factory)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translated(error, shown) from error
    finally:
        connection.terminate()


async def _version(connection: Connection, schema: str) -> int | None:
    """None if there is nothing."""
    if await connection.fetchval("SELECT to_regclass($1)", f'"{schema}".migrations') is None:
        return None
    found: int | None = await connection.fetchval(f'SELECT max(version) FROM "{schema}".migrations')
    return found or 0


def _refuse_the_unknown(version: int | None, shown: str) -> None:
    newest = migrations()[-1].version
    if version is not None and version > newest:
        raise UnknownSchema(
            f"{shown}: the store has version {version} of the schema, and this program knows versions up to {newest}; "
            "a later Asterism has changed it"
        )


async def _apply(connection: Connection, factory: ConnectionFactory) -> None:
    shown, schema = factory.address.shown, factory.address.schema
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '60s'")
        await connection.fetchval("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"asterism {schema}")
        if await connection.fetchval("SELECT to_regnamespace($1)", schema) is None:
            await connection.execute(f'CREATE SCHEMA "{schema}"')  # which not everybody may, not even if it is there
        await connection.execute(_RECORD.format(schema=schema))
        version = await _version(connection, schema) or 0  # another process may have been here meanwhile
        _refuse_the_unknown(version, shown)
        for migration in migrations():
            if migration.version > version:
                log.info("%s: migration %d, %s", shown, migration.version, migration.name)
                await connection.execute(migration.sql)
                await connection.fetchval(_APPLIED + " RETURNING version", migration.version, migration.name)
