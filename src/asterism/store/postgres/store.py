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

from asterism.core.run.run import Run, RunStatus
from asterism.core.run.session import Session
from asterism.store import dump_format
from asterism.store.postgres.address import Address
from asterism.store.postgres.connections import BROAD, QUICK, Connections, Opening
from asterism.store.postgres.group_commit import NO_PEERS, Committer
from asterism.store.postgres.maintenance import Keeping
from asterism.store.postgres.notifications import Listening, Telling, new_sender
from asterism.store.postgres.queries import queries
from asterism.store.postgres.queue import Taking
from asterism.store.postgres.reads import Reading
from asterism.store.postgres.schema import migrate
from asterism.store.postgres.server_clock import ServerClock
from asterism.store.protocol import (
    Answer,
    Change,
    Notice,
    Offer,
    Query,
    Register,
    Report,
    Usage,
    Waiting,
    Watch,
    Write,
    topic_of,
)
from asterism.store.store_errors import StoreError
from asterism.store.watches import Watches

TIMEOUT = 30.0


class PostgresStore:
    """Use ``open``. It belongs to the event loop that opened it."""

    def __init__(self, opening: Opening, connections: int, committers: int, takers: int) -> None:
        self._opening = opening
        self.clock = opening.clock
        self._quick = Connections(opening, QUICK, connections)
        self._broad = Connections(opening, BROAD, max(1, connections // 2))
        self._watches = Watches()
        sender = new_sender()
        channel = f"asterism_{opening.address.schema}"[:63]
        self._telling = Telling(self._quick, channel, sender)
        self._listening = Listening(opening, channel, sender, self._watches)
        self._committer = Committer(self._quick, committers, self._committed)
        self._taking = Taking(self._quick, takers)
        self._reading = Reading(self._quick, self._broad, opening.clock)
        self._keeping = Keeping(self._quick, self._broad)

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
        opening = Opening(Address.parse(url, schema), timeout, clock)
        await migrate(opening, create=create)
        store = cls(opening, connections, committers, takers)
        try:
            async with store._quick.borrowed() as connection:
                for _ in range(2):  # the first time the statement is new to the server, and slow
                    asked = clock.own()
                    clock.learn(await connection.fetchval(queries()["clock"]), asked)
        except BaseException:
            await store.close()
            raise
        opening.settled = True
        return store

    @property
    def url(self) -> str:
        return self._opening.address.shown

    # -- writing ---------------------------------------------------------------------------------------------------

    async def commit(self, writes: Sequence[Write]) -> None:
        """Raises ValueError, beside what every store raises, for a name that PostgreSQL cannot hold."""
        await self._committer.submit(writes)

    async def take(self, offer: Offer, step: Callable[[Run], Run | None]) -> list[Run]:
        taken = await self._taking.take(offer, step)
        topics = {topic for run in taken if (topic := topic_of(run)) is not None}
        if topics:
            self._committed(topics)
        return taken

    async def beat(self, session: str, profile: Mapping[str, Any], reports: Sequence[Report]) -> Answer:
        return await self._reading.beat(session, profile, reports)

    def _committed(self, topics: set[str]) -> None:
        self._watches.wake(topics)
        self._telling.tell(topics)

    # -- reading ---------------------------------------------------------------------------------------------------

    async def run(self, run_id: str) -> Run | None:
        return await self._reading.run(run_id)

    async def find(self, query: Query) -> list[Run]:
        return await self._reading.find(query)

    async def orphans(self, now: float, limit: int) -> list[tuple[Run, Session]]:
        return await self._reading.orphans(now, limit)

    async def waiting(self) -> list[Waiting]:
        return await self._reading.waiting()

    async def counts(self) -> Mapping[RunStatus, int]:
        return await self._reading.counts()

    async def sessions(self, *, ended: bool = False) -> list[Session]:
        return await self._reading.sessions(ended=ended)

    async def register(self, key: str) -> Register | None:
        return await self._reading.register(key)

    async def registers(self, prefix: str) -> list[Register]:
        return await self._reading.registers(prefix)

    async def reports(self, run_ids: Sequence[str]) -> dict[str, Report]:
        return await self._reading.reports(run_ids)

    async def notices(self, *, run: str | None = None, after: int = 0, limit: int = 100) -> list[tuple[int, Notice]]:
        return await self._reading.notices(run=run, after=after, limit=limit)

    # -- large things, old ones, everything ----------------------------------------------------------------------------

    async def keep_blob(self, data: bytes) -> str:
        return await self._keeping.keep_blob(data)

    async def blob(self, name: str) -> bytes | None:
        return await self._reading.blob(name)

    async def prune(self, ended_before: float, limit: int, *, spare: float = 0.0, keep: Sequence[str] = ()) -> int:
        return await self._keeping.prune(ended_before, limit, min(ended_before, self.clock() - spare), keep)

    async def check(self) -> list[str]:
        return await self._keeping.check()

    def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        return self._keeping.dump()

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

    async def kinds(self) -> set[str]:
        """What peers sent may have come with the backup of another store."""
        return await self._reading.kinds()

    # -- waking ----------------------------------------------------------------------------------------------------

    def watch(self, topics: frozenset[str]) -> Watch:
        self._listening.start()
        return self._watches.add(topics)

    async def close(self) -> None:
        await self._taking.close()
        await self._committer.close()
        await self._telling.close()
        await self._listening.close()
        await self._quick.close()
        await self._broad.close()
        self._watches.wake_all()
