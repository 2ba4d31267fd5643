"""Group commit: many callers, few transactions.

Whoever commits puts the work into a queue and waits. A few committers take everything that is queued: writes of one
run each go to the server together, in one statement and one transaction, and each caller learns what became of its
own. Those that write several runs go together, too, but then all of them or none. What writes anything else has a
transaction of its own.

Two writes of one run are never in one statement, which would carry out one of them, no matter which. If a group fails
because of one of its members (a name that cannot be stored, a record that another process has locked, a run that is
not as expected where all have to be), each of them is tried again alone, so that only that one fails.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asterism.store.dump_format import blobs_of
from asterism.store.postgres.connection_pool import ConnectionPool
from asterism.store.postgres.error_mapping import is_about_one, is_collision, own_copy
from asterism.store.postgres.statements import statements
from asterism.store.protocol import (
    Contribution,
    ExpectRegister,
    ExpectSession,
    Notice,
    PutCopy,
    PutRegister,
    PutRun,
    PutSession,
    Write,
)
from asterism.store.row_codec import fixed, moving, notice_to_json, session_row, to_text
from asterism.store.store_errors import Conflict, StoreBusy, StoreError, StoreUnavailable
from asterism.store.write_batch import check_distinct_records, topics_of

log = logging.getLogger(__name__)

LARGEST_GROUP = 1000
LARGEST_WHOLE = 200
"""The same where all have to be as expected or none is written. While the server writes these, we prepare the next."""

LARGEST_TEXT = 4_000_000
"""So many characters of JSON go to the server at once, and one record at least."""

TRIES = 5
"""So often a commit is tried that another one stood in the way of."""

NO_PEERS = "records are exchanged between stores of one machine each (SQLite): the devices share this one already"
"""What is said to whoever wants a copy of a peer's record kept here."""

Row = tuple[Any, ...]


class Job:
    """One call of ``commit``, encoded: if something is no JSON, the caller hears of it before it waits. ``runs`` are
    those it is about; ``run`` is the one, if it is about one run and nothing else."""

    __slots__ = ("alone", "future", "inserts", "others", "run", "runs", "size", "updates", "writes")

    def __init__(self, writes: Sequence[Write], future: asyncio.Future[None]) -> None:
        self.writes, self.future = writes, future
        self.updates: list[Row] = []
        self.inserts: list[Row] = []
        self.others: dict[str, list[dict[str, Any]]] | None = None
        self.size = 0
        self.run: str | None = None
        self.runs: list[str] = []
        for write in writes:
            if type(write) is PutRun:
                self._add_run(write)
            else:
                self._add(write)
        if len(writes) == 1 and self.others is None:
            self.run = self.runs[0]
        self.alone = self.others is not None

    def _add_run(self, write: PutRun) -> None:
        run = write.run
        self.runs.append(run.id)
        if write.expected is None:
            row = (*fixed(run), *moving(run))
            self.inserts.append(row)
            self.size += len(row[9]) + len(row[-1])
        else:
            row = (run.id, write.expected, *moving(run))
            self.updates.append(row)
            self.size += len(row[-1])
        if _may_be_kept_apart(run.input) or (run.output is not None and _may_be_kept_apart(run.output)):
            for name in blobs_of(run):
                self._other("uses", {"run": run.id, "name": name})

    def _add(self, write: Write) -> None:
        match write:
            case ExpectSession(session_id, revision):
                self._other("expected", {"id": session_id, "revision": revision})
            case ExpectRegister(key, revision):
                self._other("registers", {"key": key, "expected": revision, "kept": True})
            case PutSession(session, expected):
                names = ("id", "device", "revision", "state", "draining", "beat_at", "profile", "terms")
                row = dict(zip(names, session_row(session), strict=True))
                self._other("sessions", row | {"expected": expected})
            case PutRegister(key, value, expected):
                text = None if value is None else to_text(value)
                self._other("registers", {"key": key, "value": text, "expected": expected})
            case Notice():
                text = to_text(notice_to_json(write))
                self._other("notices", {"at": write.at, "run": write.run, "notice": text})
            case PutCopy() | Contribution():
                raise StoreError(NO_PEERS)
            case _:
                raise TypeError(f"a commit is made of writes, not of {write!r}")

    def _other(self, kind: str, row: dict[str, Any]) -> None:
        if self.others is None:
            self.others = {}
        self.others.setdefault(kind, []).append(row)

    def succeed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Committer:
    """``committed`` is called with the topics of what went through."""

    def __init__(self, connections: ConnectionPool, most: int, committed: Callable[[set[str]], None]) -> None:
        self._connections = connections
        self._most = most
        self._committed = committed
        self._queue: deque[Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = 0
        self._closed = False

    def submit(self, writes: Sequence[Write]) -> asyncio.Future[None]:
        """The future is done when the writes are, or when they are known to have failed."""
        if self._closed:
            raise StoreUnavailable("this store was closed")
        check_distinct_records(writes)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not writes:
            future.set_result(None)
            return future
        self._queue.append(Job(writes, future))
        if self._working < self._most:
            self._working += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return future

    async def close(self) -> None:
        """What was handed in is carried out first."""
        self._closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _work(self) -> None:
        try:
            while self._queue:
                group = self._next_group()
                try:
                    await self._perform(group)
                except BaseException as error:
                    for job in group:
                        job.fail(own_copy(error) if isinstance(error, Exception) else StoreUnavailable("interrupted"))
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._working -= 1  # in the same step that found the queue empty: nothing is left lying there

    def _next_group(self) -> list[Job]:
        first = self._queue.popleft()
        if first.alone:
            return [first]
        group, left, runs, size, whole = [first], [], set(first.runs), first.size, first.run is None
        while self._queue and len(runs) < (LARGEST_WHOLE if whole else LARGEST_GROUP):
            job = self._queue.popleft()
            if job.future.cancelled():
                continue  # nobody waits for it any more, and nothing has happened yet
            apart = job.alone or (job.run is None) is not whole or not runs.isdisjoint(job.runs)
            if apart or size + job.size > LARGEST_TEXT:
                left.append(job)
            else:
                group.append(job)
                runs.update(job.runs)
                size += job.size
        self._queue.extendleft(reversed(left))
        return group

    async def _perform(self, group: list[Job]) -> None:
        try:
            done, present = await self._send(group)
        except (StoreError, ValueError, OverflowError) as error:
            if len(group) > 1 and (is_about_one(error) or isinstance(error, Conflict)):
                log.info("a group of %d commits failed and is tried one by one: %s", len(group), error)
                for job in group:
                    job.alone = True
                self._queue.extendleft(reversed(group))
            else:
                for job in group:
                    job.fail(own_copy(error))
        else:
            self._answer(group, done, present)

    def _answer(self, group: list[Job], done: set[str], present: set[str]) -> None:
        written: list[Write] = []
        for job in group:
            if job.run is None or job.run in done:
                written += job.writes
                job.succeed()
            elif job.inserts and job.run not in present:
                job.fail(Conflict(f"key {job.inserts[0][5]}"))
            else:
                job.fail(Conflict(f"run {job.run}"))
        topics = topics_of(written)
        if topics:
            self._committed(topics)

    async def _send(self, group: list[Job]) -> tuple[set[str], set[str]]:
        whole = group[0].run is None
        others = group[0].others
        arguments = (
            whole,
            None if others is None else to_text(others),
            sorted(itertools.chain.from_iterable(job.updates for job in group), key=_id),
            sorted(itertools.chain.from_iterable(job.inserts for job in group), key=_id),
        )
        tries = 1
        while True:
            try:
                done, present = await self._connections.fetchrow(statements()["commit_runs"], *arguments)
                return set(done), set(present)
            except StoreBusy as error:
                if tries == TRIES or not is_collision(error):
                    raise
                tries += 1


def _may_be_kept_apart(value: Any) -> bool:
    """A quick look at what ``blobs_of`` looks at closely."""
    return "$blob" in value if type(value) is dict else isinstance(value, Mapping) and bool(value)


def _id(row: Row) -> str:
    """Two commits lock the runs they share in the same order."""
    return row[0]  # type: ignore[no-any-return]
