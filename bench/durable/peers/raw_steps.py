"""The bare limit: an asyncio loop and the ``sqlite3`` module, with two commits for each task, one before and one after.

Nothing else is kept and nothing could go on after a crash. Tasks are done one by one in the order of the graph: two
commits at a time are not possible, so nothing would be gained by more at once.
"""

import itertools
import platform
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench import loop
from bench.durable.peers import Measure, recorded
from bench.durable.work import step, trace
from bench.graphs import Graph, check
from bench.measure import Sample, timed

NAME = "raw"
SETTINGS = (
    f"a bare event loop ({loop.WORDS}), two commits for each task with `sqlite3`, one task after the other; "
    "write-ahead log, `synchronous=FULL`"
)
LIMIT = {"wide": 10_000, "chain": 2_000, "layered": 10_000}


def VERSION() -> str:
    return f"SQLite {sqlite3.sqlite_version}, Python {platform.python_version()}"


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE steps (number INTEGER PRIMARY KEY, status TEXT NOT NULL, at REAL NOT NULL)")
    return connection


async def _all(connection: sqlite3.Connection, tasks: int) -> None:
    execute = connection.execute  # without a transaction of its own, each statement is a commit
    for number in range(tasks):
        execute("INSERT INTO steps VALUES (?, 'running', ?)", (number, time.time()))
        await step(number)
        execute("UPDATE steps SET status = 'completed', at = ? WHERE number = ?", (time.time(), number))


@contextmanager
def session(folder: Path) -> Iterator[Measure]:
    numbers = itertools.count()

    def measure(graph: Graph) -> Sample:
        trace.clear()
        with closing(_opened(folder / f"{next(numbers)}.db")) as connection:
            with loop.runner() as runner:
                runner.get_loop()
                sample = timed(len(graph), lambda: runner.run(_all(connection, len(graph))))
            completed = connection.execute("SELECT count(*) FROM steps WHERE status = 'completed'").fetchone()[0]
        check(graph, trace)
        recorded(completed, len(graph), "rows")
        return sample

    yield measure
