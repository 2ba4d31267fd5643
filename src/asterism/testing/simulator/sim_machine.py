"""A simulated machine and its work: its clock drifts, it freezes, falls sick and crashes."""

from __future__ import annotations

import asyncio
import random
from typing import Any, NoReturn

from asterism.core.errors import DeviceTrouble
from asterism.core.run.run import Progress
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.executor import RunWork
from asterism.testing.simulator.witness import NOT_OUR_FAULT, Witness


class Machine:
    """A machine, which is also the clock of its runtime. ``rate`` is how fast that clock runs, ``skew`` its error."""

    def __init__(self, name: str, rate: float, skew: float) -> None:
        self.name, self.rate, self.skew = name, rate, skew
        self.dead = False
        self.wall = 0.0  # the jumps of its wall clock, in seconds
        self.sick = False  # it cannot begin any work, such as one with a full disk
        self.frozen_at: list[tuple[float, float]] = []
        self._loop = asyncio.get_running_loop()
        self._runs = asyncio.Event()
        self._runs.set()
        self._froze: float | None = None

    # -- the runtime's clock -------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.skew + self._loop.time() * self.rate

    def wall_time(self) -> float:
        """The time by the wall clock, which nothing should rely on."""
        return self.time() + self.wall

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)
        await self.gate()

    # -- faults --------------------------------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        return self._froze is not None

    def freeze(self) -> None:
        if self._froze is None:
            self._froze = self._loop.time()
            self._runs.clear()

    def thaw(self) -> None:
        if self._froze is not None:
            self.frozen_at.append((self._froze, self._loop.time()))
            self._froze = None
            self._runs.set()

    def crash(self) -> None:
        self.dead = True
        self.thaw()

    async def gate(self) -> None:
        """Wait while the machine is frozen, and for ever once it is dead. Everything it does passes here."""
        while self._froze is not None:
            await self._runs.wait()
        if self.dead:
            await never()

    def was_frozen_between(self, start: float, end: float) -> bool:
        return self.frozen or any(a < end and b > start for a, b in self.frozen_at)


async def never() -> NoReturn:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


SICK = "no space left on its disk"
"""The error of a machine that cannot begin its work."""

STOPPING = 0.5
"""The longest time that an execution takes to stop, in seconds."""


class SimExecutor:
    """Executes runs: that takes time, reports progress, fails sometimes, and needs a moment to stop."""

    def __init__(self, machine: Machine, witness: Witness, chance: random.Random) -> None:
        self._machine, self._witness, self._chance = machine, witness, chance

    def objection(self, workflow: Workflow) -> str | None:
        return None

    def check(self, workflow: Workflow, given: Any) -> str | None:
        return None

    def judges_each(self, workflow: Workflow, given: Any) -> bool:
        return True

    async def execute(self, work: RunWork) -> Any:
        asked = self._machine.time()
        await self._machine.gate()
        waited = self._machine.time() - asked
        if work.lease is not None and waited and waited >= work.lease:
            # a frozen machine does nothing: the check of a moment ago would have happened now
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
        """Take a while to stop, unless cancelled again."""
        await self._machine.sleep(self._chance.uniform(0.0, STOPPING))

    def allow(self, run_id: str, seconds: float) -> None:
        """A simulated machine freezes as a whole."""

    async def probe(self) -> None:
        await self._machine.gate()
        if self._machine.sick:
            raise DeviceTrouble(SICK)

    def close(self) -> None:
        """There is nothing to close."""
