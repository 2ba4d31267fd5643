"""Connections to the server: opened when they are needed, used by one at a time, closed when they have been idle.

All of them go to the server that takes writes. Every one has limits, so that nothing waits for ever: for a statement,
for a lock, for a transaction whose client went to sleep, and for an answer from a server that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import asyncpg

from asterism.store.postgres.address import Address
from asterism.store.postgres.error_mapping import spoils, translated
from asterism.store.postgres.server_clock import ServerClock
from asterism.store.store_errors import StoreError, StoreMissing, StoreReadOnly, StoreUnavailable

log = logging.getLogger(__name__)

OLDEST_SERVER = 15
IDLE = 60.0
"""So many seconds a connection is kept that nobody uses."""

QUICK = {"plan_cache_mode": "force_generic_plan"} | dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"
)
"""One plan for all arguments, by index: made while the tables are empty, it is still right when they are not."""

BROAD = {"plan_cache_mode": "force_custom_plan"}


class Connection(Protocol):
    """What is used of asyncpg's."""

    async def execute(self, query: str, *args: Any) -> str: ...
    async def fetch(self, query: str, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, *args: Any) -> Any: ...
    async def fetchval(self, query: str, *args: Any) -> Any: ...
    def transaction(self, **options: Any) -> Any: ...
    def cursor(self, query: str, *args: Any, prefetch: int) -> AsyncIterator[Any]: ...
    async def add_listener(self, channel: str, callback: Any) -> None: ...
    def add_termination_listener(self, callback: Any) -> None: ...
    def get_server_version(self) -> Any: ...
    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    async def close(self, *, timeout: float) -> None: ...
    def terminate(self) -> None: ...


class ConnectionFactory:
    """How a connection is opened: where, and within which limits. ``timeout`` is what nothing takes longer than, in
    seconds; locks are waited for a part of it."""

    def __init__(self, address: Address, timeout: float, clock: ServerClock) -> None:
        self.address = address
        self.timeout = timeout
        self.clock = clock
        self.settled = False
        """Whether the store was open already: from then on a server that takes no writes is one that will again."""

    async def connect(self, settings: Mapping[str, str]) -> Connection:
        """Raises a StoreError that says of each server why it is not the one."""
        refusals: list[StoreError] = []
        for host in self.address.hosts:
            try:
                return await self._connect_to(host, settings)
            except (OSError, asyncpg.PostgresError, asyncpg.InternalClientError, asyncpg.InterfaceError) as error:
                refusal = _refusal(error, self.address.shown)
                log.debug("no connection to a server of the store: %s", refusal)
                refusals.append(refusal)
        raise self._verdict(refusals)

    async def _connect_to(self, host: dict[str, Any], settings: Mapping[str, str]) -> Connection:
        connection: Connection = await asyncpg.connect(
            **host,
            timeout=self.timeout / 3 / len(self.address.hosts),
            command_timeout=self.timeout,
            target_session_attrs="read-write",
            server_settings={**self._limits(), **settings},
        )
        return connection

    def _limits(self) -> dict[str, str]:
        return {
            "application_name": "asterism",
            "search_path": f'"{self.address.schema}"',
            "statement_timeout": str(int(self.timeout * 900)),
            "lock_timeout": str(int(self.timeout * 1000 / 6)),
            "idle_in_transaction_session_timeout": str(int(self.timeout * 1000 / 6)),
            "tcp_keepalives_idle": "60",
            "default_transaction_isolation": "read committed",
            "synchronous_commit": "on",
            "jit": "off",
        }

    def _verdict(self, refusals: list[StoreError]) -> StoreError:
        said = "; ".join(dict.fromkeys(str(refusal) for refusal in refusals))
        kinds = {type(refusal) for refusal in refusals}
        if len(kinds) == 1 and not (self.settled and StoreReadOnly in kinds):
            return kinds.pop()(said)
        return StoreUnavailable(said)


def _refusal(error: Exception, shown: str) -> StoreError:
    """What a failure to connect means. A name that cannot be found today may be found tomorrow."""
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return StoreMissing(f"{shown}: the address of the store cannot be used")
    meant = translated(error, shown)
    return meant if isinstance(meant, StoreError) else StoreUnavailable(str(meant))


class ConnectionPool:
    """Up to ``most`` connections with the same settings."""

    def __init__(self, factory: ConnectionFactory, settings: Mapping[str, str], most: int) -> None:
        self._factory = factory
        self._settings = settings
        self._room = asyncio.Semaphore(most)
        self._idle: list[tuple[float, Connection]] = []
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    @contextlib.asynccontextmanager
    async def borrowed(self) -> AsyncIterator[Connection]:
        """A connection for the block. What goes wrong in it leaves it in the words of the store."""
        async with self._room:
            connection = self._take_idle() or await self._open()
            try:
                yield connection
            except Exception as error:
                if spoils(error):
                    self._spoiled(connection)
                    self._close_idle(0.0)  # whatever befell this one befell the others
                else:
                    self._give_back(connection)
                meant = translated(error, self._factory.address.shown)
                if meant is error:
                    raise
                raise meant from error
            except BaseException:
                self._spoiled(connection)  # cancelled in the middle of something
                raise
            self._give_back(connection)

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        async with self.borrowed() as connection:
            return await connection.fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> Any:
        async with self.borrowed() as connection:
            return await connection.fetchrow(query, *args)

    async def _open(self) -> Connection:
        if self._closed:
            raise StoreUnavailable(f"{self._factory.address.shown}: this store was closed")
        connection = await self._factory.connect(self._settings)
        if self._closed:
            connection.terminate()
            raise StoreUnavailable(f"{self._factory.address.shown}: this store was closed")
        return connection

    def _take_idle(self) -> Connection | None:
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _give_back(self, connection: Connection) -> None:
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            self._spoiled(connection)
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        if self._reaper is None:
            self._reaper = loop.call_later(IDLE, self._reap)

    def _spoiled(self, connection: Connection) -> None:
        if not connection.is_closed():
            connection.terminate()

    def _reap(self) -> None:
        self._reaper = None
        self._close_idle(IDLE)
        if self._idle:
            self._reaper = asyncio.get_running_loop().call_later(IDLE, self._reap)

    def _close_idle(self, longer_than: float) -> None:
        now = asyncio.get_running_loop().time()
        old = [connection for since, connection in self._idle if now - since >= longer_than]
        self._idle = [(since, one) for since, one in self._idle if now - since < longer_than]
        for connection in old:
            self._spoiled(connection)

    async def close(self) -> None:
        """The idle ones now, those in use when they are given back."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        idle, self._idle = self._idle, []
        for _, connection in idle:
            with contextlib.suppress(Exception):
                await connection.close(timeout=5.0)
