"""The event loop of a simulation: the one for tests, without what only real time and real sockets need.

A world takes thousands of turns of its loop, and a hunt plays tens of thousands of worlds.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from typing import Any

from asterism.testing.loop import Deadlock, SimLoop

SAME = 1e-6
"""What is due within so many seconds is due at the same moment."""


class Clockwork(SimLoop):
    """``Clockwork(seed).run_until_complete(main())``. Whatever is ready at one moment runs in an order that follows the
    seed, and so do timers for one instant."""

    _ready: deque[asyncio.Handle]  # asyncio's own queue of what is ready

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._order = random.Random(seed)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._made = 0
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._made += 1
        # kept apart by less than the clock can tell, so that their order is the seed's
        heapq.heappush(self._timers, (when + self._order.random() * 1e-7, self._made, handle))
        return handle

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Deadlock(f"nothing can happen any more, at {self._now:.3f} s")
            self._now = max(self._now, round(timers[0][0], 6))
        while timers and timers[0][0] <= self._now + SAME:
            handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                ready.append(handle)
        if len(ready) > 1:
            shuffled = list(ready)
            self._order.shuffle(shuffled)
            ready.clear()
            ready.extend(shuffled)
        for _ in range(len(ready)):
            handle_now = ready.popleft()
            if not handle_now.cancelled():
                handle_now._run()
