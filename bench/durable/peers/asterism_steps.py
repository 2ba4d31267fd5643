"""Asterism itself: a constellation in a SQLite file, all of its tasks done by this process; measured is
``DurableOrchestrator.run``, which keeps the plan, joins the fleet, does every task as a run, and leaves."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from asterism import Constellation, Task
from asterism.base.startup import tune_gc
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.fleet.fleet import Fleet
from bench import loop
from bench.durable.peers import Measure
from bench.durable.work import STEP, trace
from bench.graphs import Graph, check
from bench.measure import Sample, timed_result
from bench.proof import check_plan, check_stored_plan, nothing

NAME = "asterism"
SLOTS = 1000
SETTINGS = (
    f"`DurableOrchestrator(fleet, local={SLOTS:,})`, the store as it comes: write-ahead log, `synchronous=FULL`; "
    f"{loop.WORDS}"
)
LIMIT = {"wide": 10_000, "chain": 2_000, "layered": 10_000}


def VERSION() -> str:
    return version("asterism")


def build(name: str, graph: Graph) -> Constellation:
    plan = Constellation(name)
    for task, parents in enumerate(graph):
        plan.add(Task(str(task), call=STEP, inputs={"number": task}), after=map(str, parents))
    return plan


def _run(path: Path, graph: Graph) -> Sample:
    plan = build("bench", graph)
    tune_gc()  # as `asterism run` does
    with loop.runner() as runner:
        fleet = runner.run(Fleet.open(f"sqlite:///{path}"))
        try:
            orchestrator = DurableOrchestrator(fleet, local=SLOTS)
            sample, result = timed_result(len(graph), lambda: runner.run(orchestrator.run(plan)))
        finally:
            runner.run(fleet.close())
    check_plan(result, nothing(range(len(graph))))
    return sample


async def check_file(path: Path, graph: Graph) -> None:
    """Raise AssertionError unless the file, opened anew, says that each task was done once, and completed."""
    async with await Fleet.open(f"sqlite:///{path}") as fleet:
        await check_stored_plan(fleet.store, "bench", nothing(range(len(graph))))


@contextmanager
def session(folder: Path) -> Iterator[Measure]:
    numbers = itertools.count()

    def measure(graph: Graph) -> Sample:
        path = folder / f"{next(numbers)}.db"
        trace.clear()
        sample = _run(path, graph)
        check(graph, trace)
        asyncio.run(check_file(path, graph))
        return sample

    yield measure
