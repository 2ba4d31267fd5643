"""SQLite, one process: runs per second through the whole public API, beside what the file itself can do.

The raw limits are those of the bare ``sqlite3`` module on the same disk in the same minute, with the settings of the
store (write-ahead log, ``synchronous=FULL``): compare-and-swaps of a row of three columns, each with a commit of its
own, and a hundred to a commit; and the same with the rows of runs, in the tables of the store, encoded beforehand. A
run is created by a fleet that has a device in the same process, claimed and begun by it, executed (a coroutine, by the
real executors) and completed, and its creator is notified. Everything runs on uvloop, as on PostgreSQL.
"""

import asyncio
import gc
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from asterism.base.startup import tune_gc
from asterism.core.run import transitions
from asterism.core.run.run import Owner
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Store
from asterism.store.sqlite import SqliteStore
from asterism.store.sqlite.write_jobs import Statement, run_statement
from bench import loop
from bench.peers.surroundings import scratch
from bench.proof import check_created, check_runs
from bench.runs import work
from bench.runs.counting import counted
from bench.runs.work import NOTHING

T = TypeVar("T")
IN_FLIGHT = 1000
BAR_RUNS = 4000.0
"""Runs per second with 1,000 in flight, at least …"""

BAR_ROWS = 0.10
"""… and this share of the rows per second that the file takes at 100 per commit."""

BAR_ALONE = 0.25
"""One after the other: this share of its commits per second."""

BAR_CREATED = 30_000.0
"""Runs created per second, a thousand in a commit."""

ROWS = 1000
PER_COMMIT = 100


@dataclass(frozen=True)
class Sizes:
    """How much is measured at a time, and how often."""

    commits: int = 4000
    groups: int = 400
    alone: int = 2000
    in_flight: int = 20_000
    created: int = 20_000
    rounds: int = 3


FULL = Sizes()


@dataclass(frozen=True)
class Measured:
    """All per second, the best of the rounds. ``writes`` is how many records are written for one run. ``created_cpu``
    is by processor time: what ``created`` would be if the process had a processor and the disk to itself."""

    raw_commits: float
    raw_rows: float
    raw_records: float
    alone: float
    in_flight: float
    writes: float
    created: float
    created_cpu: float

    @property
    def alone_share(self) -> float:
        """Runs one after the other, of the raw commits."""
        return self.alone / self.raw_commits

    @property
    def runs_share(self) -> float:
        """Runs with 1,000 in flight, of the raw rows: the strictest reading of the bar."""
        return self.in_flight / self.raw_rows

    @property
    def rows_share(self) -> float:
        """The records that these runs wrote, of the raw rows."""
        return self.in_flight * self.writes / self.raw_rows

    @property
    def records_share(self) -> float:
        """The records that these runs wrote, of what the file takes of such records."""
        return self.in_flight * self.writes / self.raw_records


def raw(path: Path, sizes: Sizes) -> tuple[float, float]:
    """Commits per second of one row each, and rows per second at 100 per commit."""
    with closing(_connected(path)) as connection:
        connection.execute("CREATE TABLE rows (id TEXT PRIMARY KEY NOT NULL, revision INTEGER NOT NULL, status TEXT)")
        names = [f"{number:024x}" for number in range(ROWS)]
        connection.executemany("INSERT INTO rows VALUES (?, 0, 'created')", [(name,) for name in names])
        swap = "UPDATE rows SET revision = revision + 1, status = 'claimed' WHERE id = ? AND revision = ?"
        commits: list[Statement] = [(swap, (names[n % ROWS], n // ROWS), "") for n in range(sizes.commits)]
        swapped = [sum(1 for n in range(sizes.commits) if n % ROWS == place) for place in range(ROWS)]
        rows: list[Statement] = [
            (swap, (names[n % ROWS], swapped[n % ROWS] + n // ROWS), "") for n in range(sizes.groups * PER_COMMIT)
        ]
        return _rate(connection, commits, 1), _rate(connection, rows, PER_COMMIT)


async def raw_records(path: Path, sizes: Sizes) -> float:
    """Rows per second at 100 per commit: those that are written when a run is created and when it has ended."""
    await (await SqliteStore.open(path)).close()
    flow = Workflow("nothing", call=NOTHING)
    owner = Owner("bench", "session")
    begun, ended = [], []
    for number in range(sizes.groups * PER_COMMIT // 2):
        now = time.time()
        run = transitions.create(f"{number:024x}", flow, {"number": 1}, by="user", now=now)
        taken = transitions.take(run, owner, now)
        assert taken.grant is not None
        under_way = transitions.start(taken, taken.grant, now)
        begun.append(run_statement(under_way, None))
        ended.append(run_statement(transitions.complete(under_way, taken.grant, None, now), under_way.revision))
    with closing(_connected(path)) as connection:
        rate = _rate(connection, [*begun, *ended], PER_COMMIT)
    async with Fleet(await SqliteStore.open(path)) as fleet:
        await check_runs(fleet.store, len(ended))
    return rate


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _rate(connection: sqlite3.Connection, ops: Sequence[Statement], per_commit: int) -> float:
    """Statements per second, so many to a commit. Each of them finds its row as it expects it."""
    gc.collect()
    execute = connection.cursor().execute
    began = time.perf_counter()
    for first in range(0, len(ops), per_commit):
        if per_commit > 1:
            execute("BEGIN IMMEDIATE")
        for sql, values, _ in ops[first : first + per_commit]:
            if execute(sql, values).rowcount != 1:
                raise RuntimeError(f"a row was not as expected: {sql}")
        if per_commit > 1:
            execute("COMMIT")
    return len(ops) / (time.perf_counter() - began)


async def with_device(store: Store, slots: int, measure: Callable[[Fleet, Workflow], Awaitable[float]]) -> float:
    """What ``measure`` finds with a device of so many slots in this process."""
    async with Fleet(store) as fleet:
        agent = DeviceAgent(fleet, "bench", slots=slots)
        living = asyncio.create_task(agent.run())
        await agent.joined.wait()
        flow = await fleet.workflows.add(Workflow("nothing", call=NOTHING))
        await one_run(fleet, flow)
        tune_gc()  # as `asterism device join` does
        measured = await measure(fleet, flow)
        agent.drain()
        await living
        return measured


async def one_run(fleet: Fleet, flow: Workflow) -> None:
    run = await fleet.create(flow, {"number": 1})
    ended = await fleet.wait(run.id)
    assert ended.status == "completed", f"{ended.status}: {ended.error}"


async def one_by_one(fleet: Fleet, flow: Workflow, number: int) -> float:
    """Runs per second, each begun when the one before has ended."""
    began = time.perf_counter()
    for _ in range(number):
        await one_run(fleet, flow)
    return number / (time.perf_counter() - began)


async def together(fleet: Fleet, flow: Workflow, number: int, in_flight: int) -> float:
    """Runs per second with so many under way at any time."""
    left = iter(range(number))

    async def creator() -> None:
        for _ in left:
            await one_run(fleet, flow)

    began = time.perf_counter()
    await asyncio.gather(*(creator() for _ in range(in_flight)))
    return number / (time.perf_counter() - began)


async def writes_per_run(path: Path, number: int = 200) -> float:
    """How many records are written for a run, whatever they are."""
    store, counting = counted(await SqliteStore.open(path))

    async def measure(fleet: Fleet, flow: Workflow) -> float:
        before = counting.writes.total()
        await one_by_one(fleet, flow, number)
        return (counting.writes.total() - before) / number

    return await with_device(store, 1, measure)


async def in_file(path: Path, slots: int, runs: int, measure: Callable[[Fleet, Workflow], Awaitable[float]]) -> float:
    """What ``measure`` finds with a store in a file. Raises AssertionError unless so many runs, and the one before
    them, were executed once, completed, and are in the file."""
    executed = work.executed
    measured = await with_device(await SqliteStore.open(path), slots, measure)
    assert work.executed - executed == runs + 1, f"{work.executed - executed} executions of {runs + 1} runs"
    async with Fleet(await SqliteStore.open(path)) as fleet:
        await check_runs(fleet.store, runs + 1)
    return measured


async def creation(path: Path, number: int) -> tuple[float, float]:
    """Runs that are created per second, and the same by processor time."""
    async with Fleet(await SqliteStore.open(path)) as fleet:
        flow = await fleet.workflows.add(Workflow("nothing", call=NOTHING))
        inputs = [{"number": place} for place in range(number)]
        began, cpu = time.perf_counter(), time.process_time()
        await fleet.create_many(flow, inputs)
        rates = number / (time.perf_counter() - began), number / (time.process_time() - cpu)
    async with Fleet(await SqliteStore.open(path)) as fleet:
        await check_created(fleet.store, number)
    return rates


def _run(measurement: Coroutine[Any, Any, T]) -> T:
    with loop.runner() as runner:
        return runner.run(measurement)


def measure(sizes: Sizes = FULL) -> Measured:
    """Turn by turn, so that a slow moment of the machine hits all; the best of each counts."""
    rounds: list[tuple[float, ...]] = []
    with scratch() as folder:
        for turn in range(sizes.rounds):
            commits, rows = raw(folder / f"raw-{turn}.db", sizes)
            records = _run(raw_records(folder / f"records-{turn}.db", sizes))
            alone = _run(
                in_file(folder / f"alone-{turn}.db", 1, sizes.alone, lambda f, w: one_by_one(f, w, sizes.alone))
            )
            many = _run(
                in_file(
                    folder / f"many-{turn}.db",
                    IN_FLIGHT,
                    sizes.in_flight,
                    lambda f, w: together(f, w, sizes.in_flight, IN_FLIGHT),
                )
            )
            created = _run(creation(folder / f"created-{turn}.db", sizes.created))
            rounds.append((commits, rows, records, alone, many, *created))
        writes = _run(writes_per_run(folder / "writes.db"))
    commits, rows, records, alone, many, *rates = (max(column) for column in zip(*rounds, strict=True))
    return Measured(commits, rows, records, alone, many, writes, *rates)
