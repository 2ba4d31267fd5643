"""The follow loop: look at something again and again, until it has what one waits for or the time is up.

::

    async for last in Looks(clock, interval=0.2, timeout=30.0):
        lines = await read_lines()
        if lines or last:
            break

``first_of`` waits for the first of several things, ``beside`` does some work while a block runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, Self, TypeVar

from asterism.base.clock import BootClock, Clock

T = TypeVar("T")


class Looks:
    """Yields for each look whether it is the last one. ``interval`` is the pause between two looks in seconds, and
    ``timeout`` how long all pauses take together, if nobody leaves the loop before. After a look that takes long the
    pause is ``rest`` times as long as the look: who follows a busy system leaves most of its time to others."""

    def __init__(
        self, clock: Clock | None = None, *, interval: float, timeout: float = float("inf"), rest: float = 0.0
    ) -> None:
        self._clock: Clock = clock or BootClock()
        self._interval, self._rest, self._left = interval, rest, timeout
        self._looks, self._began = 0, 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bool:
        if self._looks:
            if self._is_last():
                raise StopAsyncIteration
            pause = max(self._interval, self._rest * (self._clock.time() - self._began))
            pause = min(pause, self._left)  # so the pauses take the timeout exactly, whatever floats add up to
            self._left -= pause
            await self._clock.sleep(pause)
        self._looks += 1
        self._began = self._clock.time()
        return self._is_last()

    def _is_last(self) -> bool:
        return self._left <= 0


async def first_of(*waits: Awaitable[T]) -> list[T]:
    """Wait until one of these is done, and cancel the others. Returns the results of what is done."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return [task.result() for task in tasks if task in done]
    finally:
        await stopped(*tasks)


async def stopped(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended, however they do."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Do some work while the block runs; it is cancelled at the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await stopped(task)
