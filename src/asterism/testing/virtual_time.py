"""Virtual time: an event loop whose clock jumps, with callbacks in an order chosen by a seed.

Time stands still while a callback can run, and jumps to the next timer when none can, so a timeout of ten minutes costs
nothing. With a seed, ready callbacks run in a random but repeatable order: two runs with one seed are identical, and
different seeds show different interleavings. If no callback is ready and no timer is set, the program can never
continue, and the loop raises ``Deadlock``.

Sockets and threads do not work here: they live in real time.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Deadlock(RuntimeError):
    """No callback is ready, no timer is set, and the program has not ended."""


def moment(when: float) -> float:
    """Return the first whole microsecond that is not before ``when``.

    The clock shows whole microseconds, so a timer for any other time would fire before its time by the clock, and a
    program that then waits for the rest, which is too short for the clock to show, would spin forever.
    """
    rounded = round(when, 6)
    return rounded if rounded >= when else round(when + 1e-6, 6)


class _Selector(selectors.SelectSelector):
    """Moves the clock of its loop instead of waiting."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock(f"deadlock at {self.loop.time():.3f} s: no callback is ready and no timer is set")
        self.loop.advance(timeout)
        return []


class SimLoop(asyncio.SelectorEventLoop):
    """``SimLoop(seed).run_until_complete(main())``.

    :param seed: of the order of ready callbacks; None for asyncio's own order.
    :param tick: by how many seconds the clock advances at each reading. Recorded times then show the order of steps
        that would otherwise all have the same time.
    """

    def __init__(self, seed: int | None = None, tick: float = 0.0) -> None:
        self._virtual = 0.0
        self._tick = tick
        self._random = None if seed is None else random.Random(seed)
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        # asyncio adds this to the time to find due timers: more than the jitter of call_at, less than a microsecond
        self._clock_resolution = 5e-7

    def time(self) -> float:
        if self._tick:
            self._virtual += self._tick
            return self._virtual
        return round(self._virtual, 6)  # without the jitter of call_at

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        # timers for one instant fire in a random order too: they differ by less than the clock shows
        jitter = 0.0 if self._random is None else self._random.random() * 1e-7
        return super().call_at(moment(when) + jitter, callback, *args, context=context)

    def advance(self, seconds: float) -> None:
        self._virtual += max(0.0, seconds)

    def _run_once(self) -> None:
        # asyncio's own queue of ready callbacks: private, but the same in every CPython since 3.4
        if self._random is not None and len(self._ready) > 1:  # type: ignore[attr-defined]
            ready = list(self._ready)  # type: ignore[attr-defined]
            self._random.shuffle(ready)
            self._ready.clear()  # type: ignore[attr-defined]
            self._ready.extend(ready)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, Result], seed: int | None = None, tick: float = 0.0) -> Result:
    """Run a coroutine in virtual time, and return its result. ``seed`` and ``tick`` are those of ``SimLoop``."""
    loop = SimLoop(seed, tick)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        asyncio.set_event_loop(None)
        try:
            _cancel_all(loop)
        finally:
            loop.close()


def _cancel_all(loop: SimLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
