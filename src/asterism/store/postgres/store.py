"""PostgresStore: a store in PostgreSQL, shared by devices on many machines.

*Exclusive.* A write succeeds if the row still has the revision it expects. The server compares and locks row by row,
under READ COMMITTED, so nothing relies on isolation levels. Every connection goes to the server that takes writes;
nothing is decided on a replica.

*Durable.* A commit that returned is on the server's disk (``synchronous_commit`` is on for our connections, whatever
the server's default; with synchronous standbys it is on theirs too). If a connection breaks during a commit, the
outcome is unknown: StoreUnavailable. The same store object works again when the server is back.

*Time* is the server's; ``clock`` is an estimate of it (``server_clock``). *Waking* uses LISTEN and NOTIFY
(``notifications``).

The store needs server sessions of its own: a connection pooler has to run in session mode.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from asterism.core.run.run import Run
from asterism.store import dump_format
from asterism.store.postgres.address import Address
from asterism.store.postgres.connection_pool import BROAD, QUICK, ConnectionFactory, ConnectionPool
from asterism.store.postgres.group_commit import NO_PEERS, Committer
from asterism.store.postgres.maintenance import Maintenance
from asterism.store.postgres.notifications import Listener, NotificationSender, new_sender
from asterism.store.postgres.queue import TakeQueue
from asterism.store.postgres.reads import Reads
from asterism.store.postgres.schema import migrate
from asterism.store.postgres.server_clock import ServerClock
from asterism.store.postgres.statements import statements
from asterism.store.protocol import Change, TakeRequest, Usage, Watch, Write
from asterism.store.store_errors import StoreError
from asterism.store.watches import Watches
from asterism.store.write_batch import topic_of

TIMEOUT = 30.0


class PostgresStore(Reads, Maintenance):
    """Use ``open``. A store belongs to the event loop in which it was opened."""

    def __init__(self, factory: ConnectionFactory, connections: int, committers: int, takers: int) -> None:
        self._factory = factory
        quick = ConnectionPool(factory, QUICK, connections)
        super().__init__(quick, ConnectionPool(factory, BROAD, max(1, connections // 2)), factory.clock)
        self._watches = Watches()
        sender = new_sender()
        channel = f"asterism_{factory.address.schema}"[:63]
        self._sender = NotificationSender(quick, channel, sender)
        self._listener = Listener(factory, channel, sender, self._watches)
        self._committer = Committer(quick, committers, self._committed)
        self._queue = TakeQueue(quick, takers)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        schema: str | None = None,
        create: bool = True,
        timeout: float = TIMEOUT,
        connections: int = 8,
        committers: int = 4,
        takers: int = 2,
    ) -> PostgresStore:
        """Open a store, and apply missing migrations.

        :param url: ``postgresql://user@host/database``, with any parameter that PostgreSQL understands.
        :param schema: where the tables are; by default ``?schema=`` of the URL, else ``asterism``.
        :param create: create the tables if they do not exist.
        :param timeout: the longest time for a statement, in seconds; a lock is waited for a sixth of it. The check and
            the dump may take longer.
        :param connections: how many connections to use for commits, takes and reads by id; half as many for queries.
        :param committers: how many transactions may commit at the same time.
        :param takers: how many transactions may take runs at the same time.
        :raises StoreError: StoreMissing, StoreReadOnly, UnknownSchema or StoreUnavailable.
        """
        clock = ServerClock()
        factory = ConnectionFactory(Address.parse(url, schema), timeout, clock)
        await migrate(factory, create=create)
        store = cls(factory, connections, committers, takers)
        try:
            async with store._quick.borrowed() as connection:
                for _ in range(2):  # the first time the server has to prepare the statement, which is slow
                    asked = clock.own()
                    clock.learn(await connection.fetchval(statements()["clock"]), asked)
        except BaseException:
            await store.close()
            raise
        factory.settled = True
        return store

    @property
    def url(self) -> str:
        return self._factory.address.shown

    # -- writing ---------------------------------------------------------------------------------------------------

    async def commit(self, writes: Sequence[Write]) -> None:
        """Raises ValueError, besides the errors of every store, for a name that PostgreSQL cannot hold."""
        await self._committer.submit(writes)

    async def take(self, request: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        taken = await self._queue.take(request, step)
        topics = {topic for run in taken if (topic := topic_of(run)) is not None}
        if topics:
            self._committed(topics)
        return taken

    def _committed(self, topics: set[str]) -> None:
        self._watches.wake(topics)
        self._sender.send(topics)

    # -- maintenance -----------------------------------------------------------------------------------------------

    async def load(self, lines: AsyncIterator[Mapping[str, Any]]) -> int:
        return await dump_format.load(self, lines)

    # -- change feed: this engine has none ---------------------------------------------------------------------------

    async def start_feed(self) -> str:
        """Raises StoreError: this engine has no change feed."""
        raise StoreError(NO_PEERS)

    async def changes(self, after: int, limit: int) -> list[Change]:
        raise StoreError(NO_PEERS)

    async def newest(self) -> int:
        return 0

    async def left_to(self, run_ids: Sequence[str]) -> dict[str, str]:
        return {}

    async def copies(self, left_to: str, limit: int, after: str = "") -> list[Run]:
        return []

    async def judges(self) -> set[str]:
        return set()

    async def forget_sessions(self, ids: Sequence[str]) -> None:
        raise StoreError(NO_PEERS)

    async def usage(self, store: str) -> Usage:
        return Usage()

    async def came_from_peers(self, run_ids: Sequence[str]) -> set[str]:
        return set()

    async def came_from(self, store: str) -> list[Run]:
        return []

    # -- waking ----------------------------------------------------------------------------------------------------

    def watch(self, topics: frozenset[str]) -> Watch:
        self._listener.start()
        return self._watches.add(topics)

    async def close(self) -> None:
        await self._queue.close()
        await self._committer.close()
        await self._sender.close()
        await self._listener.close()
        await self._quick.close()
        await self._broad.close()
        self._watches.wake_all()
