"""``procrastinate``: an app with a pool for each worker, and the periodic task of its documents that retries the jobs
of workers which are gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from bench.runs.load import DEAD_AFTER, HEARTBEAT, SLOTS, Put, job

SETTINGS = (
    f"`concurrency={SLOTS}`, woken by `LISTEN`, a pool of two connections, heartbeats every {HEARTBEAT:g} s, a "
    "periodic task that retries stalled jobs every two seconds; `defer_async`, and `batch_defer_async` for many at once"
)
DONE = """
SELECT count(*) FILTER (WHERE status = 'succeeded'), count(*) FILTER (WHERE status <> 'succeeded')
FROM procrastinate_jobs WHERE task_name = 'job'
"""


@asynccontextmanager
async def _application(url: str) -> AsyncIterator[Any]:
    from procrastinate import App, PsycopgConnector
    from psycopg_pool import AsyncConnectionPool

    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = App(connector=PsycopgConnector())
    app.task(name="job")(job)

    @app.periodic(cron="* * * * * */2")
    @app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs", pass_context=True)
    async def retry_stalled_jobs(context: Any, timestamp: int) -> None:
        for stalled in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=DEAD_AFTER):
            await app.job_manager.retry_job(stalled)

    pool = AsyncConnectionPool(url, min_size=2, max_size=2, open=False)
    async with pool, app.open_async(pool):
        yield app


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    async with _application(url) as app:
        await app.schema_manager.apply_schema_async()
        task = app.tasks["job"]

        async def put(numbers: Sequence[int], seconds: float) -> None:
            if len(numbers) == 1:
                await task.defer_async(number=numbers[0], seconds=seconds)
            else:
                await task.batch_defer_async(*({"number": number, "seconds": seconds} for number in numbers))

        yield put


async def serve(url: str, name: str, stop: asyncio.Event) -> None:
    async with _application(url) as app:
        worker = asyncio.create_task(
            app.run_worker_async(
                name=name,
                concurrency=SLOTS,
                install_signal_handlers=False,
                update_heartbeat_interval=HEARTBEAT,
                stalled_worker_timeout=DEAD_AFTER,
            )
        )
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([worker, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        worker.cancel()  # it ends its jobs
        with suppress(asyncio.CancelledError):
            await worker
