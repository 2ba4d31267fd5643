"""Reads of the SQLite engine: the reader threads, and the queries that they execute.

Each reader thread has its own connection, so that a slow read blocks neither event loop nor writer. A single record is
read in the event loop (``Writer.read_here``).
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from asterism.core.limits import LimitedRuns
from asterism.core.run.run import RETRY_KEYS, Progress, Run, RunStatus
from asterism.core.run.session import Session
from asterism.store import row_codec
from asterism.store.protocol import (
    INDEXED,
    BatchPart,
    Change,
    Notice,
    PlanQuery,
    PlanRow,
    ProgressReport,
    Query,
    Register,
    StoredChunk,
    Usage,
    WaitingRuns,
)
from asterism.store.sqlite.connection import FileConnection
from asterism.store.sqlite.error_mapping import corrupt
from asterism.store.sqlite.group_commit import call_soon, closed, resolve
from asterism.store.sqlite.schema import STATEMENTS
from asterism.store.store_errors import CorruptRecord, StoreUnavailable

Result = TypeVar("Result")
P = ParamSpec("P")
_Read = tuple[Callable[[sqlite3.Cursor], Any], asyncio.Future[Any]]

_FIND = f"SELECT {', '.join(row_codec.COLUMNS)} FROM runs"
_RUN = STATEMENTS["run"]
_IN_QUEUE = "id IN (SELECT id FROM runs WHERE offered = 1 UNION ALL SELECT id FROM runs WHERE offered = 2)"
"""What is offered to all, and what waits for its limits: each has a partial index with this very condition."""

_WIDTH = len(row_codec.COLUMNS)


class ReaderThreads:
    """Up to ``number`` threads, started when they are needed. Belongs to the event loop in which it was created."""

    def __init__(self, leader: FileConnection, number: int, on_moved: Callable[[], None]) -> None:
        """``leader`` is the writer's connection. ``on_moved`` is called, in a thread, if the file is another one."""
        self._leader, self._number, self._on_moved = leader, number, on_moved
        self._path = leader.path
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Read | asyncio.Future[Any]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._reading = 0
        self._closed = False

    async def ask(
        self, read: Callable[Concatenate[sqlite3.Cursor, P], Result], *arguments: P.args, **options: P.kwargs
    ) -> Result:
        """Return ``read(cursor, *arguments, **options)``, called in a thread."""
        if self._closed:
            raise closed(self._path)
        self._reading += 1
        if self._reading > len(self._threads) < self._number:
            name = f"asterism reader of {self._path.name}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._queue.put((lambda cursor: read(cursor, *arguments, **options), future))
        try:
            return await future
        finally:
            self._reading -= 1

    async def close(self) -> None:
        """Finish pending reads, and stop the threads."""
        if self._closed:
            return
        self._closed = True
        ends: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in self._threads]
        for end in ends:
            self._queue.put(end)
        for end in ends:
            await end
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        connection = FileConnection(self._path, self._leader.busy_timeout, self._leader)
        while isinstance(request := self._queue.get(), tuple):
            read, future = request
            answer, fault = None, None
            try:
                answer = read(connection.ready())
            except Exception as error:
                fault = self._fault(error, connection)
            call_soon(self._loop, resolve, future, answer, fault)
            del request, read, future, answer, fault  # an idle thread keeps no objects alive
        connection.close()
        call_soon(self._loop, resolve, request, None, None)

    def _fault(self, error: Exception, connection: FileConnection) -> Exception:
        fault = error
        if isinstance(error, sqlite3.Error | OSError):
            fault = connection.fault(error)
            connection.close()
        elif isinstance(error, StoreUnavailable):
            self._on_moved()
        elif isinstance(error, CorruptRecord):
            fault = corrupt(self._path, error, error.revision)
        if fault is not error:
            fault.__cause__ = error
        return fault


# -- records -----------------------------------------------------------------------------------------------------------


def run(cursor: sqlite3.Cursor, run_id: str) -> Run | None:
    row = cursor.execute(_RUN, (run_id,)).fetchone()
    return None if row is None else row_codec.run_of(row)


def any_offered(cursor: sqlite3.Cursor) -> bool:
    return cursor.execute(STATEMENTS["any_offered"]).fetchone() is not None


def find(cursor: sqlite3.Cursor, query: Query) -> list[Run]:
    conditions, values = _conditions(query)
    order = f"{'+' if query.index == 'few' else ''}id{' DESC' if query.newest else ''}"
    limit = "" if query.limit is None else " LIMIT ?"
    values += [] if query.limit is None else [query.limit]
    statement = f"{_FIND}{_where(conditions)} ORDER BY {order}{limit}"
    return row_codec.readable(row_codec.run_of, cursor.execute(statement, values).fetchall())


def scan_end(cursor: sqlite3.Cursor, query: Query, number: int) -> str | None:
    conditions, values = _range(query)
    if query.index in INDEXED:
        conditions.append(f"{query.index} = ?")
        values.append(getattr(query, query.index))
    order = f"id{' DESC' if query.newest else ''}"
    statement = f"SELECT id FROM runs{_where(conditions)} ORDER BY {order} LIMIT 2 OFFSET ?"
    rows = cursor.execute(statement, (*values, number - 1)).fetchall()
    return str(rows[0][0]) if len(rows) == 2 else None


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _range(query: Query) -> tuple[list[str], list[Any]]:
    """The part of the ids that a query is about, as SQL, and the values."""
    bounds = [
        ("id < ?" if query.newest else "id > ?", query.after),
        ("id >= ?" if query.newest else "id <= ?", query.until),
    ]
    conditions = [condition for condition, value in bounds if value is not None]
    if query.index == "open":
        conditions.append("ended_at IS NULL")  # implied by other conditions: the partial index has this one
    return conditions, [value for _, value in bounds if value is not None]


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    """The conditions of a query as SQL, and their values. With a plus, the index of a column is not used."""
    criteria: list[tuple[str, Any]] = [
        *((f"{'' if name == query.index else '+'}{name} = ?", getattr(query, name)) for name in INDEXED),
        ("session = ?", query.session),
        ("key = ?", query.key),
        ("(avoid <> '') = ?", query.avoiding),
        ("due_at < ?", query.due_before),
        ("ended_at < ?", query.ended_before),
        ("waiting_since < ?", query.waiting_before),
        ("instr(id, ?) > 0", query.id_like),
    ]
    conditions, values = _range(query)
    conditions += [condition for condition, value in criteria if value is not None]
    values += [value for _, value in criteria if value is not None]
    if query.offered is not None:
        conditions.append(_IN_QUEUE if query.offered else "offered = 0")
    if query.judged is not None:
        left = "EXISTS (SELECT 1 FROM feed WHERE feed.run = runs.id AND feed.left_to IS NOT NULL)"
        conditions.append(f"NOT {left}" if query.judged else left)
    if query.batch is not None:
        conditions.append(f"NOT EXISTS (SELECT 1 FROM runs AS retry WHERE retry.key = '{RETRY_KEYS}' || runs.id)")
    if query.with_files:  # no text inside the record has these quotes
        conditions.append("""instr(state, ',"files":"') > 0""")
    if query.keys is not None:
        conditions.append("key IN (SELECT value FROM json_each(?))")
        values.append(row_codec.to_text(sorted(query.keys)))
    if query.search is not None:
        plain, quoted = row_codec.searched(query.search)
        conditions.append(
            "(instr(lower(label), ?) > 0 OR instr(lower(key), ?) > 0 OR (label IS NULL AND instr(lower(input), ?) > 0))"
        )
        values += [plain, plain, quoted]
    if query.statuses is not None:
        conditions.append(f"status IN ({', '.join('?' * len(query.statuses))})")
        values += sorted(str(status) for status in query.statuses)
    return conditions, values


def orphans(cursor: sqlite3.Cursor, now: float, limit: int) -> list[tuple[Run, Session]]:
    rows = cursor.execute(STATEMENTS["orphans"], (now, limit)).fetchall()
    return row_codec.readable(lambda row: (row_codec.run_of(row[:_WIDTH]), row_codec.session_of(row[_WIDTH:])), rows)


def waiting(cursor: sqlite3.Cursor) -> list[WaitingRuns]:
    return list(map(row_codec.waiting_of, cursor.execute(STATEMENTS["waiting"])))


def limited(cursor: sqlite3.Cursor) -> list[LimitedRuns]:
    rows = cursor.execute(STATEMENTS["limited"]).fetchall()
    return row_codec.readable(row_codec.limited_of, rows)


def limited_runs(cursor: sqlite3.Cursor, group: LimitedRuns, limit: int, *, after: str = "") -> list[Run]:
    conditions = {**group._asdict(), "limit": limit, "after": after}
    return row_codec.readable(row_codec.run_of, cursor.execute(STATEMENTS["limited_runs"], conditions).fetchall())


def counts(cursor: sqlite3.Cursor) -> Counter[RunStatus]:
    try:
        return Counter(
            {RunStatus(status): number for status, number in cursor.execute(STATEMENTS["counts"]).fetchall()}
        )
    except ValueError as error:
        raise CorruptRecord(f"a run has an unknown status: {error}") from error


def batches(cursor: sqlite3.Cursor, name: str | None = None) -> list[BatchPart]:
    return row_codec.batch_parts(cursor.execute(STATEMENTS["batches"], row_codec.batch_range(name)).fetchall())


def last_ends(cursor: sqlite3.Cursor, batch: str, limit: int) -> list[float]:
    return [ended_at for (ended_at,) in cursor.execute(STATEMENTS["last_ends"], (batch, limit)).fetchall()]


def sessions(cursor: sqlite3.Cursor, *, ended: bool = False, device: str | None = None) -> list[Session]:
    rows = cursor.execute(STATEMENTS["sessions"], (ended, device, device)).fetchall()
    return row_codec.readable(lambda row: row_codec.session_of(row[:-1], row[-1]), rows)


def register(cursor: sqlite3.Cursor, key: str) -> Register | None:
    row = cursor.execute(STATEMENTS["register"], (key,)).fetchone()
    return None if row is None else row_codec.register_of(row)


def registers(cursor: sqlite3.Cursor, prefix: str, most: int | None = None) -> list[Register]:
    limit = -1 if most is None else most  # SQLite's number for none
    rows = cursor.execute(STATEMENTS["registers"], (prefix, prefix, limit)).fetchall()
    return row_codec.registers_of(rows)


def plans(cursor: sqlite3.Cursor, query: PlanQuery) -> list[PlanRow]:
    before, before_name = query.before
    conditions: dict[str, Any] = {
        "states": None if query.states is None else row_codec.to_text(sorted(query.states)),
        "live": row_codec.to_text(sorted(query.live)),
        "name": None if query.name is None else row_codec.like_pattern(query.name),
        "file": query.file,
        "tag": query.tag,
        "since": query.since,
        "before": before,
        "before_name": before_name,
        "limit": query.limit,
    }
    statement = "plans"
    if query.between is not None:
        statement, (conditions["first_name"], conditions["last_name"]) = "plans_between", query.between
    return row_codec.readable(row_codec.plan_of, cursor.execute(STATEMENTS[statement], conditions).fetchall())


def reports(cursor: sqlite3.Cursor, run_ids: Sequence[str]) -> dict[str, ProgressReport]:
    rows = cursor.execute(STATEMENTS["reports"], (row_codec.to_text(list(run_ids)),)).fetchall()
    reports_by_run = {row[0]: report_of(row) for row in rows}
    return {run_id: reports_by_run[run_id] for run_id in run_ids if run_id in reports_by_run}


def report_of(row: Sequence[Any]) -> ProgressReport:
    try:
        progress, tail = row_codec.from_text(row[2])
        return ProgressReport(row[0], row[1], None if progress is None else Progress(*progress), tail)
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"the report on run {row[0]} cannot be read: {error!r}") from error


def log(cursor: sqlite3.Cursor, run_id: str, *, after: tuple[int, int] = (0, 0)) -> list[StoredChunk]:
    rows = cursor.execute(STATEMENTS["log"], (run_id, *after)).fetchall()
    return [row_codec.chunk_of(run_id, row) for row in rows]


def notices(
    cursor: sqlite3.Cursor, *, run: str | None = None, after: int = 0, limit: int = 100
) -> list[tuple[int, Notice]]:
    rows = cursor.execute(STATEMENTS["notices"], (after, run, run, limit)).fetchall()
    return [(number, row_codec.stored_notice(text)) for number, text in rows]


# -- change feed -------------------------------------------------------------------------------------------------------


def changes(cursor: sqlite3.Cursor, after: int, limit: int) -> list[Change]:
    rows = cursor.execute(STATEMENTS["changes"], (after, limit)).fetchall()
    return [Change(row[0], row_codec.run_of(row[3:]), row[1], bool(row[2])) for row in rows]


def newest(cursor: sqlite3.Cursor) -> int:
    row = cursor.execute(STATEMENTS["newest_change"]).fetchone()
    return 0 if row is None else int(row[0])


def left_to(cursor: sqlite3.Cursor, run_ids: Sequence[str]) -> dict[str, str]:
    return dict(cursor.execute(STATEMENTS["left_to"], (row_codec.to_text(list(run_ids)),)).fetchall())


def copies(cursor: sqlite3.Cursor, left_to: str, limit: int, after: str = "") -> list[Run]:
    return [row_codec.run_of(row) for row in cursor.execute(STATEMENTS["copies"], (left_to, after, limit)).fetchall()]


def judges(cursor: sqlite3.Cursor) -> set[str]:
    return {peer for (peer,) in cursor.execute(STATEMENTS["judges"]).fetchall()}


def usage(cursor: sqlite3.Cursor, store: str) -> Usage:
    return Usage(*cursor.execute(STATEMENTS["usage"], (store,)).fetchone())


def came_from_peers(cursor: sqlite3.Cursor, run_ids: Sequence[str]) -> set[str]:
    rows = cursor.execute(STATEMENTS["came_from_peers"], (row_codec.to_text(list(run_ids)),)).fetchall()
    return {run_id for (run_id,) in rows}


def came_from(cursor: sqlite3.Cursor, store: str) -> list[Run]:
    return [row_codec.run_of(row) for row in cursor.execute(STATEMENTS["came_from"], (store,)).fetchall()]
