"""Coordinators that are killed with -9 while they decide about ticks: every tick is created once, and none is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from asterism.core.run.work import Workflow
from asterism.core.schedule.ticks import moved_to
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import SchedulePass, read_schedule, schedule_key, ticks_of
from asterism.store.protocol import PutRegister, Query
from tests.watched_commits import commits, watched_process

HOUR = 3600
TICKS = 90
"""How many ticks of each schedule are due."""


async def prepare(url: str, schedules: int) -> None:
    """Schedules whose last ticks were missed."""
    async with await Fleet.open(url) as fleet:
        await fleet.workflows.add(Workflow("work", argv=("true",)))
        for number in range(schedules):
            name = f"s{number}"
            options = {"overlap": "queue"} if number % 2 else {"overlap": "allow"}
            await fleet.schedules.add(name, workflow="work", every=HOUR, catch_up="all", **options)
            stored = await read_schedule(fleet.store, name)
            assert stored is not None
            before = float(stored.schedule.start - TICKS * HOUR)
            late = moved_to(stored.schedule, before, ticks_of(stored.schedule))
            await fleet.store.commit([PutRegister(schedule_key(name), late.to_json(), stored.revision)])


async def decide(url: str, told: int) -> None:
    """Decide about ticks until none is due, and write a byte before each commit."""
    async with await Fleet.open(url) as fleet:
        commit = fleet.store.commit

        async def telling(writes: object) -> None:
            os.write(told, b".")
            await commit(writes)  # type: ignore[arg-type]

        fleet.store.commit = telling  # type: ignore[method-assign]
        passes = SchedulePass(fleet)
        while await passes.run_pass() == 0.0:
            pass


async def check(url: str, schedules: int) -> None:
    async with await Fleet.open(url) as fleet:
        runs = await fleet.store.find(Query())
        keys = Counter(run.key for run in runs)
        assert set(keys.values()) == {1}
        assert len(keys) == schedules * TICKS
        for number in range(schedules):
            schedule = await fleet.schedules.get(f"s{number}")
            entries = await fleet.schedules.history(f"s{number}")
            assert (schedule.made, [entry.outcome for entry in entries]) == (TICKS, ["created"] * TICKS)
            ticks = [entry.tick for entry in entries if entry.tick is not None]
            assert ticks == list(range(ticks[0], ticks[0] + TICKS * HOUR, HOUR))
        assert await fleet.store.check() == []


def kill_repeatedly(folder: Path, kills: int, schedules: int) -> None:
    url, chance, killed = f"sqlite:///{folder}/fleet.db", random.Random(kills), 0
    asyncio.run(prepare(url, schedules))
    per_kill = max(1, schedules * TICKS // (2 * kills))
    while killed < kills:
        with watched_process(partial(decide, url)) as (child, told):
            assert commits(told, chance.randint(1, per_kill)), "it had decided about everything before the last kill"
            os.kill(child, signal.SIGKILL)
            killed += 1
    with watched_process(partial(decide, url)), watched_process(partial(decide, url)):
        pass
    asyncio.run(check(url, schedules))


def test_each_tick_is_created_once_although_coordinators_are_killed(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, kills=3, schedules=1)


@pytest.mark.long
def test_fifty_kills(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, kills=50, schedules=6)
