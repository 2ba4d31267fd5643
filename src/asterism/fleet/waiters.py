"""Waiting for runs to end.

An end that is written in this process is known at once. One that is written elsewhere is read when the store announces
it, and at intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict

from asterism.base.clock import Clock
from asterism.core.run.run import Run
from asterism.store.protocol import ENDED, Store
from asterism.store.store_errors import StoreUnavailable

LOOK_INTERVAL = 1.0
"""How often to look at runs that are executed elsewhere without being woken, in seconds."""

LOCAL_LOOK_INTERVAL = 10.0
"""The same for runs that this process executes: if the store takes one away, it ends elsewhere."""

PAUSE = 0.05
"""The longest pause between two looks, so that a busy store is not asked all the time, in seconds."""

FIRST_PAUSE = 0.002
"""The pause after a look that found nothing, in seconds. It doubles while looks find nothing: most ends in a busy store
are those of other runs."""

REST = 10.0
"""A pause is at least as long as so many looks, since a look reads every run that is waited for."""


class RunWaiters:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._waiting: dict[str, set[asyncio.Future[Run | None]]] = defaultdict(set)
        self._elsewhere: dict[str, None] = {}  # ordered, so that simulations are repeatable
        self._looking: asyncio.Task[None] | None = None

    def ended(self, run: Run) -> None:
        """A run has ended, and its end was written in this process."""
        if run.id in self._waiting:  # most runs have no waiter here
            self._resolve(run.id, run)

    async def wait(self, run_id: str, *, here: bool = False) -> Run | None:
        """The run once it has ended; None if it is not in the store (any more). ``here`` says that this process
        executes it, and is the first to know."""
        if not here:
            with contextlib.suppress(StoreUnavailable):
                run = await self._store.run(run_id)
                if run is None or run.ended:
                    return run
            self._elsewhere[run_id] = None
        future: asyncio.Future[Run | None] = asyncio.get_running_loop().create_future()
        self._waiting[run_id].add(future)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            return await future
        finally:
            waiting = self._waiting.get(run_id)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    self._forget(run_id)

    def _forget(self, run_id: str) -> set[asyncio.Future[Run | None]]:
        self._elsewhere.pop(run_id, None)
        return self._waiting.pop(run_id, set())

    def _resolve(self, run_id: str, run: Run | None) -> None:
        for future in self._forget(run_id):
            if not future.done():
                future.set_result(run)

    async def _look(self) -> None:
        watch = self._store.watch(frozenset({ENDED}))
        try:
            looked = self._clock.time()
            in_vain, timeout = FIRST_PAUSE, PAUSE  # soon at first: a run may have ended before the watch was open
            while self._waiting:
                if not self._elsewhere:
                    await self._clock.sleep(PAUSE)  # ends in this process are known without a look
                await watch.wait(timeout)
                timeout = LOOK_INTERVAL
                began = self._clock.time()
                everything = began - looked >= LOCAL_LOOK_INTERVAL
                looked = began if everything else looked
                any_ended = False
                with contextlib.suppress(StoreUnavailable):
                    for run_id in list(self._waiting if everything else self._elsewhere):
                        run = await self._store.run(run_id) if run_id in self._waiting else None
                        if run is None or run.ended:
                            any_ended = True
                            self._resolve(run_id, run)
                in_vain = FIRST_PAUSE if any_ended else min(2 * in_vain, PAUSE)
                if self._waiting:
                    await self._clock.sleep(min(max(in_vain, REST * (self._clock.time() - began)), PAUSE))
        except Exception as error:  # the waiters get it: they would wait forever otherwise
            for run_id in list(self._waiting):
                for future in self._forget(run_id):
                    if not future.done():
                        future.set_exception(error)
        finally:
            watch.close()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for run_id in list(self._waiting):
            for future in self._forget(run_id):
                future.cancel()
