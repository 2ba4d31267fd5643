"""The queue of offered runs in PostgreSQL: runs are locked, judged and committed in one transaction.

``FOR UPDATE SKIP LOCKED`` keeps takers out of each other's way, so that they do not compete for the same few runs. That
no run is taken twice does not rely on it: the write compares revisions like any other.

Devices of this process that take at the same time are served together: the runs at the head of the queue are dealt out
among them in one transaction. A device that refused some runs and wants more is then served alone. It goes further down
the queue page by page, and locks only the runs that it takes, so that others can take those that it refuses. No taker
waits for a lock: a run that another has locked is passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from asterism.core.run.run import Run
from asterism.store.postgres.connection import Connection
from asterism.store.postgres.schema import statements
from asterism.store.postgres.workers import Call, Workers
from asterism.store.protocol import TakeRequest
from asterism.store.row_codec import moving, run_of
from asterism.store.store_errors import StoreCorrupt

log = logging.getLogger(__name__)

LARGEST_PAGE = 1000
LARGEST_DEAL = 200
"""How many runs are dealt out at once among several calls. While the server writes these, we judge the next."""

MOST_CALLS_TOGETHER = 32
MOST_RUNS_JUDGED = 100_000
"""How many runs one call goes through at most, from the head of the queue."""

HIGHEST = 2**63 - 1

Row = tuple[Any, ...]


class _Place(NamedTuple):
    """A place in the queue: where the last page ended. A lower ``urgency`` comes first."""

    urgency: int
    created_at: float
    id: str


FIRST = _Place(-HIGHEST, float("-inf"), "")


class _TakeCall(Call):
    """One call of ``take``. ``taken`` maps the id of each run it gets to the run and the row to write."""

    __slots__ = ("error", "request", "step", "taken")

    def __init__(
        self, request: TakeRequest, step: Callable[[Run], Run | None], future: asyncio.Future[list[Run]]
    ) -> None:
        self.request = request
        self.step = step
        self.future = future
        self.taken: dict[str, tuple[Run, Row]] = {}
        self.error: Exception | None = None

    @property
    def wants(self) -> int:
        return self.request.limit - len(self.taken) if self.error is None else 0

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

    def end(self) -> None:
        if self.error is not None:
            self.fail(self.error)
        elif not self.future.done():
            self.future.set_result([run for run, _ in self.taken.values()])


class TakeQueue(Workers[_TakeCall]):
    """Serves calls of ``take``."""

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
        further = calls
        if len(calls) > 1:
            further, place = await self._connections.repeated(partial(self._serve_together, calls))
            self._connections.acknowledged(*place)
            for call in calls:
                if call not in further:
                    call.end()
        for call in further:
            # page by page it may take longer than one statement
            place = await self._connections.repeated(partial(self._serve_alone, call), whole=False)
            self._connections.acknowledged(*place)
            call.end()

    async def _serve_together(self, calls: list[_TakeCall], connection: Connection) -> tuple[list[_TakeCall], Row]:
        """Deal out the head of the queue. Return the calls that have to look further, and the place of the commit."""
        await connection.execute("BEGIN")
        more = await _deal_page(connection, calls)
        further = [call for call in calls if more and call.wants]
        for call in further:
            call.taken.clear()
        return further, await _commit(connection, calls)

    async def _serve_alone(self, call: _TakeCall, connection: Connection) -> Row:
        """Serve one call, and return the place of the commit."""
        await connection.execute("BEGIN")
        more = await _deal_page(connection, [call])
        place, page, seen = FIRST, 10, 0
        while more and call.wants and seen < MOST_RUNS_JUDGED:
            page = min(LARGEST_PAGE, 2 * page)
            rows = await _look_further(connection, call, place, page)
            seen += len(rows)
            place, more = _end_of(rows)
        with self._connections.limit(connection):
            return await _commit(connection, [call])


async def _deal_page(connection: Connection, calls: list[_TakeCall]) -> bool:
    """Lock the head of the queue and deal it out. Return whether there is more."""
    page = min(LARGEST_PAGE, sum(call.request.limit for call in calls))
    rows = await connection.fetch(statements()["offered"], *_terms(calls), page)
    turns = list(calls)
    for call in calls:
        call.taken.clear()  # of a try that was rolled back
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
    for run in _runs(rows):
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


async def _commit(connection: Connection, calls: list[_TakeCall]) -> Row:
    """Commit, and return the place of the commit in the history of the database."""
    for call in calls:
        if call.future.cancelled():  # its caller would never learn what it took
            call.taken.clear()
    changes = sorted(row for call in calls for _, row in call.taken.values())
    if not changes:
        await connection.execute("ROLLBACK")
        return None, None, None
    done, *place = await connection.fetchrow(statements()["change_runs"], changes)
    await connection.execute("COMMIT")
    for call in calls:
        call.keep(set(done) & call.taken.keys())
    return tuple(place)
