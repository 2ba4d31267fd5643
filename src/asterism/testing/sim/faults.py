"""What goes wrong in a simulated world, for how long, and when: all of it follows the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from asterism.store.errors import StoreUnavailable
from asterism.testing.sim.machine import Machine
from asterism.testing.sim.network import CALM, Weather, Wire

if TYPE_CHECKING:
    from asterism.testing.sim.world import Life, World

OFTEN = 5.0
"""How many seconds lie between two faults, on average."""

Fault = Callable[[], Coroutine[Any, Any, None]]


class Faults:
    """Each fault is a coroutine that does something to the world, waits, and undoes it."""

    def __init__(self, world: World) -> None:
        self._world, self._chance, self._note = world, world.chance, world.witness.note
        self.all: list[Fault] = [
            self.storm,
            self.partition,
            self.outage,
            self.freeze,
            self.crash,
            self.clock_jump,
            self.ambush,
            self.ambush,
            self.ambush,
            self.sluggish,
            self.replace,
            self.drain,
        ]

    async def go_on(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            await asyncio.sleep(self._chance.expovariate(1 / OFTEN))
            self._world.spawn(self._chance.choice(self.all)())

    # -- the network -------------------------------------------------------------------------------------------------

    async def storm(self) -> None:
        life = self._world.someone()
        if life is not None:
            pick = self._chance.uniform
            life.wire.weather = Weather(pick(0, 0.3), pick(0, 0.3), pick(0, 0.3), pick(0, 0.3))
            self._note(f"{life.machine.name}: the network is bad")
            await asyncio.sleep(pick(1.0, 30.0))
            life.wire.weather = CALM

    async def sluggish(self) -> None:
        life = self._world.someone()
        if life is not None:
            life.wire.weather = Weather(slow=1.0, slowest=self._chance.choice([1.0, 3.0]))
            self._note(f"{life.machine.name}: the network is slow")
            await asyncio.sleep(self._chance.uniform(5.0, 20.0))
            life.wire.weather = CALM

    async def partition(self) -> None:
        life = self._world.someone()
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
        life = self._world.someone()
        if life is not None:
            await self._frozen(life.machine, self._chance.choice([0.5, 5.0, 9.5, 12.0, 40.0]))

    async def _frozen(self, machine: Machine, seconds: float) -> None:
        machine.freeze()
        self._note(f"{machine.name} is frozen")
        await asyncio.sleep(seconds)
        machine.thaw()
        self._note(f"{machine.name} thaws")

    async def crash(self) -> None:
        life = self._world.someone()
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
        """Another machine takes the name of one that lives on, perhaps out of reach."""
        life = self._world.someone()
        if life is not None and self._chance.random() < 0.3:
            if self._chance.random() < 0.5:
                self._world.spawn(self._cut_off([life.wire], self._chance.uniform(1.0, 20.0)))
            self._world.replace(life.machine.name)

    async def drain(self) -> None:
        life = self._world.someone()
        if life is not None and self._chance.random() < 0.3:
            self._note(f"{life.machine.name} is to leave")
            life.agent.drain(hand_back=self._chance.random() < 0.5)

    # -- just now ----------------------------------------------------------------------------------------------------

    async def ambush(self) -> None:
        """Something happens just when a machine asks the store for something: before it is done, or after."""
        life = self._world.someone()
        if life is not None:
            name, lay = self._chance.choice(sorted(self._ambushes.items()))
            self._note(f"{life.machine.name}: {name}, before long")
            lay(life)

    @property
    def _ambushes(self) -> dict[str, Callable[[Life], None]]:
        return {
            "an answer that is late": self._late_answer,
            "a heartbeat that is answered late": self._late_heartbeat,
            "a question that gets lost": self._lost_question,
            "a question that is slow": self._slow_question,
            "something that happens before it is known": self._sudden,
        }

    def _late_answer(self, life: Life) -> None:
        """Everything else is lost meanwhile, or not quite as long, or longer."""
        late = self._chance.uniform(1.0, 0.95 * life.wire.gives_up)
        cut = max(0.0, late + self._chance.uniform(-5.0, 3.0))

        def happens() -> float:
            self._world.spawn(self._cut_off([life.wire], cut))
            return late

        life.wire.after[self._chance.choice(["take", "commit"])] = happens

    def _late_heartbeat(self, life: Life) -> None:
        def happens() -> float:
            self._world.spawn(self._cut_off([life.wire], self._chance.uniform(5.0, 15.0)))
            return self._chance.uniform(1.0, 3.2)

        life.wire.after["beat"] = happens

    def _lost_question(self, life: Life) -> None:
        life.wire.before["commit"] = lambda: float("inf")

    def _slow_question(self, life: Life) -> None:
        life.wire.before[self._chance.choice(["commit", "commit", "beat"])] = lambda: self._chance.uniform(1.0, 12.0)

    def _sudden(self, life: Life) -> None:
        def happens() -> float:
            kind = self._chance.choice(["cut", "freeze", "crash"])
            if kind == "cut":
                self._world.spawn(self._cut_off([life.wire], self._chance.uniform(1.0, 14.0)))
            elif kind == "freeze":
                self._world.spawn(self._frozen(life.machine, self._chance.choice([5.0, 9.5, 12.0])))
            else:
                self._world.spawn(self._crashed(life))
            return 0.0

        life.wire.after[self._chance.choice(["take", "commit", "beat"])] = happens

    # -- the store ---------------------------------------------------------------------------------------------------

    async def clock_jump(self) -> None:
        if self._chance.random() < 0.4:
            jump = self._chance.choice([-3600.0, -30.0, 8.0, 30.0, 3600.0, 86_400.0])
            self._world.jump += jump
            self._note(f"the store's clock jumps by {jump:g} s")
            if self._chance.random() < 0.3:  # perhaps while nobody watched
                for life in list(self._world.lives.values()):
                    if life.agent.name == await _coordinator(self._world):
                        await self._crashed(life)


async def _coordinator(world: World) -> str | None:
    try:
        found = await world.store.register("coordinator")
    except StoreUnavailable:
        return None
    return None if found is None else str(found.value["device"])
