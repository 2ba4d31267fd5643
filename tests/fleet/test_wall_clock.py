"""The wall clock of a machine jumps by an hour, and its records in a store elsewhere have the right time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from itertools import pairwise

import pytest

from asterism.base.clock import BootClock
from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from tests.process_scenes import PATIENCE

HOUR = 3600.0
RIGHT = 300.0
"""A time is right if it is off by less than this, in seconds: a test may take as long."""

DEVICE = """
import asyncio, sys, time

jump = 0.0
real_time, real_gettime = time.time, time.clock_gettime
time.time = lambda: real_time() + jump
time.clock_gettime = lambda clock: real_gettime(clock) + (jump if {faked} else 0.0)

from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet

{ablation}

async def main(url, seconds):
    global jump
    async with await Fleet.open(url) as fleet:
        agent = DeviceAgent(fleet, "kitchen", heartbeat=30.0, heartbeat_timeout=90.0, monitor_every=2.0)
        working = asyncio.create_task(agent.run())
        await agent.joined.wait()
        print("joined", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        jump = float(seconds)
        print("jumped", flush=True)
        await working

asyncio.run(main(*sys.argv[1:]))
"""

WALL, ALL = "clock == time.CLOCK_REALTIME", "clock != time.CLOCK_MONOTONIC"
"""Ways to set the clock, and to fake it."""

FOLLOWS_THE_WALL_CLOCK = """
from asterism.store.postgres.connection import ServerClock
ServerClock.__init__.__defaults__ = (time.time,)
"""


async def runs_across(url: str, device: subprocess.Popen[str]) -> tuple[list[Run], float]:
    """One that is under way when the clock of its device jumps, and some that are done after that; and the time of the
    store when all have ended."""
    async with await Fleet.open(url) as fleet:
        flow = Workflow("hello", shell='test "$wait" = no || sleep 2; echo hello', retries=3)
        first = await fleet.create(flow, {"wait": "yes"})
        watch = fleet.store.watch(frozenset())
        async with asyncio.timeout(PATIENCE):
            while (await fleet.run(first.id)).status != "processing":
                await watch.wait(0.05)
            await asyncio.to_thread(say, device)
            later = [await fleet.create(flow, {"wait": "no"}) for _ in range(5)]
            return [await fleet.wait(run.id) for run in (first, *later)], fleet.store.clock()


def say(device: subprocess.Popen[str]) -> None:
    assert device.stdin is not None
    assert device.stdout is not None
    device.stdin.write("now\n")
    device.stdin.flush()
    assert device.stdout.readline() == "jumped\n"


def across_a_jump(url: str, jump: float, faked: str = WALL, ablation: str = "") -> tuple[list[Run], float]:
    program = DEVICE.replace("{ablation}", ablation).replace("{faked}", faked)
    device = subprocess.Popen(
        [sys.executable, "-c", program, url, str(jump)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert device.stdout is not None
        assert device.stdout.readline() == "joined\n"
        return asyncio.run(runs_across(url, device))
    finally:
        device.kill()
        device.communicate()


def times(run: Run) -> list[float]:
    return [
        run.created_at,
        *(entry.at for entry in run.story),
        *(time for assignment in run.previous for time in (assignment.assigned_at, assignment.ended_at)),
        *(time for time in (run.assigned_at, run.claimed_at, run.started_at, run.ended_at) if time is not None),
    ]


BACK = pytest.param(-HOUR, marks=pytest.mark.long)


@pytest.mark.parametrize("faked", [pytest.param(WALL, id="wall"), pytest.param(ALL, id="all", marks=pytest.mark.long)])
@pytest.mark.parametrize("jump", [HOUR, BACK])
def test_records_of_a_device_are_right_although_its_wall_clock_jumps(
    postgres_url: str, jump: float, faked: str
) -> None:
    runs, now = across_a_jump(postgres_url, jump, faked)
    for run in runs:
        assert run.status == "completed"
        assert all(now - RIGHT < time <= now + 1.0 for time in times(run)), run
        assert all(earlier.at <= later.at for earlier, later in pairwise(run.story))
        assert run.created_at <= (run.started_at or 0.0) <= (run.ended_at or 0.0)


@pytest.mark.parametrize("jump", [HOUR, BACK])
@pytest.mark.long
def test_if_it_followed_its_wall_clock_it_would_be_an_hour_off(postgres_url: str, jump: float) -> None:
    runs, now = across_a_jump(postgres_url, jump, ablation=FOLLOWS_THE_WALL_CLOCK)
    off = [run for run in runs if any(abs(now - time) > RIGHT for time in times(run))]
    if jump > 0:
        assert off
    else:  # a story never goes back in time, so it stands still
        assert any(run.started_at == run.ended_at for run in runs)


def test_the_own_clock_of_a_device_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    real, jump = time.clock_gettime, 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + jump)
    clock = BootClock()
    before = clock.time()
    jump = -HOUR
    assert before <= clock.time() < before + RIGHT
    jump = HOUR
    assert clock.time() >= before + (HOUR if hasattr(time, "CLOCK_BOOTTIME") else 0.0)
