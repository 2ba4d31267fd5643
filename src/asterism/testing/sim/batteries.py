"""A world whose machines run low on battery, one or all of them, for moments or for long: their devices rest.

Beside what every world promises, no run counts a round or is given up because of that.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asterism.store.protocol import Query
from asterism.testing.sim.world import World

LOW, FULL = 0.1, 1.0
LONG = 400.0
"""Longer than a run waits if no device can take it."""


class BatteryWorld(World):
    def __init__(self, seed: int, **terms: Any) -> None:
        super().__init__(seed, **terms)
        self.levels = dict.fromkeys(self.names, FULL)
        self.faults.all += [self._run_low] * 4

    def device_terms(self, name: str) -> dict[str, Any]:
        return {"measure": lambda: {"battery": self.levels[name]}, "hands_back": "battery < 0.2"}

    async def _run_low(self) -> None:
        low = self.names if self.chance.random() < 0.3 else [self.chance.choice(self.names)]
        self.witness.note(f"{', '.join(low)}: low battery")
        self.levels |= dict.fromkeys(low, LOW)
        await asyncio.sleep(self.chance.choice([0.5, 4.0, 20.0, LONG]))
        self.levels |= dict.fromkeys(low, FULL)
        self.witness.note(f"{', '.join(low)}: charged")

    async def play(self) -> None:
        await super().play()
        for run in await self.store.find(Query()):
            if run.rounds:
                self.witness.broken(f"run {run.id} counted {run.rounds} rounds, and devices only rested: {run.error}")
