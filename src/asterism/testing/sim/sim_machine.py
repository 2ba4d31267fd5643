"""A machine in a simulated world: it has a clock that runs a little wrong, and can be frozen, be sick, crash and come
back."""

from __future__ import annotations

import asyncio
from typing import NoReturn


class Machine:
    """``rate`` is how fast its clock runs, ``skew`` by how much its calendar is wrong."""

    def __init__(self, name: str, rate: float, skew: float) -> None:
        self.name, self.rate, self.skew = name, rate, skew
        self.dead = False
        self.wall = 0.0  # by how much its wall clock has jumped
        self.sick = False  # it can do nothing for the work, such as one with a full disk
        self.frozen_at: list[tuple[float, float]] = []
        self._loop = asyncio.get_running_loop()
        self._runs = asyncio.Event()
        self._runs.set()
        self._froze: float | None = None

    # -- as the runtime's clock ----------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.skew + self._loop.time() * self.rate

    def wall_time(self) -> float:
        """What time it is for people there. Nobody should go by it."""
        return self.time() + self.wall

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)
        await self.gate()

    # -- what can happen to it -----------------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        return self._froze is not None

    def freeze(self) -> None:
        if self._froze is None:
            self._froze = self._loop.time()
            self._runs.clear()

    def thaw(self) -> None:
        if self._froze is not None:
            self.frozen_at.append((self._froze, self._loop.time()))
            self._froze = None
            self._runs.set()

    def crash(self) -> None:
        self.dead = True
        self.thaw()

    async def gate(self) -> None:
        """Whatever a machine does passes here: nothing while it is frozen, nothing ever again once it is dead."""
        while self._froze is not None:
            await self._runs.wait()
        if self.dead:
            await never()

    def was_frozen_between(self, start: float, end: float) -> bool:
        return self.frozen or any(a < end and b > start for a, b in self.frozen_at)


async def never() -> NoReturn:
    """Until cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError
