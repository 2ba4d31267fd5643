"""``apscheduler``: an ``AsyncIOScheduler`` whose jobs are in SQLite; measured is from the first ``add_job`` to the end
of the last job.

It knows no dependencies: a listener adds a task as a job that is due at once when the last of its parents has ended. A
job is in the table from ``add_job`` until it is handed over; the table keeps nothing of what has ended, so a graph
could not be continued after a crash. The proof of a record is the row that was written and removed again.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import loop
from bench.durable.peers import Measure, recorded
from bench.durable.work import STEP, trace
from bench.graphs import Graph, check, children
from bench.measure import Sample, timed

NAME = "apscheduler"
SETTINGS = (
    f"{loop.WORDS}; `AsyncIOScheduler` with a `SQLAlchemyJobStore` as it comes: rollback journal, `synchronous=FULL`; "
    "a listener adds a task when its parents have ended; a job is kept until it begins, and nothing of it after"
)
LIMIT = {"wide": 1_000, "chain": 500, "layered": 1_000}


def VERSION() -> str:
    return version("apscheduler")


async def _execute(scheduler: Any, graph: Graph) -> None:
    from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED

    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting, below, left = [len(parents) for parents in graph], children(graph), len(graph)

    def add(number: int) -> None:
        scheduler.add_job(STEP, args=[number], id=str(number), misfire_grace_time=None)

    def heard(event: Any) -> None:
        nonlocal left
        if event.code != EVENT_JOB_EXECUTED:
            if not ended.done():
                ended.set_exception(RuntimeError(f"job {event.job_id} did not complete: {event.exception}"))
            return
        left -= 1
        for child in below[int(event.job_id)]:
            waiting[child] -= 1
            if not waiting[child]:
                add(child)
        if not left:
            ended.set_result(None)

    scheduler.add_listener(heard, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
    for number, parents in enumerate(graph):
        if not parents:
            add(number)
    await ended


def _run(path: Path, graph: Graph) -> Sample:
    from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
    from apscheduler.schedulers.asyncio import AsyncIOScheduler
    from sqlalchemy import event

    store = SQLAlchemyJobStore(f"sqlite:///{path}")
    rows: Counter[str] = Counter()

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        rows[statement.split(maxsplit=1)[0]] += cursor.rowcount

    with loop.runner() as runner:

        async def opened() -> Any:
            scheduler = AsyncIOScheduler(jobstores={"default": store})
            scheduler.start()  # on the loop that runs
            return scheduler

        scheduler = runner.run(opened())
        event.listen(store.engine, "after_cursor_execute", note)
        try:
            sample = timed(len(graph), lambda: runner.run(_execute(scheduler, graph)))
            left = store.get_all_jobs()
        finally:
            scheduler.shutdown()
            runner.run(asyncio.sleep(0))  # it does so in the next step of the loop
    assert not left, f"{len(left)} jobs are still in the table"
    recorded(rows["INSERT"], len(graph), "rows written")
    recorded(rows["DELETE"], len(graph), "rows removed")
    return sample


@contextmanager
def session(folder: Path) -> Iterator[Measure]:
    numbers = itertools.count()

    def measure(graph: Graph) -> Sample:
        trace.clear()
        sample = _run(folder / f"{next(numbers)}.db", graph)
        check(graph, trace)
        return sample

    yield measure
