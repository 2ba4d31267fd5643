"""What the tasks of these benchmarks do: next to nothing, and leave proof of it in this process."""

import asyncio

from bench.graphs import Graph, chain, independent, layers

STEP = "bench.durable.work:step"
WIDTH = 20
"""How many tasks are in a layer."""

trace: list[int] = []
"""What ``bench.graphs.check`` reads. A durable task is named by its import path: it has no other place to leave it."""


async def step(number: int) -> None:
    trace.append(~number)
    await asyncio.sleep(0)
    trace.append(number)


def graph(shape: str, tasks: int) -> Graph:
    """``wide``, ``chain`` or ``layered``, of so many tasks (in whole layers)."""
    if shape == "layered":
        return layers(max(1, tasks // WIDTH), WIDTH)
    return {"wide": independent, "chain": chain}[shape](tasks)
