"""The tasks of plans that a server runs: a module of its own, so that the server imports nothing else of the benchmarks
while a plan runs."""

import asyncio

TASK_SECONDS = 0.02
DONE = "done"
"""What each task returns."""


async def step() -> str:
    """What a task does."""
    await asyncio.sleep(TASK_SECONDS)
    return DONE


async def wait() -> None:
    await asyncio.sleep(3600.0)
