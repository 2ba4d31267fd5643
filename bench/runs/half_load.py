"""How long a run takes from the call that creates it until a device in another process begins it, while runs arrive at
half of the rate that the same processes can do.

The full rate is measured first, in the same run: so many creators at once, from the first creation to the last end.
Then runs arrive at random, with a fixed seed, whether or not those before have begun. ``python -m
bench.runs.half_load`` prints the section of the page.
"""

import asyncio
import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from asterism.base.startup import tune_gc
from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.gateway.enrolment import invite
from bench import loop
from bench.child_process import first_line
from bench.page import met, table, time_text
from bench.peers.surroundings import scratch
from bench.proof import all_runs
from bench.runs.gateway import gateway_server, process_in
from bench.runs.latency import Spread
from bench.runs.server import database, server
from bench.runs.work import MOMENT

SLOTS = 20
PATIENCE = 60.0
"""Seconds that all runs may take to end after the last was created."""

BAR_MEDIAN, BAR_WORST, BAR_GATEWAY = 0.005, 0.015, 0.030
"""Seconds from the call to the beginning of the work: p50 and p99 on a store, p99 through a gateway."""

STAGES = ("creation committed", "claim sent", "claim committed, begun")
"""What the time is spent on: until the call returned; then until the device, woken, has read the run and writes its
claim; then until that is durable and the work begins."""


@dataclass(frozen=True)
class Size:
    """Of a measurement; the tests have smaller ones."""

    runs: int = 2000
    """For the full rate."""

    creators: int = 50
    seconds: float = 8.0
    """How long runs arrive."""


FULL = Size()


class Processor(NamedTuple):
    """What the threads of a process have had so far, in seconds: time on a processor, and time in which they were ready
    for one that somebody else had. A stall of the machine is told from one of ours by the latter."""

    used: float
    waited: float

    @classmethod
    def of(cls, pid: int) -> "Processor":
        threads = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return cls(*(sum(int(fields[place]) for fields in threads) / 1e9 for place in (0, 1)))

    def share_since(self, before: "Processor", seconds: float) -> "Processor":
        return Processor((self.used - before.used) / seconds, (self.waited - before.waited) / seconds)


@dataclass(frozen=True)
class Measured:
    place: str
    full: float
    """Runs per second."""

    runs: int
    begun: Spread
    stages: Sequence[Spread]
    processors: Sequence[Processor]
    """Of the creating process and the device, in each second in which runs arrived."""

    @property
    def bars(self) -> tuple[str, str]:
        """Whether p50 and p99 are met."""
        if self.place == "gateway":
            return "", met(self.begun.worst, BAR_GATEWAY)
        return met(self.begun.median, BAR_MEDIAN), met(self.begun.worst, BAR_WORST)


async def measure(place: str, url: str, folder: Path, size: Size = FULL) -> Measured:
    """``place`` is that of the device: on the store of this address, or behind a ``gateway`` that has it."""
    async with await Fleet.open(url) as fleet:
        flow = await fleet.workflows.add(Workflow("moment", call=MOMENT))
        code = await invite(fleet.store, name="*")
        with contextlib.ExitStack() as stack:
            address = stack.enter_context(gateway_server(folder, url)) if place == "gateway" else url
            words = ("bench.runs.gateway_device", address, "other", str(SLOTS), code)
            device = stack.enter_context(process_in(folder, "other", *words))
            assert await asyncio.to_thread(first_line, device) == "joined"
            await _at_full_rate(fleet, flow, size)  # so that everything is warm
            full = await _at_full_rate(fleet, flow, size)
            processes = (os.getpid(), device.pid)
            before, began = [Processor.of(pid) for pid in processes], time.monotonic()
            calls = await _arrive(fleet, flow, full / 2, size.seconds)
            await _all_ended(fleet, [run for run, *_ in calls])
            seconds = time.monotonic() - began
            used = [Processor.of(pid).share_since(old, seconds) for pid, old in zip(processes, before, strict=True)]
        runs = await all_runs(fleet.store)
        check_once(runs, 2 * size.runs + len(calls))
        return _measured(place, full, calls, runs, fleet.store.clock() - time.monotonic(), used)


def check_once(runs: Sequence[Run], number: int) -> None:
    """Raises AssertionError unless there are so many runs, and each began once and completed. (A device that is full
    declines a run, which then has a new epoch, and has not begun.)"""
    statuses = Counter(str(run.status) for run in runs)
    assert statuses == {"completed": number}, f"{number} runs should have completed: {dict(statuses)}"
    repeated = [run.id for run in runs if sum(entry.what == "processing" for entry in run.story) != 1]
    assert not repeated, f"{len(repeated)} runs did not begin once: {repeated[:5]}"


async def _at_full_rate(fleet: Fleet, flow: Workflow, size: Size) -> float:
    left, runs = iter(range(size.runs)), []

    async def create() -> None:
        for number in left:
            runs.append(await fleet.create(flow, {"number": number}))

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(size.creators):
            group.create_task(create())
    await _all_ended(fleet, runs)
    return size.runs / (time.monotonic() - began)


Created = tuple[Run, float, float]
"""A run, when it was to be created, and when its creation was committed."""


async def _arrive(fleet: Fleet, flow: Workflow, rate: float, seconds: float) -> list[Created]:
    chance, calls = random.Random(1), []

    async def create(number: int, due: float) -> None:
        run = await fleet.create(flow, {"number": number})
        calls.append((run, due, time.monotonic()))

    due = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(round(rate * seconds)):
            due += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(create(number, due))
    return calls


async def _all_ended(fleet: Fleet, runs: Sequence[Run]) -> None:
    async with asyncio.timeout(PATIENCE):
        for run in reversed(runs):  # one look finds most of them ended
            await fleet.wait(run.id)


def _measured(
    place: str,
    full: float,
    calls: Sequence[Created],
    runs: Sequence[Run],
    offset: float,
    processors: Sequence[Processor],
) -> Measured:
    """``offset`` is the clock of the store less that of the processes."""
    ended = {run.id: run for run in runs}
    times = []
    for created, due, committed in calls:
        run = ended[created.id]
        assert run.started_at is not None, f"{run.id} has no time of its start"
        assert run.output >= due, f"{run.id} began before it was created"
        claimed = min(max(run.started_at - offset, committed), run.output)
        times.append((run.output - due, committed - due, claimed - committed, run.output - claimed))
    begun, *stages = (Spread.of(column) for column in zip(*times, strict=True))
    return Measured(place, full, len(calls), begun, stages, processors)


def compare(size: Size = FULL) -> list[Measured]:
    measured = []
    with _places() as places:
        for place, url, folder in places:
            with loop.runner() as runner:
                measured.append(runner.run(measure(place, url, folder, size)))
    return measured


@contextlib.contextmanager
def _places() -> Iterator[list[tuple[str, str, Path]]]:
    tune_gc()  # as every process of Asterism does
    with scratch() as one, scratch() as two, scratch() as three, server() as running, database(running) as url:
        yield [
            ("SQLite", f"sqlite:///{one / 'load.db'}", one),
            ("PostgreSQL", url, two),
            ("gateway", f"sqlite:///{three / 'load.db'}", three),
        ]


def page(rows: Sequence[Measured]) -> str:
    text = f"""## From creation to the beginning of the work, under half load

A device with {SLOTS} slots in another process, {loop.WORDS}; through the gateway the server is one more process, on a
SQLite file. The full rate is that of {FULL.creators} creators at once, from the first creation to the last end,
measured just before. Then runs arrive one by one at half of that rate, at random, for {FULL.seconds:g} s. *Begun* is
from the moment at which a run is to be created until its work begins, p50 / p99; each run began and ended once. Bars:
p50 at most {time_text(BAR_MEDIAN)} and p99 below {time_text(BAR_WORST)} on a store, p99 below
{time_text(BAR_GATEWAY)} through the gateway.

"""
    head = ("place", "full rate", "runs", "begun p50 / p99", "bars")
    text += table(head, [_row(measured) for measured in rows])
    text += "\nWhat the time is spent on, p50 / p99 of each part:\n\n"
    text += table(("place", *STAGES), [(measured.place, *map(_spread, measured.stages)) for measured in rows])
    text += "\nThreads of each process on a processor, and ready for one that somebody else had, meanwhile:\n\n"
    return text + table(("place", "creator", "device"), [_processors(measured) for measured in rows])


def _row(measured: Measured) -> tuple[str, ...]:
    bars = " / ".join(bar for bar in measured.bars if bar)
    return measured.place, f"{measured.full:,.0f}/s", f"{measured.runs:,}", _spread(measured.begun), bars


def _processors(measured: Measured) -> tuple[str, ...]:
    return measured.place, *(f"{each.used:.0%}, waiting {each.waited:.0%}" for each in measured.processors)


def _spread(spread: Spread) -> str:
    return f"{time_text(spread.median)} / {time_text(spread.worst)}"


if __name__ == "__main__":
    print(page(compare(Size(*map(int, sys.argv[1:])))))
