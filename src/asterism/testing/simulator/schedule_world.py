"""Simulated fleets with schedules: several coordinators at once, crashes, and clocks that jump.

Every machine decides about ticks, elected or not, through its own connection to the store. No tick may be created
twice, whatever happens, and when the faults are over, every schedule goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from asterism.core.errors import AsterismError
from asterism.core.run.workflow import Workflow
from asterism.core.schedule.schedule import OVERLAP
from asterism.fleet.scheduled_work import SchedulePass
from asterism.store.protocol import Query
from asterism.testing.simulator.fleet_world import HEARTBEAT, TIMEOUT, TROUBLE, FleetWorld, Life

GOES_ON = 300.0
"""How long after the last fault every schedule must have decided about a tick, in seconds."""


class ScheduleWorld(FleetWorld):
    """Machines that share a store with schedules; see the module."""

    def __init__(self, seed: int, **terms: Any) -> None:
        super().__init__(seed, **terms)
        self.faults.all += [self._set_back] * 3
        self.schedules = [f"s{number}" for number in range(self.chance.randint(1, 2))]

    def boot(self, name: str, *, replace: bool = False) -> None:
        super().boot(name, replace=replace)
        life = self.lives[name]
        life.visitors.append(asyncio.create_task(self._coordinate(life)))

    async def _coordinate(self, life: Life) -> None:
        """Decide about ticks as a coordinator does, without an election."""
        decide, clock = SchedulePass(life.agent.fleet), life.agent.fleet.clock
        while not life.machine.dead:
            await clock.sleep(self.chance.uniform(1.0, 6.0))
            try:
                await decide.run_pass()
            except AsterismError:
                continue  # the next pass is soon

    async def _set_back(self) -> None:
        """The store's clock is set back, and right again a moment later: ticks come a second time."""
        self.jump -= 3600.0
        self.checker.note("the store's clock is set back by an hour")
        await asyncio.sleep(self.chance.uniform(2.0, 10.0))
        self.jump += 3600.0
        self.checker.note("the store's clock is right again")

    async def work(self) -> None:
        chance, terms = self.chance, {"heartbeat": HEARTBEAT, "heartbeat_timeout": TIMEOUT, "losses": 50}
        await self._person.workflows.add(Workflow("ticked", call="work:do", **terms))  # type: ignore[arg-type]
        for name in self.schedules:
            every, overlap = chance.randint(4, 20), chance.choice(OVERLAP)
            alone = overlap in ("skip", "replace")  # else hundreds of runs may wait when the faults are over
            seconds = chance.choice([2.0, 15.0]) if alone else 0.1
            await self._person.schedules.add(
                name,
                workflow="ticked",
                given={"steps": 1, "seconds": seconds, "fails": 0.0},
                every=every,
                catch_up=chance.choice(["none", "last", "last", "all"] if every > 10 else ["none", "last"]),
                overlap=overlap,
                jitter=chance.choice([0.0, 3.0]),
            )
        await asyncio.sleep(TROUBLE)

    async def _wait_until_done(self) -> None:
        await self._wait_for_decisions()
        for name in self.schedules:
            await self._person.schedules.pause(name)
        await super()._wait_until_done()
        self.check_ticks(await self.store.find(Query(workflow="ticked")))

    async def _wait_for_decisions(self) -> None:
        """Every schedule goes on when the faults are over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GOES_ON
        before = {name: (await self._person.schedules.history(name))[-1:] for name in self.schedules}
        for name in self.schedules:
            while (await self._person.schedules.history(name))[-1:] == before[name]:
                if loop.time() > until:
                    self.checker.broken(f"schedule {name} decided about no tick for {GOES_ON:g} s")
                    return
                await asyncio.sleep(1.0)

    def check_ticks(self, runs: list[Any]) -> None:
        """No tick has two runs. A key names the schedule and the tick, and perhaps, without a safeguard, more."""
        created = Counter((run.key or "").partition("#")[0] for run in runs)
        for tick, number in created.items():
            if number > 1:
                self.checker.broken(f"tick {tick} was created {number} times")
