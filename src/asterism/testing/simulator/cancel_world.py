"""Cancel worlds: a person cancels a plan with teardowns while its orchestrators crash, and all devices may be away.

Everything of a plan world happens. At some moment a person on another machine cancels the plan; often all devices go
away at that moment, for longer than ``no_device_timeout``, and some orchestrators execute nothing themselves.

The plan ends ``cancelled``, unless it had ended before. It must not end before a device has executed the teardowns of
all set-ups that a device has begun: until then it is ``cancelling``. The teardown of a set-up that no device has begun
is not executed, unless the plan could not know it: the process that cancelled the set-up died.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from asterism.base import expressions
from asterism.core.errors import PlanError
from asterism.core.plan.status import COMPLETED, FAILED
from asterism.core.plan.teardowns import teardowns_of
from asterism.core.run.outcomes import was_executed
from asterism.core.run.run import Run
from asterism.durable import admin
from asterism.durable.journal_store import load
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Query
from asterism.store.store_errors import StoreUnavailable
from asterism.testing.simulator.machines import Machine, Wire
from asterism.testing.simulator.plan_world import PLAN, PlanWorld

LATEST_CANCELLATION = 60.0
"""When the plan is cancelled at the latest, in simulated seconds: most plans still run then."""

ABSENCES = (0.0, 400.0, 700.0)
"""How long all devices are away from the cancellation on; ``no_device_timeout`` is 300 s."""

SETTLING = 200.0
"""How long stopped work may take to end after the plan: longer than the timeouts of all runs and devices."""


class CancelWorld(PlanWorld):
    """A plan world whose plan is cancelled. ``cancelled`` tells whether it had not ended before."""

    def __init__(self, seed: int, **terms: Any) -> None:
        super().__init__(seed, **terms)
        self._own_chance = random.Random(f"cancel {seed}")  # not that of plan worlds: their seeds stay the same
        self._absent = False
        self.cancelled = False
        self.absence = self._own_chance.choice(ABSENCES)
        names = [node.id for node in self.plan.nodes.values() if node.setup is None and not node.teardowns]
        if names:
            setup = self._own_chance.choice(names)
            given = {"steps": 1, "seconds": 2.0, "fails": 0.0}
            task = type(self.plan[setup].task)(f"undo-{setup}", call="work:do", inputs=given)
            self.plan.add(task, teardown=setup)

    def boot(self, name: str, *, replace: bool = False) -> None:
        if not self._absent:
            super().boot(name, replace=replace)

    def _local_slots(self) -> int:
        return super()._local_slots() if not self.absence else 0

    async def trouble(self) -> None:
        await asyncio.gather(super().trouble(), self._cancel_plan())

    async def _cancel_plan(self) -> None:
        await asyncio.sleep(self._own_chance.uniform(0.0, LATEST_CANCELLATION))
        machine = Machine("canceller", 1.0, 0.0)
        fleet = Fleet(Wire(self.store, machine, self.chance, self._gives_up), by="canceller", clock=machine)
        while not self.cancelled:
            try:
                await admin.cancel(fleet, PLAN, "not tonight")
                self.cancelled = True
            except StoreUnavailable:
                await asyncio.sleep(1.0)
            except PlanError:  # it has ended
                return
        self.checker.note(f"the plan is cancelled, and no device is there for {self.absence:g} s")
        if self.absence:
            self._absent = True
            for name in sorted(self.lives):
                with contextlib.suppress(KeyError):
                    await self.crash(name)
            await asyncio.sleep(self.absence)
            self._absent = False

    async def _check(self) -> None:
        until = asyncio.get_running_loop().time() + SETTLING
        while asyncio.get_running_loop().time() < until:
            self._reboot()
            await asyncio.sleep(1.0)
        await super()._check()
        stored = await load(self.store, PLAN, expressions)
        if not self.cancelled or not stored.head.ended:
            return
        runs = await self.store.find(Query())

        def runs_of(task: str) -> list[Run]:
            return [run for run in runs if str(run.key).startswith(f"plan:{PLAN}/{task}/")]

        for setup in stored.plan.setups:
            begun = any(was_executed(run) for run in runs_of(setup.id))
            for teardown in teardowns_of(setup):
                own = runs_of(teardown.id)
                if not begun:
                    if setup.times is not None and any(was_executed(run) for run in own):
                        self.checker.broken(f"no device has begun {setup.id}, and a device has executed {teardown.id}")
                    continue
                executed = any(run.ended and not run.given_up and not run.cancelled for run in own)
                if teardown.status not in (COMPLETED, FAILED) or not executed:
                    self.checker.broken(f"{setup.id} was set up, and no device has executed {teardown.id}")
