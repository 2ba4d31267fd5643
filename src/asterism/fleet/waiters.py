"""Waiting for runs to end, many at a time: what ends in this process is known at once, what ends elsewhere when the
store wakes us or a look finds it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict

from asterism.base.clock import Clock
from asterism.core.run.run import Run
from asterism.store.protocol import ENDED, Store
from asterism.store.store_errors import StoreUnavailable

LOOK = 1.0
"""How often to look without being woken, in seconds."""

HERE = 10.0
"""The same for what is being done in this process: if it is taken away from us, it ends elsewhere."""

REST = 0.05
"""How long to rest between two looks, so that a busy store is not asked all the time."""


class RunWaiters:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._waiting: dict[str, set[asyncio.Future[Run | None]]] = defaultdict(set)
        self._elsewhere: dict[str, None] = {}  # in an order, so that a world that is played again is the same
        self._looking: asyncio.Task[None] | None = None

    def ended(self, run: Run) -> None:
        """A run has ended, and it was written here."""
        if run.id in self._waiting:  # of most that end, nobody is waiting for it
            self._resolve(run.id, run)

    async def wait(
        self, run_id: str, *, here: bool = False, future: asyncio.Future[Run | None] | None = None
    ) -> Run | None:
        """The run once it has ended; None if it is not in the store (any more). ``here`` says that it is being done in
        this process, which is then the first to know. Whoever knows it even earlier may set a ``future`` of theirs."""
        if not here:
            with contextlib.suppress(StoreUnavailable):
                run = await self._store.run(run_id)
                if run is None or run.ended:
                    return run
            self._elsewhere[run_id] = None
        future = future or asyncio.get_running_loop().create_future()
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
            while self._waiting:
                await self._clock.sleep(REST)
                await watch.wait(LOOK)
                everything = self._clock.time() - looked >= HERE
                looked = self._clock.time() if everything else looked
                with contextlib.suppress(StoreUnavailable):
                    for run_id in list(self._waiting if everything else self._elsewhere):
                        run = await self._store.run(run_id) if run_id in self._waiting else None
                        if run is None or run.ended:
                            self._resolve(run_id, run)
        except Exception as error:  # it would never be known otherwise, and all would wait for ever
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
