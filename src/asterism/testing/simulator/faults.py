"""Faults of a simulated fleet: the seed decides which ones happen, when, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from asterism.testing.simulator.machines import PERFECT_LINK, LinkQuality, Machine, Wire

if TYPE_CHECKING:
    from asterism.testing.simulator.fleet_world import FleetWorld, Life

ALL = (
    *("storm", "sluggish", "partition", "outage", "freeze", "crash", "replace", "drain", "clock_jump"),
    *("late_answer", "late_heartbeat", "lost_question", "slow_question", "sudden", "sick"),
)
"""The names of all faults. They are equally likely."""

WITH_WALL_CLOCKS = (*(name for name in ALL if name != "clock_jump"), "wall_jump", "wall_jump")
"""Faults of worlds where the store's clock is right and each machine estimates it."""

OFTEN = 4.0
"""The average time between two faults, in seconds."""


class Faults:
    """Each fault is a coroutine method that changes the world, waits, and reverts the change; or that intercepts the
    next request of a machine to the store, before or after the store performs it. ``names`` selects faults; a world
    with further ones adds them to ``all``."""

    def __init__(self, world: FleetWorld, names: Sequence[str] = ALL, often: float = OFTEN) -> None:
        self._world, self._chance, self._note = world, world.chance, world.checker.note
        self.all: list[Callable[[], Coroutine[Any, Any, None]]] = [getattr(self, name) for name in names]
        self._often = often

    async def run_until(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            await asyncio.sleep(self._chance.expovariate(1 / self._often))
            self._world.spawn(self._chance.choice(self.all)())

    # -- the network -------------------------------------------------------------------------------------------------

    async def storm(self) -> None:
        life = self._world.random_life()
        if life is not None:
            pick = self._chance.uniform
            life.wire.quality = LinkQuality(pick(0, 0.3), pick(0, 0.3), pick(0, 0.3), pick(0, 0.3))
            self._note(f"{life.machine.name}: the network is bad")
            await asyncio.sleep(pick(1.0, 30.0))
            life.wire.quality = PERFECT_LINK

    async def sluggish(self) -> None:
        life = self._world.random_life()
        if life is not None:
            life.wire.quality = LinkQuality(slow=1.0, slowest=self._chance.choice([1.0, 3.0]))
            self._note(f"{life.machine.name}: the network is slow")
            await asyncio.sleep(self._chance.uniform(5.0, 20.0))
            life.wire.quality = PERFECT_LINK

    async def partition(self) -> None:
        life = self._world.random_life()
        if life is not None:
            self._note(f"{life.machine.name} is cut off")
            await self._cut_off([life.wire], self._chance.choice([1.0, 5.0, 9.0, 11.0, 13.0, 30.0]))
            self._note(f"{life.machine.name} is connected again")

    async def outage(self) -> None:
        self._note("the store is out of reach")
        wires = [life.wire for life in self._world.lives.values()]
        await self._cut_off(wires, self._chance.choice([1.0, 8.0, 20.0]))
        self._note("the store is back")

    async def _cut_off(self, wires: list[Wire], seconds: float) -> None:
        for wire in wires:
            wire.cut = True
        await asyncio.sleep(seconds)
        for wire in wires:
            wire.cut = False

    # -- machines ----------------------------------------------------------------------------------------------------

    async def freeze(self) -> None:
        life = self._world.random_life()
        if life is not None:
            await self._frozen(life.machine, self._chance.choice([0.5, 5.0, 9.5, 12.0, 40.0]))

    async def _frozen(self, machine: Machine, seconds: float) -> None:
        machine.freeze()
        self._note(f"{machine.name} is frozen")
        await asyncio.sleep(seconds)
        machine.thaw()
        self._note(f"{machine.name} thaws")

    async def crash(self) -> None:
        life = self._world.random_life()
        if life is not None:
            await self._crashed(life)

    async def _crashed(self, life: Life) -> None:
        name = life.machine.name
        if self._world.lives.get(name) is life:
            await self._world.crash(name)
            await asyncio.sleep(self._chance.choice([0.1, 3.0, 20.0]))
            if name not in self._world.lives:
                self._world.boot(name)

    async def replace(self) -> None:
        """Another machine takes the name of one that continues, perhaps without a connection."""
        life = self._world.random_life()
        if life is not None and self._chance.random() < 0.3:
            if self._chance.random() < 0.5:
                self._world.spawn(self._cut_off([life.wire], self._chance.uniform(1.0, 20.0)))
            self._world.replace(life.machine.name)

    async def drain(self) -> None:
        life = self._world.random_life()
        if life is not None and self._chance.random() < 0.3:
            self._note(f"{life.machine.name} drains")
            life.agent.drain(hand_back=self._chance.random() < 0.5)

    async def sick(self) -> None:
        """A machine takes work and cannot begin it: it has no file descriptors, or a full disk."""
        life = self._world.random_life()
        if life is not None and not life.machine.sick:
            life.machine.sick = True
            self._note(f"{life.machine.name} is sick")
            await asyncio.sleep(self._chance.choice([1.0, 10.0, 30.0]))
            life.machine.sick = False
            self._note(f"{life.machine.name} is well again")

    async def wall_jump(self) -> None:
        """The wall clock of one machine is set."""
        life = self._world.random_life()
        if life is not None:
            jump = self._chance.choice([-3600.0, 3600.0])
            life.machine.wall += jump
            self._note(f"{life.machine.name}: its wall clock jumps by {jump:g} s")

    # -- interceptions ------------------------------------------------------------------------------------------------

    async def late_answer(self) -> None:
        """A reply is late, and the machine is cut off for about as long."""
        life = self._world.random_life()
        if life is not None:
            wire, late = life.wire, self._chance.uniform(1.0, 0.95 * life.wire.gives_up)
            cut = max(0.0, late + self._chance.uniform(-5.0, 3.0))

            def happens() -> float:
                self._note(f"{life.machine.name}: an answer is late, by {late:.1f} s")
                self._world.spawn(self._cut_off([wire], cut))
                return late

            wire.after[self._chance.choice(["take", "commit"])] = happens

    async def late_heartbeat(self) -> None:
        life = self._world.random_life()
        if life is not None:
            wire = life.wire

            def happens() -> float:
                self._note(f"{life.machine.name}: a heartbeat is answered late")
                self._world.spawn(self._cut_off([wire], self._chance.uniform(5.0, 15.0)))
                return self._chance.uniform(1.0, 3.2)

            wire.after["heartbeat"] = happens

    async def lost_question(self) -> None:
        life = self._world.random_life()
        if life is not None:
            life.wire.before["commit"] = lambda: float("inf")

    async def slow_question(self) -> None:
        life = self._world.random_life()
        if life is not None:
            what = self._chance.choice(["commit", "commit", "heartbeat"])
            life.wire.before[what] = lambda: self._chance.uniform(1.0, 12.0)

    async def sudden(self) -> None:
        """The machine is cut off, freezes or crashes before it learns what the store has done."""
        life = self._world.random_life()
        if life is not None:
            kind = self._chance.choice(["cut", "freeze", "crash"])

            def happens() -> float:
                self._note(f"{life.machine.name}: {kind} during a request")
                if kind == "cut":
                    self._world.spawn(self._cut_off([life.wire], self._chance.uniform(1.0, 14.0)))
                elif kind == "freeze":
                    self._world.spawn(self._frozen(life.machine, self._chance.choice([5.0, 9.5, 12.0])))
                else:
                    self._world.spawn(self._crashed(life))
                return 0.0

            life.wire.after[self._chance.choice(["take", "commit", "heartbeat"])] = happens

    # -- the store ---------------------------------------------------------------------------------------------------

    async def clock_jump(self) -> None:
        if self._chance.random() < 0.4:
            jump = self._chance.choice([-3600.0, -30.0, 8.0, 30.0, 3600.0, 86_400.0])
            self._world.jump += jump
            self._note(f"the store's clock jumps by {jump:g} s")
            if self._chance.random() < 0.3:  # perhaps while there is no coordinator
                register = await self._world.store.register("coordinator")
                life = self._world.lives.get(register.value["device"]) if register is not None else None
                if life is not None:
                    await self._crashed(life)
