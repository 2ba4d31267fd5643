"""The fire: a fleet of real processes on a real store, killed and frozen at random, and a count of what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from asterism.core.run.run import COMPLETED, Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Query
from asterism.store.store_errors import StoreUnavailable
from tests.laboratory.chaos.work import COMMAND

ROOT = Path(__file__).parents[3]
DEVICES, MONITORS, SLOTS = 8, 2, 4
TERMS = {
    "heartbeat": 1.0,
    "heartbeat_timeout": 4.0,
    "losses": 1000,
    "backoff": 0.05,
    "backoff_most": 0.5,
    "claim_timeout": 5.0,
}
PATIENCE = 900.0
"""How long a fleet has to finish once the fire is out, in seconds. Only a broken one needs it."""

STRIKES = 8
"""How often a process is killed or frozen, at least, however slow the machine."""


@dataclass
class Fire:
    """``seconds`` of faults while ``runs`` are created; ``seed`` chooses them."""

    store: str
    folder: Path
    runs: int
    seconds: float
    seed: int = 0
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    killed: int = 0
    stopped: int = 0

    @property
    def diary(self) -> Path:
        return self.folder / "diary"

    # -- processes ---------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        slots = SLOTS if name.startswith("device") else 0
        environment = {**os.environ, "CHAOS_DIARY": str(self.diary), "XDG_RUNTIME_DIR": str(self.folder)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.laboratory.chaos.device", self.store, name, str(slots)],
                cwd=ROOT,
                env=environment,
                stderr=log,
                stdout=log,
                stdin=subprocess.DEVNULL,
            )

    def end_all(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    # -- faults ------------------------------------------------------------------------------------------------------

    async def burn(self) -> None:
        chance = random.Random(self.seed)
        until = time.monotonic() + self.seconds
        thaws: list[asyncio.Task[None]] = []
        while time.monotonic() < until or self.killed + self.stopped < STRIKES:
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            name = chance.choice(sorted(set(self.processes) - self.frozen))
            if chance.random() < 0.5:
                self.processes[name].kill()
                self.processes[name].wait()
                self.killed += 1
                self.start(name)
            else:
                self.frozen.add(name)
                thaws.append(asyncio.create_task(self._freeze(name, chance.choice([0.2, 1.0, 3.0, 6.0]))))
        await asyncio.gather(*thaws)

    async def _freeze(self, name: str, seconds: float) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)
        self.stopped += 1
        await asyncio.sleep(seconds)
        self.processes[name].send_signal(signal.SIGCONT)
        self.frozen.discard(name)

    # -- work --------------------------------------------------------------------------------------------------------

    async def feed(self, fleet: Fleet) -> list[str]:
        """Create the runs, spread over the time. Each has a key, since a creation without an answer is repeated."""
        plain = await fleet.workflows.add(Workflow("plain", call="tests.laboratory.chaos.work:work", **TERMS))  # type: ignore[arg-type]
        command = await fleet.workflows.add(Workflow("command", shell=COMMAND.replace("{seconds}", "0.05"), **TERMS))  # type: ignore[arg-type]
        chance = random.Random(self.seed + 1)
        made = []
        for number in range(self.runs):
            flow = command if number % 20 == 0 else plain
            inputs = {"seconds": chance.choice([0.0, 0.0, 0.01, 0.1, 1.0])} if flow is plain else {}
            while True:
                try:
                    made.append((await fleet.create(flow, inputs, key=f"run {number}")).id)
                    break
                except StoreUnavailable:
                    continue
            if number % 50 == 0:
                await asyncio.sleep(0.7 * self.seconds * 50 / self.runs)
        return made

    def names(self) -> list[str]:
        """The processes of the fleet."""
        return [f"device-{number}" for number in range(DEVICES)] + [f"monitor-{number}" for number in range(MONITORS)]

    async def play(self) -> tuple[list[str], list[Run]]:
        """Returns the acknowledged runs, and the runs of the store at the end."""
        try:
            async with await Fleet.open(self.store, by="chaos") as fleet:
                await fleet.configure(hold=2.0)
                for name in self.names():
                    self.start(name)
                made, _ = await asyncio.gather(self.feed(fleet), self.burn())
                await self._until_done(fleet, made)
                return made, await fleet.runs(Query())
        finally:
            self.end_all()

    async def _until_done(self, fleet: Fleet, made: list[str]) -> None:
        async with asyncio.timeout(PATIENCE):
            for run_id in made:
                await fleet.wait(run_id)

    # -- the count ---------------------------------------------------------------------------------------------------

    def beginnings(self) -> dict[tuple[str, int], int]:
        """How often each epoch of each run was begun."""
        counted: dict[tuple[str, int], int] = defaultdict(int)
        for line in self.diary.read_text().splitlines():
            what, run, epoch, *_ = line.split()
            if what == "begin":
                counted[run, int(epoch)] += 1
        return counted


def problems(fire: Fire, made: list[str], runs: list[Run]) -> list[str]:
    """Everything that is not as promised."""
    stored = {run.id: run for run in runs}
    wrong = [f"{run_id} was acknowledged and is lost" for run_id in made if run_id not in stored]
    acknowledged = set(made)
    wrong += [f"{run.id} was created twice" for run in runs if run.id not in acknowledged]
    wrong += [f"{run.id} is {run.status}: {run.error}" for run in runs if run.status is not COMPLETED]
    began = fire.beginnings()
    wrong += [f"{run} was begun {count} times in epoch {epoch}" for (run, epoch), count in began.items() if count > 1]
    for run in runs:
        ends = [entry for entry in run.story if entry.what == "completed"]
        if len(ends) > 1:
            wrong.append(f"{run.id} was completed {len(ends)} times")
        if run.status is COMPLETED and began.get((run.id, run.epoch)) != 1:
            wrong.append(f"{run.id} is completed in epoch {run.epoch}, which nobody began")
    return wrong
