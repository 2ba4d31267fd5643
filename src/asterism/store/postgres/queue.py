"""The queue of offered runs in PostgreSQL: runs are read, judged and written, the most urgent first.

That no run is taken twice relies on one thing: the write compares revisions like any other. So the head of the queue is
read without locks, and one statement writes the runs that are taken: two round trips. If another process was faster,
the runs that it took are missing from what was written. While that happens, runs are locked before they are judged, in
a transaction of four round trips: ``FOR UPDATE SKIP LOCKED`` keeps takers out of each other's way.

Devices of this process that take at the same time are served together: the runs at the head of the queue are dealt out
among them. A device that refused some runs and wants more is then served alone. It goes further down the queue page by
page, and locks only the runs that it takes, so that others can take those that it refuses. No taker waits for a lock: a
run that another has locked is passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from asterism.core.run.run import Run
from asterism.store.postgres.connection import Connection
from asterism.store.postgres.group_commit import Call, Workers
from asterism.store.postgres.schema import statements
from asterism.store.protocol import TakeRequest
from asterism.store.row_codec import COLUMNS, moving, run_of
from asterism.store.store_errors import StoreCorrupt

log = logging.getLogger(__name__)

LARGEST_PAGE = 1000
LARGEST_DEAL = 200
"""How many runs are dealt out at once among several calls. While the server writes these, we judge the next."""

MOST_CALLS_TOGETHER = 32
MOST_RUNS_JUDGED = 100_000
"""How many runs one call goes through at most, from the head of the queue."""

CONTENDED = 5.0
"""How long runs are locked before they are judged, in seconds, after another process took one of them."""

HIGHEST = 2**63 - 1

Row = tuple[Any, ...]
NOWHERE = (None, None, None)
"""The place of a transaction that wrote nothing."""


class _Place(NamedTuple):
    """A place in the queue: where the last page ended. A lower ``urgency`` comes first."""

    urgency: int
    created_at: float
    id: str


FIRST = _Place(-HIGHEST, float("-inf"), "")


class _TakeCall(Call):
    """One call of ``take``. ``won`` are the runs that it has, ``taken`` maps the id of each run that is about to be
    written to the run and its row."""

    __slots__ = ("error", "request", "step", "taken", "won")

    def __init__(
        self, request: TakeRequest, step: Callable[[Run], Run | None], future: asyncio.Future[list[Run]]
    ) -> None:
        self.request = request
        self.step = step
        self.future = future
        self.won: list[Run] = []
        self.taken: dict[str, tuple[Run, Row]] = {}
        self.error: Exception | None = None

    @property
    def wants(self) -> int:
        return self.request.limit - len(self.won) - len(self.taken) if self.error is None else 0

    def judge(self, run: Run) -> bool:
        """Whether the device takes the run. A step that raises ends the call, which then takes nothing."""
        device = self.request.device
        if run.pinned not in (None, device) or device in run.avoid or run.not_before > self.request.now:
            return False
        try:
            after = self.step(run)
            if after is None:
                return False
            self.taken[run.id] = (after, (run.id, run.revision, *moving(after)))
        except Exception as error:
            self.error = error
            self.taken.clear()
            return False
        return True

    def keep(self, ids: Iterable[str]) -> None:
        kept = set(ids)
        if len(kept) < len(self.taken):
            self.taken = {run_id: taken_run for run_id, taken_run in self.taken.items() if run_id in kept}

    def win(self, written: Container[str]) -> bool:
        """The runs that were written are ours. Returns whether that is all that was taken."""
        won = [run for run_id, (run, _) in self.taken.items() if run_id in written]
        self.won += won
        complete = len(won) == len(self.taken)
        self.taken.clear()
        return complete

    def fail(self, error: Exception) -> None:
        """What was written before counts."""
        if self.won:
            self.error = None
            self.end()
        else:
            super().fail(error)

    def end(self) -> None:
        if self.error is not None:
            self.fail(self.error)
        elif not self.future.done():
            self.future.set_result(self.won)


class TakeQueue(Workers[_TakeCall]):
    """Serves calls of ``take``."""

    _contended_until = float("-inf")

    async def take(self, request: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        if request.limit < 1:
            return []
        call = _TakeCall(request, step, asyncio.get_running_loop().create_future())
        self._enqueue(call)
        taken: list[Run] = await call.future
        return taken

    def _next_group(self) -> list[_TakeCall]:
        """Return calls that the same runs may be offered to."""
        first = self._queue.popleft()
        calls, left, wanted = [first], [], first.request.limit
        while self._queue:
            call = self._queue.popleft()
            if call.future.cancelled():
                continue
            same = call.request.not_kinds == first.request.not_kinds and call.request.above == first.request.above
            if same and wanted + call.request.limit <= LARGEST_DEAL and len(calls) < MOST_CALLS_TOGETHER:
                calls.append(call)
                wanted += call.request.limit
            else:
                left.append(call)
        self._queue.extend(left)
        return calls

    async def _perform(self, calls: list[_TakeCall]) -> None:
        if asyncio.get_running_loop().time() >= self._contended_until:
            further, place = await self._connections.repeated(partial(self._serve_unlocked, calls))
            self._connections.acknowledged(*place)
        elif len(calls) > 1:
            further, place = await self._connections.repeated(partial(self._serve_together, calls))
            self._connections.acknowledged(*place)
        else:
            further = calls
        for call in calls:
            if call not in further:
                call.end()
        for call in further:
            # page by page it may take longer than one statement
            place = await self._connections.repeated(partial(self._serve_alone, call), whole=False)
            self._connections.acknowledged(*place)
            call.end()

    async def _serve_unlocked(self, calls: list[_TakeCall], connection: Connection) -> tuple[list[_TakeCall], Row]:
        """Deal out the head of the queue, which others may be taking at this moment. Return the calls that have to look
        further, and the place of the commit."""
        further = await _deal_head(connection, "head", calls)
        changes = _changes(calls)
        if not changes:
            return further, NOWHERE
        written, *place = await connection.fetchrow(statements()["take_runs"], changes)
        overtaken = [call for call in calls if not call.win(written)]
        if overtaken:
            self._contended_until = asyncio.get_running_loop().time() + CONTENDED
        return [*further, *overtaken], tuple(place)

    async def _serve_together(self, calls: list[_TakeCall], connection: Connection) -> tuple[list[_TakeCall], Row]:
        """The same with locks."""
        await connection.execute("BEGIN")
        further = await _deal_head(connection, "offered", calls)
        return further, await _commit(connection, calls)

    async def _serve_alone(self, call: _TakeCall, connection: Connection) -> Row:
        """Serve one call, and return the place of the commit."""
        await connection.execute("BEGIN")
        more = await _deal_page(connection, "offered", [call])
        place, page, seen = FIRST, 10, 0
        while more and call.wants and seen < MOST_RUNS_JUDGED:
            page = min(LARGEST_PAGE, 2 * page)
            rows = await _look_further(connection, call, place, page)
            seen += len(rows)
            place, more = _end_of(rows)
        with self._connections.limit(connection):
            return await _commit(connection, [call])


async def _deal_head(connection: Connection, query: str, calls: list[_TakeCall]) -> list[_TakeCall]:
    """Deal out the head of the queue. Return the calls that want more than that: they take all or nothing, alone."""
    more = await _deal_page(connection, query, calls)
    further = [call for call in calls if more and call.wants]
    for call in further:
        call.taken.clear()
    return further


async def _deal_page(connection: Connection, query: str, calls: list[_TakeCall]) -> bool:
    """Read the head of the queue and deal it out. Return whether there is more."""
    for call in calls:
        call.taken.clear()  # of a try that was rolled back
    page = min(LARGEST_PAGE, sum(call.wants for call in calls))
    rows = await connection.fetch(statements()[query], *_terms(calls), page)
    turns = list(calls)
    for run in _runs(rows):
        for place, call in enumerate(turns):
            if call.wants and call.judge(run):
                turns.append(turns.pop(place))  # the others come first now
                break
        else:
            turns = [call for call in turns if call.wants]
            if not turns:
                break
    return len(rows) == page


async def _look_further(connection: Connection, call: _TakeCall, place: _Place, page: int) -> Sequence[Any]:
    """Judge about ``page`` runs after a place, and lock those that are taken."""
    rows = await connection.fetch(statements()["offered_further"], *_terms([call]), *place, page)
    before = set(call.taken)
    for run in _runs([row[: len(COLUMNS)] for row in rows]):  # the last column is `more`
        if run.id not in before:
            call.judge(run)
        if not call.wants:
            break
    new = [row for _, row in call.taken.values() if row[0] not in before]
    if new:
        locked = await connection.fetch(statements()["lock_runs"], [row[0] for row in new], [row[1] for row in new])
        call.keep({*before, *(row[0] for row in locked)})
    return rows


def _terms(calls: list[_TakeCall]) -> tuple[Any, ...]:
    request = calls[0].request
    return (
        list({call.request.device for call in calls}),
        list(request.not_kinds),
        min(call.request.now for call in calls),
        f"|{request.device}|" if len(calls) == 1 else "||",  # of several, see judge()
        -HIGHEST if request.above is None else request.above,
    )


def _runs(rows: Sequence[Any]) -> Iterator[Run]:
    for row in rows:
        try:
            yield run_of(row)
        except StoreCorrupt as error:  # it must not keep others from being taken; `store check` names it too
            log.error("passed over a run in the queue: %s", error)


def _end_of(rows: Sequence[Any]) -> tuple[_Place, bool]:
    """Return the place after these rows, and whether there are more."""
    if not rows:
        return FIRST, False
    last = rows[-1]
    return _Place(-last["priority"], last["created_at"], last["id"]), last["more"]


def _changes(calls: list[_TakeCall]) -> list[Row]:
    """What the calls have taken, to be written, in the order of ids."""
    for call in calls:
        if call.future.cancelled():  # its caller would never learn what it took
            call.taken.clear()
    return sorted(row for call in calls for _, row in call.taken.values())


async def _commit(connection: Connection, calls: list[_TakeCall]) -> Row:
    """Commit, and return the place of the commit in the history of the database."""
    changes = _changes(calls)
    if not changes:
        await connection.execute("ROLLBACK")
        return NOWHERE
    written, *place = await connection.fetchrow(statements()["change_runs"], changes)
    await connection.execute("COMMIT")
    for call in calls:
        call.win(written)
    return tuple(place)
