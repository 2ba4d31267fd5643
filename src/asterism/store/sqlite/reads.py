"""Reads of the SQLite engine: functions of a cursor that return records, called in a reader thread."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

from asterism.core.run.run import Progress, Run, RunStatus
from asterism.core.run.session import Session
from asterism.store import row_codec
from asterism.store.protocol import Notice, ProgressReport, Query, Register, WaitingRuns
from asterism.store.sqlite.statements import STATEMENTS
from asterism.store.store_errors import StoreCorrupt

_FIND = f"SELECT {', '.join(row_codec.COLUMNS)} FROM runs"
_RUN = STATEMENTS["run"]
_WIDTH = len(row_codec.COLUMNS)


def run(cursor: sqlite3.Cursor, run_id: str) -> Run | None:
    row = cursor.execute(_RUN, (run_id,)).fetchone()
    return None if row is None else row_codec.run_of(row)


def find(cursor: sqlite3.Cursor, query: Query) -> list[Run]:
    conditions, values = _conditions(query)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    # with one of these an index leads to few rows, which are sorted; otherwise rows are read in the order of ids
    few = query.session is not None or query.key is not None or query.due_before is not None or query.offered
    order = f" ORDER BY {'+' if few else ''}id{' DESC' if query.newest else ''}"
    limit = "" if query.limit is None else " LIMIT ?"
    values += [] if query.limit is None else [query.limit]
    return [row_codec.run_of(row) for row in cursor.execute(_FIND + where + order + limit, values).fetchall()]


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    """Return the conditions of a query as SQL, and their values."""
    given: list[tuple[str, Any]] = [
        ("workflow = ?", query.workflow),
        ("device = ?", query.device),
        ("session = ?", query.session),
        ("series = ?", query.series),
        ("key = ?", query.key),
        ("(avoid <> '') = ?", query.avoiding),
        ("due_at < ?", query.due_before),
        ("ended_at < ?", query.ended_before),
        ("waiting_since < ?", query.waiting_before),
        ("instr(id, ?) > 0", query.id_like),
        ("id < ?" if query.newest else "id > ?", query.after),
    ]
    conditions = [condition for condition, value in given if value is not None]
    values = [value for _, value in given if value is not None]
    if query.offered is not None:
        conditions.append(f"offered = {int(query.offered)}")  # as text: the partial index has this very condition
    if query.judged is not None:
        left = "EXISTS (SELECT 1 FROM feed WHERE feed.run = runs.id AND feed.left_to IS NOT NULL)"
        conditions.append(f"NOT {left}" if query.judged else left)
    if query.statuses is not None:
        conditions.append(f"status IN ({', '.join('?' * len(query.statuses))})")
        values += sorted(str(status) for status in query.statuses)
    return conditions, values


def orphans(cursor: sqlite3.Cursor, now: float, limit: int) -> list[tuple[Run, Session]]:
    rows = cursor.execute(STATEMENTS["orphans"], (now, limit)).fetchall()
    return [(row_codec.run_of(row[:_WIDTH]), row_codec.session_of(row[_WIDTH:])) for row in rows]


def waiting(cursor: sqlite3.Cursor) -> list[WaitingRuns]:
    return [WaitingRuns(*row) for row in cursor.execute(STATEMENTS["waiting"]).fetchall()]


def counts(cursor: sqlite3.Cursor) -> Counter[RunStatus]:
    try:
        return Counter(
            {RunStatus(status): number for status, number in cursor.execute(STATEMENTS["counts"]).fetchall()}
        )
    except ValueError as error:
        raise StoreCorrupt(f"a run has an unknown status: {error}") from error


def sessions(cursor: sqlite3.Cursor, ended: bool) -> list[Session]:
    rows = cursor.execute(STATEMENTS["sessions"], (ended,)).fetchall()
    return [row_codec.session_of(row[:-1], row[-1]) for row in rows]


def register(cursor: sqlite3.Cursor, key: str) -> Register | None:
    row = cursor.execute(STATEMENTS["register"], (key,)).fetchone()
    return None if row is None else register_of(row)


def registers(cursor: sqlite3.Cursor, prefix: str) -> list[Register]:
    return [register_of(row) for row in cursor.execute(STATEMENTS["registers"], (prefix, prefix)).fetchall()]


def register_of(row: Sequence[Any]) -> Register:
    try:
        return Register(row[0], row_codec.from_text(row[1]), row[2])
    except (TypeError, ValueError) as error:
        raise StoreCorrupt(f"register {row[0]} cannot be read: {error!r}") from error


def reports(cursor: sqlite3.Cursor, run_ids: Sequence[str]) -> dict[str, ProgressReport]:
    rows = cursor.execute(STATEMENTS["reports"], (row_codec.to_text(list(run_ids)),)).fetchall()
    found = {row[0]: report_of(row) for row in rows}
    return {run_id: found[run_id] for run_id in run_ids if run_id in found}


def report_of(row: Sequence[Any]) -> ProgressReport:
    try:
        progress, tail = row_codec.from_text(row[2])
        return ProgressReport(row[0], row[1], None if progress is None else Progress(*progress), tail)
    except (TypeError, ValueError) as error:
        raise StoreCorrupt(f"the report on run {row[0]} cannot be read: {error!r}") from error


def notices(cursor: sqlite3.Cursor, run_id: str | None, after: int, limit: int) -> list[tuple[int, Notice]]:
    rows = cursor.execute(STATEMENTS["notices"], (after, run_id, run_id, limit)).fetchall()
    return [(number, notice_of(text)) for number, text in rows]


def notice_of(text: str) -> Notice:
    try:
        return row_codec.notice_of(row_codec.from_text(text))
    except (TypeError, ValueError) as error:
        raise StoreCorrupt(f"a notice cannot be read: {error!r}") from error
