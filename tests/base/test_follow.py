"""The follow loop: how many looks there are, which is the last, and how long the pauses are."""

from __future__ import annotations

from asterism.base.follow import Looks


class FakeClock:
    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


async def test_the_last_look_is_the_last_that_fits_the_timeout() -> None:
    for timeout, looks in ((0.0, 1), (0.9, 1), (1.0, 2), (3.5, 4), (1000.0, 1001)):
        clock = FakeClock()
        assert [last async for last in Looks(clock, interval=1.0, timeout=timeout)] == [*[False] * (looks - 1), True]
        assert clock.pauses == [1.0] * (looks - 1)


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
