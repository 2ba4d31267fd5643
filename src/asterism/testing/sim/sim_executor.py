"""The work of a simulated machine: it takes time, reports progress, fails now and then, and needs a moment to stop."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from asterism.core.errors import DeviceTrouble
from asterism.core.run.run import Progress
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.executor import RunWork
from asterism.testing.sim.sim_machine import Machine
from asterism.testing.sim.witness import NOT_OUR_FAULT, Witness

SICK = "there is no room left on its disk"
"""What a machine says that cannot do its own part."""

STOPPING = 0.5
"""The longest that an execution takes to stop, in seconds."""


class SimExecutor:
    def __init__(self, machine: Machine, witness: Witness, chance: random.Random) -> None:
        self._machine, self._witness, self._chance = machine, witness, chance

    def objection(self, workflow: Workflow) -> str | None:
        return None

    def check(self, work: RunWork) -> str | None:
        return None

    def judges_each(self, workflow: Workflow, given: Any) -> bool:
        return True

    async def execute(self, work: RunWork) -> Any:
        asked = self._machine.time()
        await self._machine.gate()
        waited = self._machine.time() - asked
        if work.lease is not None and waited and waited >= work.lease:
            # a frozen machine does nothing: what was looked at a moment ago, it would have looked at now
            raise RuntimeError("the lease is over")
        if self._machine.sick:
            raise DeviceTrouble(SICK)
        execution = self._witness.begins(work.run.id, work.run.epoch, self._machine)
        steps = int(work.given["steps"])
        first = work.run.progress.step if work.run.progress is not None else 0
        how = "crashed"
        try:
            for step in range(min(first, steps), steps):
                await self._machine.sleep(float(work.given["seconds"]) / steps)
                work.on_progress(Progress(step + 1, steps))
            await self._machine.gate()
            if self._chance.random() < float(work.given["fails"]):
                how = "failed"
                raise RuntimeError(NOT_OUR_FAULT)
            how = "finished"
            return {"epoch": work.run.epoch}
        except asyncio.CancelledError:
            if not self._machine.dead:
                await self._stop()
                how = "stopped"
            raise
        finally:
            self._witness.ends(execution, how)

    async def _stop(self) -> None:
        """Stopping takes a while, or until somebody loses patience."""
        await self._machine.sleep(self._chance.uniform(0.0, STOPPING))

    def allow(self, run_id: str, seconds: float) -> None:
        """A simulated machine freezes as a whole."""

    async def probe(self) -> None:
        await self._machine.gate()
        if self._machine.sick:
            raise DeviceTrouble(SICK)

    def close(self) -> None:
        """There is nothing to close."""
