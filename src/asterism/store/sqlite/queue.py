"""Taking runs: the offers are looked at in their order, a few at a time, since nobody else can write meanwhile.

A look may end before enough was found. Then it says where, and the next one goes on there, in another transaction; the
looks become longer, so that a device that can do little comes through many offers in a few steps.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

from asterism.core.run.run import Run
from asterism.store import row_codec
from asterism.store.protocol import PutRun, TakeRequest
from asterism.store.sqlite.statements import STATEMENTS, Statement, perform, run_statement
from asterism.store.sqlite.write_jobs import Job
from asterism.store.store_errors import StoreCorrupt
from asterism.store.write_batch import topics_of

_OFFERS_END = STATEMENTS["offers_end"]
_OFFERS = STATEMENTS["offers"]
_FAR = 2**62
_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where a run stands among the offers. It is the same for all its life."""

    urgency: int
    created_at: float
    id: str


FIRST = Place(-_FAR, 0.0, "")
LAST = Place(_FAR, 0.0, "")


class Look(NamedTuple):
    """From one place on: over so many offers, of which so many at most are judged by the device itself."""

    after: Place
    over: int
    judged: int


MOST = Look(LAST, 4000, 1000)


class TakeJob(Job):
    """The result is what was taken, and where to go on; None if there is nothing more to look at."""

    __slots__ = ("look", "request", "step", "taken")

    def __init__(
        self, future: asyncio.Future[Any], request: TakeRequest, step: Callable[[Run], Run | None], look: Look
    ) -> None:
        super().__init__(future)
        self.request, self.step, self.look = request, step, look
        self.taken: list[PutRun] = []

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        after, over, judged = self.look
        below = _FAR if self.request.above is None else -self.request.above
        from_here = {"urgency": after.urgency, "created_at": after.created_at, "id": after.id}
        found = cursor.execute(_OFFERS_END, {**from_here, "look": over - 1}).fetchone()
        last = LAST if found is None else Place(*found)
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
                perform(cursor, statements, alone)
        except Exception as error:  # of the step; the writer undoes what there is to undo
            if isinstance(error, sqlite3.Error):
                raise
            self.error, self.taken = error, []
            return
        self.result = [write.run for write in self.taken], self._next(last, passed, len(rows) == judged, below)

    def _judge(self, rows: list[Any]) -> tuple[list[Statement], Place | None]:
        """What to write, and how far it got."""
        statements: list[Statement] = []
        place = None
        for row in rows:
            if len(statements) >= self.request.limit:
                break
            place = Place(-row[6], row[3], row[0])
            try:
                run = row_codec.run_of(row)
            except StoreCorrupt as error:  # one that cannot be read must not keep everybody from the others
                _log.error("%s; it is passed over", error)
                continue
            after = self.step(run)
            if after is not None:
                statements.append(run_statement(after, run.revision))
                self.taken.append(PutRun(after, run.revision))
        return statements, place

    def _next(self, last: Place, passed: Place | None, full: bool, below: int) -> Look | None:
        _, over, judged = self.look
        if len(self.taken) >= self.request.limit:
            return None
        if full and passed is not None:
            last = passed
        if last.urgency >= below or last is LAST:
            return None
        return Look(last, min(4 * over, MOST.over), min(4 * judged, MOST.judged))

    def topics(self) -> set[str]:
        return topics_of(self.taken)


def first_look(request: TakeRequest) -> Look:
    """Enough for a device that can do anything."""
    return Look(FIRST, min(2 * request.limit + 50, MOST.over), min(request.limit + 10, MOST.judged))
