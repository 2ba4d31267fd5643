"""Faults of a simulated fleet: the seed decides which ones happen, when, and for how long."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from tests.laboratory.simulator.machines import PERFECT_LINK, LinkQuality, Machine, Wire

if TYPE_CHECKING:
    from tests.laboratory.simulator.fleet_world import FleetLife, FleetWorld

ALL = (
    *("storm", "sluggish", "partition", "outage", "freeze", "crash", "replace", "drain", "clock_jump"),
    *("late_answer", "late_heartbeat", "lost_question", "slow_question", "sudden", "sick"),
)
"""The names of all faults. They are equally likely."""

WITH_WALL_CLOCKS = (*(name for name in ALL if name != "clock_jump"), "wall_jump", "wall_jump")
"""Faults of worlds where the store's clock is right and each machine estimates it."""

Fault = Callable[["Faults"], Coroutine[Any, Any, None]]

OFTEN = 4.0
"""The average time between two faults, in seconds."""


def on_a_machine(fault: Callable[[Faults, FleetLife], Coroutine[Any, Any, None]]) -> Fault:
    """A fault of any one machine; none happens if all are off."""

    @functools.wraps(fault)
    async def happen(faults: Faults) -> None:
        life = faults._world.random_life()
        if life is not None:
            await fault(faults, life)

    return happen


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

    @on_a_machine
    async def storm(self, life: FleetLife) -> None:
        pick = self._chance.uniform
        life.wire.quality = LinkQuality(pick(0, 0.3), pick(0, 0.3), pick(0, 0.3), pick(0, 0.3))
        self._note(f"{life.machine.name}: the network is bad")
        await asyncio.sleep(pick(1.0, 30.0))
        life.wire.quality = PERFECT_LINK

    @on_a_machine
    async def sluggish(self, life: FleetLife) -> None:
        life.wire.quality = LinkQuality(slow=1.0, slowest=self._chance.choice([1.0, 3.0]))
        self._note(f"{life.machine.name}: the network is slow")
        await asyncio.sleep(self._chance.uniform(5.0, 20.0))
        life.wire.quality = PERFECT_LINK

    @on_a_machine
    async def partition(self, life: FleetLife) -> None:
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

    @on_a_machine
    async def freeze(self, life: FleetLife) -> None:
        await self._frozen(life.machine, self._chance.choice([0.5, 5.0, 9.5, 12.0, 40.0]))

    async def _frozen(self, machine: Machine, seconds: float) -> None:
        machine.freeze()
        self._note(f"{machine.name} is frozen")
        await asyncio.sleep(seconds)
        machine.thaw()
        self._note(f"{machine.name} thaws")

    @on_a_machine
    async def crash(self, life: FleetLife) -> None:
        await self._crashed(life)

    async def _crashed(self, life: FleetLife) -> None:
        name = life.machine.name
        if self._world.lives.get(name) is life:
            self._world.crash(name)
            await asyncio.sleep(self._chance.choice([0.1, 3.0, 20.0]))
            if name not in self._world.lives:
                self._world.boot(name)

    @on_a_machine
    async def replace(self, life: FleetLife) -> None:
        """Another machine takes the name of one that continues, perhaps without a connection."""
        if self._chance.random() < 0.3:
            if self._chance.random() < 0.5:
                self._world.spawn(self._cut_off([life.wire], self._chance.uniform(1.0, 20.0)))
            self._world.replace(life.machine.name)

    @on_a_machine
    async def drain(self, life: FleetLife) -> None:
        if self._chance.random() < 0.3:
            self._note(f"{life.machine.name} drains")
            life.agent.drain(hand_back=self._chance.random() < 0.5)

    @on_a_machine
    async def sick(self, life: FleetLife) -> None:
        """A machine takes work and cannot begin it: it has no file descriptors, or a full disk."""
        if not life.machine.sick:
            life.machine.sick = True
            self._note(f"{life.machine.name} is sick")
            await asyncio.sleep(self._chance.choice([1.0, 10.0, 30.0]))
            life.machine.sick = False
            self._note(f"{life.machine.name} is well again")

    @on_a_machine
    async def wall_jump(self, life: FleetLife) -> None:
        """The wall clock of one machine is set."""
        jump = self._chance.choice([-3600.0, 3600.0])
        life.machine.wall += jump
        self._note(f"{life.machine.name}: its wall clock jumps by {jump:g} s")

    # -- interceptions ------------------------------------------------------------------------------------------------

    @on_a_machine
    async def late_answer(self, life: FleetLife) -> None:
        """A reply is late, and the machine is cut off for about as long."""
        wire, late = life.wire, self._chance.uniform(1.0, 0.95 * life.wire.gives_up)
        cut = max(0.0, late + self._chance.uniform(-5.0, 3.0))

        def happens() -> float:
            self._note(f"{life.machine.name}: an answer is late, by {late:.1f} s")
            self._world.spawn(self._cut_off([wire], cut))
            return late

        wire.after[self._chance.choice(["take", "commit"])] = happens

    @on_a_machine
    async def late_heartbeat(self, life: FleetLife) -> None:
        wire = life.wire

        def happens() -> float:
            self._note(f"{life.machine.name}: a heartbeat is answered late")
            self._world.spawn(self._cut_off([wire], self._chance.uniform(5.0, 15.0)))
            return self._chance.uniform(1.0, 3.2)

        wire.after["heartbeat"] = happens

    @on_a_machine
    async def lost_question(self, life: FleetLife) -> None:
        life.wire.before["commit"] = lambda: float("inf")

    @on_a_machine
    async def slow_question(self, life: FleetLife) -> None:
        what = self._chance.choice(["commit", "commit", "heartbeat"])
        life.wire.before[what] = lambda: self._chance.uniform(1.0, 12.0)

    @on_a_machine
    async def sudden(self, life: FleetLife) -> None:
        """The machine is cut off, freezes or crashes before it learns what the store has done."""
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
            self._world.set_clock(jump)
            self._note(f"the store's clock jumps by {jump:g} s")
            if self._chance.random() < 0.3:  # perhaps while there is no coordinator
                register = await self._world.store.register("coordinator")
                life = self._world.lives.get(register.value["device"]) if register is not None else None
                if life is not None:
                    await self._crashed(life)
