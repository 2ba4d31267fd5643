"""All writing: many writes, one commit.

Whoever has something to write leaves it here and waits. All that was left in one turn of the event loop is done in one
transaction, and everybody is told at once: a thousand writers cost one ``fsync``. Who has been alone of late does not
wait for the others of its turn.

Where the disk is quick (as long as it has been of late) the event loop does that itself: a commit then takes less time
than to hand it to a thread and be woken again. Whatever may take longer, above all to wait for a lock that another
process has, is for a thread of its own. It takes all that has gathered while it was busy.

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

from asterism.store.sqlite.connection import FileConnection
from asterism.store.sqlite.error_mapping import is_busy
from asterism.store.sqlite.schema import version_of
from asterism.store.sqlite.write_jobs import Job
from asterism.store.store_errors import StoreBusy, StoreError, StoreFull, StoreUnavailable
from asterism.store.watches import Watches

MOST = 1000
"""How many jobs share one transaction: others want to write too."""

POLL = 0.025
"""How often it is looked whether another process has committed, in seconds, while somebody waits for that."""

QUICK = 0.002
"""What a commit may take on average, in seconds, to be done in the event loop."""

CROWDED = 20
"""For so many turns after two jobs came in one, the first of a turn is expected not to be the last."""

STEADY = 0.1
"""The weight of the last commit in that average."""

PAUSE = (0.0005, 0.003)
"""How long to wait before the next try for the lock: anything between these."""


class _Locked(Exception):
    """Another process has the lock."""


class Writer:
    """Belongs to the event loop in which it was made."""

    def __init__(self, connection: FileConnection, watches: Watches) -> None:
        self._connection = connection
        self._watches = watches
        self._loop = asyncio.get_running_loop()
        self._left: list[Job] = []  # in this turn of the loop
        self._turn = False  # whether anybody came in this turn
        self._crowd = CROWDED
        self._queue: queue.SimpleQueue[Job | asyncio.Future[None] | None] = queue.SimpleQueue()
        self._writing = threading.Lock()  # who has it may use the connection
        self._average = float("inf")
        self._closed = False
        self._seen: tuple[sqlite3.Cursor, int] | None = None
        self._looked_at = 0.0

    async def open(self, create: bool) -> None:
        """Start the thread, which makes the file (if it may) and its tables. Raises what is wrong with them."""
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

    def future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    async def do(self, job: Job) -> Any:
        """What came of it, once it is durable."""
        self.must_be_open()
        if not self._turn:
            self._turn = True
            self._loop.call_soon(self._begin)
            if self._crowd == 0 and self._done_here([job]):
                self._settle([job])
                return await job.future  # which is done; the next of this turn waits, so that nobody keeps the loop
            self._crowd -= self._crowd > 0
        elif self._crowd < CROWDED:
            self._crowd = CROWDED
        self._left.append(job)
        return await job.future

    def must_be_open(self) -> None:
        if self._closed:
            raise closed(self._connection.path)

    def look(self) -> None:
        """Somebody has begun to wait for what other processes do."""
        self._queue.put(None)

    async def close(self) -> None:
        """Do what is in the queue, and end."""
        if self._closed:
            return
        self._closed = True
        self._begin()
        ended: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(ended)
        await ended
        self._thread.join()

    def _begin(self) -> None:
        """Do what was left, or have it done."""
        self._turn = False
        jobs, self._left = self._left, []
        if not jobs:
            return
        if self._done_here(jobs):
            self._settle(jobs)
        else:
            for job in jobs:
                self._queue.put(job)

    def _done_here(self, jobs: list[Job]) -> bool:
        """Do it in the event loop, unless that might take long."""
        if self._average > QUICK or len(jobs) > MOST or not self._writing.acquire(blocking=False):
            return False
        try:
            cursor = self._connection.at_hand()
            if cursor is None:
                return False
            self._perform(jobs, cursor, _at_once)
            return True
        except _Locked:
            return False
        except BaseException:
            self._settle(jobs)  # so that nobody waits for ever
            for job in jobs:
                job.future.cancelled() or job.future.exception()  # it is raised here if nobody waits
            raise
        finally:
            self._writing.release()

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _work(self, opened: asyncio.Future[None], create: bool) -> None:
        try:
            self._connection.first_open(create)
            self._notice_others(self._connection.ready())
        except Exception as error:
            self._closed = True
            self._connection.close()
            self._tell(_settle_one, opened, error)
            return
        self._tell(_settle_one, opened, None)
        ended: asyncio.Future[None] | None = None
        while ended is None:
            jobs, ended = self._gather()
            with self._writing:
                if jobs:
                    self._open_and_perform(jobs)
                elif ended is None:
                    self._look()
            if jobs:
                self._tell(self._settle, jobs)
        self._connection.close()
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

    def _open_and_perform(self, jobs: list[Job]) -> None:
        try:
            cursor = self._connection.ready()
        except Exception as error:
            self._give_up(jobs, error)
        else:
            self._perform(jobs, cursor, self._patiently)

    def _perform(
        self, jobs: list[Job], cursor: sqlite3.Cursor, insist: Callable[[Callable[[Any], object], Any], None]
    ) -> None:
        """``insist`` does what needs the lock, if need be again and again."""
        try:
            if time.monotonic() - self._looked_at >= POLL:
                insist(self._notice_others, cursor)
            began = time.perf_counter()
            alone = len(jobs) == 1
            if alone and jobs[0].one_statement:
                insist(jobs[0].perform_alone, cursor)  # a statement alone is a transaction
            else:
                insist(cursor.execute, "BEGIN IMMEDIATE")
                for job in jobs:
                    job.perform(cursor, alone)
                if alone and jobs[0].error is not None:
                    cursor.execute("ROLLBACK")
                    return
                began = time.perf_counter()
                cursor.execute("COMMIT")
            self._took(time.perf_counter() - began)
            self._connection.unmoved()
        except _Locked:
            raise
        except Exception as error:
            self._give_up(jobs, error)
        except BaseException:  # somebody presses Ctrl-C just now
            self._give_up(jobs, StoreUnavailable(f"the writing of {self._connection.path} was interrupted"))
            raise

    def _took(self, seconds: float) -> None:
        if self._average == float("inf"):
            self._average = seconds
        self._average += STEADY * (seconds - self._average)

    def _patiently(self, action: Callable[[Any], object], argument: Any) -> None:
        """Again and again while another process has the lock."""
        until = None
        while True:
            try:
                action(argument)
                return
            except sqlite3.OperationalError as error:
                until = until or time.monotonic() + self._connection.busy_timeout
                if not is_busy(error) or time.monotonic() >= until:
                    raise
            time.sleep(random.uniform(*PAUSE))

    def _give_up(self, jobs: list[Job], error: Exception) -> None:
        """Nothing of all this happened, or nobody knows. The next ones may have more luck."""
        self._connection.rollback()
        fault: Exception = error
        if isinstance(error, sqlite3.Error | OSError):
            fault = self._connection.fault(error)
            if not isinstance(fault, StoreBusy | StoreFull):
                self._connection.close()
        for job in jobs:
            job.error = fault
            if isinstance(fault, StoreError):  # one for each: whoever raises it adds its own traceback
                job.error = type(fault)(*fault.args)
                job.error.__cause__ = error

    def _look(self) -> None:
        """Has anybody else committed? If the file cannot be read just now, whoever needs it will be told."""
        with contextlib.suppress(sqlite3.Error, StoreError):
            self._connection.follow()
            if self._connection.cursor is not None:
                self._notice_others(self._connection.cursor)

    def _notice_others(self, cursor: sqlite3.Cursor) -> None:
        """This connection's own commits do not count."""
        (version,) = cursor.execute("PRAGMA data_version").fetchone()
        if self._seen != (cursor, version):
            version_of(cursor.connection, self._connection.path)  # a later Asterism may have changed the tables
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


def _at_once(action: Callable[[Any], object], argument: Any) -> None:
    try:
        action(argument)
    except sqlite3.OperationalError as error:
        if is_busy(error):
            raise _Locked from None
        raise


def _settle_one(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def closed(path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"the store {path} was closed")
