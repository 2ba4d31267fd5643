"""Soak: days of a fleet in virtual time. Neither what a process remembers nor what the store keeps grows with time."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Any

import pytest

from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.fleet.device.executor import RunWork
from asterism.fleet.device.worker import GRANTS_REMEMBERED
from asterism.fleet.monitor import PRUNE_INTERVAL, WHOLE_PRUNE_INTERVAL, Monitor
from asterism.store.protocol import PutRegister
from tests.fleet.fleet_scenes import WORK, Hands, Stage

pytestmark = pytest.mark.virtual_time

KEEP = 3600.0
EVERY = 120.0
"""A run begins as often, in seconds."""


class Quick(Hands):
    """Does its work at once, and remembers nothing of it. Each run is judged by itself."""

    async def execute(self, work: RunWork) -> Any:
        return "done"

    def judges_each(self, run: Any) -> bool:
        return True


def sizes(*owners: object) -> dict[str, int]:
    """How many members the collections of these objects have, by name."""
    return {
        f"{type(owner).__name__}.{name}": len(value)
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, Sized) and not isinstance(value, str | bytes)
    }


async def hours(stage: Stage, monitor: Monitor, number: float, first: int) -> int:
    """Runs of plans, one after the other, each with work of its own, and passes of the monitor."""
    end = stage.now() + number * 3600.0
    while stage.now() < end:
        work = replace(WORK.work, description=f"{first}")
        ended = PutRegister(f"plan/{first}", {"ended_at": stage.store.clock()}, None)
        await stage.store.commit([ended])
        now, origin = stage.store.clock(), (f"plan:{first}", 0)
        run = transitions.create(f"{first:010}", work, {"n": first}, by="ann", now=now, origin=origin)
        await stage.person.ledger.add(run, lambda offered: offered)  # to all, so that the device judges it
        first += 1
        for _ in range(int(EVERY / 10.0)):
            await asyncio.sleep(10.0)
            await monitor.run_pass()
    return first


@pytest.mark.store_only("it is about the process that has the store")
@pytest.mark.long
@pytest.mark.parametrize("days", [0.25, 3.0])
async def test_nothing_grows_with_time(stage: Stage, monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    monkeypatch.setattr("asterism.fleet.device.claimer.MOST_KINDS", 40)
    await stage.person.configure(keep=KEEP)
    monitor = stage.monitor("hub")
    device = await stage.device("kitchen")
    device.hands = device.agent.worker.executor = Quick()
    owners = (stage.store, monitor, monitor.fleet, monitor._schedules)
    parts = (device.agent.claimer, device.agent.worker, device.agent.heartbeat, device.fleet)
    made = await hours(stage, monitor, 24.0 * days / 2, 0)
    before = sizes(*owners, *parts)
    await hours(stage, monitor, 24.0 * days / 2, made)
    after = sizes(*owners, *parts)
    assert after.pop("Worker._past_grants") <= GRANTS_REMEMBERED
    assert {name: (before[name], size) for name, size in after.items() if size > before[name] + 12} == {}
    assert after["MemoryStore._runs"] <= (KEEP + PRUNE_INTERVAL) / EVERY + 2
    assert after["MemoryStore._registers"] <= 3 * (KEEP + 2 * WHOLE_PRUNE_INTERVAL) / EVERY


@pytest.mark.store_only("it is about the process that has the store")
async def test_an_ended_run_is_removed_soon_after_its_time(stage: Stage) -> None:
    await stage.person.configure(keep=1000.0)
    monitor = stage.monitor("hub")
    run = await stage.person.create(WORK)
    await stage.person.cancel(run.id)
    await monitor.run_pass()
    waited = 0.0
    while await stage.person.runs():
        await asyncio.sleep(5.0)
        waited += 5.0
        await monitor.run_pass()
    assert 1000.0 <= waited <= 1060.0, "not minutes later"
