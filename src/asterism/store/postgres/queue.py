"""Taking offered runs: locked, judged and committed in one transaction.

``FOR UPDATE SKIP LOCKED`` keeps takers out of each other's way, so that they do not all run after the same few runs.
That nobody gets what another has does not rest on it: the write compares revisions as any other does.

Devices of this process that ask at the same time are served together: the runs at the head of the queue are dealt out
among them, in one transaction. One that refused some and wants more is then served alone. It looks further down the
queue page by page, and there it locks only what it will have, so that it does not keep from others what it refuses.
Nobody waits for a lock here: what another has locked is passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from asterism.core.run.run import Run
from asterism.store.postgres.connection_pool import Connection, ConnectionPool
from asterism.store.postgres.error_mapping import own_copy
from asterism.store.postgres.statements import statements
from asterism.store.protocol import TakeRequest
from asterism.store.row_codec import moving, run_of
from asterism.store.store_errors import StoreCorrupt, StoreUnavailable

log = logging.getLogger(__name__)

LARGEST_PAGE = 1000
TOGETHER = 200
"""So many runs are dealt out at once among several devices. While the server writes these, we judge the next."""

MOST_TOGETHER = 32
MOST_SEEN = 100_000
"""So many runs are looked at in one call. They are those the device would be offered first."""

HIGHEST = 2**63 - 1

Row = tuple[Any, ...]


class _Place(NamedTuple):
    """Where the last page ended; ``urgency`` is less for what is more urgent, as the order of the queue has it."""

    urgency: int
    created_at: float
    id: str


FIRST = _Place(-HIGHEST, float("-inf"), "")


class _TakeRequest:
    """One call of ``take``: ``taken`` has what it gets, by id, each with the row to write."""

    __slots__ = ("error", "future", "offer", "step", "taken")

    def __init__(
        self, offer: TakeRequest, step: Callable[[Run], Run | None], future: asyncio.Future[list[Run]]
    ) -> None:
        self.offer = offer
        self.step = step
        self.future = future
        self.taken: dict[str, tuple[Run, Row]] = {}
        self.error: Exception | None = None

    @property
    def wants(self) -> int:
        return self.offer.limit - len(self.taken) if self.error is None else 0

    def judge(self, run: Run) -> bool:
        """Whether it takes the run. A step that raises ends the call, and takes nothing."""
        device = self.offer.device
        if run.pinned not in (None, device) or device in run.avoid or run.not_before > self.offer.now:
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
            self.taken = {run_id: one for run_id, one in self.taken.items() if run_id in kept}

    def end(self, error: Exception | None = None) -> None:
        if self.future.done():
            return
        error = error or self.error
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result([run for run, _ in self.taken.values()])


class TakeQueue:
    """``most`` is how many transactions may take at the same time."""

    def __init__(self, connections: ConnectionPool, most: int) -> None:
        self._connections = connections
        self._most = most
        self._queue: deque[_TakeRequest] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = 0

    async def take(self, offer: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        if offer.limit < 1:
            return []
        ask = _TakeRequest(offer, step, asyncio.get_running_loop().create_future())
        self._queue.append(ask)
        if self._working < self._most:
            self._working += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await ask.future

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _work(self) -> None:
        try:
            while self._queue:
                asks = self._next_asks()
                try:
                    await self._serve(asks)
                except BaseException as error:
                    for ask in asks:
                        ask.end(own_copy(error) if isinstance(error, Exception) else StoreUnavailable("interrupted"))
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._working -= 1  # in the same step that found the queue empty: nothing is left lying there

    def _next_asks(self) -> list[_TakeRequest]:
        """Those that may be offered the same runs."""
        first = self._queue.popleft()
        asks, left, wanted = [first], [], first.offer.limit
        while self._queue:
            ask = self._queue.popleft()
            if ask.future.cancelled():
                continue
            same = ask.offer.not_kinds == first.offer.not_kinds and ask.offer.above == first.offer.above
            if same and wanted + ask.offer.limit <= TOGETHER and len(asks) < MOST_TOGETHER:
                asks.append(ask)
                wanted += ask.offer.limit
            else:
                left.append(ask)
        self._queue.extend(left)
        return asks

    async def _serve(self, asks: list[_TakeRequest]) -> None:
        further = asks
        if len(asks) > 1:
            async with self._connections.borrowed() as connection:
                await connection.execute("BEGIN")
                more = await _deal_page(connection, asks)
                further = [ask for ask in asks if more and ask.wants]
                for ask in further:
                    ask.taken.clear()
                await _commit(connection, asks)
            for ask in asks:
                if ask not in further:
                    ask.end()
        for ask in further:
            await self._serve_alone(ask)
            ask.end()

    async def _serve_alone(self, ask: _TakeRequest) -> None:
        async with self._connections.borrowed() as connection:
            await connection.execute("BEGIN")
            more = await _deal_page(connection, [ask])
            place, page, seen = FIRST, 10, 0
            while more and ask.wants and seen < MOST_SEEN:
                page = min(LARGEST_PAGE, 2 * page)
                rows = await _look_further(connection, ask, place, page)
                seen += len(rows)
                place, more = _end_of(rows)
            await _commit(connection, [ask])


async def _deal_page(connection: Connection, asks: list[_TakeRequest]) -> bool:
    """Lock the head of the queue and deal it out. Returns whether there is more."""
    page = min(LARGEST_PAGE, sum(ask.offer.limit for ask in asks))
    rows = await connection.fetch(statements()["offered"], *_terms(asks), page)
    turns = list(asks)
    for run in _runs(rows):
        for place, ask in enumerate(turns):
            if ask.wants and ask.judge(run):
                turns.append(turns.pop(place))  # it waits until the others had their turn
                break
        else:
            turns = [ask for ask in turns if ask.wants]
            if not turns:
                break
    return len(rows) == page


async def _look_further(connection: Connection, ask: _TakeRequest, place: _Place, page: int) -> Sequence[Any]:
    """Judge ``page`` runs or so after a place, and lock what is taken of them."""
    rows = await connection.fetch(statements()["offered_further"], *_terms([ask]), *place, page)
    before = set(ask.taken)
    for run in _runs(rows):
        if run.id not in before:
            ask.judge(run)
        if not ask.wants:
            break
    new = [row for _, row in ask.taken.values() if row[0] not in before]
    if new:
        locked = await connection.fetch(statements()["lock_runs"], [row[0] for row in new], [row[1] for row in new])
        ask.keep({*before, *(row[0] for row in locked)})
    return rows


def _terms(asks: list[_TakeRequest]) -> tuple[Any, ...]:
    offer = asks[0].offer
    return (
        list({ask.offer.device for ask in asks}),
        list(offer.not_kinds),
        min(ask.offer.now for ask in asks),
        f"|{offer.device}|" if len(asks) == 1 else "||",  # of several, each refuses for itself what is to avoid it
        -HIGHEST if offer.above is None else offer.above,
    )


def _runs(rows: Sequence[Any]) -> Iterator[Run]:
    for row in rows:
        try:
            yield run_of(row)
        except StoreCorrupt as error:  # it must not keep the others from being taken; `check` names it too
            log.error("passed over: %s", error)


def _end_of(rows: Sequence[Any]) -> tuple[_Place, bool]:
    """Where to go on, and whether there is anything."""
    if not rows:
        return FIRST, False
    last = rows[-1]
    return _Place(-last["priority"], last["created_at"], last["id"]), last["more"]


async def _commit(connection: Connection, asks: list[_TakeRequest]) -> None:
    for ask in asks:
        if ask.future.cancelled():  # nobody would ever learn what it took
            ask.taken.clear()
    changes = sorted(row for ask in asks for _, row in ask.taken.values())
    if not changes:
        await connection.execute("ROLLBACK")
        return
    done = await connection.fetchval(statements()["change_runs"], changes)
    await connection.execute("COMMIT")
    for ask in asks:
        ask.keep(set(done) & ask.taken.keys())
