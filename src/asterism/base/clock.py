"""A device's own clock: it only ever counts seconds, and goes on while the machine sleeps."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def time(self) -> float:
        """Seconds since some moment. It never goes back and does not follow the calendar."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class BootClock:
    """The machine's. A laptop that was shut for an hour finds the hour gone; CLOCK_MONOTONIC would not count it, and
    the device would believe in a lease that ran out long ago. Where somebody fakes CLOCK_BOOTTIME and turns it back,
    it goes on all the same: the time for which the machine slept only grows."""

    def __init__(self) -> None:
        self._boot = getattr(time, "CLOCK_BOOTTIME", None)
        self._slept = float("-inf")

    def time(self) -> float:
        now = time.monotonic()
        if self._boot is None:
            return now
        self._slept = max(self._slept, time.clock_gettime(self._boot) - now)
        return now + self._slept

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
