"""Group commit: many jobs that write, one transaction.

A caller submits a job and waits. All jobs of one turn of the event loop share a transaction, and all callers learn the
outcome at once: a thousand writers cost one ``fsync``. A lone writer skips batching.

While commits are fast, as measured lately, the event loop performs them itself: that takes less time than handing them
to a thread and being woken again. Everything that may take longer, above all waiting for the lock of another process,
goes to a thread. It takes all jobs that arrived while it was busy.

This module waits for the file's lock, not SQLite, whose pauses become so long that a process can starve for seconds
against others that write without a break.
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
from typing import Any, TypeVar

from asterism.store.sqlite.connection import FileConnection
from asterism.store.sqlite.error_mapping import is_busy
from asterism.store.sqlite.schema import version_of
from asterism.store.sqlite.wake_fifos import WakeFifos
from asterism.store.sqlite.write_jobs import Job
from asterism.store.store_errors import StoreBusy, StoreError, StoreFull, StoreUnavailable
from asterism.store.watches import Watches, topics_of

MOST_JOBS = 1000
"""How many jobs share one transaction at most: other processes want to write too."""

POLL = 0.025
"""How often to check for commits of other processes while a watch is open, in seconds."""

QUICK = 0.002
"""The event loop performs commits while they take less than this on average, in seconds."""

QUICK_READS = 0.02
"""It reads single records while commits take less than this on average: a read waits for no disk to write."""

CROWDED = 20
"""For so many turns after a turn with two jobs, the first job of a turn waits for others."""

SMOOTHING = 0.1
"""The weight of the last commit in that average."""

LOCK_PAUSE = (0.0005, 0.003)
"""The pause before the next try for the lock lies between these, in seconds."""


Result = TypeVar("Result")


class _Locked(Exception):
    """Another process has the lock."""


class Writer:
    """Performs jobs that write. Belongs to the event loop in which it was created."""

    def __init__(self, connection: FileConnection, watches: Watches) -> None:
        self._connection = connection
        self._watches = watches
        self.fifos = WakeFifos(connection.path, self._poll_here)
        self._loop = asyncio.get_running_loop()
        self._pending: list[Job] = []  # of this turn of the event loop
        self._turn = False  # whether a job came in this turn
        self._crowd = CROWDED
        self._queue: queue.SimpleQueue[Job | asyncio.Future[None] | None] = queue.SimpleQueue()
        self._writing = threading.Lock()  # its holder may use the connection
        self._average = float("inf")
        self._closed = False
        self._seen: tuple[sqlite3.Cursor, int] | None = None
        self._polled_at = 0.0

    async def open(self, create: bool) -> None:
        """Start the thread, which opens the file, or creates it if ``create`` is True. Raises StoreError."""
        opened: asyncio.Future[None] = self._loop.create_future()
        name = f"asterism writer of {self._connection.path.name}"
        self._thread = threading.Thread(target=self._work, args=(opened, create), name=name, daemon=True)
        self._thread.start()
        try:
            await opened
        except asyncio.CancelledError:
            self._closed = True
            self._queue.put(self._loop.create_future())  # the thread ends as soon as it has opened the file
            raise

    async def submit(self, job: Job) -> Any:
        """Return the result of a job once it is durable."""
        if self._closed:
            raise closed(self._connection.path)
        job.future = self._loop.create_future()
        if not self._turn:
            self._turn = True
            self._loop.call_soon(self._end_turn)
            if self._crowd == 0 and self._performed_here([job]):
                return await job.future  # done; the next job of this turn waits, so that no caller keeps the loop busy
            self._crowd -= self._crowd > 0
        elif self._crowd < CROWDED:
            self._crowd = CROWDED
        self._pending.append(job)
        return await job.future

    async def submit_long(self, job: Job) -> Any:
        """The same for a job that takes long: it is performed in the thread, while the event loop goes on."""
        self.must_be_open()
        job.future = self._loop.create_future()
        self._queue.put(job)
        return await job.future

    def must_be_open(self) -> None:
        if self._closed:
            raise closed(self._connection.path)

    def poll(self) -> None:
        """Check for commits of other processes now: a watch was opened, or another process told of one."""
        self._queue.put(None)

    def _poll_here(self) -> None:
        """The same in the event loop, since the way to the thread and back takes longer than to look."""
        if self.read_here(self._check_other_commits) is None:
            self.poll()

    def watch(self) -> None:
        """Notice commits of other processes from now on."""
        self.fifos.listen()
        self.poll()

    async def close(self) -> None:
        """Perform the jobs in the queue, and stop."""
        if self._closed:
            return
        self._closed = True
        self._end_turn()
        self.fifos.close()
        ended: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(ended)
        await ended
        self._thread.join()

    def _end_turn(self) -> None:
        """Perform the jobs of this turn here, or pass them to the thread."""
        self._turn = False
        jobs, self._pending = self._pending, []
        if not jobs:
            return
        if not self._performed_here(jobs):
            for job in jobs:
                self._queue.put(job)

    def _performed_here(self, jobs: list[Job]) -> bool:
        """Perform jobs in the event loop, unless that might take long. Return whether it did."""
        if self._average > QUICK or len(jobs) > MOST_JOBS or not self._writing.acquire(blocking=False):
            return False
        try:
            cursor = self._connection.cursor_if_current()
            if cursor is None:
                return False
            self._perform(jobs, cursor, _at_once)
        except _Locked:
            return False
        except BaseException:
            self._settle(jobs)  # so that no caller waits forever
            for job in jobs:
                job.future.cancelled() or job.future.exception()  # retrieved, for the case that no caller waits
            raise
        finally:
            self._writing.release()
        self._settle(jobs)
        return True

    def read_here(self, read: Callable[..., Result], *arguments: Any) -> tuple[Result] | None:
        """The result of a read of one record, which takes less time than the way to a thread and back; None if it might
        take long, or fails: then it is read in a thread, whose errors are those of the store."""
        if self._average > QUICK_READS or self._closed or not self._writing.acquire(blocking=False):
            return None
        try:
            cursor = self._connection.cursor_if_current()
            return None if cursor is None else (read(cursor, *arguments),)
        except Exception:
            return None
        finally:
            self._writing.release()

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _work(self, opened: asyncio.Future[None], create: bool) -> None:
        try:
            self._connection.first_open(create)
            self._wait_for_lock(self._check_other_commits, self._connection.ready())
        except Exception as error:
            self._closed = True
            self._connection.close()
            call_soon(self._loop, resolve, opened, None, error)
            return
        call_soon(self._loop, resolve, opened, None, None)
        ended: asyncio.Future[None] | None = None
        while ended is None:
            jobs, ended = self._gather()
            with self._writing:
                if jobs:
                    self._perform(jobs, None, self._wait_for_lock)
                elif ended is None:
                    self._poll()
            if jobs:
                call_soon(self._loop, self._settle, jobs)
        self._connection.close()
        call_soon(self._loop, resolve, ended, None, None)

    def _gather(self) -> tuple[list[Job], asyncio.Future[None] | None]:
        """Wait for jobs, and return them, with the future of ``close`` if that was called. While a watch is open,
        return without jobs after ``POLL`` seconds."""
        try:
            queued = [self._queue.get(timeout=POLL if self._watches.open else None)]
        except queue.Empty:
            return [], None
        queued += [self._queue.get() for _ in range(min(self._queue.qsize(), MOST_JOBS - 1))]
        jobs = [job for job in queued if isinstance(job, Job)]
        if len(jobs) == len(queued):
            return jobs, None
        return jobs, next((closed for closed in queued if isinstance(closed, asyncio.Future)), None)

    def _perform(self, jobs: list[Job], cursor: sqlite3.Cursor | None, insist: Callable[..., None]) -> None:
        """Perform jobs in one transaction.

        :param cursor: None to look for the file first, and open it if it is another one.
        :param insist: calls a function that needs the lock, with its arguments, and decides about waiting for the lock.
        """
        try:
            if cursor is None:
                cursor = self._connection.ready()
            if time.monotonic() - self._polled_at >= POLL:
                insist(self._check_other_commits, cursor)
            began = time.perf_counter()
            alone = len(jobs) == 1
            if alone and jobs[0].one_statement:
                insist(jobs[0].perform, cursor, True)  # a single statement is a transaction
            else:
                insist(cursor.execute, "BEGIN IMMEDIATE")
                for job in jobs:
                    if alone or job.undoes_itself:
                        job.perform(cursor, alone)
                    else:
                        job.perform_apart(cursor)
                if alone and jobs[0].error is not None:
                    cursor.execute("ROLLBACK")
                    return
                began = time.perf_counter()
                cursor.execute("COMMIT")
            seconds = time.perf_counter() - began
            if self._average == float("inf"):
                self._average = seconds
            self._average += SMOOTHING * (seconds - self._average)
            self._connection.check_current()
        except _Locked:
            raise
        except Exception as error:
            self._give_up(jobs, error)
        except BaseException:  # such as Ctrl-C
            self._give_up(jobs, StoreUnavailable(f"writing to {self._connection.path} was interrupted"))
            raise

    def _wait_for_lock(self, action: Callable[..., object], *arguments: Any) -> None:
        """Call until the lock is free, for up to ``busy_timeout`` seconds."""
        until = None
        while True:
            try:
                action(*arguments)
                return
            except sqlite3.OperationalError as error:
                until = until or time.monotonic() + self._connection.busy_timeout
                if not is_busy(error) or time.monotonic() >= until:
                    raise
            time.sleep(random.uniform(*LOCK_PAUSE))

    def _give_up(self, jobs: list[Job], error: Exception) -> None:
        """Fail these jobs: nothing of them happened, or it is unknown. The next jobs may succeed."""
        self._connection.rollback()
        fault: Exception = error
        if isinstance(error, sqlite3.Error | OSError):
            fault = self._connection.fault(error)
            if not isinstance(fault, StoreBusy | StoreFull):
                self._connection.close()
        for job in jobs:
            job.error = fault
            if isinstance(fault, StoreError):  # one for each job: raising it adds a traceback
                job.error = type(fault)(*fault.args)
                job.error.__cause__ = error

    def _poll(self) -> None:
        """Check for commits of other processes. An error is ignored here; the next job gets it too."""
        with contextlib.suppress(sqlite3.Error, StoreError):
            self._connection.follow()
            if self._connection.cursor is not None:
                self._check_other_commits(self._connection.cursor)

    def _check_other_commits(self, cursor: sqlite3.Cursor) -> None:
        """Wake all watches if another connection has committed."""
        (version,) = cursor.execute("PRAGMA data_version").fetchone()
        if self._seen != (cursor, version):
            version_of(cursor.connection, self._connection.path)  # a later Asterism may have migrated the tables
            if self._seen is not None:  # there is no watch yet when the file is opened first
                call_soon(self._loop, self._watches.wake_all)
            self._seen = cursor, version
        self._polled_at = time.monotonic()

    # -- in the event loop -------------------------------------------------------------------------------------------

    def _settle(self, jobs: list[Job]) -> None:
        topics: set[str] = set()
        for job in jobs:
            if job.error is None:
                if job.writes:
                    topics |= topics_of(job.writes)
                if not job.future.done():
                    job.future.set_result(job.result)
            elif not job.future.done():
                job.future.set_exception(job.error)
        if topics:
            self._watches.wake(topics)
            self.fifos.announce()


def _at_once(action: Callable[..., object], *arguments: Any) -> None:
    try:
        action(*arguments)
    except sqlite3.OperationalError as error:
        if is_busy(error):
            raise _Locked from None
        raise


def call_soon(loop: asyncio.AbstractEventLoop, action: Callable[..., None], *arguments: Any) -> None:
    """Call a function in the event loop, from a thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(action, *arguments)


def resolve(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    """End the wait for a future, unless its caller was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def closed(path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"the store {path} is closed")
