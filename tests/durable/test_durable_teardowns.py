"""Teardowns of stored plans: they run in a plan that is cancelled, also if its process is killed meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from asterism import Constellation
from asterism.api.system import LocalSystem
from asterism.core.errors import PlanError
from asterism.core.plan.edits import CancelTask, EditBatch
from asterism.core.plan.status import ConstellationState
from asterism.core.run.run import Run
from asterism.durable import plan_actor, plan_submissions
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.plan_metrics import plan_families
from asterism.durable.stored_plans import explain_task, read_plan
from asterism.store.protocol import Query
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, task

pytestmark = pytest.mark.virtual_time


def database(drop: str = "wait") -> Constellation:
    """create, then load, which waits; drop tears create down."""
    plan = chain("create")
    plan.add(task("load", "wait"), "create")
    plan.add(task("verify"), "load")
    plan.add(task("drop", drop), teardown="create")
    return plan


async def test_a_killed_process_in_the_middle_of_a_cancellation_leaves_the_teardown_to_the_next(stage: Stage) -> None:
    first = stage.orchestrator(host="there")
    running = asyncio.ensure_future(first.run(database()))
    await durable_work.gate("load begun").wait()
    cancelling = asyncio.ensure_future(first.cancel("nightly"))
    await durable_work.gate("drop begun").wait()
    running.cancel()
    await asyncio.wait([running])
    cancelling.cancel()
    view = await read_plan(stage.fleet(), "nightly")
    assert (view.state, view.record.plan.state, view.record.head.state) == ("cancelling",) * 3
    assert view.record.plan["verify"].status == "cancelled"
    states = next(family for family in await plan_families(stage.store, 60.0) if family.name == "asterism_plans")
    assert dict(states.samples) == {("cancelling",): 1}
    durable_work.gate("drop").set()
    result = await stage.orchestrator().run_stored("nightly")
    assert result.state is ConstellationState.CANCELLED
    assert (result["drop"].status, result["load"].status) == ("completed", "cancelled")
    assert DONE == {"create": 1, "drop": 1}


async def test_a_cancellation_of_a_plan_that_no_process_runs_tears_down_what_was_set_up(stage: Stage) -> None:
    first = stage.orchestrator(host="there")
    running = asyncio.ensure_future(first.run(database("work")))
    await durable_work.gate("load begun").wait()
    running.cancel()
    await asyncio.wait([running])
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    explanation = await explain_task(stage.fleet(), "nightly", "drop")
    assert [reason.kind for reason in explanation.reasons] == ["teardown"]
    result = await stage.orchestrator().run_stored("nightly")
    assert result.state is ConstellationState.CANCELLED
    assert DONE == {"create": 1, "drop": 1}


# -- set-ups that no device has begun ----------------------------------------------------------------------------------


def unreachable() -> Constellation:
    """As above, but only a device with a GPU can create."""
    plan = Constellation("nightly")
    plan.add(task("create", needs=["gpu"]))
    plan.add(task("load"), "create")
    plan.add(task("drop"), teardown="create")
    return plan


async def queued(stage: Stage) -> DurableOrchestrator:
    """A process runs the plan above, and create waits for a device."""
    orchestrator = stage.orchestrator(no_device_timeout=7200.0)
    stage.spawn(orchestrator.run(unreachable()))
    await asyncio.sleep(5.0)
    assert (await stage.load()).plan["create"].status == "running"
    return orchestrator


async def test_a_set_up_that_no_device_could_take_is_not_torn_down(stage: Stage) -> None:
    result = await stage.orchestrator(no_device_timeout=50.0).run(unreachable())
    assert [result[name].status for name in ("create", "drop")] == ["failed", "cancelled"]
    assert result["drop"].reason == "not needed: its set-up 'create' never started"
    assert DONE == {}


async def test_ablation_a_set_up_that_no_device_could_take_is_torn_down(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asterism.durable.fleet_device.was_executed", lambda run: True)
    await stage.orchestrator(no_device_timeout=50.0).run(unreachable())
    assert DONE == {"drop": 1}


async def test_the_cancellation_of_a_plan_does_not_wait_for_the_teardown_of_a_queued_set_up(stage: Stage) -> None:
    await stage.device("bystander")
    first = stage.orchestrator(host="there", no_device_timeout=7200.0)
    running = asyncio.ensure_future(first.run(unreachable()))
    await asyncio.sleep(5.0)
    running.cancel()
    await asyncio.wait([running])
    await plan_actor.cancel_plan(stage.fleet(), "nightly")
    view = await read_plan(stage.fleet(), "nightly")
    assert not view.is_due(view.record.plan.node("drop"))
    result = await stage.orchestrator(local=0).run_stored("nightly")
    assert (result.state, result["drop"].status) == (ConstellationState.CANCELLED, "cancelled")
    assert DONE == {}
    [run] = await stage.store.find(Query())
    assert run.cancelled, "the run of the earlier process is cancelled before the plan counts it as such"


async def test_a_queued_set_up_that_an_edit_cancels_is_not_torn_down(stage: Stage) -> None:
    orchestrator = await queued(stage)
    await orchestrator.edit("nightly", EditBatch((CancelTask("create"),)))
    await asyncio.sleep(30.0)
    assert (await stage.load()).plan["drop"].reason == "not needed: its set-up 'create' never started"
    assert DONE == {}


async def test_a_queued_set_up_that_an_edit_at_rest_cancels_is_not_torn_down(stage: Stage) -> None:
    first = stage.orchestrator(host="there", no_device_timeout=7200.0)
    running = asyncio.ensure_future(first.run(unreachable()))
    await asyncio.sleep(5.0)
    running.cancel()
    await asyncio.wait([running])
    await plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch((CancelTask("create"),)))
    result = await stage.orchestrator().run_stored("nightly")
    assert result["drop"].reason == "not needed: its set-up 'create' never started"
    assert DONE == {}


async def test_a_teardown_has_a_time_limit_of_its_own_in_the_fleet(stage: Stage) -> None:
    running = asyncio.ensure_future(stage.orchestrator().run(database()))
    await durable_work.gate("load begun").wait()
    durable_work.gate("load").set()
    result = await running
    assert result["drop"].status == "failed"
    assert "300" in result["drop"].reason


async def cancelled_while_torn_down(stage: Stage) -> None:
    """The only process that can execute the teardown dies while it does so, in a plan that is being cancelled."""
    first = stage.orchestrator(host="there")
    running = asyncio.ensure_future(first.run(database()))
    await durable_work.gate("load begun").wait()
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    await durable_work.gate("drop begun").wait()
    running.cancel()
    await asyncio.wait([running])


async def test_a_teardown_of_a_cancelled_plan_waits_for_a_device_without_limit(stage: Stage) -> None:
    await cancelled_while_torn_down(stage)
    await stage.device("bystander", can=(), slots=0)
    server = stage.spawn(stage.orchestrator(local=0).run_stored("nightly"))
    await asyncio.sleep(4 * 300.0)
    view = await read_plan(stage.fleet(), "nightly")
    assert (view.state, view.record.plan["drop"].status, server.done()) == ("cancelling", "running", False)
    durable_work.gate("drop").set()
    await stage.device("kitchen-pc")
    result = await server
    assert (result.state, result["drop"].status) == (ConstellationState.CANCELLED, "completed")
    assert DONE == {"create": 1, "drop": 1}


async def test_a_teardown_that_was_given_up_before_the_cancellation_runs_all_the_same(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    first = stage.orchestrator(host="there", local=0)
    running = asyncio.ensure_future(first.run(database()))
    await durable_work.gate("load begun").wait()
    durable_work.gate("load").set()
    await durable_work.gate("drop begun").wait()
    running.cancel()
    await asyncio.wait([running])
    kitchen.drain(hand_back=True)
    await stage.device("bystander", slots=0)
    await asyncio.sleep(2 * 300.0)
    [run] = [
        candidate
        for candidate in await stage.store.find(Query())
        if str(candidate.key).startswith("plan:nightly/drop/")
    ]
    assert "no device could take it for 300 s" in str(run.error)
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    durable_work.gate("drop").set()
    result = await stage.orchestrator().run_stored("nightly")
    assert (result.state, result["drop"].status) == (ConstellationState.CANCELLED, "completed")
    assert [entry.what for entry in result.plan.story("drop")].count("put back") == 1


async def test_a_plan_whose_teardown_waits_is_not_removed_and_says_what_helps(stage: Stage) -> None:
    await cancelled_while_torn_down(stage)
    with pytest.raises(PlanError, match=r"teardowns run first \(drop\); .*asterism resume nightly --local"):
        await LocalSystem(stage.fleet()).remove_plan("nightly")


@pytest.mark.long
async def test_a_teardown_of_a_cancelled_plan_that_all_devices_decline_is_offered_without_limit(stage: Stage) -> None:
    await cancelled_while_torn_down(stage)
    await stage.device("picky", accepts="run.workflow == 'other'")
    server = stage.spawn(stage.orchestrator(local=0).run_stored("nightly"))
    await asyncio.sleep(4 * 300.0)
    assert (await read_plan(stage.fleet(), "nightly")).state == "cancelling"
    durable_work.gate("drop").set()
    await stage.device("kitchen-pc")
    assert (await server)["drop"].status == "completed"


async def test_ablation_a_monitor_that_does_not_know_of_the_cancellation_loses_the_teardown(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_cancelling(store: object, name: str) -> bool:
        return False

    monkeypatch.setattr(plan_submissions, "plan_cancelling", not_cancelling)
    monkeypatch.setattr(Run, "given_up", False)
    await cancelled_while_torn_down(stage)
    result = await stage.orchestrator(local=0).run_stored("nightly")
    assert (result.state, result["drop"].status) == (ConstellationState.CANCELLED, "failed")
    assert DONE == {"create": 1}
