"""Processes that are killed with -9 while events continue plans and create others: each event counts once for each."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from asterism.base.clock import Looks, beside
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import read_heads
from asterism.durable.plan_runner import PlanRunner
from asterism.durable.plan_submissions import submit_plan
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import SchedulePass
from asterism.fleet.sent_events import latest_events, send_event
from tests.watched_commits import commits, watched_process


def ordering(name: str, event: str, done: Path) -> Constellation:
    """A plan that waits for an event and then writes a line with its data."""
    plan = Constellation(name)
    plan.add(Task("paid", wait_for={"event": event}))
    line = {"file": str(done), "line": {"from": "paid"}}
    plan.add(Task("ship", call="tests.durable.durable_work:write_line", inputs=line), "paid")
    return plan


async def prepare(url: str, done: Path, number: int) -> None:
    """Plans that wait for half of the events, and a schedule that creates a plan for each of all."""
    async with await Fleet.open(url) as fleet:
        await fleet.schedules.add("orders", plan=ordering("order", "paid/*", done), on_event="paid/*", parallel=3)
        for order in range(0, number, 2):
            await submit_plan(fleet, ordering(f"waits-{order}", f"paid/{order}", done))


async def carry_on(url: str, number: int, tell: int) -> None:
    """Send the events, each under its key, create plans for them and run all plans until they have ended. Writes a
    byte before each commit."""
    async with await Fleet.open(url) as fleet:
        commit = fleet.store.commit

        async def telling(writes: object) -> None:
            os.write(tell, b".")
            await commit(writes)  # type: ignore[arg-type]

        fleet.store.commit = telling  # type: ignore[method-assign]
        runner = PlanRunner(fleet, every=0.2, make=lambda own: DurableOrchestrator(own, local=4))
        decide = SchedulePass(fleet)
        async with beside(runner.run()):
            for order in range(number):
                await send_event(fleet.store, f"paid/{order}", f"order {order}", key=f"invoice {order}")
                await decide.run_pass()
            async for _ in Looks(interval=0.05):
                await decide.run_pass()
                if await ended(fleet) == expected(number):
                    break


def expected(number: int) -> int:
    return number + (number + 1) // 2


async def ended(fleet: Fleet) -> int:
    return sum(head.ended for head in await read_heads(fleet.store))


async def check(url: str, done: Path, number: int) -> None:
    async with await Fleet.open(url) as fleet:
        heads = await read_heads(fleet.store)
        assert Counter(head.state for head in heads) == {"completed": expected(number)}
        names = {f"orders-event-{event}" for event in range(1, number + 1)}
        assert {head.name for head in heads} == names | {f"waits-{order}" for order in range(0, number, 2)}
        assert len(await latest_events(fleet.store, None, 10 * number)) == number
        assert await fleet.store.check() == []
    lines = Counter(done.read_text().splitlines())
    assert set(lines) == {f"order {order}" for order in range(number)}
    assert all(lines[f"order {order}"] >= 2 for order in range(0, number, 2))  # at least once for each of its two plans


def kill_repeatedly(folder: Path, number: int, kills: int) -> None:
    url, done, chance = f"sqlite:///{folder}/fleet.db", folder / "done", random.Random(kills)
    asyncio.run(prepare(url, done, number))
    for _ in range(kills):
        with watched_process(partial(carry_on, url, number)) as (child, told):
            assert commits(told, chance.randint(1, 3 * number // kills)), "it had ended before the last kill"
            os.kill(child, signal.SIGKILL)
    with watched_process(partial(carry_on, url, number)):
        pass
    asyncio.run(check(url, done, number))


def test_no_event_is_lost_or_counts_twice_although_processes_are_killed(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, number=4, kills=2)


@pytest.mark.long
def test_processes_are_killed_twenty_times(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path, number=40, kills=20)
