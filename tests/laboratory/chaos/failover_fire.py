"""A fleet of real processes on two PostgreSQL servers: the primary is killed again and again, its standby takes over.

``python -m tests.laboratory.chaos.failover_fire --kills 50`` prints the outcome; with ``--patroni`` Patroni decides."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from asterism.core.run.run import COMPLETED, Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.store.store_errors import StoreUnavailable
from tests.laboratory.chaos.fire import TERMS, Fire, problems
from tests.store.patroni import PatroniCluster
from tests.store.postgres_cluster import Cluster

DEVICES, CREATORS = 3, 4
BETWEEN = 20
"""How many runs end between two kills, at least."""


@dataclass
class FailoverFire(Fire):
    """``kills`` failovers while runs are created, taken and ended. No process of the fleet is started again."""

    kills: int = 3
    cluster: Cluster | PatroniCluster = field(kw_only=True)
    made: list[str] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    ended: set[str] = field(default_factory=set)
    over: bool = False

    async def burn(self) -> None:
        async with await Fleet.open(self.store, by="counter") as fleet:
            await self._until_all_joined(fleet)
            for _ in range(self.kills):
                await self._until_more_ended(fleet)
                await asyncio.to_thread(self.cluster.fail_over)
                self.killed += 1
                await asyncio.to_thread(self.cluster.come_back)
            await self._until_more_ended(fleet)
        self.over = True

    async def _until_all_joined(self, fleet: Fleet) -> None:
        """A device that cannot reach its store when it starts ends, and is not started again."""
        devices = {f"device-{number}" for number in range(DEVICES)}
        while True:
            if devices <= {session.device for session in await fleet.store.sessions()}:
                return
            await asyncio.sleep(0.02)

    async def _until_more_ended(self, fleet: Fleet) -> None:
        """Wait until runs have ended that were created after this call, and remember them."""
        first = len(self.made)
        while len(self.made) < first + BETWEEN:
            self.more.clear()
            await self.more.wait()
        for run_id in self.made[first : first + BETWEEN]:
            while True:
                try:
                    await fleet.wait(run_id)
                except StoreUnavailable:
                    continue
                break
            self.ended.add(run_id)

    async def feed(self, fleet: Fleet) -> list[str]:
        """Create runs until the fire is out."""
        workflow = await fleet.workflows.add(Workflow("plain", call="tests.laboratory.chaos.work:work", **TERMS))  # type: ignore[arg-type]

        async def create(creator: int) -> None:
            number = 0
            while not self.over:
                try:
                    run = await fleet.create(workflow, {"seconds": 0.01}, key=f"run {creator}-{number}")
                except StoreUnavailable:
                    continue  # the outcome is unknown: the key shows whether it happened
                self.made.append(run.id)
                self.more.set()
                number += 1
                await asyncio.sleep(0.02)

        await asyncio.gather(*map(create, range(CREATORS)))
        return self.made

    def faults(self, runs: list[Run]) -> list[str]:
        """Everything that is not as promised."""
        wrong = problems(self, self.made, runs)
        wrong += [f"{name} has ended" for name, process in self.processes.items() if process.returncode != -9]
        completed = {run.id for run in runs if run.status is COMPLETED}
        wrong += [f"the end of {run_id} was seen and is lost" for run_id in self.ended - completed]
        return wrong + self._two_owners()

    def _two_owners(self) -> list[str]:
        """Runs that were begun before the attempt before was over."""
        events = defaultdict(list)
        for line in self.diary.read_text().splitlines():
            what, run, epoch, _, at = line.split()
            events[run].append((int(at), what, epoch))
        wrong = []
        for run, lines in events.items():
            working = 0
            for _, what, epoch in sorted(lines):
                working += 1 if what == "begin" else -1
                if working > 1:
                    wrong.append(f"{run} was begun in epoch {epoch} while another attempt was at work")
        return wrong

    def names(self) -> list[str]:
        return [*(f"device-{number}" for number in range(DEVICES)), "monitor-0"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.laboratory.chaos.failover_fire")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--patroni", action="store_true", help="let Patroni promote the standby")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, PatroniCluster() if options.patroni else Cluster() as cluster:
        fire = FailoverFire(cluster.url(), Path(folder), 0, 0.0, kills=options.kills, cluster=cluster)
        _, runs = asyncio.run(fire.play())
        wrong = fire.faults(runs)
        lost = [attempt for run in runs for attempt in run.previous]
    print(
        f"{fire.killed} failovers in {time.monotonic() - began:.0f} s: {len(runs):,} runs created and completed, "
        f"{len(lost)} attempts lost and repeated; {len(wrong)} promises broken"
    )
    for line in wrong[:20]:
        print(f"  {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
