"""The plugin that runs async tests: which loop they get, how their fixtures are entered, and that they can fail."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.testing.virtual_time import SimLoop
from tests.async_tests import async_fixture

ROOT = Path(__file__).resolve().parents[1]


@async_fixture
async def entered() -> AsyncIterator[asyncio.Task[None] | None]:
    async with asyncio.timeout(100.0):
        yield asyncio.current_task()


async def test_a_test_has_an_ordinary_loop() -> None:
    await asyncio.sleep(0)
    assert not isinstance(asyncio.get_running_loop(), SimLoop)


@pytest.mark.virtual_time
async def test_a_test_in_virtual_time_begins_at_zero_and_does_not_wait() -> None:
    await asyncio.sleep(1e6)
    assert asyncio.get_running_loop().time() == 1e6


@pytest.mark.virtual_time(tick=0.5)
async def test_a_test_may_say_how_its_clock_ticks() -> None:
    loop = asyncio.get_running_loop()
    assert loop.time() < loop.time()


@pytest.mark.virtual_time(seeds=3)
async def test_a_test_runs_with_each_seed(seed: int) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    assert (seed in range(3), loop._random is not None) == (True, True)


@given(seed=st.integers(0, 9))
@pytest.mark.virtual_time
async def test_each_example_of_hypothesis_has_a_loop_of_its_own(seed: int) -> None:
    assert asyncio.get_running_loop().time() == 0.0
    await asyncio.sleep(seed + 1)


@pytest.mark.virtual_time
async def test_an_async_fixture_is_entered_in_the_task_of_the_test(entered: asyncio.Task[None]) -> None:
    assert entered is asyncio.current_task()
    assert entered.get_coro().__name__ == "test_an_async_fixture_is_entered_in_the_task_of_the_test"
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(101.0)
    entered.uncancel()


@pytest.mark.slow
@pytest.mark.long
def test_what_an_async_test_raises_fails_it_and_a_fixture_is_left_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "test_failures.py").write_text(
        """\
import pytest
from hypothesis import given, strategies as st
from tests.async_tests import async_fixture

@async_fixture
async def resource():
    try:
        yield 1
    finally:
        print("the fixture is left")

async def test_plain(): assert 1 == 2

@pytest.mark.virtual_time
async def test_virtual(): assert 1 == 2

async def test_fixture(resource): assert resource == 2

@given(st.integers())
async def test_example(number): assert number == 5
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.async_tests", "-p", "no:cacheprovider", "-q", tmp_path],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert "4 failed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("the fixture is left") >= 1
