"""PostgresStore: a store in PostgreSQL, shared by devices on many machines.

*Exclusive.* A write succeeds if the row still has the revision it expects. The server compares and locks row by row,
under READ COMMITTED, so nothing relies on isolation levels. Every connection goes to the server that takes writes;
nothing is decided on a replica.

*Durable.* A commit that returned is on the server's disk (``synchronous_commit`` is on for our connections, whatever
the server's default; with synchronous standbys it is on theirs too). If a connection breaks during a commit, the
outcome is unknown: StoreUnavailable. The same store object works again when the server is back, or another one has
taken over. If that one lacks acknowledged commits: StoreCorrupt (``commit_history``).

*Time* is the server's; ``clock`` is an estimate of it (``connection``). *Waking* uses LISTEN and NOTIFY
(``notifications``).

Behind a connection pooler in transaction mode everything works more slowly (``connection``).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from asterism.base.clock import ServerClock
from asterism.core.run.run import OWNED, Run
from asterism.store import dump_format
from asterism.store.postgres.connection import (
    BROAD,
    QUICK,
    Address,
    Connection,
    ConnectionFactory,
    ConnectionPool,
)
from asterism.store.postgres.group_commit import NO_PEERS, Committer
from asterism.store.postgres.notifications import Listener, NotificationSender
from asterism.store.postgres.queue import TakeQueue
from asterism.store.postgres.reads import Reads
from asterism.store.postgres.schema import (
    careless_settings,
    changed_definitions,
    disabled_triggers,
    foreign_objects,
    inert_objects,
    migrate,
    missing_standby,
    objects_of_schema,
    statements,
    write_access,
)
from asterism.store.protocol import Change, Notice, PutRun, TakeRequest, Usage, Watch, Write
from asterism.store.row_codec import (
    COLUMNS,
    MOVING,
    chunk_of,
    from_text,
    moving,
    register_of,
    run_of,
    session_of,
    stored_notice,
)
from asterism.store.store_errors import StoreCorrupt, StoreError
from asterism.store.watches import Watches, topics_of

log = logging.getLogger(__name__)

TIMEOUT = 30.0
PAGE = 200
BLOB_PAGE = 4  # they are large


class PostgresStore(Reads):
    """Use ``open``. A store belongs to the event loop in which it was opened."""

    def __init__(self, factory: ConnectionFactory, connections: int, committers: int, takers: int) -> None:
        self._factory = factory
        quick = ConnectionPool(factory, QUICK, connections)
        super().__init__(quick, ConnectionPool(factory, BROAD, max(1, connections // 2)), factory.clock)
        self._watches = Watches()
        sender = uuid.uuid4().hex[:12]
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
        takers: int = 1,
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
        factory.opened = True
        return store

    @property
    def url(self) -> str:
        return self._factory.address.shown

    @property
    def files_folder(self) -> None:
        return None

    # -- writing ---------------------------------------------------------------------------------------------------

    async def commit(self, writes: Sequence[Write]) -> None:
        """Raises ValueError, besides the errors of every store, for a name that PostgreSQL cannot hold."""
        await self._committer.submit(writes)

    async def take(self, request: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        taken = await self._queue.take(request, step)
        topics = topics_of([PutRun(run, run.revision) for run in taken])
        if topics:
            self._committed(topics)
        return taken

    def _committed(self, topics: set[str]) -> None:
        self._watches.wake(topics)
        self._sender.send(topics)

    # -- maintenance -----------------------------------------------------------------------------------------------

    async def put_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        await self._quick.fetch(statements()["put_blob"], name, data)
        return name

    async def prune(
        self,
        ended_before: float,
        limit: int,
        *,
        blobs_before: float | None = None,
        only: str = "",
    ) -> int:
        if only:
            row = await self._broad.fetchrow(statements()["prune_runs_of"], ended_before, limit, only)
        else:
            row = await self._broad.fetchrow(statements()["prune_runs"], ended_before, limit)
        number: int = row[0]
        if number == 0 and not only:
            for name in ("prune_sessions", "prune_notices"):
                await self._broad.fetch(statements()[name], ended_before)
            kept_before = ended_before if blobs_before is None else blobs_before
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
                line = dump_format.line(register_of((key, value, revision)))
                if dump_format.is_dumped(line):
                    yield line
            async for number, text in connection.cursor(statements()["all_notices"], prefetch=PAGE):
                yield dump_format.line(stored_notice(text), number=number)
            async for run, *row in connection.cursor(statements()["all_logs"], prefetch=PAGE):
                yield dump_format.log_line(run, chunk_of(run, row))
            async for (data,) in connection.cursor(statements()["all_blobs"], prefetch=BLOB_PAGE):
                yield dump_format.blob_line(data)

    async def check(self) -> list[str]:
        problems: list[str] = []
        shown, schema = self._factory.address.shown, self._factory.address.schema
        async with self._snapshot() as connection:
            problems += await careless_settings(connection)
            for risk in await missing_standby(connection, len(self._factory.address.hosts)):
                log.warning("%s: %s", shown, risk)  # the operator decides
            problems += await disabled_triggers(connection, schema)
            problems += await write_access(connection, shown, schema)
            objects = await objects_of_schema(connection, schema)
            if foreign := [*foreign_objects(objects, schema), *await inert_objects(connection, schema)]:
                problems += foreign
            elif changed := await changed_definitions(self._factory):
                return problems + changed  # what the records mean depends on them
            async for row in connection.cursor(statements()["all_runs"], prefetch=PAGE):
                problems += _problems_of_run(row)
            for query, (what, read) in _READERS.items():
                async for row in connection.cursor(statements()[query], prefetch=PAGE):
                    problems += _problem(what, read, row)
            async for name, digest in connection.cursor(statements()["sums_of_blobs"], prefetch=BLOB_PAGE):
                if name != digest:
                    problems.append(f"blob {name} is damaged: its content does not match its name")
            for query, words in _CONTRADICTIONS.items():
                problems += [words.format(*row) for row in await connection.fetch(statements()[query])]
        return problems

    @contextlib.asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[Connection]:
        """A transaction that sees one instant, for as long as it takes. Meanwhile the server cannot vacuum newer dead
        rows."""
        async with (
            self._broad.borrowed(whole=False) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(
                "SET LOCAL idle_in_transaction_session_timeout = '10min'; SET LOCAL statement_timeout = '10min'"
            )
            yield connection

    async def load(self, lines: AsyncIterator[Mapping[str, Any]], *, keep_devices: bool = False) -> int:
        return await dump_format.load(self, lines, keep_devices=keep_devices)

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
    "all_registers": ("register", register_of),
    "all_notices": ("notice", lambda row: Notice.from_json(from_text(row[1]))),
    "all_logs": ("the log of run", lambda row: chunk_of(row[0], row[1:])),
}
_CONTRADICTIONS = {
    "runs_of_missing_sessions": "run {0} belongs to session {1}, which does not exist",
    "logs_without_runs": "the log of run {0} is there, but the run does not exist",
    "missing_blobs": "run {0} refers to blob {1}, which does not exist",
    "missing_blobs_of_registers": "register {0} refers to blob {1}, which does not exist",
}
