"""The yardstick: the executor that one writes by hand when the graph never changes.

A counter of open parents per task, one asyncio task each, no retries, no timeouts, no story, no events.
"""

import asyncio
import platform
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from bench.graphs import Graph, check, children
from bench.measure import Sample, timed_async
from bench.peers import Measure

NAME = "bare asyncio"
LIMIT = 100_000


def VERSION() -> str:
    return platform.python_version()


async def execute(graph: Graph, body: Callable[[int], Awaitable[object]]) -> None:
    """Run `body(task)` for each task of the graph, as soon as its parents have ended."""
    if not graph:
        return
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    dependents = children(graph)
    open_parents = [len(parents) for parents in graph]
    running: list[asyncio.Task[None]] = []  # the loop itself holds tasks only weakly
    left = len(graph)

    async def perform(task: int) -> None:
        nonlocal left
        try:
            await body(task)
        except BaseException as error:
            if not finished.done():
                finished.set_exception(error)
            return
        for dependent in dependents[task]:
            open_parents[dependent] -= 1
            if not open_parents[dependent]:
                running.append(loop.create_task(perform(dependent)))
        left -= 1
        if not left:
            finished.set_result(None)

    for task, parents in enumerate(graph):
        if not parents:
            running.append(loop.create_task(perform(task)))
    await finished


def run(graph: Graph) -> Sample:
    """Measure `execute`, counters and all."""
    trace: list[int] = []

    async def body(task: int) -> None:
        trace.append(~task)
        await asyncio.sleep(0)
        trace.append(task)

    sample = timed_async(len(graph), lambda: execute(graph, body))
    check(graph, trace)
    return sample


@contextmanager
def session() -> Iterator[Measure]:
    yield run
