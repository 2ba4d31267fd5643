"""One plan under fire: two orchestrators and some devices, all of them killed again and again, and a file to which
every task adds a line. The lines are counted."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from asterism.base import expressions
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.run.run import COMPLETED
from asterism.durable.journal_store import StoredConstellation, insert_plan, load, read_head
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Query
from asterism.store.store_errors import StoreUnavailable
from tests.laboratory.chaos.fire import PATIENCE, ROOT

DEVICES, BOSSES, SLOTS = 4, 2, 4
NAME = "under-fire"
LINE = 'echo "$ASTERISM_RUN $ASTERISM_EPOCH" >> "$CHAOS_LINES"'
LAST = f'while ! test -e "$CHAOS_OVER"; do sleep 0.05; done; {LINE}'
"""The last task ends after the last kill, so that the number of kills does not depend on the speed of the machine."""


@dataclass
class PlanFire:
    """``kills`` processes die while ``tasks`` tasks are done, chosen by ``seed``."""

    store: str
    folder: Path
    tasks: int
    kills: int
    seed: int = 0
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)

    @property
    def lines(self) -> Path:
        return self.folder / "lines"

    @property
    def over(self) -> Path:
        return self.folder / "over"

    def plan(self) -> Constellation:
        """Layers of ten, each task below two of the layer before."""
        plan = Constellation(NAME)
        for number in range(self.tasks):
            above = [number - 10 - number % 10 + place for place in (number % 10, (number + 3) % 10)]
            after = [f"t{earlier}" for earlier in above if number >= 10]
            plan.add(Task(f"t{number}", shell=LINE if number < self.tasks - 1 else LAST), after or None)
        return plan

    def start(self, name: str) -> None:
        module = ["tests.laboratory.chaos.boss", self.store, NAME, name]
        if name.startswith("device"):
            module = ["tests.laboratory.chaos.device", self.store, name, str(SLOTS)]
        own = {"CHAOS_LINES": str(self.lines), "CHAOS_OVER": str(self.over), "XDG_RUNTIME_DIR": str(self.folder)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *module],
                cwd=ROOT,
                env={**os.environ, **own},
                stderr=log,
                stdout=log,
                stdin=subprocess.DEVNULL,
            )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    async def play(self) -> StoredConstellation:
        async with await Fleet.open(self.store, by="chaos") as fleet:
            await insert_plan(fleet.store, self.plan())
            for number in range(DEVICES):
                self.start(f"device-{number}")
            for number in range(BOSSES):
                self.start(f"boss-{number}")
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._burn(fleet)
            finally:
                for name in self.processes:
                    self.kill(name)
            return await load(fleet.store, NAME, expressions)

    async def _burn(self, fleet: Fleet) -> None:
        """Kill a process whenever a little more of the work is done, so that the kills are spread over all of it."""
        chance = random.Random(self.seed)
        bosses = [name for name in sorted(self.processes) if name.startswith("boss")]
        devices = [name for name in sorted(self.processes) if name.startswith("device")]
        while True:
            await asyncio.sleep(0.05)
            try:
                if (await read_head(fleet.store, NAME))[0].ended:
                    return
                done = (await fleet.store.counts()).get(COMPLETED, 0)
            except StoreUnavailable:
                continue
            while self.killed.total() < self.kills * done // self.tasks:
                # one of each first, so that a few kills are enough
                name = chance.choice({0: bosses, 1: devices}.get(self.killed.total(), [*bosses, *devices]))
                self.kill(name)
                self.killed[name] += 1
                self.start(name)
            if done >= self.tasks - 1:
                self.over.touch()

    async def problems(self, kept: StoredConstellation) -> list[str]:
        """Everything that is not as promised."""
        async with await Fleet.open(self.store) as fleet:
            runs = {run.id: run for run in await fleet.runs(Query())}
        wrong = [] if kept.plan.state == "completed" else [f"the plan is {kept.plan.state}"]
        tasks = Counter(str(run.key).rpartition("/")[0] for run in runs.values())
        wrong += [f"{task} has {count} runs" for task, count in tasks.items() if count > 1]
        wrong += [f"{run.key} is {run.status}" for run in runs.values() if run.status is not COMPLETED]
        wrong += [f"{self.tasks - len(tasks)} tasks have no run"] if len(tasks) != self.tasks else []
        written = Counter(tuple(line.split()) for line in self.lines.read_text().splitlines())
        wrong += [f"epoch {epoch} of {run} wrote {count} lines" for (run, epoch), count in written.items() if count > 1]
        for run in runs.values():
            if written[run.id, str(run.epoch)] != 1:
                wrong.append(f"{run.key} is completed in epoch {run.epoch}, which wrote nothing")
            wrong += [
                f"{run.key} went on after its end" for run_id, e in written if run_id == run.id and int(e) > run.epoch
            ]
        return wrong
