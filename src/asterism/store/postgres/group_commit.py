"""Group commit: many callers, few transactions.

A caller queues a job and waits. A few committers take all queued jobs. Jobs that write one run each go to the server
together, in one statement and one transaction, and each caller learns the outcome of its own. Jobs that write several
runs go together too, but all of them succeed or none. A job that writes anything else has a transaction of its own.

Two writes of one run are never in one statement, which would perform an arbitrary one of them. If a group fails because
of one of its members (a name that cannot be stored, a record that another process has locked, a revision that does not
match where all have to), each job is tried again alone, so that only that one fails.

New runs in the text format of COPY: what the runs of a group share is written once and repeated as it is.

The driver could encode the rows, but value by value, which takes longer than all else that is done for a new run.

``Workers`` is the queue of calls behind it, and behind that of takes (``queue``): a task is started when a call comes
and fewer than ``most`` are at work; it ends when the queue is empty.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import asyncpg

from asterism.core.run.run import Run
from asterism.store.dump_format import blobs_of, blobs_of_values
from asterism.store.postgres.connection import Connection, ConnectionPool
from asterism.store.postgres.error_mapping import is_about_one, own_copy
from asterism.store.postgres.schema import statements
from asterism.store.protocol import (
    Contribution,
    ExpectRegister,
    ExpectSession,
    Notice,
    PutCopy,
    PutLog,
    PutPlan,
    PutPriority,
    PutRegister,
    PutRun,
    PutSession,
    Write,
)
from asterism.store.row_codec import (
    COLUMNS,
    SHARED,
    VARYING,
    RunGroup,
    grouped,
    moving,
    rows_in,
    rows_of,
    session_row,
    to_text,
)
from asterism.store.store_errors import Conflict, StoreError, StoreUnavailable
from asterism.store.watches import check_distinct_records, topics_of


class Call:
    """``future`` receives the result, or the error."""

    __slots__ = ("future",)

    future: asyncio.Future[Any]

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


AnyCall = TypeVar("AnyCall", bound=Call)


class Workers(ABC, Generic[AnyCall]):
    """A queue of calls, and up to ``most`` tasks that perform them at the same time."""

    def __init__(self, connections: ConnectionPool, most: int) -> None:
        self._connections = connections
        self._most = most
        self._queue: deque[AnyCall] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = 0

    @abstractmethod
    def _next_group(self) -> list[AnyCall]:
        """Remove calls from the queue that are performed together, at least one."""

    @abstractmethod
    async def _perform(self, group: list[AnyCall], /) -> None:
        """Perform calls and end each. If it raises, those that have not ended fail with that error."""

    async def close(self) -> None:
        """Perform the calls in the queue, and stop."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _enqueue(self, call: AnyCall) -> None:
        self._queue.append(call)
        if self._working < self._most:
            self._working += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            while self._queue:
                group = self._next_group()
                try:
                    await self._perform(group)
                except BaseException as error:
                    for call in group:
                        call.fail(own_copy(error) if isinstance(error, Exception) else StoreUnavailable("interrupted"))
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._working -= 1  # in the step that found the queue empty: no call is left behind


# -- the jobs of a commit ---------------------------------------------------------------------------------------------


COPIED_COLUMNS = (*VARYING, *SHARED)
"""The columns, in the order of ``copy_lines``."""

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def copy_lines(groups: Iterable[RunGroup]) -> bytes:
    """Return the lines of new runs. Raises UnicodeError for text that cannot be stored."""
    lines = []
    for shared, rows in groups:
        end = "\t".join(map(_field, shared))
        for run_id, key, text, label in rows:
            if key is None and label is None and text.isascii() and "\\" not in text and run_id.isalnum():
                lines.append(f"{run_id}\t\\N\t{text}\t\\N\t{end}\n")  # JSON in ASCII escapes what COPY would
            else:
                lines.append(f"{_field(run_id)}\t{_field(key)}\t{_field(text)}\t{_field(label)}\t{end}\n")
    return "".join(lines).encode()


def _field(value: Any) -> str:
    if value is None:
        return r"\N"
    if type(value) is not str:
        return repr(value)
    return value if value.isprintable() and "\\" not in value else value.translate(_ESCAPES)


log = logging.getLogger(__name__)

LARGEST_GROUP = 1000
LARGEST_WHOLE = 200
"""The same for a group that succeeds or fails as a whole. While the server writes one, we prepare the next."""

LARGEST_TEXT = 4_000_000
"""The largest number of characters of JSON in a group of more than one job."""

FEWEST_COPIED = 100
"""From how many new runs on a commit uses COPY, which needs a few round trips more."""

NO_PEERS = "only SQLite stores exchange records with peers: all devices can share this store directly"
"""The refusal of a copy of a peer's record."""

_KEY, _INPUT, _STATE = map(COLUMNS.index, ("key", "input", "state"))

Row = tuple[Any, ...]


class Job(Call):
    """One call of ``commit``, encoded: a value that is not JSON is refused before the caller waits. ``runs`` are the
    runs it writes; ``run`` is the one, if it writes one run and nothing else."""

    __slots__ = (
        *("alone", "groups", "inserts", "logs", "others", "plans", "priorities", "run", "runs", "size"),
        *("updates", "writes"),
    )

    def __init__(self, writes: Sequence[Write], future: asyncio.Future[None]) -> None:
        self.writes, self.future = writes, future
        self.updates: list[Row] = []
        self.inserts: list[Row] = []
        self.groups: list[RunGroup] = []
        self.others: dict[str, list[dict[str, Any]]] | None = None
        self.logs: list[PutLog] = []
        self.plans: list[PutPlan] = []
        self.priorities: list[PutPriority] = []
        self.size = 0
        self.run: str | None = None
        self.runs: list[str] = []
        new: list[Run] = []
        for write in writes:
            if type(write) is PutLog:
                self.logs.append(write)
            elif type(write) is PutPlan:
                self.plans.append(write)
            elif type(write) is PutPriority:
                self.priorities.append(write)
            elif type(write) is not PutRun:
                self._add(write)
            elif write.expected is None:
                new.append(write.run)
                if write.run.output is not None or _may_be_blob(write.run.input):
                    self._use_blobs(write.run)
            else:
                self._add_change(write.run, write.expected)
        if len(new) < FEWEST_COPIED or self.logs:
            self.inserts = rows_of(new)
            self.size += sum([len(row[_INPUT]) + len(row[_STATE]) for row in self.inserts])
        else:
            self.groups = grouped(new)
            self.size = LARGEST_TEXT  # it is a group of its own
        self.runs += [run.id for run in new]
        if len(writes) == 1 and self.runs:
            self.run = self.runs[0]
        self.alone = any((self.others is not None, self.groups, self.logs, self.plans, self.priorities))

    def _add_change(self, run: Run, expected: int) -> None:
        row = (run.id, expected, *moving(run))
        self.runs.append(run.id)
        self.updates.append(row)
        self.size += len(row[-1])
        self._use_blobs(run)

    def _use_blobs(self, run: Run) -> None:
        if _may_be_blob(run.input) or (run.output is not None and _may_be_blob(run.output)):
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
                text = to_text(write.to_json())
                self._other("notices", {"at": write.at, "run": write.run, "notice": text})
            case PutCopy() | Contribution():
                raise StoreError(NO_PEERS)
            case _:
                raise TypeError(f"a store cannot write a {type(write).__name__}")

    def _other(self, kind: str, row: dict[str, Any]) -> None:
        if self.others is None:
            self.others = {}
        self.others.setdefault(kind, []).append(row)

    def succeed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Committer(Workers[Job]):
    """Performs jobs. Calls ``committed`` with the topics of those that succeeded."""

    def __init__(self, connections: ConnectionPool, most: int, committed: Callable[[set[str]], None]) -> None:
        super().__init__(connections, most)
        self._committed = committed
        self._closed = False

    def submit(self, writes: Sequence[Write]) -> asyncio.Future[None]:
        """Queue a commit. The future is done when the writes are durable or have failed."""
        if self._closed:
            raise StoreUnavailable("this store is closed")
        check_distinct_records(writes)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not writes:
            future.set_result(None)
            return future
        self._enqueue(Job(writes, future))
        return future

    async def close(self) -> None:
        """Finish queued jobs, and stop."""
        self._closed = True
        await super().close()

    def _next_group(self) -> list[Job]:
        first = self._queue.popleft()
        if first.alone:
            return [first]
        group, left, runs, size, whole = [first], [], set(first.runs), first.size, first.run is None
        while self._queue and len(runs) < (LARGEST_WHOLE if whole else LARGEST_GROUP):
            job = self._queue.popleft()
            if job.future.cancelled():
                continue  # its caller no longer waits, and nothing has happened yet
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
                log.info("a group of %d commits failed; trying them one by one: %s", len(group), error)
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
                job.fail(Conflict(f"key {job.inserts[0][_KEY]}"))
            else:
                job.fail(Conflict(f"run {job.run}"))
        topics = topics_of(written)
        if topics:
            self._committed(topics)

    async def _send(self, group: list[Job]) -> tuple[set[str], set[str]]:
        first = group[0]
        if first.groups:
            if not first.updates and (first.others is not None or not first.plans) and await self._copied(first):
                return set(first.runs), set()
            first.inserts = rows_in(first.groups)
        whole = first.run is None
        others = first.others
        arguments: tuple[Any, ...] = (
            whole,
            None if others is None else to_text(others),
            sorted(itertools.chain.from_iterable(job.updates for job in group), key=_id),
            sorted(itertools.chain.from_iterable(job.inserts for job in group), key=_id),
        )
        query = statements()["commit_runs"]
        if first.logs or first.plans:  # such a job is alone
            query = statements()["commit_runs_and_more"]
            arguments = (*arguments, logs_text(first.logs) if first.logs else None, plans_text(first.plans))
        done, present, *place = await self._fetched(query, arguments, first.priorities)
        self._connections.acknowledged(*place[:3])
        return set(done), set(present)

    async def _fetched(self, query: str, arguments: Sequence[Any], priorities: Sequence[PutPriority]) -> Any:
        """What the query returns. Priorities change in the same transaction: this is rare."""
        if not priorities:
            return await self._connections.fetchrow(query, *arguments)
        changes = [write.run for write in priorities], [write.priority for write in priorities]

        async def attempt(connection: Connection) -> Any:
            async with connection.transaction():
                row = await connection.fetchrow(query, *arguments)
                await connection.execute(statements()["set_priorities"], *changes)
                return row

        return await self._connections.repeated(attempt)

    async def _copied(self, job: Job) -> bool:
        """Write many new runs with COPY, which takes much less time than a statement. Returns False, and nothing
        happened, if one of them cannot be written, such as one whose key is taken: COPY does not say which."""
        try:
            lines = copy_lines(job.groups)
        except UnicodeError:
            return False
        async with self._connections.borrowed() as connection:
            try:
                # a connection that the server has just ended fails here: asyncpg's COPY would leave an error that
                # nothing retrieves
                async with connection.transaction():
                    if job.others is not None:
                        more: Row = to_text(job.others), [], [], None, plans_text(job.plans)
                        await connection.fetchrow(statements()["commit_runs_and_more"], True, *more)
                    # in one piece: if the connection is lost between two, asyncpg leaves the error to nobody
                    await connection.copy_to_table("runs", source=memoryview(lines), columns=COPIED_COLUMNS)
                    place = await connection.fetchrow(statements()["place"])
            except (
                asyncpg.IntegrityConstraintViolationError,
                asyncpg.DataError,
                asyncpg.TransactionRollbackError,  # a deadlock, or a serialization failure
            ):
                return False
        self._connections.acknowledged(*place)
        return True


def plans_text(plans: Sequence[PutPlan]) -> str | None:
    """The argument of ``put_plans``."""
    rows = [{"name": plan.name, "state": plan.state, "summary": to_text(plan.summary)} for plan in plans]
    return to_text(rows) if rows else None


def logs_text(logs: Sequence[PutLog]) -> str:
    """The argument of ``put_logs``."""
    written = [(log, chunk) for log in logs for chunk in log.chunks]
    chunks = [
        {"run": log.run, "epoch": log.epoch, "first": chunk.first, "lines": chunk.lines, "said": to_text(chunk.value)}
        for log, chunk in written
    ]
    dropped = [(log, *log.drop) for log in logs if log.drop is not None]
    drops = [{"run": log.run, "epoch": log.epoch, "low": low, "high": high} for log, low, high in dropped]
    uses = [{"run": log.run, "name": name} for log, chunk in written for name in blobs_of_values([chunk.value])]
    return to_text({"chunks": chunks, "drops": drops, "uses": uses})


def _may_be_blob(value: Any) -> bool:
    """Whether a value may be a blob: a fast filter before ``blobs_of``."""
    return "$blob" in value if type(value) is dict else isinstance(value, Mapping) and bool(value)


def _id(row: Row) -> str:
    """The id of a run. Sorted by it, two commits lock the runs they share in the same order."""
    return row[0]  # type: ignore[no-any-return]
