"""``dbos``: one workflow whose tasks are steps; measured is the workflow, from its start to its result.

A workflow has to start its steps in an order that is the same every time. So a wave of tasks whose parents have ended
is gathered, and the next wave waits for all of it. Steps that are plain functions are quicker, but nothing else happens
while one of them is at work: ``dbos_sync_steps.py`` measures those.
"""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from sqlite3 import connect
from typing import Any

from bench import loop
from bench.durable.peers import Measure, recorded
from bench.durable.work import step, trace
from bench.graphs import Graph, check, waves
from bench.measure import Sample, timed

NAME = "dbos"
SETTINGS = (
    f"{loop.WORDS}; one workflow, each task a `DBOS.step` that is a coroutine, waves gathered; its system database in "
    "SQLite as it comes: rollback journal, `synchronous=FULL`"
)
Known = dict[str, list[list[int]]]
LIMIT = {"wide": 1_000, "chain": 500, "layered": 1_000}


def VERSION() -> str:
    return version("dbos")


def _workflow(known: Known, sync: bool) -> Any:
    """A workflow that does the waves of that name: it must be registered before it is known what they are."""
    from dbos import DBOS  # type: ignore[import-not-found,unused-ignore]

    if sync:

        @DBOS.step()
        def mark(number: int) -> None:
            trace.extend((~number, number))

        @DBOS.workflow()
        def one_by_one(name: str) -> None:
            for wave in known[name]:
                for number in wave:
                    mark(number)

        return one_by_one

    task: Any = DBOS.step(name="step")(step)

    @DBOS.workflow()
    async def gathered(name: str) -> None:
        for wave in known[name]:
            await asyncio.gather(*(task(number) for number in wave))

    return gathered


@contextmanager
def session(folder: Path, sync: bool = False) -> Iterator[Measure]:
    from dbos import DBOS

    path = folder / "dbos.sqlite"
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
    known: Known = {}
    workflow = _workflow(known, sync)
    DBOS.launch()
    numbers = itertools.count()
    runner = loop.runner()  # one for all: with its loop DBOS loses the threads that it writes with

    def measure(graph: Graph) -> Sample:
        name = str(next(numbers))
        known[name] = waves(graph)
        trace.clear()
        before = _records(path)
        sample = timed(len(graph), lambda: workflow(name) if sync else runner.run(workflow(name)))
        check(graph, trace)
        recorded(_records(path) - before, len(graph), "recorded steps")
        return sample

    try:
        with runner:
            yield measure
    finally:
        DBOS.destroy()


def _records(path: Path) -> int:
    with closing(connect(path, timeout=30)) as connection:
        return int(connection.execute("SELECT count(*) FROM operation_outputs").fetchone()[0])
