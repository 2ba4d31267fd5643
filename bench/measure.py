"""How one run of one graph is measured: wall time and processor time, the latter with child processes."""

import asyncio
import gc
import os
import resource
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a whole graph: how many tasks it had, and the seconds that all of them took together."""

    tasks: int
    wall: float
    cpu: float

    @property
    def wall_per_task(self) -> float:
        return self.wall / self.tasks

    @property
    def cpu_per_task(self) -> float:
        return self.cpu / self.tasks


def timed_result(
    tasks: int, work: Callable[[], Value], clock: Callable[[], float] = time.process_time
) -> tuple[Sample, Value]:
    """What `work` takes, and what it returns; `clock` counts processor seconds, of this process alone unless told
    otherwise."""
    cpu, wall = clock(), time.perf_counter()
    value = work()
    return Sample(tasks, time.perf_counter() - wall, clock() - cpu), value


def timed(tasks: int, work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> Sample:
    """What `work` takes."""
    return timed_result(tasks, work, clock)[0]


def timed_result_async(tasks: int, work: Callable[[], Coroutine[object, object, Value]]) -> tuple[Sample, Value]:
    """What `work` takes on an existing event loop, and what it returns. (Programs do not start a loop for every
    graph.)"""
    with asyncio.Runner() as runner:
        runner.get_loop()
        return timed_result(tasks, lambda: runner.run(work()))


def timed_async(tasks: int, work: Callable[[], Coroutine[object, object, object]]) -> Sample:
    return timed_result_async(tasks, work)[0]


def best_of(function: Callable[[], Sample], repeats: int) -> Sample:
    """The least wall time and the least processor time of several runs: what disturbs a run only adds."""
    samples = []
    for _ in range(repeats):
        gc.collect()  # no run pays for the garbage of the one before
        samples.append(function())
    return Sample(samples[0].tasks, min(s.wall for s in samples), min(s.cpu for s in samples))


def family_cpu() -> float:
    """Processor seconds of this process and of all its descendants, ended or alive.

    The system counts living descendants in ticks of 10 ms: use graphs that take much longer than that.
    """
    import psutil  # type: ignore[import-not-found,import-untyped,unused-ignore]

    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in psutil.Process(os.getpid()).children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:  # ended between the two calls
            continue
        # What it has waited for itself, its own dead workers, is known to it alone.
        seconds += times.user + times.system + times.children_user + times.children_system
    return float(seconds)
