"""The queue of offered runs in SQLite: a device takes runs page by page.

A page is short, since no other process can write meanwhile. If a page does not yield enough runs, the next page begins
where it ended, in another transaction. Pages grow, so that a device that can do little passes many offers in few steps.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

from asterism.core.run.run import Run
from asterism.store import row_codec
from asterism.store.protocol import PutRun, TakeRequest
from asterism.store.sqlite.schema import STATEMENTS
from asterism.store.sqlite.write_jobs import Job, Statement, execute_all, run_statement
from asterism.store.store_errors import StoreCorrupt

_OFFERS_END = STATEMENTS["offers_end"]
_OFFERS = STATEMENTS["offers"]
_FAR = 2**62
_PRIORITY, _CREATED_AT = map(row_codec.COLUMNS.index, ("priority", "created_at"))
_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """The place of a run in the queue. It never changes."""

    urgency: int
    created_at: float
    id: str


FIRST = Place(-_FAR, 0.0, "")
LAST = Place(_FAR, 0.0, "")


class Page(NamedTuple):
    """The next ``size`` offers after a place. At most ``judged`` of those that suit the device are shown to its
    step."""

    after: Place
    size: int
    judged: int


LARGEST_PAGE = Page(LAST, 4000, 1000)


class TakeJob(Job):
    """One page of a take. The result is the runs that were taken, and the next page; None at the end of the queue."""

    __slots__ = ("page", "request", "step", "taken")

    taken: list[PutRun]

    def __init__(self, request: TakeRequest, step: Callable[[Run], Run | None], page: Page) -> None:
        super().__init__()
        self.request, self.step, self.page = request, step, page
        self.writes = self.taken = []

    @property
    def undoes_itself(self) -> bool:
        return True

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        after, size, judged = self.page
        below = _FAR if self.request.above is None else -self.request.above
        from_here = {"urgency": after.urgency, "created_at": after.created_at, "id": after.id}
        row = cursor.execute(_OFFERS_END, {**from_here, "look": size - 1}).fetchone()
        last = LAST if row is None else Place(*row)
        wanted = {
            **from_here,
            "last_urgency": last.urgency,
            "last_created_at": last.created_at,
            "last_id": last.id,
            "below": below,
            "now": self.request.now,
            "device": self.request.device,
            "avoided": f"|{self.request.device}|",
            "not_kinds": row_codec.to_text(list(self.request.not_kinds)),
            "page": judged,
        }
        rows = cursor.execute(_OFFERS, wanted).fetchall()
        try:
            statements, passed = self._judge(rows)
            if statements:
                execute_all(cursor, statements, alone)
        except Exception as error:  # of the step; group commit rolls back
            if isinstance(error, sqlite3.Error):
                raise
            self.error = error
            return
        self.result = [write.run for write in self.taken], self._next(last, passed, len(rows) == judged, below)

    def _judge(self, rows: list[Any]) -> tuple[list[Statement], Place | None]:
        """Return the statements for the runs that the step takes, and the place of the last run it saw."""
        statements: list[Statement] = []
        place = None
        for row in rows:
            if len(statements) >= self.request.limit:
                break
            place = Place(-row[_PRIORITY], row[_CREATED_AT], row[0])
            try:
                run = row_codec.run_of(row)
            except StoreCorrupt as error:  # it must not keep devices from taking the others
                _log.error("passed over a run in the queue: %s", error)
                continue
            after = self.step(run)
            if after is not None:
                statements.append(run_statement(after, run.revision))
                self.taken.append(PutRun(after, run.revision))
        return statements, place

    def _next(self, last: Place, passed: Place | None, full: bool, below: int) -> Page | None:
        _, size, judged = self.page
        if len(self.taken) >= self.request.limit:
            return None
        if full and passed is not None:
            last = passed
        if last.urgency >= below or last is LAST:
            return None
        return Page(last, min(4 * size, LARGEST_PAGE.size), min(4 * judged, LARGEST_PAGE.judged))


def first_page(request: TakeRequest) -> Page:
    """Return a page that is enough for a device that can do anything."""
    return Page(FIRST, min(2 * request.limit + 50, LARGEST_PAGE.size), min(request.limit + 10, LARGEST_PAGE.judged))
