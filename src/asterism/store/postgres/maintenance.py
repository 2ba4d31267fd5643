"""Maintenance of the PostgreSQL engine: writing blobs, retention, the integrity check, and the dump."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from asterism.core.run.run import OWNED
from asterism.store import dump_format
from asterism.store.postgres.connection_pool import Connection, ConnectionPool
from asterism.store.postgres.server_clock import ServerClock
from asterism.store.postgres.statements import statements
from asterism.store.protocol import Register
from asterism.store.row_codec import COLUMNS, MOVING, moving, notice_of, run_of, session_of
from asterism.store.store_errors import StoreCorrupt

PAGE = 200
BLOB_PAGE = 4  # they are large


class Maintenance:
    """The part of PostgresStore that concerns large values and the store as a whole."""

    clock: ServerClock
    _quick: ConnectionPool
    _broad: ConnectionPool

    async def put_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        await self._quick.fetch(statements()["put_blob"], name, data)
        return name

    async def prune(self, ended_before: float, limit: int, *, spare: float = 0.0, keep: Sequence[str] = ()) -> int:
        kept_before = min(ended_before, self.clock() - spare)
        number: int = (await self._broad.fetchrow(statements()["prune_runs"], ended_before, limit, list(keep)))[0]
        if number == 0:
            for name in ("prune_sessions", "prune_notices"):
                await self._broad.fetch(statements()[name], ended_before)
            await self._broad.fetch(statements()["prune_blobs"], kept_before)
        return number

    async def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        async with self._snapshot() as connection:
            yield dump_format.HEADER
            async for row in connection.cursor(statements()["all_runs"], prefetch=PAGE):
                yield {"run": list(row)}
            async for row in connection.cursor(statements()["all_sessions"], prefetch=PAGE):
                yield {"session": list(row)}
            async for key, value, revision in connection.cursor(statements()["all_registers"], prefetch=PAGE):
                yield dump_format.line(Register(key, json.loads(value), revision))
            async for number, text in connection.cursor(statements()["all_notices"], prefetch=PAGE):
                yield dump_format.line(notice_of(json.loads(text)), number=number)
            async for (data,) in connection.cursor(statements()["all_blobs"], prefetch=BLOB_PAGE):
                yield dump_format.blob_line(data)

    async def check(self) -> list[str]:
        problems: list[str] = []
        async with self._snapshot() as connection:
            for name, value in await connection.fetch(statements()["careless_settings"]):
                problems.append(f"the server runs with {name} = {value}: a crash may lose acknowledged commits")
            async for row in connection.cursor(statements()["all_runs"], prefetch=PAGE):
                problems += _problems_of_run(row)
            for query, (what, read) in _READERS.items():
                async for row in connection.cursor(statements()[query], prefetch=PAGE):
                    problems += _problem(what, read, row)
            async for name, found in connection.cursor(statements()["sums_of_blobs"], prefetch=BLOB_PAGE):
                if name != found:
                    problems.append(f"blob {name} is damaged: its content does not match its name")
            for query, words in _CONTRADICTIONS.items():
                problems += [words.format(*row) for row in await connection.fetch(statements()[query])]
        return problems

    @contextlib.asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[Connection]:
        """A transaction that sees one instant, for as long as it takes. Meanwhile the server cannot vacuum newer dead
        rows."""
        async with (
            self._broad.borrowed() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(
                "SET LOCAL idle_in_transaction_session_timeout = '10min'; SET LOCAL statement_timeout = '10min'"
            )
            yield connection


def _problems_of_run(row: Sequence[Any]) -> list[str]:
    try:
        run = run_of(row)
    except StoreCorrupt as error:
        return [str(error)]
    problems = []
    if (run.status in OWNED) != (run.session is not None):
        problems.append(f"run {run.id} is {run.status}, but its owner is {run.session or 'missing'}")
    if run.ended != (run.ended_at is not None):
        problems.append(f"run {run.id} is {run.status}, but has {'an' if run.ended_at else 'no'} end time")
    offered = row[COLUMNS.index("offered")]
    if offered != moving(run)[MOVING.index("offered")]:
        problems.append(f"run {run.id} is {'' if offered else 'not '}offered, but should {'not ' if offered else ''}be")
    return problems


def _problem(what: str, read: Callable[[Sequence[Any]], object], row: Sequence[Any]) -> list[str]:
    try:
        read(row)
    except (StoreCorrupt, ValueError, TypeError, KeyError) as error:
        return [str(error) if isinstance(error, StoreCorrupt) else f"{what} {row[0]} cannot be read: {error!r}"]
    return []


_READERS: dict[str, tuple[str, Callable[[Sequence[Any]], object]]] = {
    "all_sessions": ("session", session_of),
    "all_registers": ("register", lambda row: json.loads(row[1])),
    "all_notices": ("notice", lambda row: notice_of(json.loads(row[1]))),
}
_CONTRADICTIONS = {
    "runs_of_missing_sessions": "run {0} belongs to session {1}, which does not exist",
    "missing_blobs": "run {0} refers to blob {1}, which does not exist",
}
