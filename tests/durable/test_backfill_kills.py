"""Processes that are killed with -9 while they carry a backfill on: each tick has one plan, and it counts once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from asterism.base.clock import Looks, beside
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import read_heads
from asterism.durable.plan_runner import PlanRunner
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import SchedulePass
from tests.watched_commits import commits, watched_process


async def prepare(url: str, done: Path, days: int) -> None:
    plan = Constellation("daily")
    plan.add(Task("a", call="tests.durable.durable_work:write_line", inputs={"file": str(done), "line": "{tick.date}"}))
    async with await Fleet.open(url) as fleet:
        await fleet.schedules.add("daily", plan=plan, cron="0 3 * * *", timezone="Europe/Berlin")
        await fleet.schedules.pause("daily")
        now = datetime.now(UTC)
        first, last = (f"{now - timedelta(days=number):%Y-%m-%d}" for number in (days + 1, 2))
        assert (await fleet.schedules.start_backfill("daily", first, last, parallel=4)).total == days


async def carry_on(url: str, tell: int) -> None:
    """Carry the backfill on and run its plans, until it has ended. Writes a byte before each commit."""
    async with await Fleet.open(url) as fleet:
        commit = fleet.store.commit

        async def telling(writes: object) -> None:
            os.write(tell, b".")
            await commit(writes)  # type: ignore[arg-type]

        fleet.store.commit = telling  # type: ignore[method-assign]
        runner = PlanRunner(fleet, every=0.2, make=lambda own: DurableOrchestrator(own, local=4))
        schedules = SchedulePass(fleet)
        async with beside(runner.run()):
            async for _ in Looks(interval=0.02):
                await schedules.run_pass()
                if (await fleet.schedules.read_backfill("daily")).ended_at is not None:
                    break


async def check(url: str, done: Path, days: int) -> None:
    async with await Fleet.open(url) as fleet:
        backfill = await fleet.schedules.read_backfill("daily")
        assert (backfill.succeeded, backfill.failed, backfill.skipped) == (days, 0, 0)
        assert backfill.ended_at is not None
        heads = await read_heads(fleet.store)
        assert Counter(head.state for head in heads) == {"completed": days}
        assert await fleet.store.check() == []
    assert len(set(done.read_text().splitlines())) == days  # every day has been worked on, and only those


def kill_repeatedly(folder: Path, days: int, kills: int) -> None:
    url, done, chance = f"sqlite:///{folder}/fleet.db", folder / "done", random.Random(kills)
    asyncio.run(prepare(url, done, days))
    for _ in range(kills):
        with watched_process(partial(carry_on, url)) as (child, told):
            assert commits(told, chance.randint(1, 2 * days // kills)), "it had ended before the last kill"
            os.kill(child, signal.SIGKILL)
    with watched_process(partial(carry_on, url)):
        pass
    asyncio.run(check(url, done, days))


def test_each_tick_of_a_backfill_counts_once_although_processes_are_killed(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, days=8, kills=3)


@pytest.mark.long
def test_a_year_of_days_and_ten_kills(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, days=365, kills=10)
