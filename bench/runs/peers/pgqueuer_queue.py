"""``pgqueuer``: a ``PgQueuer`` per worker, each on a connection of its own, with its autovacuum settings."""

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

from bench.runs.peers import Timing

NAME = "pgqueuer"
SETTINGS = (
    "`batch_size`, an asyncpg connection per worker, `optimize_autovacuum`, durable, draining, on uvloop; "
    "enqueued a thousand at a time"
)
UVLOOP = True
DONE = """
SELECT count(*) FILTER (WHERE status = 'successful'),
       count(*) FILTER (WHERE status NOT IN ('queued', 'picked', 'successful')) + (SELECT count(*) FROM pgqueuer)
FROM pgqueuer_log
"""
AT_ONCE = 1000


def VERSION() -> str:
    return version("pgqueuer")


async def work(url: str, jobs: int, batch: int, workers: int) -> Timing:
    import asyncpg
    from pgqueuer.applications import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.types import QueueExecutionMode

    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    async with AsyncExitStack() as stack:

        async def queries() -> Any:
            connection = await asyncpg.connect(url)
            stack.push_async_callback(connection.close)
            return recording()(AsyncpgDriver(connection))

        producer = await queries()
        await producer.install()
        await producer.optimize_autovacuum()
        began = time.perf_counter()
        for first in range(0, jobs, AT_ONCE):
            number = min(AT_ONCE, jobs - first)
            await producer.enqueue(["nothing"] * number, [b"1"] * number, [0] * number)
        created, cpu = time.perf_counter(), time.process_time()
        repositories = [await queries() for _ in range(workers)]
        queuers = [PgQueuer(repository.driver, queries=repository) for repository in repositories]
        for queuer in queuers:
            queuer.entrypoint("nothing")(_nothing)
        await asyncio.gather(*(queuer.run(batch_size=batch, mode=QueueExecutionMode.drain) for queuer in queuers))
        cpu = time.process_time() - cpu
        done = sum(repository.done for repository in repositories)
        if done != jobs:
            raise RuntimeError(f"{done} of {jobs} jobs were done")
        return Timing(created - began, max(repository.last for repository in repositories) - created, cpu)


async def _nothing(job: Any) -> None:
    pass


def recording() -> Any:
    """A repository that notes when it last recorded jobs as done: a worker goes on for a while after that, to see
    whether there is more."""
    from pgqueuer.queries import Queries

    class Recording(Queries):
        done = 0
        last = 0.0

        async def log_jobs(self, job_status: list[Any]) -> None:
            await super().log_jobs(job_status)
            self.done += len(job_status)
            self.last = time.perf_counter()

    return Recording
