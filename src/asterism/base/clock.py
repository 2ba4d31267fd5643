"""Clocks: one that counts while the machine sleeps, and an estimate of a server's; ids that sort by time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, Self, TypeVar


class Clock(Protocol):
    """A monotonic clock. Tests and simulations have their own."""

    def time(self) -> float:
        """Seconds since an arbitrary moment. It never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class BootClock:
    """The clock of this machine. It counts suspended time: CLOCK_MONOTONIC would not, and a device that wakes up would
    trust a lease that expired long ago. If CLOCK_BOOTTIME is set back, as some sandboxes do, this clock still
    advances: the counted suspended time only grows."""

    def __init__(self) -> None:
        self._boot = getattr(time, "CLOCK_BOOTTIME", None)
        self._slept = float("-inf")

    def time(self) -> float:
        now = time.monotonic()
        if self._boot is None:
            return now
        slept = time.clock_gettime(self._boot) - now
        if slept > self._slept:
            self._slept = slept
        return now + self._slept

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def new_id(now: float, chance: random.Random) -> str:
    """The id of a run or a session: 24 hexadecimal digits, 12 for the millisecond and 12 random."""
    return f"{int(now * 1000) & 0xFFFFFFFFFFFF:012x}{chance.getrandbits(48):012x}"


class AscendingIds:
    """Makes ids as ``new_id``. Those of one millisecond ascend in the order in which they are made."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._last = chance, 0

    def new(self, now: float) -> str:
        drawn = int(new_id(now, self._chance), 16)
        self._last = self._last + 1 if drawn >> 48 == self._last >> 48 else drawn
        return f"{self._last:024x}"


# -- server clock ------------------------------------------------------------------------------------------------------


DRIFT = 0.0002
"""The assumed drift of two clocks, in seconds per second: ten times that of a quartz."""


class ServerClock:
    """An estimate of the server's clock: call it. It needs a first sample.

    The server's time in a reply lies between the moments of the request and of the reply, which gives its offset to our
    clock, plus or minus half the round trip. Ours is the monotonic clock, which no change of the date moves. It stands
    still while the machine is suspended, so the estimate is late by that until the next sample, and never early: a late
    clock expires nothing too soon. A sample replaces the previous one if it is more precise, allowing for the drift of
    the two clocks since, or if the two contradict each other: then the server's clock was set, it is another server, or
    the machine was suspended."""

    def __init__(self, own: Callable[[], float] = time.monotonic) -> None:
        self.own = own
        self._offset = 0.0
        self._error = float("inf")
        self._sampled_at = 0.0

    def __call__(self) -> float:
        return self.own() + self._offset

    def learn(self, server_time: float, asked: float) -> None:
        """Take a sample: a reply with the server's time has just arrived, to a request sent at ``asked`` by our own
        clock."""
        received = self.own()
        error = (received - asked) / 2
        offset = server_time - (asked + received) / 2
        known = self._error + DRIFT * (received - self._sampled_at)
        if error <= known or abs(offset - self._offset) > error + known:
            self._offset, self._error, self._sampled_at = offset, error, received


# -- the follow loop ---------------------------------------------------------------------------------------------------


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
