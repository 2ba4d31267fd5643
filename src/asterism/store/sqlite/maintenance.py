"""Maintenance of the SQLite engine: the integrity check, and the dump.

The check covers the file as SQLite sees it, each record by itself, and the records together.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from asterism.core.run.run import OWNED, Run
from asterism.core.run.session import ABROAD, ENDED, OPEN, REPLACED, REVOKED
from asterism.store import dump_format, row_codec
from asterism.store.protocol import BLOB_USES
from asterism.store.sqlite import reads
from asterism.store.sqlite.blob_files import Blobs
from asterism.store.sqlite.schema import STATEMENTS, foreign_object
from asterism.store.store_errors import StoreError

PAGE = 200
_LINES: tuple[tuple[str, Callable[[Any], Mapping[str, Any]]], ...] = (
    ("all_sessions", lambda row: dump_format.line(row_codec.session_of(row))),
    ("all_registers", lambda row: dump_format.line(row_codec.register_of(row))),
    ("all_notices", lambda row: dump_format.line(row_codec.stored_notice(row[0]), number=row[1])),
    ("all_logs", lambda row: dump_format.log_line(row[0], row_codec.chunk_of(row[0], row[1:]))),
)

_OFFERED = row_codec.COLUMNS.index("offered")
_URGENCY = len(row_codec.COLUMNS)


def problems(cursor: sqlite3.Cursor, blobs: Blobs) -> list[str]:
    """Return everything that is wrong with the store, as sentences."""
    try:
        cursor.execute("BEGIN")  # everything at one instant
        try:
            damage = [f"the file: {line}" for (line,) in cursor.execute("PRAGMA integrity_check") if line != "ok"]
            if (foreign := foreign_object(cursor.connection)) is not None:  # to read a view may never end
                damage.append(foreign)
            return damage or list(chain(_sessions(cursor), _runs(cursor, blobs), _others(cursor, blobs)))
        finally:
            if cursor.connection.in_transaction:
                cursor.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        return [f"the file: {error}"]


def _rows(cursor: sqlite3.Cursor, name: str) -> Iterator[Any]:
    """Iterate over rows with a cursor of their own."""
    return iter(cursor.connection.execute(STATEMENTS[name]))


def _read(name: str, row: Any, record_of: Callable[[Any], Any]) -> Iterator[str]:
    try:
        record_of(row)
    except StoreError as error:
        yield f"{name}: {error}"


def _sessions(cursor: sqlite3.Cursor) -> Iterator[str]:
    for row in _rows(cursor, "all_sessions"):
        yield from _read("sessions", row, row_codec.session_of)
        if row[3] not in (OPEN, REPLACED, REVOKED, ENDED, ABROAD):
            yield f"session {row[0]} is {row[3]}, which is not a state of sessions"


def _runs(cursor: sqlite3.Cursor, blobs: Blobs) -> Iterator[str]:
    sessions: set[str | None] = {row[0] for row in _rows(cursor, "all_sessions")}
    copies = {row[0] for row in _rows(cursor, "all_copies")}
    checked: dict[str, str | None] = {}
    for row in _rows(cursor, "all_runs_with_urgency"):
        try:
            run = row_codec.run_of(row[:_URGENCY])
        except StoreError as error:
            yield str(error)
            continue
        known = sessions if run.id not in copies else {*sessions, run.session}
        to_be = row_codec.offer_of(run) if run.id not in copies else 0
        yield from _contradictions(run, to_be, offered=row[_OFFERED], urgency=row[_URGENCY], sessions=known)
        for name in dump_format.blobs_of(run):
            if name not in checked:
                checked[name] = _wrong_with(name, blobs)
            if checked[name] is not None:
                yield f"run {run.id} refers to blob {name}, {checked[name]}"


def _contradictions(
    run: Run, to_be_offered: int, *, offered: int, urgency: int, sessions: set[str | None]
) -> Iterator[str]:
    if (run.session is not None) != (run.status in OWNED) or (run.ended_at is not None) != run.ended:
        yield f"run {run.id} is {run.status}, owned by {run.session} and ended at {run.ended_at}"
    if run.session is not None and run.session not in sessions:
        yield f"run {run.id} is owned by session {run.session}, which does not exist"
    if offered != to_be_offered:
        yield f"run {run.id} is {'' if offered else 'not '}offered, but should {'' if to_be_offered else 'not '}be"
    if urgency != -run.priority:
        yield f"run {run.id} has priority {run.priority} and urgency {urgency}"


def _wrong_with(name: str, blobs: Blobs) -> str | None:
    try:
        return "which does not exist" if blobs.read(name) is None else None
    except StoreError as error:
        return f"which cannot be read: {error}"


def _others(cursor: sqlite3.Cursor, blobs: Blobs) -> Iterator[str]:
    for row in _rows(cursor, "all_registers"):
        yield from _read("registers", row, row_codec.register_of)
    for row in _rows(cursor, "all_notices"):
        yield from _read("notices", row, lambda row: row_codec.stored_notice(row[0]))
    for row in _rows(cursor, "all_logs"):
        yield from _read("logs", row, lambda row: row_codec.chunk_of(row[0], row[1:]))
    for (run_id,) in _rows(cursor, "logs_without_runs"):
        yield f"the log of run {run_id} is there, but the run does not exist"
    for name in _blobs_of_logs(cursor):
        if (wrong := _wrong_with(name, blobs)) is not None:
            yield f"a log refers to blob {name}, {wrong}"
    for key, name in _blob_uses(cursor):
        if (wrong := _wrong_with(name, blobs)) is not None:
            yield f"register {key} refers to blob {name}, {wrong}"
    for row in _rows(cursor, "all_reports"):
        yield from _read("reports", row, reads.report_of)


# -- the dump ----------------------------------------------------------------------------------------------------------


def pages(cursor: sqlite3.Cursor) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the lines of a dump, without blobs, as of the first page."""
    cursor.execute("BEGIN")
    yield [dump_format.HEADER]
    copies = dict(cursor.execute(STATEMENTS["open_copies"]).fetchall())
    cursor.execute(STATEMENTS["all_runs"])
    while rows := cursor.fetchmany(PAGE):
        yield [dump_format.line(run, copies.get(run.id)) for run in map(row_codec.run_of, rows)]
    for name, line_of in _LINES:
        cursor.execute(STATEMENTS[name])
        while rows := cursor.fetchmany(PAGE):
            yield [line for line in map(line_of, rows) if dump_format.is_dumped(line)]


def referenced_blobs(cursor: sqlite3.Cursor) -> set[str]:
    """Return the names of the blobs to which runs, logs or registers refer."""
    rows = iter(lambda: cursor.fetchmany(PAGE), [])
    cursor.execute(STATEMENTS["runs_with_blobs"])
    used = {name for row in chain.from_iterable(rows) for name in dump_format.blobs_of(row_codec.run_of(row))}
    return used | _blobs_of_logs(cursor) | {name for _, name in _blob_uses(cursor)}


def _blobs_of_logs(cursor: sqlite3.Cursor) -> set[str]:
    rows = cursor.connection.execute(STATEMENTS["logs_with_blobs"])
    return set(dump_format.blobs_of_values(row_codec.from_text(said) for (said,) in rows))


def _blob_uses(cursor: sqlite3.Cursor) -> list[tuple[str, str]]:
    """Return the registers that keep a blob, each with the name of the blob."""
    rows = cursor.connection.execute(STATEMENTS["registers"], (BLOB_USES, BLOB_USES, -1))
    return [(key, name) for key, text, _ in rows for name in dump_format.blobs_of_values([row_codec.from_text(text)])]
