"""A connection through a pooler in transaction mode, as PgBouncer has it: each transaction may use another session.

So nothing lives longer than a transaction. The settings are given with ``SET LOCAL`` at the beginning of each, and
statements are prepared without a name in the transaction that uses them. That takes two round trips more than a direct
connection, and the server plans every statement anew. Nothing listens (``notifications``).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg


class PooledConnection:
    """Has the methods of asyncpg's connections that the store uses. ``settings`` are those of each transaction."""

    def __init__(self, connection: Any, settings: Mapping[str, str]) -> None:
        self._connection = connection
        values = "; ".join(
            f"SET LOCAL {name} = {value if name == 'search_path' else _quoted(value)}"
            for name, value in settings.items()
            if name not in _OF_SESSION
        )
        self._settings = values

    @classmethod
    async def open(cls, options: Mapping[str, Any], settings: Mapping[str, str]) -> PooledConnection:
        """Connect with these arguments of asyncpg's ``connect``. Raises as that does, also for a server that refuses
        writes."""
        name = {"application_name": settings["application_name"]}
        connection = cls(await asyncpg.connect(**options, statement_cache_size=0, server_settings=name), settings)
        try:
            if await connection.fetchval("SELECT current_setting('transaction_read_only')") == "on":
                raise asyncpg.TargetServerAttributeNotMatched("the server takes no writes")
        except BaseException:
            connection.terminate()
            raise
        return connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, query: str, *args: Any) -> Any:
        if query == "BEGIN":
            return await self._connection.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED; {self._settings}")
        return await self._performed("execute", query, args)

    async def fetch(self, query: str, *args: Any) -> Any:
        return await self._performed("fetch", query, args)

    async def fetchrow(self, query: str, *args: Any) -> Any:
        return await self._performed("fetchrow", query, args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._performed("fetchval", query, args)

    async def _performed(self, method: str, query: str, args: tuple[Any, ...]) -> Any:
        """Perform a statement: in the transaction that is open, or in one of its own."""
        perform = getattr(self._connection, method)
        if self._connection.is_in_transaction():
            return await perform(query, *args)
        await self.execute("BEGIN")
        try:
            result = await perform(query, *args)
        except Exception:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):  # the first one counts
                await self._connection.execute("ROLLBACK")
            raise
        await self._connection.execute("COMMIT")
        return result

    async def cursor(self, query: str, *, prefetch: int) -> AsyncIterator[Any]:
        """Yield the rows of a query without arguments. The driver's cursor would prepare a statement with a name, which
        the session may have from another process."""
        await self._connection.execute(f"DECLARE asterism_rows NO SCROLL CURSOR FOR {query}")
        while rows := await self._connection.fetch(f"FETCH {prefetch} FROM asterism_rows"):
            for row in rows:
                yield row
        await self._connection.execute("CLOSE asterism_rows")

    @contextlib.asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        async with self._connection.transaction(**{"isolation": "read_committed", **options}):
            await self._connection.execute(self._settings)
            yield


_OF_SESSION = ("application_name", "tcp_keepalives_idle", "default_transaction_isolation")
"""Settings of the connection between pooler and server, or that the transaction has in another form."""


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
