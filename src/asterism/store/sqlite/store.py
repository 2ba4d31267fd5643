"""SqliteStore: a store in a file, shared by any number of processes on one machine.

All writes go through one group committer, all reads through a few reader threads. An acknowledged commit is on the
disk: write-ahead log, ``synchronous=FULL``. While a watch is open, commits of other processes are noticed by their
messages (``wake_fifos``), and by polling the version of the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Concatenate

from asterism.core.record import replace
from asterism.core.run.run import Run
from asterism.store import dump_format, row_codec
from asterism.store.protocol import HeartbeatReply, ProgressReport, Query, TakeRequest, Watch, Write
from asterism.store.sqlite import maintenance, reads
from asterism.store.sqlite.blob_files import Blobs
from asterism.store.sqlite.connection import FileConnection
from asterism.store.sqlite.error_mapping import moved
from asterism.store.sqlite.group_commit import Writer
from asterism.store.sqlite.queue import TakeJob, first_page
from asterism.store.sqlite.reads import P, ReaderThreads, Result
from asterism.store.sqlite.schema import STATEMENTS
from asterism.store.sqlite.write_jobs import CallJob, CommitJob, HeartbeatJob, prune, start_feed
from asterism.store.store_errors import StoreCorrupt, StoreUnavailable
from asterism.store.watches import Watches, check_distinct_records

HOUR = 3600.0
READERS = 2
FEW = 32
"""Up to so many runs of one session are read in the event loop."""


def in_thread(
    read: Callable[Concatenate[sqlite3.Cursor, P], Result],
) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, Result]]:
    """A method that reads in a thread: ``read`` gets a cursor, and what the method is called with."""

    async def ask(store: SqliteStore, /, *arguments: P.args, **options: P.kwargs) -> Result:
        return await store._readers.ask(read, *arguments, **options)

    return ask


def of_one_record(
    read: Callable[[sqlite3.Cursor, str], Result],
) -> Callable[[SqliteStore, str], Coroutine[Any, Any, Result]]:
    """A method that reads one record by its key, in the event loop if the file is quick."""

    async def ask(store: SqliteStore, key: str) -> Result:
        done = store._writer.read_here(read, key)
        return done[0] if done is not None else await store._readers.ask(read, key)

    return ask


class SqliteStore:
    """Use ``open``. A store belongs to the event loop in which it was opened."""

    def __init__(
        self, name: str | os.PathLike[str], clock: Callable[[], float], busy_timeout: float, blob_age: float
    ) -> None:
        self.clock = clock
        self.url = f"sqlite:///{''.join(char if char.isprintable() else '?' for char in os.fspath(name))}"
        self.path = path = Path(name).absolute()
        self._blob_age = blob_age
        self._watches = Watches()
        self._blobs = Blobs(path.with_name(f"{path.name}.blobs"), clock)
        self._connection = FileConnection(path, busy_timeout)
        self._writer = Writer(self._connection, self._watches)
        self._readers = ReaderThreads(self._connection, READERS, self._writer.poll)

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        blob_age: float = HOUR,
        create: bool = True,
    ) -> SqliteStore:
        """Open a store.

        :param path: the file. Its directory has to exist.
        :param clock: returns the time in seconds since 1970.
        :param busy_timeout: how long to wait for the lock of another process, in seconds.
        :param blob_age: how long to keep a blob to which no run refers (yet), in seconds.
        :param create: create the file if it does not exist.
        """
        store = cls(path, clock, busy_timeout, blob_age)
        await store._writer.open(create)
        return store

    @property
    def files_folder(self) -> Path:
        return self.path.with_name(f"{self.path.name}.files")

    # -- writing ---------------------------------------------------------------------------------------------------

    async def commit(self, writes: Sequence[Write]) -> None:
        if not writes:
            return
        if len(writes) > 1:
            check_distinct_records(writes)
        await self._writer.submit(CommitJob(writes, self.clock))

    async def take(self, request: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        taken: list[Run] = []
        if self._writer.read_here(reads.any_offered) == (False,):
            return []  # usually a device is woken for another reason: it does not take the lock of all writers
        page = first_page(request) if request.limit > 0 else None
        while page is not None:
            left = request if not taken else replace(request, limit=request.limit - len(taken))
            try:
                more, page = await self._writer.submit(TakeJob(left, step, page))
            except StoreUnavailable:
                if not taken:
                    raise
                break  # keep the runs that were taken
            taken += more
        return taken

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        job = HeartbeatJob(session, profile, reports, self.clock)
        reply: HeartbeatReply = await self._writer.submit(job)
        return reply

    # -- reading ---------------------------------------------------------------------------------------------------

    run = of_one_record(reads.run)

    async def find(self, query: Query) -> list[Run]:
        if query.session is not None and query.limit is None:  # usually a few runs, which a device looks at again
            done = self._writer.read_here(reads.find, replace(query, limit=FEW + 1))
            if done is not None and len(done[0]) <= FEW:
                return done[0]
        return await self._readers.ask(reads.find, query)

    scan_end = in_thread(reads.scan_end)
    orphans = in_thread(reads.orphans)
    waiting = in_thread(reads.waiting)
    limited = in_thread(reads.limited)
    limited_runs = in_thread(reads.limited_runs)
    counts = in_thread(reads.counts)
    batches = in_thread(reads.batches)
    last_ends = in_thread(reads.last_ends)
    sessions = in_thread(reads.sessions)
    register = of_one_record(reads.register)
    registers = in_thread(reads.registers)
    plans = in_thread(reads.plans)
    reports = in_thread(reads.reports)
    log = in_thread(reads.log)
    notices = in_thread(reads.notices)

    def watch(self, topics: frozenset[str]) -> Watch:
        watch = self._watches.add(topics)
        if len(self._watches.open) == 1:
            self._writer.watch()
        return watch

    # -- blobs and retention -----------------------------------------------------------------------------------------

    async def put_blob(self, data: bytes) -> str:
        self._writer.must_be_open()
        return await asyncio.to_thread(self._blobs.keep, data)

    async def blob(self, name: str) -> bytes | None:
        self._writer.must_be_open()
        return await asyncio.to_thread(self._blobs.read, name)

    async def prune(
        self,
        ended_before: float,
        limit: int,
        *,
        blobs_before: float | None = None,
        only: str = "",
    ) -> int:
        job = CallJob(partial(prune, ended_before=ended_before, limit=limit, only=only))
        deleted: int = await self._writer.submit_long(job)
        if deleted == 0 and not only:
            kept_before = ended_before if blobs_before is None else blobs_before
            before = min(kept_before, self.clock() - self._blob_age)
            # listed before the references are read: a blob that is put again after that is younger than ``before``
            old = await asyncio.to_thread(lambda: set(self._blobs.names(before)))
            if old:
                old -= await self._readers.ask(maintenance.referenced_blobs)
            await asyncio.to_thread(self._remove, old, before)
        return deleted

    def _remove(self, names: set[str], before: float) -> None:
        for name in names:
            self._blobs.remove(name, before)
        self._blobs.sweep(before)

    # -- change feed -------------------------------------------------------------------------------------------------

    async def start_feed(self) -> str:
        return str(await self._writer.submit(CallJob(start_feed)))

    changes = in_thread(reads.changes)
    newest = in_thread(reads.newest)

    async def left_to(self, run_ids: Sequence[str]) -> dict[str, str]:
        done = self._writer.read_here(reads.left_to, run_ids) if len(run_ids) == 1 else None
        return done[0] if done is not None else await self._readers.ask(reads.left_to, run_ids)

    copies = in_thread(reads.copies)
    judges = in_thread(reads.judges)
    usage = in_thread(reads.usage)
    came_from_peers = in_thread(reads.came_from_peers)
    came_from = in_thread(reads.came_from)

    async def forget_sessions(self, ids: Sequence[str]) -> None:
        names = row_codec.to_text(list(ids))
        await self._writer.submit(CallJob(lambda cursor: cursor.execute(STATEMENTS["forget_these_sessions"], (names,))))

    # -- maintenance -------------------------------------------------------------------------------------------------

    async def check(self) -> list[str]:
        apart = ReaderThreads(self._connection, 1, self._writer.poll)  # a thread of its own, since it takes long
        try:
            self._writer.must_be_open()
            return await apart.ask(maintenance.problems, self._blobs)
        except StoreCorrupt as error:
            return [str(error)]
        finally:
            await apart.close()

    async def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        self._writer.must_be_open()
        apart = ReaderThreads(self._connection, 1, self._writer.poll)
        try:
            # a blob that is deleted meanwhile is still referred to in the tables of this instant
            used = await apart.ask(maintenance.referenced_blobs)
            await asyncio.to_thread(self._blobs.spare, used)
            pages = await apart.ask(_Pages, self.path)
            while lines := await apart.ask(pages.next):
                for line in lines:
                    yield line
        finally:
            await apart.close()
        for name in await asyncio.to_thread(lambda: sorted(set(self._blobs.names()))):
            data = await self.blob(name)
            if data is not None:
                yield dump_format.blob_line(data)

    async def load(self, lines: AsyncIterator[Mapping[str, Any]], *, keep_devices: bool = False) -> int:
        return await dump_format.load(self, lines, keep_devices=keep_devices)

    async def close(self) -> None:
        """Finish pending calls. Later calls raise StoreUnavailable."""
        await self._writer.close()
        await self._readers.close()
        self._watches.wake_all()


class _Pages:
    """A dump in progress, in the thread of a reader."""

    def __init__(self, cursor: Any, path: Path) -> None:
        self._cursor, self._path = cursor, path
        self._pages: Iterator[list[Mapping[str, Any]]] = maintenance.pages(cursor)

    def next(self, cursor: Any) -> list[Mapping[str, Any]]:
        """Return the next lines; none at the end."""
        if cursor is not self._cursor:  # the file was replaced: this would be another store
            raise moved(self._path)
        return next(self._pages, [])
