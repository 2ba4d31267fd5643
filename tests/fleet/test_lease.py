"""The lease: a device stops in time, begins no run that another may have by now, and gives back what it lost."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import Progress, Run
from asterism.fleet.device.lease import margin
from asterism.store.protocol import ProgressReport
from tests.fleet.fleet_scenes import WORK, Device, Stage

pytestmark = pytest.mark.virtual_time

TIGHT = replace(WORK, name="tight", heartbeat=3.0, heartbeat_timeout=10.0)


async def take_over(stage: Stage, run: Run, *, epoch: int) -> None:
    """Let a monitor watch until the run has been taken away and is at work elsewhere."""
    monitor = stage.monitor(every=1.0)
    while (await stage.read(run)).epoch < epoch or (await stage.read(run)).status != "processing":
        await monitor.run_pass()
        await asyncio.sleep(1.0)


# -- stopping in time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.97, 1.0, 1.03])
@pytest.mark.parametrize("stopping", [0.0, 0.9, 60.0])
async def test_a_device_out_of_reach_has_stopped_before_the_store_could_give_its_work_away(
    stage: Stage, rate: float, stopping: float
) -> None:
    """By its own clock, which runs a little wrong, and also when the execution will not stop by itself."""
    kitchen = await stage.device("kitchen", rate=rate, heartbeat=3.0, heartbeat_timeout=10.0)
    run = await stage.person.create(TIGHT)
    await stage.at_work(kitchen, run)
    kitchen.hands.stopping = stopping
    await asyncio.sleep(20.0)
    kitchen.line.down = True
    [session] = await stage.store.sessions()
    allowed = session.beat_at + run.timeout - 1_000_000.0
    await stage.until(lambda: not kitchen.hands.busy)
    assert stage.now() < allowed
    assert stage.now() > allowed - 10.0 / 3 - 1.0, "and not much earlier than it has to"


def test_the_margin_leaves_time_to_stop_and_never_takes_more_than_a_third() -> None:
    assert margin(90.0, 5.0) == 14.0
    assert margin(6.0, 5.0) == 2.0


async def test_a_fenced_run_returns_to_the_fleet_with_the_next_heartbeat(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    run = await stage.person.create(TIGHT)
    await stage.at_work(kitchen, run)
    kitchen.hands.progress(run, 3, 9)
    await asyncio.sleep(5.0)
    kitchen.line.down = True
    await stage.until(lambda: not kitchen.hands.busy)
    kitchen.line.down = False  # no monitor ran, so the store still has it as this device's
    stored = await stage.reaches(run, "reassigning")
    assert (stored.progress, stored.previous[0].device) == (Progress(3, 9), "kitchen")
    assert len(stored.previous) == 1


async def test_a_result_is_written_after_an_outage_longer_than_the_lease(stage: Stage) -> None:
    """Nothing is being done any more, so to go on telling does no harm; to do it all again would."""
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    run = await stage.person.create(TIGHT)
    await stage.at_work(kitchen, run)
    kitchen.line.down = True
    kitchen.hands.finish(run, 42)
    await asyncio.sleep(120.0)
    kitchen.line.down = False
    ended = await stage.end_of(run)
    assert (ended.status, ended.output, ended.epoch) == ("completed", 42, 1)
    assert len(kitchen.hands.begun) == 1


async def test_a_result_that_comes_after_the_run_was_given_away_is_refused_and_noticed(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    run = await stage.person.create(TIGHT)
    await stage.at_work(kitchen, run)
    kitchen.line.down = True
    kitchen.hands.finish(run, "late")
    attic = await stage.device("attic", heartbeat=3.0, heartbeat_timeout=10.0)
    await take_over(stage, run, epoch=2)
    kitchen.line.down = False
    await stage.until(lambda: any(notice.kind == "late" for notice in stage.store._notices.values()))
    [notice] = await stage.notices("late")
    assert (notice.run, notice.device) == (run.id, "kitchen")
    assert f"a late result of kitchen for run {run.id} was refused: epoch 1 can no longer complete it" in notice.message
    attic.hands.finish(run, "right")
    assert (await stage.end_of(run)).output == "right"


async def test_a_result_twice_is_recorded_once(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.line.loses["commit"] = 1
    kitchen.hands.finish(run, 42)
    ended = await stage.end_of(run)
    assert [entry.what for entry in ended.story].count("completed") == 1
    with pytest.raises(Exception, match="can no longer complete it"):
        await kitchen.fleet.ledger.change(
            run.id, lambda r: transitions.complete(r, transitions.Grant(run.id, kitchen.session, 1), 43, 1.0)
        )
    assert (await stage.read(run)).output == 42
    assert await stage.notices("late") == []


async def test_a_run_that_was_taken_away_is_stopped_with_the_next_heartbeat(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", heartbeat=5.0)
    run = await stage.person.create(replace(WORK, heartbeat=5.0))
    await stage.at_work(kitchen, run)
    stored = await stage.read(run)
    lost = await stage.person.ledger.change(stored, lambda r: transitions.lose(r, stage.store.clock(), "test"))
    began = stage.now()
    await stage.until(lambda: not kitchen.hands.busy)
    assert stage.now() - began <= 5.5
    assert await stage.read(run) == lost, "it says nothing about what is not its own"


# -- no start without a lease ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way", ["take", "claim", pytest.param("create", marks=pytest.mark.store_only("it is created in its process"))]
)
@pytest.mark.parametrize("heard_again", [False, True])
async def test_an_answer_that_comes_after_the_lease_begins_nothing(stage: Stage, way: str, heard_again: bool) -> None:
    """The grant was given away meanwhile, also if the device has been heard of again since."""
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    await kitchen.fleet.workflows.add(TIGHT)
    attic = await stage.device(
        "attic", heartbeat=3.0, heartbeat_timeout=10.0, accepts="run.by != 'only for the kitchen'"
    )
    late, creating = await slow_grant(stage, kitchen, way)
    [run] = await stage.person.runs()
    assert run.session == kitchen.session
    kitchen.line.drops["heartbeat"] = 1000
    await drop_rule(stage, attic)
    await take_over(stage, run, epoch=2)
    if heard_again:
        kitchen.line.drops.clear()
        await stage.until(lambda: stage.store._sessions[kitchen.session].reachable(stage.store.clock()))
    await asyncio.sleep(late - stage.now() + 1.0)
    kitchen.line.drops.clear()
    await asyncio.gather(*creating)
    await asyncio.sleep(5.0)
    assert kitchen.hands.begun == []
    assert attic.hands.busy == {run.id}


async def slow_grant(stage: Stage, kitchen: Device, way: str) -> tuple[float, list[asyncio.Task[Run]]]:
    """The kitchen is granted a run, and gets the answer a minute later. Returns that moment, and the waiting task."""
    creating: list[asyncio.Task[Run]] = []
    by = stage.fleet("only for the kitchen")
    if way == "create":
        kitchen.line.slow["commit"] = 60.0
        kitchen.fleet.by = by.by
        creating.append(asyncio.create_task(kitchen.fleet.create("tight")))
    elif way == "claim":
        kitchen.line.slow["commit"] = 60.0
        await by.create("tight")
    else:
        kitchen.line.slow["take"] = 60.0
        kitchen.agent.session = replace(kitchen.agent.session, slots=1)
        placer = await by.placer()
        placer._used["kitchen"] = 1  # as if it were busy: so it is not assigned, but offered
        await by.create("tight")
    await stage.until(lambda: any(run.session == kitchen.session for run in stage.store._runs.values()))
    return stage.now() + 60.0, creating


async def drop_rule(stage: Stage, device: Device) -> None:
    """From now on it accepts whatever there is."""
    device.agent.session = replace(device.agent.session, accepts=None)
    session = stage.store._sessions[device.session]
    stage.store._sessions[device.session] = replace(session, accepts=None)


async def test_a_claim_whose_answer_was_lost_is_adopted_with_the_next_heartbeat(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", heartbeat=5.0)
    await kitchen.fleet.workflows.add(WORK)
    kitchen.line.loses["take"] = 1
    placer = await stage.person.placer()
    placer._used["kitchen"] = 1
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    stored = await stage.read(run)
    assert (stored.epoch, stored.status) == (1, "processing")
    kitchen.hands.finish(run)
    await stage.end_of(run)
    assert len(kitchen.hands.begun) == 1


async def test_a_start_whose_answer_got_lost_is_begun_all_the_same(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", backlog=1)
    first, second = await stage.person.create(WORK), await stage.person.create(WORK)
    await stage.until(lambda: kitchen.hands.busy)
    await asyncio.sleep(1.0)
    [at_work] = kitchen.hands.busy
    kitchen.line.drops["run"] = 1000  # it cannot look what became of it
    kitchen.hands.finish(at_work)
    await stage.until(lambda: stage.store._runs[at_work].ended)
    kitchen.line.loses["commit"] = 1
    await asyncio.sleep(30.0)
    kitchen.line.drops.clear()
    other = second if at_work == first.id else first
    await stage.at_work(kitchen, other)
    assert (await stage.read(other)).epoch == 1


async def test_an_earlier_grant_has_to_leave_before_a_later_one_of_the_same_run_comes_in(stage: Stage) -> None:
    """Otherwise one would replace the other in the worker, and its slot would be lost for ever."""
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    run = await stage.person.create(TIGHT)
    await stage.at_work(kitchen, run)
    kitchen.hands.stopping = 4.0
    stored = await stage.read(run)
    await stage.person.ledger.change(stored, lambda r: transitions.lose(r, stage.store.clock(), "test"))
    await stage.person.ledger.change(run.id, lambda r: r.changed(avoid=(), revision=r.revision + 1))
    await stage.until(lambda: len(kitchen.hands.begun) == 2)
    (_, first, _), (_, second, began) = kitchen.hands.begun
    [(_, _, stopped)] = kitchen.hands.stopped
    assert (first, second) == (1, 2)
    assert began >= stopped
    kitchen.hands.finish(run)
    await stage.end_of(run)
    await stage.until(lambda: not len(kitchen.agent.worker))
    assert kitchen.agent.worker.free_slots == 1


# -- whose word counts -------------------------------------------------------------------------------------------


async def test_a_report_of_a_past_epoch_is_dropped(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.progress(run, 8, 9)
    await asyncio.sleep(3.0)
    answer = await stage.store.heartbeat(kitchen.session, {}, [ProgressReport(run.id, 0, Progress(1, 9), "old")])
    assert answer.alive
    assert (await stage.store.reports([run.id]))[run.id].progress == Progress(8, 9)


@pytest.mark.parametrize(("own", "of_run"), [(6.0, 90.0), (90.0, 6.0)])
async def test_the_shorter_heartbeat_timeout_counts(stage: Stage, own: float, of_run: float) -> None:
    """That of the device or that of the run. The dead device is noticed, and a device that was cut off has stopped."""
    await stage.device("hub", slots=0, monitor_every=0.5)
    flow = replace(WORK, heartbeat=2.0, heartbeat_timeout=of_run)
    kitchen = await stage.device("kitchen", heartbeat=2.0, heartbeat_timeout=own)
    run = await stage.person.create(flow, device="kitchen")
    await stage.at_work(kitchen, run)
    kitchen.line.down = True
    cut_at = stage.now()
    lost = await stage.reaches(run, "reassigning")
    assert 4.0 < stage.now() - cut_at < 9.0
    assert lost.previous[0].reason == "timeout"
    [(_, _, stopped_at)] = kitchen.hands.stopped
    assert stopped_at < stage.now()
