"""Asterism itself: a constellation on one local device without a limit; measured is `Orchestrator.run`."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

from asterism import Constellation, LocalDevice, Orchestrator, Task
from bench.graphs import Graph, check
from bench.measure import Sample, timed_result_async
from bench.peers import Measure
from bench.proof import check_plan, nothing

NAME = "asterism"
LIMIT = 100_000


def VERSION() -> str:
    return version("asterism")


def bodies(trace: list[int]) -> Callable[[int], Callable[[], Awaitable[None]]]:
    """The same body as the other executors', one function per task as users write them."""

    def make(task: int) -> Callable[[], Awaitable[None]]:
        async def body() -> None:
            trace.append(~task)
            await asyncio.sleep(0)
            trace.append(task)

        return body

    return make


def build(graph: Graph, trace: list[int]) -> Constellation:
    plan, make = Constellation("bench"), bodies(trace)
    for task, parents in enumerate(graph):
        plan.add(Task(str(task), call=make(task)), after=map(str, parents))
    return plan


def run(graph: Graph) -> Sample:
    """Measure one run of a plan that has been built."""
    trace: list[int] = []
    plan = build(graph, trace)
    gc.collect()  # building is not measured, nor is what the collector does for it; the bare executor builds nothing
    sample, result = timed_result_async(len(graph), lambda: Orchestrator([LocalDevice("here")]).run(plan))
    check(graph, trace)
    check_plan(result, nothing(range(len(graph))))
    return sample


@contextmanager
def session() -> Iterator[Measure]:
    yield run
