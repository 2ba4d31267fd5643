"""How long it takes from the call that creates a run until an idle device in another process begins it, and from there
until its creator knows the end.

``python -m bench.runs.latency SAMPLES`` prints the p50 and p99 of the latter on both stores, in milliseconds, for the
Asterism of the interpreter: to compare two commits, give each its own.

The run is durable when the call returns. Between two runs there is a random pause, so that a poller is not
always measured at the same point of its interval.
"""

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from bench.child_process import child_process, first_line
from bench.peers.surroundings import scratch
from bench.proof import check_runs
from bench.runs.server import database, server
from bench.runs.work import MOMENT

ROOT = Path(__file__).parents[2]
SAMPLES = 220
WARM_UP = 5
LONGEST_PAUSE = 0.05
PATIENCE = 60.0


@dataclass(frozen=True)
class Spread:
    """In seconds."""

    median: float
    worst: float  # 99 of 100 are quicker

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        return cls(cuts[49], cuts[98])


@dataclass(frozen=True)
class Latency:
    """From the beginning of the call: until it returned, until the work began, until its end was known; and from the
    work, which takes no time, until its end was known: the commit of the end, and the way to the waiter."""

    store: str
    samples: int
    created: Spread
    begun: Spread
    known: Spread
    told: Spread


@contextmanager
def device(url: str, name: str = "other") -> Iterator[None]:
    """A device in a process of its own."""
    with child_process([sys.executable, "-m", "bench.runs.device", url, name], cwd=ROOT) as process:
        assert first_line(process) == "joined"
        yield


async def measure(store: str, url: str, samples: int = SAMPLES) -> Latency:
    """One run at a time, each created when the one before has ended."""
    chance = random.Random(1)
    times: list[tuple[float, float, float, float]] = []
    async with await Fleet.open(url) as fleet:
        flow = await fleet.workflows.add(Workflow("moment", call=MOMENT))
        for number in range(WARM_UP + samples):
            began = time.monotonic()
            run = await fleet.create(flow)
            created = time.monotonic()
            async with asyncio.timeout(PATIENCE):
                ended = await fleet.wait(run.id)
            known = time.monotonic()
            assert ended.status == "completed", f"{ended.status}: {ended.error}"
            assert ended.output >= began, "the clocks of two processes differ here"
            if number >= WARM_UP:
                times.append((created - began, ended.output - began, known - began, known - ended.output))
            await asyncio.sleep(chance.uniform(0.0, LONGEST_PAUSE))
        await check_runs(fleet.store, WARM_UP + samples)
    assert len(times) == samples, f"{len(times)} of {samples} samples"
    return Latency(store, samples, *(Spread.of(column) for column in zip(*times, strict=True)))


def sqlite(samples: int = SAMPLES) -> Latency:
    with scratch() as folder:
        return _with_device("SQLite", f"sqlite:///{folder / 'latency.db'}", samples)


def on_postgres(url: str, samples: int = SAMPLES) -> Latency:
    return _with_device("PostgreSQL", url, samples)


def _with_device(store: str, url: str, samples: int) -> Latency:
    with device(url):
        return asyncio.run(measure(store, url, samples))


def both(samples: int = SAMPLES) -> list[Latency]:
    with server() as running, database(running) as url:
        return [sqlite(samples), on_postgres(url, samples)]


if __name__ == "__main__":
    for measured in both(int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES):
        print(f"{measured.store}: p50 {measured.told.median * 1e3:.1f} ms, p99 {measured.told.worst * 1e3:.1f} ms")
