"""The arithmetic of the measurements; no test depends on how long anything takes."""

import asyncio
import gc

import pytest

from bench.measure import Sample, best_of, timed, timed_async


def test_a_sample_knows_the_time_per_task() -> None:
    sample = Sample(tasks=4, wall=2.0, cpu=1.0)
    assert (sample.wall_per_task, sample.cpu_per_task) == (0.5, 0.25)


def test_best_of_takes_the_least_of_each_clock() -> None:
    samples = iter([Sample(10, 3.0, 1.0), Sample(10, 2.0, 2.0), Sample(10, 4.0, 3.0)])
    assert best_of(lambda: next(samples), 3) == Sample(10, 2.0, 1.0)


def test_best_of_collects_garbage_before_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def run() -> Sample:
        order.append("run")
        return Sample(1, 1.0, 1.0)

    monkeypatch.setattr(gc, "collect", lambda: order.append("collect"))
    best_of(run, 2)
    assert order == ["collect", "run"] * 2


def test_timed_reads_the_clock_it_is_given_around_the_work() -> None:
    readings = iter([5.0, 7.5])
    done: list[bool] = []
    sample = timed(3, lambda: done.append(True), lambda: next(readings))
    assert (sample.tasks, sample.cpu, done) == (3, 2.5, [True])
    assert sample.wall >= 0


def test_timed_async_runs_the_work_on_a_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())

    assert timed_async(2, work).tasks == 2
    assert loops[0].is_closed()
