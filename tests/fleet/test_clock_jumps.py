"""The store's clock jumps, ahead and back, while a fleet works: no device that is alive loses a run, no run waits
forever, and a notice is left."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.record import replace
from asterism.core.run.run import Run
from asterism.core.run.session import Session
from asterism.fleet.coordinator import Election
from asterism.fleet.monitor import Monitor
from asterism.fleet.settings import COORDINATOR
from asterism.store.protocol import PutSession
from tests.fleet.fleet_scenes import WORK, Stage

pytestmark = pytest.mark.virtual_time

HOUR = 3600.0


async def watch(monitor: Monitor, seconds: float, every: float = 5.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        await monitor.run_pass()
        await asyncio.sleep(every)


async def clock_notices(stage: Stage) -> list[str]:
    return [notice.message for notice in await stage.notices("clock")]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_device_that_is_heard_of_keeps_its_work_when_the_clock_jumps(stage: Stage, jump: float) -> None:
    kitchen = await stage.device("kitchen")
    monitor = stage.monitor()
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await watch(monitor, 200.0)
    stage.jump = jump
    await watch(monitor, 600.0)
    assert kitchen.hands.stopped == []
    kitchen.hands.finish(run)
    stored = await stage.end_of(run)
    assert (stored.status, stored.epoch, stored.losses) == ("completed", 1, 0)
    words = "jumped ahead by 3600 s: nothing runs out for 90 s" if jump > 0 else "was set back by 3600 s"
    assert await clock_notices(stage) == [f"the store's clock {words}"]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_runs_of_a_dead_device_are_reassigned_in_time_when_the_clock_jumps(stage: Stage, jump: float) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    monitor = stage.monitor()
    await watch(monitor, 100.0)
    await kitchen.crash()
    stage.jump = jump
    crashed = stage.now()
    watching = asyncio.create_task(watch(monitor, 2 * HOUR))
    stored = await stage.reaches(run, "reassigning")
    watching.cancel()
    assert (stored.losses, stored.previous[0].reason) == (1, "timeout")
    patience = WORK.heartbeat_timeout + (
        90.0 if jump > 0 else 0.0
    )  # after a jump ahead all get a chance to be heard of
    assert WORK.heartbeat_timeout - 30.0 <= stage.now() - crashed <= patience + 35.0


async def asked_in_vain(stage: Stage) -> tuple[Run, Monitor]:
    """A run that was assigned to a device which never answers, and a monitor that was not just elected."""
    session = Session("kitchen-1", "kitchen", stage.store.clock(), timeout=10 * HOUR)
    await stage.store.commit([PutSession(session, None)])
    monitor = stage.monitor()
    await watch(monitor, 100.0)
    run = await stage.person.create(WORK)
    assert run.session == session.id
    await monitor.run_pass()
    return run, monitor


async def test_an_unanswered_assignment_expires_although_the_clock_was_set_back(stage: Stage) -> None:
    run, monitor = await asked_in_vain(stage)
    stage.jump = -HOUR
    await watch(monitor, WORK.assignment_timeout + 20.0)
    assert (await stage.read(run)).previous[0].detail == "kitchen did not answer in time"


async def test_a_new_assignment_has_time_although_the_clock_jumped_ahead(stage: Stage) -> None:
    run, monitor = await asked_in_vain(stage)
    stage.jump = HOUR
    await watch(monitor, 80.0)
    assert (await stage.read(run)).previous == ()
    await watch(monitor, 20.0)
    assert (await stage.read(run)).previous[0].detail == "kitchen did not answer in time"


async def test_a_run_in_backoff_is_tried_again_although_the_clock_was_set_back(stage: Stage) -> None:
    flow = await stage.person.workflows.add(replace(WORK, retries=1, backoff=5.0, backoff_most=60.0))
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(flow)
    await stage.at_work(kitchen, run)
    monitor = stage.monitor()
    await monitor.run_pass()
    kitchen.hands.fail(run, ValueError("out of paper"))
    await stage.reaches(run, "reassigning")
    stage.jump = -HOUR
    watching = asyncio.create_task(watch(monitor, 600.0))
    began = stage.now()
    await stage.until(lambda: len(kitchen.hands.begun) == 2)
    watching.cancel()
    assert stage.now() - began < 120.0


async def test_a_coordinator_of_the_future_does_not_stay_elected_when_the_clock_was_set_back(stage: Stage) -> None:
    clock = stage.person.clock
    first = Election(COORDINATOR, stage.store, clock, "kitchen", "kitchen-1", 15.0)
    second = Election(COORDINATOR, stage.store, clock, "attic", "attic-1", 15.0)
    assert await first.campaign()
    assert not await second.campaign()
    stage.jump = -HOUR
    assert await second.campaign()
    assert (second.epoch, first.epoch) == (2, 1)
    assert not await first.campaign()


async def test_a_loss_is_counted_once_when_the_clock_jumps_back_and_forth(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    monitor = stage.monitor()
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await watch(monitor, 100.0)
    for jump in (HOUR, 0.0, -HOUR, 0.0):
        stage.jump = jump
        await watch(monitor, 30.0)
    assert (await stage.read(run)).previous == ()
    assert kitchen.hands.stopped == []
    assert len(await clock_notices(stage)) == 4
