"""``pgqueuer``: a ``PgQueuer`` for each worker, on a connection of its own, with its autovacuum settings."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from bench.runs.load import DEAD_AFTER, SLOTS, Put, job
from bench.runs.peers.pgqueuer_queue import DONE as DONE

SETTINGS = (
    f"a `PgQueuer` with `batch_size={SLOTS}` and a connection of its own, `optimize_autovacuum`, `heartbeat_timeout` "
    f"and `dequeue_timeout` of {DEAD_AFTER:g} s; `enqueue`"
)


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[Any]:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver

    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    connection = await asyncpg.connect(url)
    try:
        yield AsyncpgDriver(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    from pgqueuer.queries import Queries

    async with _connection(url) as driver:
        queries = Queries(driver)
        await queries.install()
        await queries.optimize_autovacuum()

        async def put(numbers: Sequence[int], seconds: float) -> None:
            contents = [json.dumps({"number": number, "seconds": seconds}).encode() for number in numbers]
            await queries.enqueue(["job"] * len(contents), contents, [0] * len(contents))

        yield put


async def serve(url: str, name: str, stop: asyncio.Event) -> None:
    from pgqueuer.applications import PgQueuer

    async with _connection(url) as driver:
        queuer = PgQueuer(driver)

        async def pass_on() -> None:
            await stop.wait()
            queuer.shutdown.set()

        @queuer.entrypoint("job")
        async def execute(queued: Any) -> None:
            await job(**json.loads(queued.payload))

        silence = timedelta(seconds=DEAD_AFTER)
        stopping = asyncio.create_task(pass_on())
        try:
            await queuer.run(batch_size=SLOTS, heartbeat_timeout=silence, dequeue_timeout=silence)
        finally:
            stopping.cancel()
