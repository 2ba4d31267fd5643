"""Workflows with heartbeats of their own, and work from all sides, on one device."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.run.run import Progress, Run
from asterism.core.run.work import Workflow
from asterism.fleet.device.worker import Worker
from asterism.store.protocol import Write
from asterism.store.store_errors import Conflict
from tests.fleet.fleet_scenes import WORK, Clock, Stage

pytestmark = pytest.mark.virtual_time

# -- many paces ------------------------------------------------------------------------------------------------------


async def test_a_device_renews_its_lease_before_work_with_a_shorter_heartbeat(stage: Stage) -> None:
    """Its own heartbeat is so slow that the store might take the run away before it hears of it again."""
    brisk = Workflow("brisk", call="work:do", heartbeat=1.0, heartbeat_timeout=4.0)
    kitchen = await stage.device("kitchen", heartbeat=300.0, heartbeat_timeout=900.0, monitor_every=5.0)
    await asyncio.sleep(200.0)
    beats = kitchen.line.asked["heartbeat"]
    run = await stage.person.create(brisk)
    await stage.at_work(kitchen, run)
    assert kitchen.line.asked["heartbeat"] > beats
    await asyncio.sleep(100.0)
    assert kitchen.hands.stopped == []
    assert kitchen.line.asked["heartbeat"] >= beats + 90, "it keeps up the pace of its work"
    kitchen.hands.finish(run)
    assert (await stage.end_of(run)).epoch == 1


@pytest.mark.virtual_time(seed=1)
async def test_many_workflows_of_different_pace_live_on_one_device(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=6, heartbeat=60.0, heartbeat_timeout=200.0, monitor_every=2.0)
    paces = [0.5, 1.0, 5.0, 20.0, 60.0]
    flows = [Workflow(f"w{pace}", call="work:do", heartbeat=pace, heartbeat_timeout=3 * pace) for pace in paces]
    runs: list[Run] = [await stage.person.create(flow) for flow in flows]
    for run in runs:
        await stage.at_work(kitchen, run)
    await asyncio.sleep(500.0)
    assert kitchen.hands.busy == {run.id for run in runs}
    for run in runs:
        kitchen.hands.finish(run)
        assert (await stage.end_of(run)).epoch == 1


@pytest.mark.virtual_time(seeds=5)
async def test_a_desk_never_starts_more_than_it_has_slots_for_when_work_comes_from_all_sides(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=2, backlog=2)
    most = 0

    async def create(fleet: Any) -> None:
        for _ in range(10):
            await fleet.create(WORK, priority=stage.person.chance.randint(0, 3))

    async def work() -> None:
        nonlocal most
        for _ in range(200):
            most = max(most, len(kitchen.hands.busy))
            for run_id in kitchen.hands.busy:
                kitchen.hands.finish(run_id)
            await asyncio.sleep(0.5)

    await asyncio.gather(create(kitchen.fleet), create(stage.person), create(stage.fleet("hub")), work())
    assert most == 2
    assert all(run.status == "completed" for run in await stage.person.runs())


async def test_one_grant_is_begun_once_however_often_it_comes(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    worker: Worker = kitchen.agent.worker
    stored = await stage.read(run)
    for _ in range(3):
        worker.receive(stored, Clock().time())
    assert (len(worker), len(kitchen.hands.begun)) == (1, 1)
    kitchen.hands.finish(run)
    await stage.end_of(run)
    await stage.until(lambda: not len(worker))
    worker.receive(stored, Clock().time())
    assert (len(worker), len(kitchen.hands.begun)) == (0, 1)


async def test_an_older_grant_than_one_that_has_left_is_not_begun(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    worker: Worker = kitchen.agent.worker
    first = await stage.read(run)
    held = worker.held.get(run.id)
    assert held is not None
    worker.stop(held, "it may have it again")
    await stage.until(lambda: len(kitchen.hands.begun) == 2)
    second = await stage.read(run)
    assert second.epoch == first.epoch + 1
    kitchen.hands.finish(run)
    await stage.end_of(run)
    await stage.until(lambda: not len(worker))
    assert [worker.knows(run.id, first.epoch + more) for more in range(3)] == [True, True, False]
    worker.receive(first, Clock().time())
    assert (len(worker), len(kitchen.hands.begun)) == (0, 2)


@pytest.mark.store_only("the store of the device has conflicts")
async def test_a_hand_back_that_meets_conflicts_does_not_delay_the_heartbeat(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next heartbeat tries again. A pause between the tries could make it late."""
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    commits = 0

    async def conflict(writes: Sequence[Write]) -> None:
        nonlocal commits
        commits += 1
        raise Conflict(f"run {run.id}")

    monkeypatch.setattr(kitchen.fleet.store, "commit", conflict)
    began = stage.now()
    await kitchen.agent.worker.disown(run.id, run.epoch)
    assert (commits, stage.now()) == (3, began)
    assert (await stage.read(run)).session == kitchen.session


async def test_the_record_of_a_run_has_the_progress_that_its_device_reported(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    assert (await stage.person.run(run.id)).progress is None
    kitchen.hands.progress(run, 3, 10)
    await asyncio.sleep(60.0)
    assert (await stage.person.run(run.id)).progress == Progress(3, 10)
    assert [run.progress for run in await stage.person.runs()] == [Progress(3, 10)]
    stored = await stage.store.run(run.id)
    assert stored is not None
    assert (stored.progress, stored.revision) == (None, (await stage.person.run(run.id)).revision), "nothing is written"
