"""A clock that keeps counting while the machine sleeps; ids that sort by time."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol


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


def new_ids(millisecond: int, chance: random.Random, number: int) -> list[str]:
    """Ids of runs that are created together, in ascending order."""
    first = f"{millisecond & 0xFFFFFFFFFFFF:012x}"
    return [f"{first}{one:012x}" for one in sorted([chance.getrandbits(48) for _ in range(number)])]
