"""A world in which machines know the store's clock from afar, as with a server; their wall clocks jump by an hour."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asterism.store.postgres.server_clock import ServerClock
from asterism.store.protocol import Answer, Report
from asterism.testing.sim.faults import WITH_WALL_CLOCKS
from asterism.testing.sim.network import Wire
from asterism.testing.sim.sim_machine import Machine
from asterism.testing.sim.witness import WitnessedStore
from asterism.testing.sim.world import World


def own_clock(machine: Machine) -> Callable[[], float]:
    """The clock from which a machine estimates that of the store."""
    return machine.time


class EstimatingWire(Wire):
    """The store's clock is what it said with the last heartbeat, and what has passed since."""

    def __init__(self, store: WitnessedStore, machine: Machine, chance: random.Random, gives_up: float) -> None:
        super().__init__(store, machine, chance, gives_up)
        self._estimate = ServerClock(own_clock(machine))
        self._estimate.learn(store.clock(), self._estimate.own())

    def clock(self) -> float:
        return self._estimate()

    async def beat(self, session: str, profile: Mapping[str, Any], reports: Sequence[Report]) -> Answer:
        asked = self._estimate.own()
        answer = await super().beat(session, profile, reports)
        self._estimate.learn(answer.now, asked)
        return answer


class WallClockWorld(World):
    def __init__(self, seed: int, *, faults: Sequence[str] = WITH_WALL_CLOCKS, **terms: Any) -> None:
        super().__init__(seed, faults=faults, **terms)
        self.witness.right_time = self.store.clock

    def wire(self, machine: Machine) -> Wire:
        return EstimatingWire(self.store, machine, self.chance, self._gives_up)
