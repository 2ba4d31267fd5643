"""Virtual time: a clock that jumps, an order that follows the seed, and reported deadlocks."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from asterism.testing.virtual_time import Deadlock, SimLoop, run
from tests.laboratory.simulator.simulation import SimulationLoop


def test_time_is_virtual_and_begins_at_zero() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        for seconds in (1, 600, 0.25, 86_400):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        return times

    began = time.monotonic()
    assert run(main()) == pytest.approx([0, 1, 601, 601.25, 601.25 + 86_400])
    assert time.monotonic() - began < 3600, "it was a day"


def test_a_year_passes_like_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [0]
    advance = SimLoop.advance

    def count(loop: SimLoop, seconds: float) -> None:
        turns[0] += 1
        assert turns[0] < 10_000, f"the clock is stuck at {loop.time()!r}"
        advance(loop, seconds)

    monkeypatch.setattr(SimLoop, "advance", count)

    async def main() -> float:
        await asyncio.sleep(86_400 * 365)
        await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(86_400 * 365)


def test_time_stands_still_while_anything_can_run() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(main()) == 0


def test_timers_fire_in_their_order_whatever_the_seed() -> None:
    async def main() -> list[int]:
        fired: list[int] = []
        loop = asyncio.get_running_loop()
        for n in (5, 3, 1, 4, 2):
            loop.call_later(n, fired.append, n)
        await asyncio.sleep(10)
        return fired

    for seed in (None, 0, 1, 2):
        assert run(main(), seed=seed) == [1, 2, 3, 4, 5]


async def race() -> list[str]:
    """Run eight tasks that take turns."""
    order: list[str] = []

    async def runner(name: str) -> None:
        for lap in range(3):
            order.append(f"{name}{lap}")
            await asyncio.sleep(0)

    await asyncio.gather(*(runner(name) for name in "abcdefgh"))
    return order


def test_one_seed_is_one_run() -> None:
    for seed in range(5):
        assert run(race(), seed=seed) == run(race(), seed=seed)


def test_different_seeds_are_different_runs() -> None:
    assert len({tuple(run(race(), seed=seed)) for seed in range(20)}) > 15


def test_without_a_seed_the_order_is_that_of_asyncio() -> None:
    assert run(race()) == asyncio.run(race())


def test_a_deadlock_is_reported() -> None:
    async def main() -> None:
        await asyncio.sleep(2)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match=r"deadlock at 2\.000 s: no callback is ready"):
        run(main())


def test_a_deadlock_of_several_tasks_is_reported_and_all_are_cleaned_up() -> None:
    ended: list[str] = []

    async def wait(event: asyncio.Event, name: str) -> None:
        try:
            await event.wait()
        finally:
            ended.append(name)

    async def main() -> None:
        await asyncio.gather(wait(asyncio.Event(), "a"), wait(asyncio.Event(), "b"))

    with pytest.raises(Deadlock):
        run(main())
    assert sorted(ended) == ["a", "b"]


def test_a_deadlock_of_a_task_that_cannot_be_cancelled_is_reported_and_the_loop_closed() -> None:
    loops: list[Any] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if len(loops) > 1:
                    raise
                loops.append(None)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Deadlock):
            run(main())
    closed = loops[0].is_closed()
    loops[0].close()
    assert closed


def test_an_exception_of_main_is_raised() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(main())


def test_tasks_that_are_left_are_cancelled_and_the_loop_is_closed() -> None:
    ended: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("background")

    async def main() -> asyncio.Task[None]:
        loops.append(asyncio.get_running_loop())
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        return task

    task = run(main())
    assert ended == ["background"]
    assert task.cancelled()
    assert loops[0].is_closed()
    assert isinstance(loops[0], SimLoop)


def test_timeouts_and_conditions_of_asyncio_work_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await asyncio.sleep(10_000)
        done, pending = await asyncio.wait([asyncio.ensure_future(asyncio.sleep(50))], timeout=10)
        assert (len(done), len(pending)) == (0, 1)
        await asyncio.wait(pending)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(650)


def test_an_async_generator_that_was_left_open_is_closed() -> None:
    closed: list[str] = []

    async def numbers() -> Any:
        try:
            while True:
                yield 1
        finally:
            closed.append("numbers")

    generators: list[Any] = []

    async def main() -> None:
        generators.append(numbers())
        assert await anext(generators[0]) == 1

    run(main())
    assert closed == ["numbers"]


def test_timers_for_one_instant_come_in_an_order_that_the_seed_decides() -> None:
    async def main() -> tuple[int, ...]:
        order: list[int] = []
        for number in range(5):
            asyncio.get_running_loop().call_later(1.0, order.append, number)
        await asyncio.sleep(2)
        assert asyncio.get_running_loop().time() == 2.0
        return tuple(order)

    assert len({run(main(), seed) for seed in range(30)}) > 5
    assert run(main(), 7) == run(main(), 7)


@pytest.mark.parametrize(
    "loop", [SimLoop, lambda: SimLoop(7), lambda: SimulationLoop(7)], ids=["virtual", "seeded", "simulation"]
)
@pytest.mark.parametrize("until", [1.0000004, 1.0000005, 0.1 + 0.2, 3.0000015000000003, 86_400 * 365.0000001])
def test_a_timer_never_fires_before_its_time(loop: Callable[[], SimLoop], until: float) -> None:
    waits = [0]

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        while clock() < until:  # as a program does that may be woken early
            waits[0] += 1
            assert waits[0] < 10, f"the clock is stuck at {clock()!r}"
            await asyncio.sleep(until - clock())
        assert clock() == pytest.approx(until, abs=2e-6)

    simulated = loop()
    try:
        simulated.run_until_complete(main())
    finally:
        simulated.close()
