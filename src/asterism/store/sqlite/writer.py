"""The one thread that writes, and commits for many at once.

Whoever has something to write puts it into a queue and waits. The thread takes whatever has gathered there while it was
busy, does all of it in one transaction, commits, and tells everybody at once: a thousand writers cost one ``fsync``
and one wake-up of the event loop. One alone costs its own commit and a hand-over between two threads.

The lock of the file is fought for here and not by SQLite, whose pauses become so long that a process can lose for
seconds against others that write without a break.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asterism.store.errors import StoreBusy, StoreError, StoreFull, StoreUnavailable
from asterism.store.sqlite.faults import is_busy, store_error
from asterism.store.sqlite.jobs import Job
from asterism.store.sqlite.link import Link
from asterism.store.sqlite.schema import version_of
from asterism.store.waking import Watches

MOST = 1000
"""How many jobs share one transaction: others want to write too."""

POLL = 0.025
"""How often it is looked whether another process has committed, in seconds, while somebody waits for that."""

PAUSE = (0.0005, 0.003)
"""How long to wait before the next try for the lock: anything between these."""


class Writer:
    """Belongs to the event loop in which it was made."""

    def __init__(self, link: Link, watches: Watches) -> None:
        self._link = link
        self._watches = watches
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Job | asyncio.Future[None] | None] = queue.SimpleQueue()
        self._closed = False
        self._seen: tuple[sqlite3.Cursor, int] | None = None
        self._looked_at = 0.0

    async def open(self, create: bool) -> None:
        """Start the thread, which makes the file (if it may) and its tables. Raises what is wrong with them."""
        opened: asyncio.Future[None] = self._loop.create_future()
        name = f"asterism writer of {self._link.path.name}"
        self._thread = threading.Thread(target=self._work, args=(opened, create), name=name, daemon=True)
        self._thread.start()
        try:
            await opened
        except asyncio.CancelledError:
            self._closed = True
            self._queue.put(self._loop.create_future())  # the thread ends as soon as it has opened the file
            raise

    def future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    async def do(self, job: Job) -> Any:
        """What came of it, once it is durable."""
        self.must_be_open()
        self._queue.put(job)
        return await job.future

    def must_be_open(self) -> None:
        if self._closed:
            raise closed(self._link.path)

    def look(self) -> None:
        """Somebody has begun to wait for what other processes do."""
        self._queue.put(None)

    async def close(self) -> None:
        """Do what is in the queue, and end."""
        if self._closed:
            return
        self._closed = True
        ended: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(ended)
        await ended
        self._thread.join()

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _work(self, opened: asyncio.Future[None], create: bool) -> None:
        try:
            self._link.first_open(create)
            self._notice_others(self._link.ready())
        except Exception as error:
            self._closed = True
            self._link.close()
            self._tell(_settle_one, opened, error)
            return
        self._tell(_settle_one, opened, None)
        ended: asyncio.Future[None] | None = None
        while ended is None:
            jobs, ended = self._gather()
            if jobs:
                self._perform(jobs)
                self._tell(self._settle, jobs)
            elif ended is None:
                self._look()
        self._link.close()
        self._tell(_settle_one, ended, None)

    def _gather(self) -> tuple[list[Job], asyncio.Future[None] | None]:
        """Whatever waits to be done. Nothing, after a while, if there is somebody to look out for."""
        try:
            found = [self._queue.get(timeout=POLL if len(self._watches) else None)]
        except queue.Empty:
            return [], None
        found += [self._queue.get() for _ in range(min(self._queue.qsize(), MOST - 1))]
        jobs = [one for one in found if isinstance(one, Job)]
        if len(jobs) == len(found):
            return jobs, None
        return jobs, next((one for one in found if isinstance(one, asyncio.Future)), None)

    def _perform(self, jobs: list[Job]) -> None:
        try:
            cursor = self._link.ready()
            if time.monotonic() - self._looked_at >= POLL:
                self._patiently(self._notice_others, cursor)
            if len(jobs) == 1 and jobs[0].one_statement:
                self._patiently(jobs[0].perform, cursor)  # a statement alone is a transaction
            else:
                self._patiently(cursor.execute, "BEGIN IMMEDIATE")
                for job in jobs:
                    job.perform(cursor)
                cursor.execute("COMMIT")
            self._link.unmoved()
        except Exception as error:
            self._give_up(jobs, error)

    def _patiently(self, action: Callable[[Any], object], argument: Any) -> None:
        """Again and again while another process has the lock."""
        until = None
        while True:
            try:
                action(argument)
                return
            except sqlite3.OperationalError as error:
                until = until or time.monotonic() + self._link.busy_timeout
                if not is_busy(error) or time.monotonic() >= until:
                    raise
            time.sleep(random.uniform(*PAUSE))

    def _give_up(self, jobs: list[Job], error: Exception) -> None:
        """Nothing of all this happened, or nobody knows. The next ones may have more luck."""
        self._link.rollback()
        fault: Exception = error
        if isinstance(error, sqlite3.Error | OSError):
            fault = store_error(error, self._link.path, self._link.busy_timeout)
            if not isinstance(fault, StoreBusy | StoreFull):
                self._link.close()
        for job in jobs:
            job.error = fault
            if isinstance(fault, StoreError):  # one for each: whoever raises it adds its own traceback
                job.error = type(fault)(*fault.args)
                job.error.__cause__ = error

    def _look(self) -> None:
        """Has anybody else committed? If the file cannot be read just now, whoever needs it will be told."""
        with contextlib.suppress(sqlite3.Error, StoreError):
            self._link.follow()
            if self._link.cursor is not None:
                self._notice_others(self._link.cursor)

    def _notice_others(self, cursor: sqlite3.Cursor) -> None:
        """This connection's own commits do not count."""
        (version,) = cursor.execute("PRAGMA data_version").fetchone()
        if self._seen != (cursor, version):
            version_of(cursor.connection, self._link.path)  # a later Asterism may have changed the tables
            self._seen = cursor, version
            self._tell(self._watches.wake_all)
        self._looked_at = time.monotonic()

    def _tell(self, action: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody left to tell
            self._loop.call_soon_threadsafe(action, *arguments)

    # -- in the event loop -------------------------------------------------------------------------------------------

    def _settle(self, jobs: list[Job]) -> None:
        topics: set[str] = set()
        watched = len(self._watches) > 0
        for job in jobs:
            if job.error is None:
                if watched:
                    topics |= job.topics()
                if not job.future.done():
                    job.future.set_result(job.result)
            elif not job.future.done():
                job.future.set_exception(job.error)
        if topics:
            self._watches.wake(topics)


def _settle_one(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def closed(path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"the store {path} was closed")
