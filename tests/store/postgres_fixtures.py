"""Shared by tests of the PostgreSQL engine: stores, connections of the test's own, and a breakable wire."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from asterism.store.postgres import PostgresStore, store
from asterism.store.postgres.connection import ConnectionFactory


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    # a sixth of it is the longest wait for a lock: long enough for a busy machine
    postgres = await PostgresStore.open(url, **{"timeout": 120.0, **options})
    try:
        yield postgres
    finally:
        await postgres.close()


def limited(monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
    """Give every store that is opened from now on a limit at its server, in seconds. All other limits stay long: a busy
    machine does not reach them."""
    usual = ConnectionFactory._limits

    def own(self: ConnectionFactory) -> dict[str, str]:
        return usual(self) | {name: str(int(1000 * seconds)) for name, seconds in limits.items()}

    monkeypatch.setattr(ConnectionFactory, "_limits", own)


def without_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``check`` compare no definitions: it would create all tables again, which takes longer than most tests."""

    async def unchanged(_: object) -> list[str]:
        return []

    monkeypatch.setattr(store, "changed_definitions", unchanged)


async def connected(url: str) -> Any:
    """Open a connection of the test's own, in the schema of the store."""
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return await asyncpg.connect(
        user="postgres",
        database=parts.path.lstrip("/"),
        host=query["host"].split(",")[0],
        server_settings={"search_path": query.get("schema", "asterism")},
    )


@contextlib.asynccontextmanager
async def looking(url: str) -> AsyncIterator[Any]:
    connection = await connected(url)
    try:
        yield connection
    finally:
        await connection.close()


async def waits_for_a_lock(connection: Any) -> int:
    """Wait until a statement of a store waits for a lock. Return the id of its server process."""
    while True:
        pid = await connection.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'asterism'"
        )
        if pid is not None:
            return int(pid)


class Wire:
    """A wire between a store and its server that breaks on demand.

    ``lose_request`` and ``lose_answer`` name a piece of a message. The first that is seen with it is cut off on its way
    to the server; or it is delivered, and the connection breaks when the server has answered. With ``hold`` it does not
    break: nothing more is ever heard."""

    def __init__(self, server: Path) -> None:
        self._server = str(server / ".s.PGSQL.5432")
        self._folder = tempfile.TemporaryDirectory(prefix="ast-wire-", dir="/tmp")
        self._pipes: set[asyncio.Task[None]] = set()
        self.lose_request: bytes | None = None
        self.lose_answer: bytes | None = None
        self.hold = False
        self.holding = asyncio.Event()
        self._clients: set[asyncio.StreamWriter] = set()

    def tell_clients(self, message: bytes) -> None:
        """Send all clients a message that the server never sent."""
        for client in self._clients:
            client.write(message)

    @property
    def host(self) -> str:
        return self._folder.name

    async def __aenter__(self) -> Wire:
        self._listening = await asyncio.start_unix_server(self._join, f"{self.host}/.s.PGSQL.5432")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        for pipe in tuple(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        await self._listening.wait_closed()
        self._folder.cleanup()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        self._clients.add(writer)
        try:
            to_server = await asyncio.open_unix_connection(self._server)
            try:
                await self._carry((reader, writer), to_server)
            finally:
                to_server[1].transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._clients.discard(writer)
            self._pipes.discard(task)

    async def _carry(self, client: Any, server: Any) -> None:
        answered = asyncio.Event()
        doomed = asyncio.Event()

        async def there() -> None:
            while data := await client[0].read(65536):
                if self.lose_request is not None and self.lose_request in data:
                    self.lose_request = None
                    return
                if self.lose_answer is not None and self.lose_answer in data:
                    self.lose_answer = None
                    doomed.set()
                server[1].write(data)
                if doomed.is_set():
                    await answered.wait()
                    if self.hold:
                        self.holding.set()
                        await asyncio.Event().wait()
                    return

        async def back() -> None:
            while data := await server[0].read(65536):
                if doomed.is_set():
                    answered.set()
                else:
                    client[1].write(data)

        ways = [asyncio.create_task(there()), asyncio.create_task(back())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
