"""Everything that is in the tables, at one instant, a page at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from asterism.store import dump_format, row_codec
from asterism.store.sqlite import reads
from asterism.store.sqlite.queries import QUERIES

PAGE = 200
_LINES: tuple[tuple[str, Callable[[Any], Mapping[str, Any]]], ...] = (
    ("all_sessions", lambda row: dump_format.line(row_codec.session_of(row))),
    ("all_registers", lambda row: dump_format.line(reads.register_of(row))),
    ("all_notices", lambda row: dump_format.line(reads.notice_of(row[0]), number=row[1])),
)


def pages(cursor: sqlite3.Cursor) -> Iterator[list[Mapping[str, Any]]]:
    """The lines of a dump without its blobs. What is committed after the first page is not among them."""
    cursor.execute("BEGIN")
    yield [dump_format.HEADER]
    copies = dict(cursor.execute(QUERIES["open_copies"]).fetchall())
    cursor.execute(QUERIES["all_runs"])
    while rows := cursor.fetchmany(PAGE):
        yield [dump_format.line(run, copies.get(run.id)) for run in map(row_codec.run_of, rows)]
    for name, line_of in _LINES:
        cursor.execute(QUERIES[name])
        while rows := cursor.fetchmany(PAGE):
            yield [line_of(row) for row in rows]


def names_of_blobs(cursor: sqlite3.Cursor) -> set[str]:
    """What the runs refer to."""
    rows = iter(lambda: cursor.fetchmany(PAGE), [])
    cursor.execute(QUERIES["runs_with_blobs"])
    return {name for row in chain.from_iterable(rows) for name in dump_format.blobs_of(row_codec.run_of(row))}
