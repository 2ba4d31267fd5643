"""The follow loop: how many looks there are, which is the last, and how long the pauses are."""

from __future__ import annotations

import pytest

from asterism.base.clock import Looks


class FakeClock:
    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


async def test_the_last_look_is_when_the_timeout_is_over() -> None:
    for timeout, pauses in ((0.0, []), (0.9, [0.9]), (1.0, [1.0]), (3.5, [1.0, 1.0, 1.0, 0.5]), (1000.0, [1.0] * 1000)):
        clock = FakeClock()
        looks = [last async for last in Looks(clock, interval=1.0, timeout=timeout)]
        assert looks == [*[False] * len(pauses), True]
        assert clock.pauses == pauses


@pytest.mark.parametrize("interval", [0.1, 0.2, 0.3, 1 / 3])
async def test_no_pause_is_left_out_since_floats_are_not_exact(interval: float) -> None:
    clock = FakeClock()
    async for _ in Looks(clock, interval=interval, timeout=5.0):
        pass
    assert clock.now == pytest.approx(5.0)


async def test_without_a_timeout_it_looks_until_it_is_left() -> None:
    clock = FakeClock()
    async for last in Looks(clock, interval=0.5):
        assert not last
        if len(clock.pauses) == 1000:
            break
    assert clock.now == 500.0


async def test_after_a_slow_look_the_rest_is_longer() -> None:
    clock = FakeClock()
    async for _ in Looks(clock, interval=1.0, rest=4.0):
        if len(clock.pauses) == 3:
            break
        clock.now += (0.1, 2.0, 0.25)[len(clock.pauses)]
    assert clock.pauses == [1.0, 8.0, 1.0]


async def test_long_rests_count_for_the_timeout() -> None:
    clock = FakeClock()
    async for _ in Looks(clock, interval=1.0, timeout=20.0, rest=20.0):
        clock.now += 0.25
    assert clock.pauses == [5.0] * 4
    clock = FakeClock()
    async for _ in Looks(clock, interval=1.0, timeout=20.0, rest=20.0):
        clock.now += 0.625
    assert clock.pauses == [12.5, 7.5]
