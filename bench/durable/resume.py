"""What it costs to take up a large constellation whose orchestrator was killed half way, and what its journal weighs.

The journal is a real one: a process does half of the plan and ends itself with SIGKILL (``bench/durable/half.py``).
Each measurement has a copy of the file that it left.
"""

import asyncio
import contextlib
import gc
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from asterism.base import expressions
from asterism.core.plan.status import COMPLETED, TERMINAL
from asterism.durable import compaction, journal_store, journal_writer
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.execution import Execution
from bench.durable import half, work
from bench.peers.surroundings import scratch

ROOT = Path(__file__).parents[2]
TASKS = 100_000
ROUNDS = 3

Value = TypeVar("Value")


@dataclass(frozen=True)
class Weight:
    """Of a journal, in bytes as they are in the database: the snapshot it begins with, and the steps since."""

    records: int
    snapshot: int
    steps: int
    file: int
    """All of the database, with the runs and their indexes."""


@dataclass(frozen=True)
class Compaction:
    """``whole`` is until the old records are gone, ``still`` the longest time for which nothing else could happen
    meanwhile in the process."""

    whole: float
    still: float
    read: float
    """How long it takes to read the shortened journal."""

    weight: Weight


@dataclass(frozen=True)
class Resumed:
    """In seconds, the best of the rounds."""

    tasks: int
    done: int
    """Tasks that the journal says have ended."""

    steps: int
    read: float
    """Until the plan is there as it was."""

    owned: float
    """From the call until this process owns the plan, durably, and continues it."""

    begun: float
    """From the call until the first task that was left begins."""

    rest: float
    """From the call until all that was left has been done."""

    weight: Weight
    compaction: Compaction


def measure(tasks: int = TASKS, rounds: int = ROUNDS) -> Resumed:
    with scratch() as folder:
        left = folder / "left.db"
        leave_half(left, tasks)

        def rounded(what: Callable[[Fleet], Awaitable[Value]], times: int = rounds) -> list[Value]:
            return [asyncio.run(_on_copy(left, what)) for _ in range(times)]

        weight = weigh(left)
        kept = asyncio.run(_on_copy(left, _loaded))
        assert len(kept.plan) == len(work.graph("layered", tasks)), f"the file has {len(kept.plan)} tasks of {tasks}"
        assert 0 < len(done(kept)) <= tasks // 2, f"{len(done(kept))} of {tasks} tasks were done before the crash"
        reads = rounded(_read)
        owned, begun = (min(column) for column in zip(*rounded(_until_it_goes_on), strict=True))
        rest = rounded(_until_the_end, 1)
        compactions = rounded(_shortened)
    best = Compaction(
        min(sample.whole for sample in compactions),
        min(sample.still for sample in compactions),
        min(sample.read for sample in compactions),
        compactions[0].weight,
    )
    return Resumed(tasks, len(done(kept)), kept.steps, min(reads), owned, begun, rest[0], weight, best)


# -- the file ----------------------------------------------------------------------------------------------------------


def leave_half(path: Path, tasks: int) -> None:
    """Let another process do half of a plan in this file, and be killed. Raises if it ended in any other way."""
    command = [sys.executable, "-m", "bench.durable.half", str(path), str(tasks)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ended.returncode != -signal.SIGKILL:
        raise RuntimeError(f"it was to be killed, and ended with {ended.returncode}:\n{ended.stderr[-4000:]}")


def weigh(path: Path) -> Weight:
    """All records of journals that are in the file, those of snapshots apart. Raises if there is no snapshot."""
    size = "SELECT count(*), coalesce(sum(length(CAST(value AS BLOB))), 0) FROM registers WHERE key LIKE "
    with closing(sqlite3.connect(path)) as connection:
        begun, first = connection.execute(f"{size} 'journal/%' AND value LIKE '{{\"schema\":_,\"part\":%'").fetchone()
        beside, taken = connection.execute(f"{size} 'snapshot/%'").fetchone()
        numbered, written = connection.execute(f"{size} 'journal/%'").fetchone()
        parts, snapshot, records, whole = begun + beside, first + taken, numbered + beside, written + taken
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    if not parts:
        raise AssertionError("there is no snapshot in the journal")
    return Weight(records, snapshot, whole - snapshot, pages * page_size)


async def _on_copy(left: Path, what: Callable[[Fleet], Awaitable[Value]]) -> Value:
    path = left.with_name("copy.db")
    with closing(sqlite3.connect(left)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)
    try:
        async with await Fleet.open(f"sqlite:///{path}") as fleet:
            gc.collect()
            return await what(fleet)
    finally:
        for file in left.parent.glob("copy.db*"):
            file.unlink()


# -- what is measured --------------------------------------------------------------------------------------------------


async def _loaded(fleet: Fleet) -> journal_store.StoredConstellation:
    return await journal_store.load(fleet.store, half.NAME, expressions)


def done(kept: journal_store.StoredConstellation) -> set[int]:
    """The tasks that the journal says have ended. Raises AssertionError if one of them failed."""
    wrong = [node.id for node in kept.plan.nodes.values() if node.status in TERMINAL and node.status is not COMPLETED]
    assert not wrong, f"{len(wrong)} tasks have not completed: {wrong[:5]}"
    return {int(node.id) for node in kept.plan.nodes.values() if node.status is COMPLETED}


async def _read(fleet: Fleet) -> float:
    began = time.perf_counter()
    await _loaded(fleet)
    return time.perf_counter() - began


async def _until_it_goes_on(fleet: Fleet) -> tuple[float, float]:
    """Until it is ours, and until the first task begins, which may come first: as a device it goes on with what was
    under way. Then it is left again."""
    begun: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def note() -> None:
        if not begun.done():
            begun.set_result(time.perf_counter())

    half.on_begin = note
    orchestrator = DurableOrchestrator(fleet, local=half.SLOTS)
    owned: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    add = orchestrator.scheduler.add

    def noted(execution: Execution, owner: object) -> None:
        owned.set_result(time.perf_counter())
        add(execution, owner)

    orchestrator.scheduler.add = noted  # type: ignore[method-assign]
    began = time.perf_counter()
    going = asyncio.create_task(orchestrator.run_stored(half.NAME))
    try:
        for wanted in (begun, owned):
            either: list[asyncio.Future[Any]] = [going, wanted]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not wanted.done():
                going.result()
                raise AssertionError("it ended and no task had begun")
    finally:
        half.on_begin = None
        going.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await going
    return owned.result() - began, begun.result() - began


async def _until_the_end(fleet: Fleet) -> float:
    """Raises unless all that was left was done, and nothing that was done was done again."""
    before = done(await _loaded(fleet))
    work.trace.clear()
    gc.collect()
    began = time.perf_counter()
    result = await DurableOrchestrator(fleet, local=half.SLOTS).run_stored(half.NAME)
    took = time.perf_counter() - began
    begun = [~mark for mark in work.trace if mark < 0]
    if again := before.intersection(begun):
        raise AssertionError(f"{len(again)} tasks that had ended were done again: {sorted(again)[:10]}")
    if len(begun) != len(set(begun)):
        raise AssertionError("a task that was left was done twice")
    names = {str(number) for number in range(len(result))}
    if left := names.difference(result.values):
        raise AssertionError(f"it is {result.state}: {len(left)} tasks have not completed")
    if missing := {int(name) for name in names}.difference(before, begun):
        raise AssertionError(f"{len(missing)} tasks were never executed: {sorted(missing)[:10]}")
    if len(done(await _loaded(fleet))) != len(result):
        raise AssertionError("the file does not say that all tasks have completed")
    return took


async def _shortened(fleet: Fleet) -> Compaction:
    """Shorten the journal now, long or not."""
    kept = await _loaded(fleet)
    before, limits = kept.head.first, (compaction.LONG_JOURNAL, compaction.STEPS_PER_TASK)
    journal = journal_writer.JournalWriter(fleet.store, fleet.clock, random.Random(0), kept, _raise)
    gc.collect()
    compaction.LONG_JOURNAL = compaction.STEPS_PER_TASK = 0
    try:
        async with Watch() as watch:
            began = time.perf_counter()
            await journal.commit()
            compaction.LONG_JOURNAL, compaction.STEPS_PER_TASK = limits
            await journal.compaction.wait()
            whole = time.perf_counter() - began
    finally:
        compaction.LONG_JOURNAL, compaction.STEPS_PER_TASK = limits
    head, _ = await journal_store.read_head(fleet.store, half.NAME)
    if head.first <= before:
        raise AssertionError("the journal was not shortened")
    if done(await _loaded(fleet)) != done(kept):
        raise AssertionError("the shortened journal is that of another plan")
    read = await _read(fleet)
    return Compaction(whole, watch.longest, read, weigh(Path(fleet.store.url.removeprefix("sqlite:///"))))


def _raise(error: Exception) -> None:
    raise error


class Watch:
    """The longest time for which the event loop did nothing else, in seconds: it looks at the clock all the time."""

    TICK = 0.001

    def __init__(self) -> None:
        self.longest = 0.0

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(2 * self.TICK)  # it has to see the end of the last stop
        self._looking.cancel()
        await asyncio.wait([self._looking])

    async def _look(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(self.TICK)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now
