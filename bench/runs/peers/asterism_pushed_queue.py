"""Asterism, pushed instead of pulled: one fleet creates runs and assigns each to a device in the same write, while the
devices claim and do them. ``created`` is until the last one is created, ``worked`` until the last one has ended, both
from the first creation on."""

import asyncio
import time
from contextlib import AsyncExitStack
from importlib.metadata import version

from asterism.base.startup import tune_gc
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.store.postgres import PostgresStore
from bench.runs.counting import counted
from bench.runs.peers import Timing
from bench.runs.peers.asterism_queue import Ended, create, until
from bench.runs.work import NOTHING

NAME = "asterism, pushed"
SETTINGS = "created and assigned by one more fleet while the devices claim and work; on uvloop"
UVLOOP = True


def VERSION() -> str:
    return version("asterism")


async def work(url: str, jobs: int, batch: int, workers: int) -> Timing:
    tune_gc()  # as `asterism device join` does
    async with AsyncExitStack() as stack:
        ended = Ended(jobs)
        store, counting = counted(await PostgresStore.open(url))
        counting.ended = ended.one_more
        stack.push_async_callback(store.close)
        fleets = [Fleet(store) for _ in range(workers + 1)]
        for fleet in fleets:
            stack.push_async_callback(fleet.waiters.close)
        await fleets[0].workflows.add(Workflow("nothing", call=NOTHING))
        agents = [DeviceAgent(fleet, f"device-{number}", slots=batch) for number, fleet in enumerate(fleets[1:])]
        living = [asyncio.create_task(agent.run()) for agent in agents]
        for agent in agents:
            await until(agent.joined, living)
        began, cpu = time.perf_counter(), time.process_time()
        await create(fleets[0], jobs)
        created = time.perf_counter()
        await until(ended.all, living)
        worked, cpu = time.perf_counter(), time.process_time() - cpu
        for agent in agents:
            agent.drain()
        await asyncio.gather(*living)
    return Timing(created - began, worked - began, cpu)
