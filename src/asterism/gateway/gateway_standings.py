"""Election ranks for the devices of a gateway: read once for all of them.

Each device asks for its rank when it joins and from time to time. The ranks depend on all sessions, so to read them for
each device would cost the square of their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from asterism.core.run.placement import Weights
from asterism.fleet.device.store_connection import election_standings
from asterism.fleet.fleet import Fleet

KNOWN_FOR = 5.0
"""How long ranks are used after they were read, in seconds."""

PAUSE = 9.0
"""How long after that they are not read again for a device that is new: so many times as long as the reading took."""


class Standings:
    """The ranks of all devices, and the weights of scores."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._clock = fleet, fleet.clock
        self._read_at = self._next_read = float("-inf")
        self._known: tuple[Mapping[str, float], Weights] | None = None
        self._reading = asyncio.Lock()

    async def of(self, device: str) -> tuple[Mapping[str, float], Weights]:
        """The ranks, with that of this device if it can be reached. Raises StoreError."""
        async with self._reading:
            known, began = self._known, self._clock.time()
            if known is not None and began - self._read_at < KNOWN_FOR and device in known[0]:
                return known
            if began < self._next_read:
                await self._clock.sleep(self._next_read - began)
                began = self._clock.time()
            self._known = known = await election_standings(self._fleet)
            self._read_at = self._clock.time()
            self._next_read = self._read_at + PAUSE * (self._read_at - began)
            return known
