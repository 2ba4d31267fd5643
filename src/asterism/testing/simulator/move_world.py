"""Simulated fleets whose runs people move from device to device while machines fail.

Everything of a fleet world happens, and most runs are moved: before they start, while they are worked on, when they
have ended. The machine of the person may crash in the middle of a move. A move that was accepted is an assignment like
any other: it is never lost, and the device before it is fenced.
"""

from __future__ import annotations

import asyncio
import contextlib

from asterism.core.errors import AsterismError
from asterism.fleet.fleet import Fleet
from asterism.testing.simulator.fleet_world import FleetWorld

MOST_MOVES = 3
"""How often a person moves one run."""


class MoveWorld(FleetWorld):
    """Machines that share a store, and people who move runs."""

    MEDDLING = 0.9
    moves = 0

    async def _meddle(self, fleet: Fleet, run_id: str) -> None:
        for _ in range(self.chance.randint(1, MOST_MOVES)):
            with contextlib.suppress(AsterismError):  # the device has no room, the run has ended, the store is away
                await self._move(fleet, run_id, self.chance.choice(self.names))
            await asyncio.sleep(self.chance.uniform(0.0, 5.0))
        if self.chance.random() < 0.2:
            await super()._meddle(fleet, run_id)

    async def _move(self, fleet: Fleet, run_id: str, device: str) -> None:
        run = await fleet.move(run_id, device, stop=self.chance.random() < 0.7)
        self.moves += 1
        self.checker.acknowledged.append(run)
        if run.device != device:
            self.checker.broken(f"run {run_id} was said to be moved to {device}, and is on {run.device or 'no device'}")
