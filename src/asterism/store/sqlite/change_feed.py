"""The change feed in SQLite: numbers of changes for peers, and what peers contributed.

Triggers maintain it once a peer has asked for it, so a store without peers pays nothing for it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Sequence
from typing import Any

from asterism.core.run.run import Run
from asterism.store import row_codec
from asterism.store.protocol import FEED, Change, Usage
from asterism.store.sqlite.statements import STATEMENTS
from asterism.store.sqlite.write_jobs import Job

_TRIGGERS = ("feed_of_new", "feed_of_changed", "feed_of_forgotten")


class StartFeedJob(Job):
    """Creation of the feed: triggers, numbers and id in one commit. The result is the id."""

    __slots__ = ()

    def __init__(self, future: asyncio.Future[Any]) -> None:
        super().__init__(future)

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        for name in _TRIGGERS:
            cursor.execute(STATEMENTS[name])
        cursor.execute(STATEMENTS["feed_everything"])
        cursor.execute(STATEMENTS["name_feed"], (FEED, row_codec.to_text({"id": uuid.uuid4().hex})))
        row = cursor.execute(STATEMENTS["register"], (FEED,)).fetchone()
        self.result = str(row_codec.from_text(row[1])["id"])


class ForgetSessionsJob(Job):
    """Deletion of sessions that have ended and own nothing."""

    __slots__ = ("ids",)

    def __init__(self, future: asyncio.Future[Any], ids: Sequence[str]) -> None:
        super().__init__(future)
        self.ids = row_codec.to_text(list(ids))

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        cursor.execute(STATEMENTS["forget_these_sessions"], (self.ids,))


def changes(cursor: sqlite3.Cursor, after: int, limit: int) -> list[Change]:
    rows = cursor.execute(STATEMENTS["changes"], (after, limit)).fetchall()
    return [Change(row[0], row_codec.run_of(row[3:]), row[1], bool(row[2])) for row in rows]


def newest(cursor: sqlite3.Cursor) -> int:
    row = cursor.execute(STATEMENTS["newest_change"]).fetchone()
    return 0 if row is None else int(row[0])


def left_to(cursor: sqlite3.Cursor, run_ids: Sequence[str]) -> dict[str, str]:
    return dict(cursor.execute(STATEMENTS["left_to"], (row_codec.to_text(list(run_ids)),)).fetchall())


def copies(cursor: sqlite3.Cursor, whom: str, limit: int, after: str) -> list[Run]:
    return [row_codec.run_of(row) for row in cursor.execute(STATEMENTS["copies"], (whom, after, limit)).fetchall()]


def judges(cursor: sqlite3.Cursor) -> set[str]:
    return {whom for (whom,) in cursor.execute(STATEMENTS["judges"]).fetchall()}


def usage(cursor: sqlite3.Cursor, store: str) -> Usage:
    return Usage(*cursor.execute(STATEMENTS["usage"], (store,)).fetchone())


def came_from_peers(cursor: sqlite3.Cursor, run_ids: Sequence[str]) -> set[str]:
    rows = cursor.execute(STATEMENTS["came_from_peers"], (row_codec.to_text(list(run_ids)),)).fetchall()
    return {run_id for (run_id,) in rows}


def came_from(cursor: sqlite3.Cursor, store: str) -> list[Run]:
    return [row_codec.run_of(row) for row in cursor.execute(STATEMENTS["came_from"], (store,)).fetchall()]


def kinds(cursor: sqlite3.Cursor) -> set[str]:
    return {f"{workflow}@{version}" for workflow, version in cursor.execute(STATEMENTS["kinds"]).fetchall()}
