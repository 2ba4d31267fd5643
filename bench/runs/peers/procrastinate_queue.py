"""``procrastinate``: the workers of one app on one pool of connections."""

import asyncio
import logging
import time
from importlib.metadata import version

from bench.runs.peers import Timing

NAME = "procrastinate"
SETTINGS = (
    "`concurrency` as large as the batch (it fetches jobs one by one), a pool of two connections per worker that does "
    "not try a connection before it is used, on uvloop; deferred a thousand at a time"
)
UVLOOP = True
DONE = """
SELECT count(*) FILTER (WHERE status = 'succeeded'), count(*) FILTER (WHERE status <> 'succeeded')
FROM procrastinate_jobs
"""
AT_ONCE = 1000


def VERSION() -> str:
    return version("procrastinate")


async def work(url: str, jobs: int, batch: int, workers: int) -> Timing:
    from procrastinate import App, PsycopgConnector
    from psycopg_pool import AsyncConnectionPool

    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    app = App(connector=PsycopgConnector())
    executed = 0

    @app.task(name="nothing")
    async def nothing(number: int) -> None:
        nonlocal executed
        executed += 1

    pool = AsyncConnectionPool(url, min_size=2 * workers, max_size=2 * workers, open=False)
    async with pool, app.open_async(pool):
        await app.schema_manager.apply_schema_async()
        began = time.perf_counter()
        for first in range(0, jobs, AT_ONCE):
            await nothing.batch_defer_async(*({"number": job} for job in range(first, min(jobs, first + AT_ONCE))))
        created, cpu = time.perf_counter(), time.process_time()
        options = {"concurrency": batch, "wait": False, "install_signal_handlers": False, "listen_notify": False}
        await asyncio.gather(*(app.run_worker_async(**options) for _ in range(workers)))
        worked, cpu = time.perf_counter(), time.process_time() - cpu
    if executed != jobs:
        raise RuntimeError(f"{executed} of {jobs} jobs were executed")
    return Timing(created - began, worked - created, cpu)
