"""The watchdog over event loops barks at a step that takes too long, and at nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from asterism.testing.virtual_time import SimLoop
from tests.loop_watchdog import ALLOWED, COUNT_EVERY, Stall, Watchdog, allowed

LIMIT = 0.01


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    """One of its own, on top of the one that watches this test, on a machine of its own."""
    started = Watchdog(LIMIT, stolen=lambda: 0.0)
    started.start()
    yield started
    started.stop()


def compute(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


async def busy_step() -> None:
    await asyncio.sleep(0)
    compute(8 * LIMIT)


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "real": asyncio.SelectorEventLoop,
    "virtual": SimLoop,
    "seeded": lambda: SimLoop(7),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_step_that_computes_for_too_long_is_named(watchdog: Watchdog, kind: str) -> None:
    running = LOOPS[kind]()
    try:
        running.run_until_complete(asyncio.wait_for(busy_step(), 60))
    finally:
        running.close()
    [stall] = watchdog.stalls
    assert "busy_step" in stall.step or "wait_for" in stall.step
    assert stall.seconds > LIMIT


async def test_a_callback_is_named_too_and_where_it_was(watchdog: Watchdog) -> None:
    for _ in range(20):  # one that the host interrupts may be over before it was looked at twice
        asyncio.get_running_loop().call_soon(compute, 8 * LIMIT)
        await asyncio.sleep(0)
        if watchdog.stalls[-1].where:
            break
    assert {stall.step for stall in watchdog.stalls} == {"the callback compute"}
    assert "compute" in watchdog.stalls[-1].where


async def test_waiting_is_no_stall(watchdog: Watchdog) -> None:
    """Neither for a timer nor, on a busy machine, for the processor: a step that sleeps uses none of it."""
    await asyncio.sleep(2 * LIMIT)
    time.sleep(4 * LIMIT)  # noqa: ASYNC251 # what a busy machine does to a step
    assert watchdog.stalls == []


def test_time_that_the_host_gave_to_others_is_not_blamed_on_the_step() -> None:
    stolen = 0.0
    watchdog = Watchdog(LIMIT, stolen=lambda: stolen)

    async def charged_for_it() -> None:
        nonlocal stolen
        compute(8 * LIMIT)
        stolen += 8 * LIMIT

    watchdog.start()
    try:
        asyncio.run(charged_for_it())
        assert watchdog.stalls == []
        asyncio.run(asyncio.sleep(2 * COUNT_EVERY))
        asyncio.run(busy_step())  # what was stolen before does not count
    finally:
        watchdog.stop()
    assert [stall.step for stall in watchdog.stalls] == ["the task busy_step"]


def test_only_named_steps_are_allowed_and_each_has_a_reason() -> None:
    assert all(len(step.reason) > 40 for step in ALLOWED)
    stall = Stall("the task Execution._work", 1.0, "")
    assert not allowed("tests/orchestrator/test_request_tasks.py::test_x", stall)
    assert not allowed("tests/cli/test_cli_http.py::test_x", stall)
