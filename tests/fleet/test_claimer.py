"""The claimer: which runs a device claims, starts and declines, and in which order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import pytest

from asterism.core.errors import DeviceUnavailable
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import Progress, Run
from asterism.core.run.work import Workflow
from asterism.fleet.device import claimer
from asterism.fleet.device.take_order import SAME_TIME
from asterism.fleet.policy.device_policy import PolicyForbids
from asterism.store.protocol import TakeRequest
from tests.fleet.fleet_scenes import WORK, Device, Stage

pytestmark = pytest.mark.virtual_time

URGENT = Workflow("urgent", call="work:do", priority=5)
GENTLE = Workflow("gentle", call="work:do", preemptible=True)


def begun(device: Device) -> list[str]:
    return [run for run, _, _ in device.hands.begun]


# -- claiming --------------------------------------------------------------------------------------------------------


async def test_a_device_claims_and_executes_an_assigned_run(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK, {"n": 1})
    assert (run.status, run.device, run.assigned_by) == ("assigned", "kitchen", "ann")
    assert run.scores == {"kitchen": 90.0}
    await stage.at_work(kitchen, run)
    assert kitchen.hands.works[run.id].input == {"n": 1}
    assert (await stage.read(run)).status == "processing"
    kitchen.hands.finish(run, {"answer": 42})
    ended = await stage.end_of(run)
    assert (ended.status, ended.output, ended.device, ended.epoch) == ("completed", {"answer": 42}, "kitchen", 1)
    story = [entry.what for entry in ended.story]
    assert story == ["created", "assigning to other", "assigned", "claimed", "processing", "completed"]


@pytest.mark.store_only("runs are created in its process")
async def test_a_run_created_in_the_process_of_a_device_starts_there_in_one_write(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    await kitchen.fleet.workflows.add(WORK)
    commits = kitchen.line.asked["commit"]
    run = await kitchen.fleet.create("work")
    assert (run.status, run.device, kitchen.line.asked["commit"]) == ("processing", "kitchen", commits + 1)
    assert [entry.what for entry in run.story] == ["created", "assigning to self", "claimed", "processing"]
    await stage.at_work(kitchen, run)
    kitchen.hands.finish(run)
    assert (await kitchen.fleet.wait(run.id)).status == "completed"
    assert kitchen.line.asked["commit"] == commits + 2, "two writes for a run"


async def test_a_device_starts_no_more_than_it_has_slots_for_and_the_rest_waits_in_the_store(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=2)
    runs = []
    for _ in range(5):
        runs.append(await stage.person.create(WORK))
        await asyncio.sleep(0.01)
    await asyncio.sleep(60.0)
    assert len(kitchen.hands.busy) == 2
    assert [(await stage.read(run)).status for run in runs].count("created") == 3
    while len(begun(kitchen)) < 5 or kitchen.hands.busy:
        for run_id in kitchen.hands.busy:
            kitchen.hands.finish(run_id)
        await asyncio.sleep(1.0)
    assert begun(kitchen) == [run.id for run in runs], "in the order in which they were created"


async def test_takes_within_a_moment_share_one_timestamp(stage: Stage) -> None:
    began: list[float] = []
    take = stage.store.take

    async def slowly(offer: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        def later(run: Run) -> Run | None:
            stage.jump += 0.4 * SAME_TIME
            if len(began) == 4:  # as if it had come while the others were looked at
                run = run.changed(waiting_since=stage.store.clock())
            after = step(run)
            if after is not None:
                began.append(after.assigned_at or 0.0)
                assert began[-1] == after.started_at == after.story[-1].at >= (run.waiting_since or 0.0)
            return after

        return await take(offer, later)

    setattr(stage.store, "take", slowly)  # noqa: B010 - for every device from now on
    for _ in range(6):
        await stage.person.create(WORK)
    kitchen = await stage.device("kitchen", slots=6)
    await stage.until(lambda: len(kitchen.hands.busy) == 6)
    ticks = [round((at - began[0]) / SAME_TIME, 6) for at in began]
    assert ticks == [0.0, 0.0, 0.0, 1.2, 1.6, 1.6]


async def test_a_backlog_is_claimed_in_advance_and_worked_on_by_priority(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=1, backlog=3)
    first = await stage.person.create(WORK)
    await stage.at_work(kitchen, first)
    low, high, middle = [await stage.person.create(WORK, priority=priority) for priority in (1, 9, 5)]
    for run in (low, high, middle):
        assert (await stage.reaches(run, "claimed")).device == "kitchen"
    for run in (first, high, middle, low):
        await stage.at_work(kitchen, run)
        kitchen.hands.finish(run)
        assert (await stage.end_of(run)).status == "completed"


async def test_a_run_that_waits_in_vain_for_a_slot_is_handed_back_without_loss(stage: Stage) -> None:
    """Otherwise it would be lost again and again, and fail at last, while its device is alive and merely busy."""
    kitchen = await stage.device("kitchen", slots=1, backlog=1, monitor_every=5.0)
    first = await stage.person.create(WORK)
    await stage.at_work(kitchen, first)
    waits = await stage.person.create(replace(WORK, name="waits", losses=0))
    await stage.reaches(waits, "claimed")
    await asyncio.sleep(1000.0)
    stored = await stage.read(waits)
    assert (stored.status, stored.losses, len(stored.previous)) == ("reassigning", 0, 1)
    assert stored.previous[0][4:6] == ("released", "no slot became free in time")
    attic = await stage.device("attic")
    await stage.at_work(attic, waits)
    kitchen.hands.finish(first)


@pytest.mark.parametrize("backlog", [0, 1])
async def test_more_urgent_work_stops_an_execution_that_may_be_stopped(stage: Stage, backlog: int) -> None:
    kitchen = await stage.device("kitchen", slots=1, backlog=backlog)
    gentle = await stage.person.create(GENTLE)
    await stage.at_work(kitchen, gentle)
    kitchen.hands.progress(gentle, 3, 10)
    urgent = await stage.person.create(URGENT)
    await stage.at_work(kitchen, urgent)
    assert [run for run, _, _ in kitchen.hands.stopped] == [gentle.id]
    stored = await stage.read(gentle)
    assert (stored.previous[0].reason, stored.progress, stored.failures, stored.losses) == (
        "preempted",
        Progress(3, 10),
        0,
        0,
    )
    assert stored.previous[0].detail == f"by run {urgent.id} (urgent, priority {urgent.priority})"
    kitchen.hands.finish(urgent)
    await stage.at_work(kitchen, gentle)
    assert kitchen.hands.works[gentle.id].run.progress == Progress(3, 10)


async def test_more_urgent_work_replaces_a_claimed_run(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=1, backlog=1)
    first = await stage.person.create(WORK)
    await stage.at_work(kitchen, first)
    claimed = await stage.person.create(WORK)
    await stage.reaches(claimed, "claimed")
    urgent = await stage.person.create(URGENT)
    assert (await stage.reaches(urgent, "claimed")).device == "kitchen"
    [ended] = (await stage.reaches(claimed, "reassigning")).previous
    assert (ended.reason, ended.detail) == ("preempted", f"by run {urgent.id} (urgent, priority {urgent.priority})")
    assert kitchen.hands.busy == {first.id}, "a run that may not be preempted continues"
    kitchen.hands.finish(first)
    await stage.at_work(kitchen, urgent)


async def test_work_that_is_not_more_urgent_stops_nothing(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    gentle = await stage.person.create(GENTLE, priority=5)
    await stage.at_work(kitchen, gentle)
    other = await stage.person.create(URGENT)
    await asyncio.sleep(60.0)
    assert (await stage.read(other)).status == "created"
    assert kitchen.hands.busy == {gentle.id}


# -- declining -------------------------------------------------------------------------------------------------------


async def test_a_decline_by_device_policy_carries_no_penalty(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    kitchen.hands.will_not = "the policy does not allow it"
    run = await stage.person.create(WORK)
    stored = await stage.reaches(run, "reassigning")
    assert stored.declined == {"kitchen": "the policy does not allow it"}
    assert (stored.failures, stored.losses, stored.previous[0].reason) == (0, 0, "declined")
    attic = await stage.device("attic")
    await stage.at_work(attic, run)


async def test_a_decline_is_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "asterism.device"):
        kitchen = await stage.device("kitchen")
        kitchen.hands.will_not = "there is no oven here"
        await stage.reaches(await stage.person.create(WORK), "reassigning")
        await stage.until(lambda: "declined: there is no oven here" in caplog.messages)


async def test_a_device_goes_by_its_own_rule(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", accepts="run.priority > 3")
    low = await stage.person.create(WORK)
    high = await stage.person.create(WORK, priority=4)
    await stage.at_work(kitchen, high)
    assert (await stage.read(low)).status == "created", "it is not even asked"


async def test_a_rule_that_cannot_be_evaluated_is_a_refusal_with_words(stage: Stage) -> None:
    await stage.device("kitchen", accepts="run.nonsense > 3")
    run = await stage.person.create(WORK)
    assert run.status == "created"
    placer = await stage.person.placer(fresh=True)
    [why] = placer.choose(run).refused.values()
    assert why.startswith("its own rule: 'run.nonsense > 3' could not be evaluated")


@pytest.mark.parametrize("error", [PolicyForbids("not with this input"), DeviceUnavailable("there is no such command")])
async def test_an_objection_just_before_the_start_is_a_decline(stage: Stage, error: Exception) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK, {"large": "x" * 100_000})
    await stage.at_work(kitchen, run)
    kitchen.hands.fail(run, error)
    stored = await stage.reaches(run, "reassigning")
    assert (stored.declined, stored.avoid, stored.failures) == ({"kitchen": str(error)}, ("kitchen",), 0)
    await asyncio.sleep(120.0)
    assert len(kitchen.hands.begun) == 1, "it does not come back to the same device at once"


async def test_a_refusal_of_the_device_policy_half_way_is_a_failure(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.fail(run, PolicyForbids("a redirect to elsewhere", begun=True))
    assert (await stage.end_of(run)).error == "PolicyForbids: a redirect to elsewhere"


@pytest.mark.store_only("runs are created in its process")
async def test_a_full_device_declines_and_is_asked_again(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    await kitchen.fleet.workflows.add(WORK)
    mine = await kitchen.fleet.create("work")
    hub = stage.fleet("hub")
    placer = await hub.placer()
    placer._used["kitchen"] = 0  # the hub does not know yet that it has become busy
    run = await hub.create(WORK)
    assert run.status == "assigned"
    stored = await stage.reaches(run, "reassigning")
    assert (stored.previous[0].detail, stored.avoid) == ("it is full", ())
    kitchen.hands.finish(mine)
    await stage.at_work(kitchen, run)


# -- assigned and offered runs at the same time ------------------------------------------------------------------------


async def offer(stage: Stage, flow: Workflow) -> Run:
    """A new run that is offered to all, whichever device is free."""
    made = transitions.create("offered", flow, {}, by="ann", now=stage.store.clock())
    return await stage.person.ledger.add(made, lambda run: run)


@pytest.mark.store_only("a gateway assigns nothing meanwhile")
async def test_a_run_that_is_assigned_while_the_device_judges_offered_ones_goes_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    kitchen = await stage.device("kitchen")
    flow = await stage.person.workflows.add(Workflow("ask", http={"url": "http://here/"}))
    await asyncio.sleep(1.0)
    monkeypatch.setattr(claimer, "load_httpx", partial(asyncio.sleep, 2.0))  # what judging such work takes at first
    offered = await offer(stage, flow)
    await asyncio.sleep(1.0)
    later = await stage.person.create(flow)
    assigned = await stage.person.move(later.id, "kitchen")  # a person may let it overtake
    await stage.at_work(kitchen, assigned)
    assert (await stage.read(assigned)).previous == (), "the slot was kept for it"
    kitchen.hands.finish(assigned)
    await stage.at_work(kitchen, offered)


async def test_the_place_of_an_assigned_run_is_kept_while_the_lease_is_renewed_for_it(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    flow = await stage.person.workflows.add(replace(WORK, heartbeat=0.5, heartbeat_timeout=2.0))
    await asyncio.sleep(5.0)
    kitchen.line.late["take"] = 0.3  # the heartbeat comes first, and the lease is fresh
    kitchen.line.late["find"] = 0.1
    assigned = await stage.person.create(flow)
    offered = await offer(stage, flow)
    assert assigned.device == "kitchen"
    await stage.at_work(kitchen, assigned)
    assert (await stage.read(assigned)).previous == (), "the slot was kept for it"
    kitchen.hands.finish(assigned)
    await stage.at_work(kitchen, offered)


@pytest.mark.store_only("its line is slow")
async def test_a_new_run_does_not_overtake_those_that_wait_for_a_device(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=1)
    first = await stage.person.create(WORK)
    await stage.at_work(kitchen, first)
    waiting = [await stage.person.create(WORK) for _ in range(2)]
    kitchen.line.late["take"] = 30.0
    kitchen.hands.finish(first)
    await stage.end_of(first)
    await asyncio.sleep(10.0)  # its slot is free, and it has not asked for the next run yet
    late = await stage.person.create(WORK)
    assert late.status == "created"
    for run in (*waiting, late):
        await stage.at_work(kitchen, run)
        kitchen.hands.finish(run)
    assert begun(kitchen) == [first.id, *(run.id for run in waiting), late.id]


@pytest.mark.store_only("runs are created in its process")
async def test_a_run_that_a_device_creates_does_not_overtake_those_that_wait(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=1)
    await kitchen.fleet.workflows.add(WORK)
    first = await kitchen.fleet.create("work")
    await stage.at_work(kitchen, first)
    waiting = await stage.person.create(WORK)
    kitchen.line.late["take"] = 30.0
    kitchen.hands.finish(first)
    await stage.end_of(first)
    own = await kitchen.fleet.create("work")
    for run in (waiting, own):
        await stage.at_work(kitchen, run)
        kitchen.hands.finish(run)
    assert begun(kitchen) == [first.id, waiting.id, own.id]
