"""A world: machines, a store, work, and faults, all from one seed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from asterism.core.errors import AsterismError, RunRefused
from asterism.core.workflow import Workflow
from asterism.runtime.fleet.agent import DeviceAgent
from asterism.runtime.fleet.fleet import Fleet
from asterism.store.errors import StoreUnavailable
from asterism.store.protocol import Query
from asterism.testing.loop import SimLoop
from asterism.testing.sim.executor import SimExecutor
from asterism.testing.sim.machine import Machine
from asterism.testing.sim.network import CALM, Weather, Wire
from asterism.testing.sim.witness import Violation, Witness, WitnessedStore

TROUBLE = 60.0
"""How long faults go on, in seconds."""

RECOVERY = 1500.0
"""How long after that everything must have ended."""

HEARTBEAT, TIMEOUT = 3.0, 10.0
GPU = frozenset({"gpu"})


@dataclass
class Life:
    """One life of a machine: what crashes as a whole."""

    machine: Machine
    wire: Wire
    agent: DeviceAgent
    task: asyncio.Task[None]
    visitors: set[asyncio.Task[None]]


class SimPresence:
    """A machine knows that its earlier lives are over: it is the same machine."""

    def __init__(self, host: str) -> None:
        self.host = host

    def acquire(self) -> bool:
        return True

    def end_strays(self, session: str) -> None:
        """What ran on it ended with it."""

    def close(self) -> None:
        """Nothing is held."""


class World:
    """``machines`` and ``runs`` bound how much there is of each."""

    def __init__(self, seed: int, *, machines: int = 4, runs: int = 6) -> None:
        self.chance = random.Random(seed)
        self.jump = 0.0
        self.witness = Witness(lambda: asyncio.get_running_loop().time())
        self.store = WitnessedStore(lambda: 1_000_000.0 + asyncio.get_running_loop().time() + self.jump, self.witness)
        self.names = [f"m{number}" for number in range(self.chance.randint(2, machines))]
        self.number_of_runs = self.chance.randint(1, runs)
        self.lives: dict[str, Life] = {}
        self.ended: list[Life] = []
        self._skews = {name: self.chance.choice([0.0, 0.0, 86_400.0, -3600.0]) for name in self.names}
        self._rates = {name: self.chance.uniform(0.97, 1.03) for name in self.names}
        self._person = Fleet(self.store, by="person", chance=self.chance)
        self._jobs: set[asyncio.Task[Any]] = set()

    # -- machines ----------------------------------------------------------------------------------------------------

    def boot(self, name: str) -> None:
        machine = Machine(name, self._rates[name], self._skews[name])
        wire = Wire(self.store, machine, self.chance)
        fleet = Fleet(wire, by=name, clock=machine, chance=self.chance)
        agent = DeviceAgent(
            fleet,
            name,
            can=GPU if name != "m0" else (),
            slots=self.chance.randint(1, 2),
            backlog=self.chance.randint(0, 1),
            executor=SimExecutor(machine, self.witness, self.chance),
            heartbeat=HEARTBEAT,
            timeout=TIMEOUT,
            grace=0.5,
            monitor_every=2.0,
            lease=6.0,
            presence=SimPresence(name),
        )
        self.witness.note(f"{name} boots")
        self.lives[name] = Life(machine, wire, agent, asyncio.create_task(self._live(agent)), set())

    async def _live(self, agent: DeviceAgent) -> None:
        """A device that is thrown out or cannot reach the store tries again, as a service would."""
        with contextlib.suppress(AsterismError):
            await agent.run()

    async def crash(self, name: str) -> None:
        life = self.lives.pop(name)
        self.witness.note(f"{name} crashes")
        life.machine.crash()
        for task in [life.task, *life.visitors]:
            task.cancel()
        self.ended.append(life)

    def someone(self) -> Life | None:
        return self.lives[self.chance.choice(sorted(self.lives))] if self.lives else None

    # -- work --------------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """People create runs on machines, and change their minds."""
        flows = [
            Workflow("plain", call="work:do", heartbeat=HEARTBEAT, timeout=TIMEOUT, losses=50, retries=1, **_FAST),
            Workflow("picky", call="work:do", needs=GPU, heartbeat=4.0, timeout=12.0, losses=50, retries=3, **_FAST),
        ]
        for _ in range(self.number_of_runs):
            await asyncio.sleep(self.chance.uniform(0.0, TROUBLE / self.number_of_runs))
            life = self.someone()
            if life is not None and not life.machine.frozen:
                life.visitors.add(self._spawn(self._create(life, self.chance.choice(flows))))

    async def _create(self, life: Life, flow: Workflow) -> None:
        chance = self.chance
        given = {"steps": chance.randint(1, 4), "seconds": chance.choice([0.1, 2.0, 15.0, 40.0]), "fails": 0.1}
        series = chance.choice([None, None, "alpha"])
        fleet = life.agent.fleet
        with contextlib.suppress(StoreUnavailable):
            run = await fleet.create(flow, given, series=series, priority=chance.randint(0, 2))
            self.witness.acknowledged[run.id] = run
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0.0, 20.0))
                await self._change_of_mind(fleet, run.id)

    async def _change_of_mind(self, fleet: Fleet, run_id: str) -> None:
        with contextlib.suppress(StoreUnavailable, RunRefused):
            if self.chance.random() < 0.5:
                await fleet.cancel(run_id)
            else:
                await fleet.pause(run_id, "let me see")
                await asyncio.sleep(self.chance.uniform(0.0, 10.0))
                await fleet.resume(run_id)

    # -- faults ------------------------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        until = TROUBLE
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            await asyncio.sleep(self.chance.expovariate(1 / 5.0))
            fault: Callable[[], Coroutine[Any, Any, None]] = self.chance.choice(
                [self._storm, self._partition, self._freeze, self._crash, self._outage, self._clock_jump]
            )
            self._spawn(fault())

    async def _storm(self) -> None:
        life = self.someone()
        if life is not None:
            pick = self.chance.uniform
            life.wire.weather = Weather(pick(0, 0.3), pick(0, 0.3), pick(0, 0.3), pick(0, 0.3))
            self.witness.note(f"{life.machine.name}: the network is bad")
            await asyncio.sleep(pick(1.0, 30.0))
            life.wire.weather = CALM

    async def _partition(self) -> None:
        life = self.someone()
        if life is not None:
            life.wire.cut = True
            self.witness.note(f"{life.machine.name} is cut off")
            await asyncio.sleep(self.chance.choice([1.0, 5.0, 9.0, 11.0, 30.0]))
            life.wire.cut = False
            self.witness.note(f"{life.machine.name} is connected again")

    async def _outage(self) -> None:
        lives = list(self.lives.values())
        self.witness.note("the store is out of reach")
        for life in lives:
            life.wire.cut = True
        await asyncio.sleep(self.chance.choice([1.0, 8.0, 20.0]))
        for life in lives:
            life.wire.cut = False
        self.witness.note("the store is back")

    async def _freeze(self) -> None:
        life = self.someone()
        if life is not None:
            life.machine.freeze()
            self.witness.note(f"{life.machine.name} is frozen")
            await asyncio.sleep(self.chance.choice([0.5, 5.0, 9.5, 12.0, 40.0]))
            life.machine.thaw()
            self.witness.note(f"{life.machine.name} thaws")

    async def _crash(self) -> None:
        life = self.someone()
        if life is not None:
            name = life.machine.name
            await self.crash(name)
            await asyncio.sleep(self.chance.choice([0.1, 3.0, 20.0]))
            self.boot(name)

    async def _clock_jump(self) -> None:
        if self.chance.random() < 0.3:
            jump = self.chance.choice([-3600.0, -30.0, 30.0, 3600.0])
            self.jump += jump
            self.witness.note(f"the store's clock jumps by {jump:g} s")

    # -- from beginning to end ---------------------------------------------------------------------------------------

    async def play(self) -> None:
        for name in self.names:
            self.boot(name)
        await asyncio.gather(self.work(), self.trouble())
        await asyncio.gather(*self._jobs, return_exceptions=True)
        self._heal()
        await self._until_all_is_done()
        self.witness.check_the_end(await self.store.find(Query()))
        await self._shut_down()

    def _heal(self) -> None:
        self.witness.note("no more faults")
        for name in self.names:
            life = self.lives.get(name)
            if life is None or life.task.done():
                self.boot(name)
            else:
                life.wire.weather, life.wire.cut = CALM, False
                life.machine.thaw()

    async def _until_all_is_done(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + RECOVERY
        while loop.time() < until and not self.witness.violations:
            for name, life in list(self.lives.items()):
                if life.task.done():
                    self.boot(name)
            runs = await self.store.find(Query())
            for run in runs:
                if run.paused is not None and not run.ended:  # whoever paused it could not say that it may go on
                    await self._person.resume(run.id)
            if all(run.ended for run in runs) and all(not len(life.agent.desk) for life in self.lives.values()):
                return
            await asyncio.sleep(1.0)

    async def _shut_down(self) -> None:
        tasks = [life.task for life in [*self.lives.values(), *self.ended]]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(job)
        self._jobs.add(task)
        return task


_FAST: dict[str, Any] = {
    "assignment_timeout": 5.0,
    "claim_timeout": 8.0,
    "no_device_timeout": 300.0,
    "backoff": 0.5,
    "backoff_most": 5.0,
}


def simulate(seed: int, seen: list[World] | None = None, **terms: Any) -> World:
    """Play the world of one seed. Raises Violation with a line that replays it; ``seen`` gets the world even then."""
    loop = SimLoop(seed)
    loop.set_exception_handler(lambda *_: None)
    try:
        asyncio.set_event_loop(loop)
        world = World(seed, **terms)
        if seen is not None:
            seen.append(world)
        loop.run_until_complete(world.play())
    finally:
        asyncio.set_event_loop(None)
        _finish(loop)
    if world.witness.violations:
        raise Violation(f"{world.witness.violations[0]}\nreplay with: python -m asterism.testing.sim --seed {seed}")
    return world


def _finish(loop: SimLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    with contextlib.suppress(Exception):
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()
