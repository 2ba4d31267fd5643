"""The score with which a device got a run stays with its record, also if the device took the run itself."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.record import replace
from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet.device import take_order
from asterism.fleet.device.store_connection import StoreConnection
from asterism.fleet.device.take_order import REFRESH_INTERVAL, OwnScore
from asterism.store.protocol import PutSession
from asterism.store.store_errors import StoreUnavailable
from tests.fleet.fleet_scenes import WORK, Device, Stage

pytestmark = pytest.mark.virtual_time

GPU = Workflow("render", call="work:do", needs=frozenset({"gpu"}), wants=frozenset({"gpu", "large"}))


async def expected(stage: Stage, device: Device, flow: Workflow, used: int) -> float:
    """The score that placement would give the device while it holds so many runs."""
    placer = await stage.person.placer(fresh=True)
    session = replace(placer.sessions[device.agent.name], used=used)
    placer._used[session.device] = used
    return round(sum(placer.score_parts(session, flow).values()), 2)


async def taken_by(stage: Stage, device: Device, flow: Workflow) -> Run:
    """A run that the device took from those that were offered to all, after the one that it does now."""
    first = await stage.person.create(flow)
    await stage.at_work(device, first)
    second = await stage.person.create(flow)  # no slot is free, so it is offered to all
    assert second.status == "created"
    device.hands.finish(first)
    await stage.at_work(device, second)
    return await stage.read(second)


async def test_a_run_that_a_device_took_has_the_score_that_placement_would_give(stage: Stage) -> None:
    await stage.device("attic")
    kitchen = await stage.device("kitchen", can={"gpu"})
    run = await taken_by(stage, kitchen, GPU)
    assert (run.assigned_by, run.device) == ("kitchen", "kitchen")
    assert dict(run.scores) == {"kitchen": await expected(stage, kitchen, GPU, 0)}
    kitchen.hands.finish(run)
    assert (await stage.end_of(run)).scores == run.scores, "the score of the assignment that completed it stays"


async def test_a_run_that_is_created_beside_its_device_has_a_score(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=4)
    runs = [await kitchen.fleet.create(WORK) for _ in range(3)]
    scores = [await expected(stage, kitchen, WORK, used) for used in range(3)]
    assert [run.scores["kitchen"] for run in runs] == scores
    assert scores[0] - scores[1] == 10.0, "a quarter of the weight of the load"


async def test_an_ended_assignment_keeps_its_score(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    score = (await stage.read(run)).scores["kitchen"]
    await stage.person.pause(run.id)
    stored = await stage.reaches(run, "reassigning")
    assert (stored.previous[0].score, dict(stored.scores)) == (score, {})


async def test_a_slow_connection_lowers_the_score(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=2)
    await asyncio.sleep(1.0)  # it has read its rank
    before = kitchen.agent.own_score.scores(WORK, 0)["kitchen"]
    kitchen.agent.heartbeat.quality = 0.5
    kitchen.line.slow["heartbeat"] = 10.0
    await kitchen.agent.heartbeat.beat()
    assert kitchen.agent.own_score.scores(WORK, 0)["kitchen"] < before - 10.0


async def test_new_weights_and_ranks_are_noticed(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    await asyncio.sleep(1.0)  # it has read its rank
    before = kitchen.agent.own_score.scores(WORK, 0)["kitchen"]
    await stage.person.configure(weights={"rank": 50.0})
    await asyncio.sleep(REFRESH_INTERVAL + 1.0)
    assert kitchen.agent.own_score.scores(WORK, 0)["kitchen"] == before + 30.0, "it is the only one, and first in rank"


async def test_without_an_answer_runs_have_no_own_score(stage: Stage) -> None:
    kitchen = Device(stage, "kitchen")
    stage.devices.append(kitchen)
    refresh = kitchen.agent.own_score.refresh

    async def fail_once() -> None:
        kitchen.agent.own_score.refresh = refresh  # type: ignore[method-assign]
        raise StoreUnavailable("the answer got lost")

    kitchen.agent.own_score.refresh = fail_once  # type: ignore[method-assign]
    await kitchen.agent.joined.wait()
    assert kitchen.agent.own_score.scores(WORK, 0) == {}
    run = await taken_by(stage, kitchen, WORK)
    assert run.scores == {}
    await asyncio.sleep(REFRESH_INTERVAL + 1.0)
    assert kitchen.agent.own_score.scores(WORK, 0)["kitchen"] > 0.0


async def test_a_large_fleet_is_read_less_often(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    session = kitchen.agent.session
    others = [replace(session, id=f"s{n}", device=f"d{n}", revision=1) for n in range(100)]
    await stage.store.commit([PutSession(session, None) for session in others])
    score = OwnScore(StoreConnection(stage.person, session.owner), session)
    await score.refresh()
    assert score._interval == len(others) + 1 > take_order.REFRESH_INTERVAL


async def test_a_monitor_reads_no_rank(stage: Stage) -> None:
    hub = await stage.device("hub", slots=0)
    asked = hub.line.asked["sessions"]
    await asyncio.sleep(3 * REFRESH_INTERVAL)
    assert hub.line.asked["sessions"] == asked
