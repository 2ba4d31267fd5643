"""What a pending task weighs."""

import asyncio
import gc
import tracemalloc

from asterism import Constellation, Task

BAR = 0.6 * 1024
"""Bytes per pending independent task, the plan alone."""

SIZE = 100_000


async def _noop() -> None:
    await asyncio.sleep(0)


def bytes_per_task(size: int = SIZE) -> float:
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    plan = Constellation("memory")
    for number in range(size):
        plan.add(Task(f"task-{number}", call=_noop))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan) == size
    return (after - before) / size
