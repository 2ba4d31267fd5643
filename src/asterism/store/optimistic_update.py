"""Optimistic updates of a store: read, change, commit, and try again with back-off after a Conflict.

A record carries a revision, and a write names the revision it replaces. If another writer was faster, ``commit``
raises Conflict and nothing of the batch happened. Three functions cover what callers do about that.
(Registers of series, which may be on a git remote or on GitHub, have no commit: series/compare_and_swap.py is their
loop, with unknown outcomes and deadlines.)

``update_register``
    changes one register. Pass a function from the current value to the next one.
``retry_on_conflict``
    is the general loop, for updates that read several records or write more than one. Pass an attempt: an async
    function without parameters that reads, decides, commits and returns the result.

``retried``
    makes an update of a function that is an attempt as a whole, with any parameters.
``try_commit``
    commits once and returns whether that succeeded, for updates that the next pass makes superfluous or repeats.

For example, count the visits of a device and leave a notice with the hundredth::

    @retried
    async def visit(store: Store, device: str) -> int:
        visits = await read_slot(store, f"visits/{device}", 0)
        count = visits.value + 1
        writes: list[Write] = [visits.put(count)]
        if count == 100:
            writes.append(Notice(store.clock(), "visits", f"{device} was here 100 times"))
        await store.commit(writes)
        return count

and without the notice::

    count = await update_register(store, f"visits/{device}", lambda count: (count or 0) + 1)

An attempt may run several times: it keeps no state of an earlier try, and has no effects but its commit. It may return
without a commit if there is nothing to do, and raise whatever refuses the update.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

from asterism.base.clock import Clock
from asterism.core.backoff import retry_delay
from asterism.store.protocol import Store, Write, read_slot
from asterism.store.store_errors import Conflict, StoreUnavailable

P = ParamSpec("P")
Result = TypeVar("Result")

IMMEDIATE_RETRIES = 2
"""So many conflicts are followed by the next try at once: mostly the other writer is done by then."""

CONFLICT_PAUSE = (0.005, 0.05)
"""The first and the longest pause after further conflicts, in seconds."""

OUTAGE_PAUSE = (0.05, 2.0)
"""The same while the store is unavailable."""

AVAILABLE_PAUSE = 1.0
"""Seconds between two requests of ``until_available``."""


async def retry_on_conflict(
    attempt: Callable[[], Awaitable[Result]],
    *,
    tries: int | None = None,
    patience: float = 0.0,
    outage_pause: tuple[float, float] = OUTAGE_PAUSE,
    clock: Clock | None = None,
    chance: random.Random | None = None,
) -> Result:
    """Call ``attempt`` until it raises no Conflict, and return its result.

    :param attempt: reads, decides, commits and returns the result. Other exceptions than Conflict and
        StoreUnavailable pass through.
    :param tries: raise the Conflict of the last try after so many; None to try until one succeeds. Each conflict
        means that another writer succeeded, so the store as a whole makes progress.
    :param patience: for how many seconds to try again while the store is unavailable. Whether the last commit happened
        is then unknown, so ``attempt`` has to recognise its own earlier writes. 0 raises StoreUnavailable at once.
    :param outage_pause: the first and the longest pause while the store is unavailable, in seconds.
    :param clock: measures ``patience`` and sleeps; by default the event loop's clock, so that virtual time works.
    :param chance: spreads the pauses, so that writers do not collide again at the same moment.
    """
    clock = clock or _LOOP_CLOCK
    until = clock.time() + patience if patience else None
    conflicts = outages = 0
    while True:
        try:
            return await attempt()
        except Conflict:
            conflicts += 1
            if tries is not None and conflicts >= tries:
                raise
            if conflicts <= IMMEDIATE_RETRIES:
                continue
            failures, bounds = conflicts - IMMEDIATE_RETRIES, CONFLICT_PAUSE
        except StoreUnavailable:
            if until is None or clock.time() >= until:
                raise
            outages += 1
            failures, bounds = outages, outage_pause
        # seeded by the loop's clock, so that a simulation with one seed is repeatable
        chance = chance or random.Random(asyncio.get_running_loop().time())
        await clock.sleep(retry_delay(failures, *bounds, chance))


def retried(attempt: Callable[P, Awaitable[Result]]) -> Callable[P, Coroutine[Any, Any, Result]]:
    """An update that calls ``attempt`` with its own arguments until that raises no Conflict."""

    @functools.wraps(attempt)
    async def update(*arguments: P.args, **options: P.kwargs) -> Result:
        return await retry_on_conflict(lambda: attempt(*arguments, **options))

    return update


@retried
async def update_register(store: Store, key: str, change: Callable[[Any], Any]) -> Any:
    """Replace the value of a register by ``change(value)``, and return the value it has then.

    :param change: maps the current value, None for a register that does not exist, to the next one. It returns None if
        there is nothing to change. It may be called several times.
    """
    slot = await read_slot(store, key)
    after = change(slot.value)
    if after is None:
        return slot.value
    await store.commit([slot.put(after)])
    return after


async def try_commit(store: Store, writes: Sequence[Write]) -> bool:
    """Commit once. Returns False, and nothing happened, if another writer was faster."""
    try:
        await store.commit(writes)
    except Conflict:
        return False
    return True


async def until_available(clock: Clock, ask: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat a request to a store while it is unavailable."""
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            await clock.sleep(AVAILABLE_PAUSE)


class _LoopClock:
    """The clock of the running event loop."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_LOOP_CLOCK = _LoopClock()
