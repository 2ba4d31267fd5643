"""Asterism, pushed instead of pulled: one fleet creates runs and assigns each to a device in the same write, while the
devices claim and do them. ``created`` is until the last one is created, ``worked`` until the last one has ended, both
from the first creation on."""

import asyncio
import time
from contextlib import AsyncExitStack
from importlib.metadata import version

from asterism.base.startup import tune_gc
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.store.postgres import PostgresStore
from bench.runs.counting import counted
from bench.runs.peers import Timing, asterism_queue
from bench.runs.peers.asterism_queue import Ended, until
from bench.runs.work import NOTHING

NAME = "asterism, pushed"
SETTINGS = "created and assigned by one more fleet while the devices claim and work; on uvloop"
UVLOOP = True
DONE = asterism_queue.DONE
AT_ONCE = 1000
"""So many runs are being created at any time."""


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
        flow = await fleets[0].workflows.add(Workflow("nothing", call=NOTHING))
        agents = [DeviceAgent(fleet, f"device-{number}", slots=batch) for number, fleet in enumerate(fleets[1:])]
        living = [asyncio.create_task(agent.run()) for agent in agents]
        for agent in agents:
            await until(agent.joined, living)
        began, cpu = time.perf_counter(), time.process_time()
        await create(fleets[0], flow, jobs)
        created = time.perf_counter()
        await until(ended.all, living)
        worked, cpu = time.perf_counter(), time.process_time() - cpu
        for agent in agents:
            agent.drain()
        await asyncio.gather(*living)
    asterism_queue.executed_once(jobs)
    return Timing(created - began, worked - began, cpu)


async def create(fleet: Fleet, flow: Workflow, number: int) -> None:
    """One by one, since `create_many` leaves the choice of a device to the devices."""
    left = iter(range(number))

    async def creator() -> None:
        for job in left:
            await fleet.create(flow, {"number": job})

    await asyncio.gather(*(creator() for _ in range(min(AT_ONCE, number))))
