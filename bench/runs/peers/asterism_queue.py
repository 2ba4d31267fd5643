"""Asterism: eight devices with as many slots as the batch is large, each with a fleet of its own, on one store."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version

import bench.runs.work
from asterism.base.startup import tune_gc
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.store.postgres import PostgresStore
from asterism.store.protocol import Store
from bench.runs.counting import counted
from bench.runs.peers import Timing
from bench.runs.work import NOTHING

NAME = "asterism"
SETTINGS = (
    "devices with as many slots as the batch is large, on one store; on uvloop; created with `create_many`, a thousand "
    "at a time"
)
UVLOOP = True
DONE = """
SELECT count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status <> 'completed') FROM asterism.runs
"""


def VERSION() -> str:
    return version("asterism")


async def work(url: str, jobs: int, batch: int, workers: int) -> Timing:
    return await let_work(url, jobs, batch, workers, stores=1)


async def let_work(url: str, jobs: int, batch: int, workers: int, *, stores: int) -> Timing:
    """``stores`` is on how many stores the devices are; each has connections of its own."""
    tune_gc()  # as `asterism device join` does
    async with AsyncExitStack() as stack:
        ended = Ended(jobs)
        opened: list[Store] = []
        for _ in range(stores):
            store, counting = counted(await PostgresStore.open(url))
            counting.ended = ended.one_more
            stack.push_async_callback(store.close)
            opened.append(store)
        fleets = [Fleet(opened[number % stores]) for number in range(workers)]
        for fleet in fleets:
            stack.push_async_callback(fleet.waiters.close)
        began = time.perf_counter()
        await create(fleets[0], jobs)
        created, cpu = time.perf_counter(), time.process_time()
        agents = [DeviceAgent(fleet, f"device-{number}", slots=batch) for number, fleet in enumerate(fleets)]
        living = [asyncio.create_task(agent.run()) for agent in agents]
        await until(ended.all, living)
        worked, cpu = time.perf_counter(), time.process_time() - cpu
        for agent in agents:
            agent.drain()
        await asyncio.gather(*living)
    executed_once(jobs)
    return Timing(created - began, worked - created, cpu)


def executed_once(jobs: int) -> None:
    """Raise AssertionError unless this process has done as many jobs as there are: together with the table, which has
    an end of each, each was done once."""
    assert bench.runs.work.executed == jobs, f"{jobs} jobs, and {bench.runs.work.executed} executions"


class Ended:
    """Counts the runs that have ended."""

    def __init__(self, expected: int) -> None:
        self.left = expected
        self.all = asyncio.Event()

    def one_more(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.all.set()


async def create(fleet: Fleet, number: int) -> None:
    flow = await fleet.workflows.add(Workflow("nothing", call=NOTHING))
    await fleet.create_many(flow, ({"number": job} for job in range(number)))


async def until(event: asyncio.Event, living: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the event; if one of those who should bring it about ends before, say why."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait([waiting, *living], return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        for task in living:
            if task.done():
                task.result()
        raise RuntimeError("a worker ended before its work was done")
