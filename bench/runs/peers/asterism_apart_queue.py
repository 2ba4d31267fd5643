"""Asterism: eight devices as before, each with a store of its own, as if each were a process."""

from importlib.metadata import version

from bench.runs.peers import Timing, asterism_queue

NAME = "asterism, a store each"
SETTINGS = "the same, each device with a store of its own, as if it were a process of its own; on uvloop"
UVLOOP = True
DONE = asterism_queue.DONE


def VERSION() -> str:
    return version("asterism")


async def work(url: str, jobs: int, batch: int, workers: int) -> Timing:
    return await asterism_queue.let_work(url, jobs, batch, workers, stores=workers)
