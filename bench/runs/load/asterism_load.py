"""Asterism: a device for each worker; runs are created one by one, or with ``create_many``."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from asterism.base.startup import tune_gc
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from bench.runs.load import DEAD_AFTER, HEARTBEAT, SLOTS, Put
from bench.runs.peers.asterism_queue import DONE as DONE

SETTINGS = (
    f"a `DeviceAgent` with {SLOTS} slots, heartbeats every {HEARTBEAT:g} s, all timeouts of {DEAD_AFTER:g} s; "
    "`create`, and `create_many` for many at once"
)


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Put]:
    async with await Fleet.open(url) as fleet:
        flow = await fleet.workflows.add(
            Workflow(
                "job",
                call="bench.runs.load:job",
                heartbeat=HEARTBEAT,
                heartbeat_timeout=DEAD_AFTER,
                assignment_timeout=DEAD_AFTER,
                claim_timeout=DEAD_AFTER,
            )
        )

        async def put(numbers: Sequence[int], seconds: float) -> None:
            inputs = [{"number": number, "seconds": seconds} for number in numbers]
            if len(inputs) == 1:
                await fleet.create(flow, inputs[0])
            else:
                await fleet.create_many(flow, inputs)

        yield put


async def serve(url: str, name: str, stop: asyncio.Event) -> None:
    tune_gc()  # as `asterism device join` does
    async with await Fleet.open(url) as fleet:
        agent = DeviceAgent(
            fleet,
            name,
            slots=SLOTS,
            heartbeat=HEARTBEAT,
            heartbeat_timeout=DEAD_AFTER,
            monitor_every=HEARTBEAT,
            lease=DEAD_AFTER,
            replace=True,  # it may come after one of its name that was killed
        )
        living = asyncio.create_task(agent.run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([living, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        agent.drain()
        await living
