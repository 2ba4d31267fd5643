"""How a device leaves: when all is done, at once, without a word; and which ones never come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.errors import AsterismError
from asterism.core.run import transitions
from asterism.core.run.run import Progress, Run
from asterism.fleet.monitor import Monitor
from asterism.store.protocol import TakeRequest
from tests.fleet.fleet_scenes import WORK, Device, Stage

pytestmark = pytest.mark.virtual_time

# -- leaving ---------------------------------------------------------------------------------------------------------


async def test_a_device_that_is_drained_finishes_its_work_and_takes_no_more(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", backlog=1)
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    claimed = await stage.person.create(WORK)
    await stage.reaches(claimed, "claimed")
    kitchen.agent.drain()
    assert (await stage.reaches(claimed, "reassigning")).previous[0].detail == "the device is leaving"
    await asyncio.sleep(300.0)
    assert kitchen.hands.busy == {run.id}
    kitchen.hands.finish(run)
    await kitchen.task
    assert (await stage.read(run)).status == "completed"
    assert kitchen.hands.closed
    assert kitchen.presence.closed
    [session] = await stage.store.sessions(ended=True)
    assert session.state == "ended"


async def test_a_device_that_is_to_leave_at_once_hands_its_work_back(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.progress(run, 1, 2)
    kitchen.agent.drain(hand_back=True)
    await kitchen.task
    stored = await stage.read(run)
    assert (stored.status, stored.progress, stored.losses) == ("reassigning", Progress(1, 2), 0)


WAYS = pytest.mark.parametrize(
    "way", ["assigned", "taken", pytest.param("created", marks=pytest.mark.store_only("it is created in its process"))]
)


async def asked_for(stage: Stage, kitchen: Device, way: str) -> Run:
    """A run that is the device's in the store, and the device does not know it yet."""
    flow = await kitchen.fleet.workflows.add(WORK)
    kitchen.line.slow["take" if way == "taken" else "commit"] = 2.0
    new = transitions.create("r-1", flow, {}, by="ann", now=stage.store.clock())
    if way == "created":
        asyncio.get_running_loop().create_task(kitchen.fleet.place(new))
    elif way == "taken":
        await stage.person.ledger.add(new, lambda offered: offered)
    else:
        await stage.person.place(new)
    await stage.until(lambda: new.id in stage.store._runs)
    return await stage.reaches(new, "processing")


@WAYS
async def test_a_run_requested_before_a_drain_is_finished(stage: Stage, way: str) -> None:
    kitchen = await stage.device("kitchen")
    run = await asked_for(stage, kitchen, way)
    assert not kitchen.hands.begun
    kitchen.agent.drain()
    await stage.at_work(kitchen, run)
    kitchen.hands.finish(run)
    await kitchen.task
    stored = await stage.read(run)
    assert (stored.status, stored.epoch, stored.losses) == ("completed", 1, 0)


@pytest.mark.parametrize("hurry", [False, True])
async def test_a_run_taken_before_a_drain_is_not_lost_with_its_answer(stage: Stage, hurry: bool) -> None:
    kitchen = await stage.device("kitchen")
    take = stage.store.take

    async def never_heard(offer: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        kitchen.line.loses["take"] = len(taken := await take(offer, step))
        return taken

    stage.store.take = never_heard  # type: ignore[method-assign]
    run = await asked_for(stage, kitchen, "taken")
    kitchen.agent.drain(hand_back=hurry)
    if not hurry:
        await stage.at_work(kitchen, run)
        kitchen.hands.finish(run)
    await kitchen.task
    stored = await stage.read(run)
    assert (stored.status, stored.epoch, stored.losses) == ("reassigning" if hurry else "completed", 1, 0)


async def test_an_unavailable_store_does_not_keep_an_idle_device_from_leaving(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    kitchen.line.down = True
    began = stage.now()
    kitchen.agent.drain()
    await kitchen.task
    assert stage.now() - began <= kitchen.agent.lease.timeout


@WAYS
async def test_a_run_that_arrives_during_a_hurried_leave_is_handed_back_without_loss(stage: Stage, way: str) -> None:
    kitchen = await stage.device("kitchen")
    run = await asked_for(stage, kitchen, way)
    kitchen.agent.drain(hand_back=True)
    await kitchen.task
    stored = await stage.read(run)
    assert (stored.status, stored.losses) == ("reassigning", 0)
    assert stored.previous[0][4:6] == ("released", "the device is leaving")


async def test_a_device_drains_when_the_store_asks(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", heartbeat=10.0)
    with pytest.raises(AsterismError, match=r"no device 'kitchn' is joined; did you mean 'kitchen'\?"):
        await stage.person.drain("kitchn")
    asked = await stage.person.drain("kitchen")
    assert asked.draining
    assert (await stage.person.create(WORK)).status == "created", "it is assigned nothing any more"
    await asyncio.wait_for(kitchen.task, 11.0)
    with pytest.raises(AsterismError, match="no device 'kitchen' is joined"):
        await stage.person.drain("kitchen")


async def test_a_device_hands_work_back_while_its_own_rule_says_so(stage: Stage) -> None:
    profile = {"battery": 0.9}
    kitchen = await stage.device("kitchen", hands_back="battery < 0.2", measure=lambda: dict(profile), heartbeat=5.0)
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    profile["battery"] = 0.1
    stored = await stage.reaches(run, "reassigning")
    assert stored.previous[0].detail == "it hands work back while battery < 0.2"
    await asyncio.sleep(100.0)
    assert not kitchen.hands.busy
    profile["battery"] = 0.5
    await stage.at_work(kitchen, run)


async def test_a_cancelled_device_stops_its_work_and_ends_its_session(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", backlog=1)
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await stage.reaches(await stage.person.create(WORK), "claimed")
    kitchen.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await kitchen.task
    assert not kitchen.hands.busy
    [session] = await stage.store.sessions(ended=True)
    assert session.state == "ended"
    orphans = await stage.store.orphans(stage.store.clock(), 10)
    assert len(orphans) == 2, "a monitor takes them at once"


async def test_a_device_that_is_cancelled_twice_leaves_nothing_running(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=2, grace=5.0)
    kitchen.hands.stopping = 3.0
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.task.cancel()
    await asyncio.sleep(0.5)
    kitchen.task.cancel()
    await asyncio.gather(kitchen.task, return_exceptions=True)
    await asyncio.sleep(10.0)
    assert not kitchen.hands.busy
    await stage.stop_gateway()
    tasks = {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    assert not tasks, tasks


async def test_a_device_that_cannot_say_goodbye_is_found_out_by_time(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await kitchen.crash()
    assert not kitchen.hands.busy
    assert (await stage.read(run)).status == "processing"
    monitor = stage.monitor()
    while (await stage.read(run)).status == "processing":
        await monitor.run_pass()
        await asyncio.sleep(5.0)
    assert (await stage.read(run)).previous[0].reason == "timeout"


async def test_a_device_without_slots_takes_nothing(stage: Stage) -> None:
    hub = await stage.device("hub", slots=0, backlog=3)
    run = await stage.person.create(WORK)
    await asyncio.sleep(60.0)
    assert (await stage.read(run)).status == "created"
    assert not hub.hands.begun


@pytest.mark.parametrize(
    "options",
    [
        {"slots": -1},
        {"backlog": -1},
        {"heartbeat": 60.0, "heartbeat_timeout": 90.0},
        {"heartbeat": 0.0},
        {"heartbeat_timeout": float("inf")},
    ],
)
async def test_a_device_that_makes_no_sense_is_refused(stage: Stage, options: dict[str, Any]) -> None:
    with pytest.raises(AsterismError, match="device 'kitchen'"):
        Device(stage, "kitchen", **options)


@pytest.mark.parametrize("name", ["", "a|b", "a\nb", "x" * 201])
async def test_a_device_has_a_name_that_can_be_shown(stage: Stage, name: str) -> None:
    with pytest.raises(AsterismError, match="the name of a device must have"):
        Device(stage, name)


async def test_a_mistake_while_it_watches_over_the_others_does_not_end_the_work_of_a_device(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistaken(self: Monitor) -> None:
        raise KeyError("session")

    laptop = await stage.device("laptop", monitor_every=1.0)
    run = await stage.person.create(WORK)
    await stage.at_work(laptop, run)
    monkeypatch.setattr(Monitor, "run_pass", mistaken)
    await stage.until(lambda: "a bug in Asterism" in caplog.text)
    await asyncio.sleep(200.0)
    assert not laptop.task.done()
    assert caplog.text.count("a bug in Asterism") == 1
    laptop.hands.finish(run, "done")
    assert (await stage.end_of(run)).output == "done"


@pytest.mark.store_only("its line loses a question")
async def test_that_a_device_is_leaving_is_no_refusal(stage: Stage) -> None:
    """The store has not heard of it, and assigns work to it."""
    kitchen = await stage.device("kitchen", slots=2, monitor_every=5.0)
    busy = await stage.person.create(WORK)
    await stage.at_work(kitchen, busy)
    kitchen.line.drops["sessions"] = 1
    kitchen.agent.drain()
    run = await stage.person.create(WORK)
    assert run.device == "kitchen"
    await asyncio.sleep(60.0)
    stored = await stage.read(run)
    assert [past.detail for past in stored.previous] == ["it is being drained"], "then the store knows"
    assert (stored.ended, stored.rounds, dict(stored.declined), stored.avoid) == (False, 0, {}, ())
    attic = await stage.device("attic")
    await stage.at_work(attic, run)
    kitchen.hands.finish(busy)
