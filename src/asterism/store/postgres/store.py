"""PostgresStore: the store of a fleet, in PostgreSQL.

*Exclusive.* A write goes through if the row still has the revision it expects; the server compares and locks row by
row, under READ COMMITTED, so nothing rests on isolation levels. Every connection goes to the server that takes writes;
nothing is ever decided on a replica.

*Never lost.* What returned is on the server's disk (``synchronous_commit`` is on for us, whatever the server's default;
with synchronous standbys on theirs too). A connection that breaks in the middle of a commit leaves its outcome unknown:
that is StoreUnavailable. The same store object works again when the server is back.

*Time* is the server's; ``clock`` is an estimate of it (see ``clock.py``). *Waking* is LISTEN and NOTIFY (see
``listening.py``).

It needs sessions of its own on the server: a pooler between them would have to hand out whole sessions.
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
    """Use ``open``. It belongs to the event loop that opened it."""

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
        """``schema`` (or ``?schema=`` in the URL, else ``asterism``) is where the tables are; with ``create`` they are
        made if they are missing, and brought to the version of this program in any case.

        No statement takes longer than ``timeout`` seconds, and a lock is waited for a sixth of that; the check and the
        dump may take as long as they need. Raises StoreMissing, StoreReadOnly, UnknownSchema or StoreUnavailable."""
        clock = ServerClock()
        factory = ConnectionFactory(Address.parse(url, schema), timeout, clock)
        await migrate(factory, create=create)
        store = cls(factory, connections, committers, takers)
        try:
            async with store._quick.borrowed() as connection:
                for _ in range(2):  # the first time the statement is new to the server, and slow
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
        """Raises ValueError, beside what every store raises, for a name that PostgreSQL cannot hold."""
        await self._committer.submit(writes)

    async def take(self, request: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        taken = await self._queue.take(request, step)
        topics = {topic for run in taken if (topic := topic_of(run)) is not None}
        if topics:
            self._committed(topics)
        return taken

    def _committed(self, topics: set[str]) -> None:
        self._watches.wake(topics)
        self._sender.tell(topics)

    # -- maintenance -----------------------------------------------------------------------------------------------

    async def load(self, lines: AsyncIterator[Mapping[str, Any]]) -> int:
        return await dump_format.load(self, lines)

    # -- for peers ---------------------------------------------------------------------------------------------------

    async def start_feed(self) -> str:
        """There is none. Raises StoreError."""
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
