"""A simulated fleet whose runs share limits: none is ever exceeded, and nothing is held by the dead."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from asterism.core.limits import Limit, Rate, limit_for, uses_of
from asterism.core.run.run import Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.stored_limits import set_limit
from asterism.store.protocol import LIMITS
from asterism.testing.simulator.fleet_world import TROUBLE, FleetLife, FleetWorld

SIZES: dict[str, tuple[int, ...]] = {"warehouse": (4,), "disk": (1, 2, 3), "account/*": (1,)}
"""Limits of a world, and the sizes between which they change."""

RATE = Rate(1, 20.0)
USES = ({"warehouse": 1}, {"warehouse": 1, "account/{seconds}": 1}, {"mail": 1}, {"disk": 1})


class LimitWorld(FleetWorld):
    """Machines that share a store, and runs that use limits while machines fail and people change the limits.

    At no moment do the runs that devices own use more of a limit than it allows when one of them is granted, and no
    period has more grants than a rate allows. When the faults are over, everything ends: nothing is held by the dead.
    """

    MEDDLING = 0.1
    acquisitions = 0

    def __init__(self, seed: int, *, runs: int = 25, **arguments: Any) -> None:
        super().__init__(seed, runs=runs, **arguments)
        self.store.on_grant = self._check_grant
        self._granted: dict[str, list[float]] = {}

    def _check_grant(self, run: Run) -> None:
        self.acquisitions += 1
        limits = {name: Limit.from_json(name, self.store.value(f"{LIMITS}{name}")) for name in (*SIZES, "mail")}
        for name, amount in uses_of(run.uses).items():
            limit = limit_for(limits, name)
            assert limit is not None
            held = sum(uses_of(other.uses).get(name, 0) for other in self.store.owned())
            if limit.size is not None and held > limit.size:
                self.checker.broken(f"{held} of limit {name} ({limit.size}) are held with run {run.id}")
            if limit.rate is not None:
                now = self.store.clock()
                times = [at for at in self._granted.setdefault(name, []) if now - limit.rate.period <= at <= now]
                self._granted[name] = [*times, *[now] * amount]
                if len(self._granted[name]) > limit.rate.number:
                    self.checker.broken(f"limit {name} let {len(self._granted[name])} begin with run {run.id}")

    async def work(self) -> None:
        for name, sizes in SIZES.items():
            await set_limit(self.store, Limit(name, self.chance.choice(sizes)))
        await set_limit(self.store, Limit("mail", rate=RATE))
        changes = self.spawn(self._change_limits())
        await super().work()
        await asyncio.gather(changes)

    async def _change_limits(self) -> None:
        while asyncio.get_running_loop().time() < TROUBLE:
            await asyncio.sleep(self.chance.uniform(1.0, 20.0))
            await set_limit(self.store, Limit("disk", self.chance.choice(SIZES["disk"])))

    async def _create(self, life: FleetLife, flow: Workflow) -> None:
        uses = self.chance.choice(
            [{"warehouse": 1}, {"warehouse": 1, "account/{seconds}": 1}, {"mail": 1}, {"disk": 1}]
        )
        limited = replace(flow, name=f"{flow.name} {len(uses)} {min(uses)}", uses=uses)
        await super()._create(life, limited)
