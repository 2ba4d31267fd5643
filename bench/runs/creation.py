"""PostgreSQL: jobs put into a queue a thousand at a time, without anybody who works, beside pgqueuer.

Both are measured in this process, turn by turn, each in a new database. Beside the rate there is the processor time
that a job costs this process and the server: it varies much less than the rate on a machine that has other work.
"""

import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import psutil  # type: ignore[import-not-found,import-untyped,unused-ignore]

from asterism.base.startup import tune_gc
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from bench import loop
from bench.runs.server import ask, database, server
from bench.runs.work import NOTHING
from tests.store.postgres_server import Server

JOBS = 10_000
AT_ONCE = 1000

Create = Callable[[str, int], Coroutine[Any, Any, tuple[float, float]]]
"""From the address of a database and a number of jobs to seconds, and processor seconds of this process."""


@dataclass
class Creation:
    """A queue: for each round the seconds, and the processor seconds of this process and of the server."""

    name: str
    jobs: int
    seconds: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Jobs per second in the best round."""
        return self.jobs / min(self.seconds)

    @property
    def cost(self) -> float:
        """Processor seconds for each job in the best round, of this process and the server together."""
        return min(map(sum, zip(self.client, self.server, strict=True))) / self.jobs


async def asterism(url: str, jobs: int) -> tuple[float, float]:
    tune_gc()  # as `asterism device join` does
    async with await Fleet.open(url) as fleet:
        flow = await fleet.workflows.add(Workflow("nothing", call=NOTHING))
        began, cpu = time.perf_counter(), time.process_time()
        await fleet.create_many(flow, ({"number": number} for number in range(jobs)))
        return time.perf_counter() - began, time.process_time() - cpu


async def pgqueuer(url: str, jobs: int) -> tuple[float, float]:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(url)
    try:
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        began, cpu = time.perf_counter(), time.process_time()
        for first in range(0, jobs, AT_ONCE):
            number = min(AT_ONCE, jobs - first)
            await queries.enqueue(["nothing"] * number, [b"1"] * number, [0] * number)
        return time.perf_counter() - began, time.process_time() - cpu
    finally:
        await connection.close()


QUEUES: dict[str, Create] = {"asterism": asterism, "pgqueuer": pgqueuer}
WAITING = {
    "asterism": "SELECT count(*) FROM asterism.runs WHERE status = 'created'",
    "pgqueuer": "SELECT count(*) FROM pgqueuer WHERE status = 'queued'",
}
"""The query by which each queue's own table says how many jobs wait."""


def compare(rounds: int = 5, jobs: int = JOBS) -> list[Creation]:
    creations = [Creation(name, jobs) for name in QUEUES if find_spec(name) is not None]
    with server() as running:
        for _ in range(rounds):
            for creation in creations:
                measure(running, creation)
    return creations


def measure(running: Server, creation: Creation) -> None:
    """One more round of a queue."""
    with database(running) as url, loop.runner() as runner:
        before = _processor_time(running)
        seconds, client = runner.run(QUEUES[creation.name](url, creation.jobs))
        creation.seconds.append(seconds)
        creation.client.append(client)
        creation.server.append(_processor_time(running) - before)
        waiting = int(ask(running, url, WAITING[creation.name]))
        assert waiting == creation.jobs, f"{waiting} of {creation.jobs} jobs of {creation.name} are in the queue"


def _processor_time(running: Server) -> float:
    """The processor seconds of a server: of its processes, and of those that it has waited for."""
    running.sql("SELECT 1")  # meanwhile the processes of closed connections end
    line = (running.folder / "data" / "postmaster.pid").read_text().splitlines()[0]
    process = psutil.Process(int(line))
    own = process.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)
