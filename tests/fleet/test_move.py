"""Moving runs between the devices of a fleet."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.errors import AsterismError, RunRefused
from asterism.core.run.run import Progress, Run
from asterism.core.run.work import Workflow
from asterism.fleet import fleet as fleets
from asterism.fleet.fleet import Fleet, UnknownDevice
from asterism.store.protocol import PutCopy, PutRun
from tests.fleet.fleet_scenes import WORK, Stage

pytestmark = pytest.mark.virtual_time

GPU = Workflow("render", call="work:do", needs=frozenset({"gpu"}))


async def test_a_run_that_waits_is_moved_and_starts_there(stage: Stage) -> None:
    desk = await stage.device("desk", slots=2)
    desk.hands.refuses = "not now"
    run = await stage.person.create(WORK)
    await stage.reaches(run, "reassigning")
    desk.hands.refuses = None
    assert "desk" in (await stage.read(run)).avoid, "it is not asked again in this round"
    moved = await stage.person.move(run.id, "desk")
    assert (moved.device, moved.assigned_by, moved.avoid) == ("desk", "ann", ())
    await stage.at_work(desk, run)


async def test_a_device_keeps_its_own_rule(stage: Stage) -> None:
    await stage.device("desk", accepts="run.priority > 3")
    run = await stage.person.create(WORK)
    with pytest.raises(AsterismError, match="cannot be moved to desk: its own rule"):
        await stage.person.move(run.id, "desk")


async def test_a_claimed_run_is_moved_and_its_old_device_starts_nothing(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=1, backlog=1)
    first = await stage.person.create(WORK)
    await stage.at_work(kitchen, first)
    second = await stage.person.create(WORK)
    await stage.reaches(second, "claimed")
    desk = await stage.device("desk")
    moved = await stage.person.move(second.id, "desk")
    assert (moved.device, moved.epoch, moved.scores["desk"] > 0.0) == ("desk", 2, True)
    await stage.at_work(desk, second)
    kitchen.hands.finish(first)
    await stage.end_of(first)
    await asyncio.sleep(100.0)
    assert [run for run, _, _ in kitchen.hands.begun] == [first.id]
    desk.hands.finish(second)
    assert (await stage.end_of(second)).device == "desk"


async def test_a_run_at_work_is_refused_without_stop_and_moved_with_its_progress(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.progress(run, 3, 10)
    kitchen.hands.stopping = 2.0
    desk = await stage.device("desk")
    with pytest.raises(RunRefused, match="kitchen works on it; with --stop it is stopped there first"):
        await stage.person.move(run.id, "desk")
    await stage.person.move(run.id, "desk", stop=True)
    await stage.at_work(desk, run)
    assert desk.hands.works[run.id].run.progress == Progress(3, 10)
    [(stopped, epoch, at)] = kitchen.hands.stopped
    assert (stopped, epoch) == (run.id, 1)
    assert at <= desk.hands.begun[0][2], "no moment in which both worked on it"
    assert (await stage.read(run)).paused is None


async def test_a_run_that_ends_while_it_is_stopped_has_ended(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await stage.device("desk")
    pause = stage.person.pause

    async def pause_too_late(run_id: str, reason: str = "") -> Run:
        after = await pause(run_id, reason)
        kitchen.hands.finish(run_id, 42)
        return after

    stage.person.pause = pause_too_late  # type: ignore[method-assign]
    with pytest.raises(RunRefused, match="completed, which is final"):
        await stage.person.move(run.id, "desk", stop=True)
    assert (await stage.read(run)).output == 42


async def test_a_run_of_a_device_that_dies_meanwhile_is_moved_all_the_same(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    desk = await stage.device("desk", monitor_every=5.0)
    kitchen.line.down = True
    await stage.person.move(run.id, "desk", stop=True)
    await stage.at_work(desk, run)
    assert [assignment.reason for assignment in (await stage.read(run)).previous] == ["timeout"]


async def test_a_move_that_becomes_impossible_leaves_the_run_going(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.stopping = 5.0
    desk = await stage.device("desk")
    moving = asyncio.create_task(stage.person.move(run.id, "desk", stop=True))
    await stage.until(lambda: stage.store._runs[run.id].stop_request == "pause")
    await desk.leave()
    with pytest.raises(UnknownDevice):
        await moving
    await stage.at_work(kitchen, run)
    assert (await stage.read(run)).paused is None


async def test_a_mover_that_dies_leaves_a_paused_run_that_says_what_for(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.stopping = 5.0
    desk = await stage.device("desk")
    moving = asyncio.create_task(stage.person.move(run.id, "desk", stop=True))
    await stage.until(lambda: stage.store._runs[run.id].stop_request == "pause")
    moving.cancel()
    stored = await stage.reaches(run, "reassigning")
    assert stored.paused == "by ann: to move it to desk"
    await stage.person.resume(run.id)
    await stage.person.move(run.id, "desk")
    await stage.at_work(desk, run)


async def left_to_a_peer(stage: Stage) -> Run:
    """A run that waits, and about which the store of a peer decides."""
    await stage.store.start_feed()
    run = await stage.person.create(WORK)
    await stage.store.commit([PutCopy(run.changed(revision=run.revision + 1), run.revision, "their-store")])
    return run


async def test_a_run_that_is_left_to_a_peer_is_not_moved(stage: Stage) -> None:
    run = await left_to_a_peer(stage)
    await stage.device("desk")
    with pytest.raises(RunRefused, match="a peer decides about it"):
        await stage.person.move(run.id, "desk")
    assert await stage.store.left_to([run.id]) == {run.id: "their-store"}


async def test_without_that_check_two_stores_would_decide(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def put(after: Run, before: Run) -> PutRun:
        return PutRun(after, before.revision)

    monkeypatch.setattr(stage.person.ledger, "put_own", put)
    run = await left_to_a_peer(stage)
    await stage.device("desk")
    assert (await stage.person.move(run.id, "desk")).device == "desk"
    assert await stage.store.left_to([run.id]) == {}


@pytest.mark.parametrize(
    ("device", "why"),
    [("attic", "no device 'attic' is joined"), ("desk", "it lacks gpu"), ("full", "it is full, with 1 run")],
)
async def test_a_device_that_cannot_take_it_is_refused_with_the_reason(stage: Stage, device: str, why: str) -> None:
    full = await stage.device("full", can={"gpu"})
    await stage.device("desk")
    first = await stage.person.create(GPU)
    await stage.at_work(full, first)
    run = await stage.person.create(GPU)
    with pytest.raises(AsterismError, match=why):
        await stage.person.move(run.id, device)
    assert (await stage.read(run)).epoch == 0


async def test_a_device_that_does_not_stop_a_run_in_time_keeps_nobody_waiting(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", grace=1000.0)
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.stopping = 500.0
    await stage.device("desk")
    with pytest.raises(RunRefused, match="kitchen was asked to stop it, and has not done so yet"):
        await stage.person.move(run.id, "desk", stop=True)
    assert (await stage.read(run)).stop_request == "pause"


async def test_a_run_that_cannot_be_moved_stays_paused_for_somebody_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await stage.device("desk")
    monkeypatch.setattr(fleets, "_assign_to", paused_by_bob)
    with pytest.raises(AsterismError, match="it is full"):
        await stage.person.move(run.id, "desk", stop=True)
    assert (await stage.read(run)).paused == "by bob: to look at it"


async def paused_by_bob(fleet: Fleet, run: Run, device: str, by: str, paused_for: str) -> Run:
    """Somebody resumes the run and pauses it again, just before it is found that the device is full."""
    bob = Fleet(fleet.store, by="bob", clock=fleet.clock)
    await bob.resume(run.id)
    await bob.pause(run.id, "to look at it")
    raise AsterismError("it is full")
