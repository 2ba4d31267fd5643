"""PostgreSQL: the workloads by which job queues are judged in public, beside other queues on the same server.

``steady``  jobs come one by one at a fixed rate, after a backlog that has filled the tables
``bursts``  many come at once, again and again
``held``    as steady, while a transaction is open that began before: nothing that the queue deletes or updates can be
            removed from the tables (brandur.org/postgres-queues; the benchmark of the xmin horizon of pgque)
``killed``  jobs that take a while, and a worker process that is killed every few seconds and replaced

There is a figure only if the tables of the queue say that every job was done, every job has begun, and none has begun
twice but those of a worker that was killed.
"""

import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from subprocess import Popen

import asyncpg

from bench import loop
from bench.child_process import child_process
from bench.page import reached, table, time_text
from bench.peers.surroundings import scratch
from bench.runs.latency import Spread
from bench.runs.load import DEAD_AFTER, QUEUES, SLOTS, Begun, Put, count_records, load, read_records
from bench.runs.server import SETTINGS, database
from tests.store.postgres_server import Server

ROOT = Path(__file__).parents[2]
WORKLOADS = ("steady", "bursts", "held", "killed")
WORKERS = 2
ROUNDS = 2
PATIENCE = 120.0
"""Seconds in which all jobs have to be done after the last has come."""

VACUUM = {"autovacuum_naptime": "1s", "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_cost_delay": 0}
"""So that a run of seconds shows what a day does otherwise."""


@dataclass(frozen=True)
class Size:
    """Of the workloads; the tests have smaller ones."""

    backlog: int = 6000
    rate: float = 100.0
    seconds: float = 12.0
    bursts: int = 5
    burst: int = 500
    pause: float = 2.0
    kills: int = 4
    work: float = 0.05
    """Seconds that a job takes where workers are killed."""


FULL = Size()


@dataclass(frozen=True)
class Outcome:
    """``rate`` is in jobs per second, from the creation of the backlog or of a burst (``killed``: of the first job)
    until its last job begins; ``pickup`` in seconds from the call that creates a job until it begins."""

    jobs: int
    rate: float
    pickup: Spread
    again: int
    """Jobs that began more than once."""

    recovery: float
    """The longest time from the kill of a worker until a job that it had begun begins again."""

    dead: int
    """Dead rows in the tables at the end."""


@dataclass
class Load:
    """The jobs of one measurement: when each was created, and what has begun."""

    put: Put
    file: Path
    created: dict[int, float] = field(default_factory=dict)

    async def create(self, number: int, seconds: float = 0.0) -> range:
        """So many at once."""
        numbers = range(len(self.created), len(self.created) + number)
        self.created.update(dict.fromkeys(numbers, time.monotonic()))
        await self.put(numbers, seconds)
        return numbers

    async def arrive(self, rate: float, seconds: float, work: float = 0.0) -> range:
        """One by one, whether or not those before have been created."""
        first, began = len(self.created), time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(round(rate * seconds)):
                await asyncio.sleep(began + number / rate - time.monotonic())
                group.create_task(self.create(1, work))
        return range(first, len(self.created))

    async def warm_up(self, processes: set[int]) -> None:
        """Create jobs until each of these processes has begun one."""
        async with asyncio.timeout(PATIENCE):
            while processes - {record.process for record in read_records(self.file)}:
                await self.create(SLOTS)
                await asyncio.sleep(0.1)
        await self.all_begun()

    async def all_begun(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self._all_have():  # noqa: ASYNC110 - other processes write the file
                await asyncio.sleep(0.02)

    def _all_have(self) -> bool:
        jobs = len(self.created)
        return count_records(self.file) >= jobs and len(self.first_begun()) == jobs

    def rate(self, numbers: range) -> float:
        """Of the jobs that were created together, until the last of them has begun."""
        begun = self.first_begun()
        return len(numbers) / (max(begun[number] for number in numbers) - self.created[numbers[0]])

    def pickup(self, numbers: Sequence[int]) -> Spread:
        begun = self.first_begun()
        return Spread.of([begun[number] - self.created[number] for number in numbers])

    def first_begun(self) -> dict[int, float]:
        return {number: records[0].at for number, records in by_number(read_records(self.file)).items()}


def by_number(records: Sequence[Begun]) -> dict[int, list[Begun]]:
    """The beginnings of each job, the first one first."""
    numbers: dict[int, list[Begun]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.at):
        numbers[record.number].append(record)
    return numbers


class Workers:
    """The worker processes of a queue; ``killed`` is when which of them was killed."""

    def __init__(self, queue: str, url: str, file: Path, stack: ExitStack) -> None:
        self._command = [sys.executable, "-m", "bench.runs.load.worker", queue, url]
        self._file, self._stack = file, stack
        self.living: dict[str, Popen[bytes]] = {}
        self.killed: dict[int, float] = {}

    def start(self, name: str) -> None:
        command = [*self._command, name, str(self._file)]
        self.living[name] = self._stack.enter_context(child_process(command, cwd=ROOT))

    def replace_oldest(self) -> None:
        """Kill it, and start another of the same name."""
        name = next(iter(self.living))
        process = self.living.pop(name)
        process.kill()
        process.wait()
        self.killed[process.pid] = time.monotonic()
        self.start(name)


@contextmanager
def _server() -> Iterator[Server]:
    with Server({**SETTINGS, **VACUUM}) as running:
        yield running


async def _steady(load: Load, size: Size) -> tuple[float, Spread]:
    backlog = [await load.create(min(1000, size.backlog - first)) for first in range(0, size.backlog, 1000)]
    await load.all_begun()
    rate = load.rate(range(backlog[0].start, backlog[-1].stop))
    numbers = await load.arrive(size.rate, size.seconds)
    await load.all_begun()
    return rate, load.pickup(numbers)


async def _bursts(load: Load, size: Size) -> tuple[float, Spread]:
    rates = []
    first = len(load.created)
    for _ in range(size.bursts):
        numbers = await load.create(size.burst)
        await load.all_begun()
        rates.append(load.rate(numbers))
        await asyncio.sleep(size.pause)
    return statistics.median(rates), load.pickup(range(first, len(load.created)))


async def _killed(load: Load, size: Size, workers: Workers) -> tuple[float, Spread]:
    async def kill() -> None:
        for _ in range(size.kills):
            await asyncio.sleep(size.seconds / (size.kills + 1))
            workers.replace_oldest()

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        arriving = group.create_task(load.arrive(size.rate, size.seconds, size.work))
    await load.all_begun()
    return load.rate(arriving.result()), load.pickup(arriving.result())


@asynccontextmanager
async def _old_transaction(url: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("SELECT count(*) FROM pg_class")  # now it has its snapshot
            yield
    finally:
        await connection.close()


async def _all_done(url: str, query: str, jobs: int) -> int:
    """Wait until the tables say that every job is done; the dead rows that they have then. Raises AssertionError with
    what they say if it takes long."""
    connection = await asyncpg.connect(url)
    until = time.monotonic() + PATIENCE
    try:
        while (counts := tuple(await connection.fetchrow(query))) != (jobs, 0):
            assert time.monotonic() < until, f"of {jobs} jobs the tables say (done, anything else): {counts}"
            await asyncio.sleep(0.05)
        return int(await connection.fetchval("SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"))
    finally:
        await connection.close()


async def _measure(name: str, workload: str, url: str, file: Path, size: Size) -> Outcome:
    async with AsyncExitStack() as stack:
        put = await stack.enter_async_context(load(name).producer(url))
        jobs = Load(put, file)
        workers = Workers(name, url, file, stack.enter_context(ExitStack()))
        for number in range(WORKERS):
            workers.start(f"worker-{number}")
        await jobs.warm_up({process.pid for process in workers.living.values()})
        if workload == "held":
            await stack.enter_async_context(_old_transaction(url))
        if workload == "killed":
            rate, pickup = await _killed(jobs, size, workers)
        elif workload == "bursts":
            rate, pickup = await _bursts(jobs, size)
        else:
            rate, pickup = await _steady(jobs, size)
        dead = await _all_done(url, load(name).DONE, len(jobs.created))
    again, recovery = check(read_records(file), len(jobs.created), workers.killed)
    return Outcome(len(jobs.created), rate, pickup, again, recovery, dead)


def check(records: Sequence[Begun], jobs: int, killed: dict[int, float]) -> tuple[int, float]:
    """How many jobs began again, and how long after the kill of their worker at most. Raises AssertionError if a job
    has not begun, or began again although its worker lived."""
    numbers = by_number(records)
    assert set(numbers) == set(range(jobs)), f"{jobs} jobs were created, and {len(numbers)} have begun"
    repeated = [beginnings for beginnings in numbers.values() if len(beginnings) > 1]
    waits = [0.0]
    for beginnings in repeated:
        for before, after in pairwise(beginnings):
            at = killed.get(before.process)
            assert at is not None, f"job {before.number} began twice, and its first worker lived"
            waits.append(after.at - at)
    return len(repeated), max(waits)


def measure(running: Server, name: str, workload: str, size: Size) -> Outcome:
    """One workload of one queue, in a new database."""
    with database(running) as url, scratch() as folder, loop.runner() as runner:
        return runner.run(_measure(name, workload, url, folder / "begun", size))


Outcomes = dict[tuple[str, str], list[Outcome]]
"""By workload and queue, one of each round."""


def compare(queues: Sequence[str] = tuple(QUEUES), rounds: int = ROUNDS, size: Size = FULL) -> Outcomes:
    """They take turns, so that a slow moment of the machine hits all of them."""
    present = [name for name in queues if find_spec(QUEUES[name]) is not None]
    outcomes: Outcomes = {(workload, name): [] for workload in WORKLOADS for name in present}
    with _server() as running:
        for _ in range(rounds):
            for (workload, name), measured in outcomes.items():
                print(f"  {workload}: {name}", file=sys.stderr, flush=True)
                measured.append(measure(running, name, workload, size))
    return outcomes


# -- the page ----------------------------------------------------------------------------------------------------------

TEXTS = {
    "steady": "**Steady**: a backlog of {backlog:,} jobs, then {rate:g} a second for {seconds:g} s, one by one.",
    "bursts": "**Bursts**: {bursts} times {burst} jobs at once.",
    "held": "**A held old transaction**: as steady, while a `REPEATABLE READ` transaction is open that began before.",
    "killed": "**Killed workers**: {rate:g} jobs of {work:g} s a second for {seconds:g} s; {kills} times the older "
    "worker is killed (`SIGKILL`) and replaced.",
}


def page(outcomes: Outcomes, size: Size = FULL) -> str:
    names = list(dict.fromkeys(name for _, name in outcomes))
    text = f"""## Workloads of job queues on PostgreSQL

The workloads by which job queues are judged in public, written from their description: {WORKERS} worker processes that
execute up to {SLOTS} jobs at once each, jobs that do nothing unless stated, and autovacuum every second. *Backlog or
burst* is the rate from its creation until its last job begins; *pickup* is from the call that creates a job until it
begins, of the jobs that came afterwards (of all in bursts). The better of {_rounds(outcomes)} rounds that took turns.
In brackets: how many times as good Asterism is. Each queue counts a worker as dead after {DEAD_AFTER:g} s of silence. A
figure is listed only if the tables of the queue say that every job is done, and no job began twice but those of killed
workers.

"""
    for workload in WORKLOADS:
        killed = workload == "killed"
        rows = [_row(outcomes, workload, name) for name in names]
        text += TEXTS[workload].format(**vars(size)) + "\n\n"
        head = ["queue", "jobs", "rate" if killed else "backlog or burst", "pickup p50", "pickup p99"]
        text += table([*head, *(("began again", "after at most") if killed else ("dead rows",))], rows)
        text += _verdict(outcomes, workload, names) + "\n"
    for name in names:
        text += f"- {name} {version(name)}: {load(name).SETTINGS}\n"
    if missing := [name for name in QUEUES if name not in names]:
        text += f"- not installed: {', '.join(missing)}\n"
    return text


def _rounds(outcomes: Outcomes) -> int:
    return max(map(len, outcomes.values()))


FIGURES: dict[str, Callable[[Sequence[Outcome]], float]] = {
    "rate": lambda measured: max(outcome.rate for outcome in measured),
    "p50": lambda measured: min(outcome.pickup.median for outcome in measured),
    "p99": lambda measured: min(outcome.pickup.worst for outcome in measured),
}


def _factor(outcomes: Outcomes, workload: str, name: str, figure: str) -> float:
    """How many times as good Asterism is."""
    ours, theirs = (FIGURES[figure](outcomes[workload, queue]) for queue in ("asterism", name))
    return ours / theirs if figure == "rate" else theirs / ours


def _row(outcomes: Outcomes, workload: str, name: str) -> list[str]:
    measured = outcomes[workload, name]
    cells = [name, f"{measured[0].jobs:,}"]
    for figure, value in FIGURES.items():
        shown = f"{value(measured):,.0f}/s" if figure == "rate" else time_text(value(measured))
        factor = "" if name == "asterism" else f" ({_factor(outcomes, workload, name, figure):.1f}×)"
        cells.append(shown + factor)
    if workload != "killed":
        return [*cells, f"{min(outcome.dead for outcome in measured):,}"]
    recovery = [outcome.recovery for outcome in measured if outcome.again]
    again = " and ".join(str(outcome.again) for outcome in measured)
    return [*cells, again, time_text(max(recovery)) if recovery else "–"]


def _verdict(outcomes: Outcomes, workload: str, names: Sequence[str]) -> str:
    others = [name for name in names if name != "asterism"]
    if not others or "asterism" not in names:
        return ""
    parts = []
    for figure in FIGURES:
        factor = min(_factor(outcomes, workload, name, figure) for name in others)
        parts.append(f"{figure} {reached(factor, 1.0)}, {factor:.1f} times as good as the next")
    return f"\nAhead of the others: {'; '.join(parts)}.\n"
