"""Requests in the store to cancel a plan, whether a process runs it or not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.api.local import plan_documents
from asterism.core.errors import PlanError
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.status import ConstellationState
from asterism.durable import ownership, plan_actor
from asterism.durable.commands import CancelPlan, EditAnswer
from asterism.durable.journal_store import UnknownConstellation, insert_plan, read_head
from asterism.durable.plan_actor import mailbox_prefix
from asterism.durable.stored_plans import explain_task, read_plan
from asterism.report.picture import picture
from asterism.store.protocol import PutRegister, Query
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, heard_by, left, task

pytestmark = pytest.mark.virtual_time

CANCELLED = ConstellationState.CANCELLED


def told_of_cancelling(plan: Any) -> list[str]:
    return [entry.why for entry in plan.story() if entry.what == "asked to cancel"]


async def test_the_owner_cancels_on_request_and_records_the_reason(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    before = stage.now()
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    assert (await running).state is CANCELLED
    assert stage.now() - before <= 2 * ownership.MAILBOX_INTERVAL
    stored = await stage.load()
    assert (stored.head.state, stored.head.owner, stored.head.cancelling) == ("cancelled", None, True)
    assert told_of_cancelling(stored.plan) == ["by ann: not tonight"]
    assert {str(node.status) for node in stored.plan.nodes.values()} == {"cancelled"}
    assert DONE == {}


async def test_every_cancelled_task_has_the_reason_of_the_person(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    why = "the constellation was cancelled by ann: not tonight"
    result = await running
    stored = await read_plan(stage.fleet(), "nightly")
    for plan in (result.plan, stored.record.plan):
        assert {node.reason for node in plan.nodes.values()} == {why}
        assert [entry.why for entry in plan.story() if entry.what == "cancelled" and entry.task] == [why, why]
    view = plan_documents.view(stored, now=0.0)
    assert [task.reason for task in view.tasks] == [why, why]
    assert all(row.note.endswith(why) for row in picture(stored.record.plan).tasks)
    explained = await explain_task(stage.fleet(), "nightly", "b")
    assert explained.reasons[0].text.endswith(f": {why}")


async def test_the_head_says_cancelling_while_a_task_stops(stage: Stage) -> None:
    orchestrator = stage.orchestrator(grace=50.0)
    heard = heard_by(orchestrator)
    running = stage.spawn(orchestrator.run(chain("a", "b", call="stubborn")))
    await durable_work.gate("a begun").wait()
    await plan_actor.cancel_plan(stage.fleet(), "nightly")
    await asyncio.sleep(2 * ownership.MAILBOX_INTERVAL)
    assert (await stage.load()).head.cancelling
    assert not running.done()
    durable_work.gate("a").set()
    assert (await running).state is CANCELLED
    assert [event.kind for event in heard].count("constellation_cancelling") == 1


async def test_the_next_owner_cancels_a_stopped_plan_and_starts_nothing(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", "b"))
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    result = await stage.orchestrator().run_stored("nightly")
    assert result.state is CANCELLED
    assert DONE == {}
    assert await stage.store.find(Query()) == []


async def test_a_cancel_that_the_owner_did_not_see_is_done_before_any_task_starts(stage: Stage) -> None:
    """The process that asked is gone, and so is the owner of that time."""
    await insert_plan(stage.store, chain("a", "b"))
    value = {"do": CancelPlan("by bob").to_json(), "at": stage.store.clock()}
    await stage.store.commit([PutRegister(f"{mailbox_prefix('nightly')}1", value, None)])
    assert (await stage.orchestrator().run_stored("nightly")).state is CANCELLED
    assert DONE == {}


async def test_a_cancel_of_an_owner_that_does_not_answer_stays_for_the_next_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ownership, "answer_messages", lambda plan, messages: {})
        job = stage.spawn(stage.orchestrator(host="there").run(chain("a", "b", call="wait")))
        await durable_work.gate("a begun").wait()
        await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
        assert not job.done()
        job.cancel()
        await asyncio.wait([job])
    assert (await stage.orchestrator(host="elsewhere").standby("nightly")).state is CANCELLED
    assert told_of_cancelling((await stage.load()).plan) == ["by ann: not tonight"]
    assert DONE == {}


async def test_cancelling_a_stopped_plan_stops_its_runs_on_other_devices(stage: Stage) -> None:
    await stage.device("kitchen")
    first = stage.orchestrator(local=0)
    await left(first.run(chain("a", "b", call="wait")), durable_work.gate("a begun").is_set, stage)
    await plan_actor.cancel_plan(stage.fleet(), "nightly")
    assert (await stage.orchestrator(local=0).standby("nightly")).state is CANCELLED
    (run,) = await stage.store.find(Query(workflow="plan:nightly"))
    assert (run.ended, run.cancelled) == (True, True)
    assert DONE == {}


async def test_a_standby_finishes_the_cancellation_of_a_dead_owner(stage: Stage) -> None:
    first = stage.orchestrator(host="there", grace=1000.0)
    running = stage.spawn(first.run(chain("a", "b", call="stubborn")))
    await durable_work.gate("a begun").wait()
    second = stage.spawn(stage.orchestrator(host="elsewhere", grace=3.0).standby("nightly"))
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    await stage.until(lambda: first.stored is not None and first.stored.head.cancelling)
    await asyncio.sleep(100.0)
    assert not second.done()  # the first owner is alive
    running.cancel()
    await asyncio.wait([running])
    assert (await second).state is CANCELLED
    durable_work.gate("a").set()
    stored = await stage.load()
    assert stored.head.epoch == 2
    assert told_of_cancelling(stored.plan) == ["by ann: not tonight"]
    assert str(stored.plan["b"].status) == "cancelled"


async def test_a_standby_obeys_a_cancel_request_that_the_dead_owner_missed(stage: Stage) -> None:
    first = stage.orchestrator(host="there")
    running = asyncio.ensure_future(first.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    running.cancel()
    await asyncio.wait([running])
    await plan_actor.cancel_plan(stage.fleet(), "nightly")
    assert (await stage.load()).head.cancelling
    assert (await stage.orchestrator().standby("nightly")).state is CANCELLED
    assert DONE == {}


async def test_no_pause_or_edit_undoes_a_cancel_request(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", "b"))
    await plan_actor.pause_plan(stage.fleet(), "nightly")
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "nor tomorrow")
    assert (await read_head(stage.store, "nightly"))[0].cancel_reason == "by ann: not tonight"
    assert await plan_actor.unpause_plan(stage.fleet(), "nightly")
    with pytest.raises(PlanError, match="is being cancelled by ann: not tonight: it cannot be paused"):
        await plan_actor.pause_plan(stage.fleet(), "nightly")
    with pytest.raises(PlanError, match="is being cancelled by ann: not tonight: it cannot be edited"):
        await plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch((AddTask(task("c")),)))
    assert (await stage.orchestrator().run_stored("nightly")).state is CANCELLED


async def test_a_paused_plan_can_be_cancelled(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    running = stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await plan_actor.pause_plan(stage.fleet(), "nightly")
    await asyncio.sleep(2 * ownership.MAILBOX_INTERVAL)
    await asyncio.gather(
        plan_actor.unpause_plan(stage.fleet(), "nightly"), plan_actor.cancel_plan(stage.fleet(), "nightly")
    )
    assert (await running).state is CANCELLED


@pytest.mark.parametrize("seed", range(10))
async def test_concurrent_edits_cancels_and_standbys_end_cancelled_with_all_accepted_edits(
    stage: Stage, seed: int
) -> None:
    await insert_plan(stage.store, chain("a", call="wait"))
    batches = [EditBatch((AddTask(task(f"t{number}", "wait")),)) for number in range(4)]
    edits = [stage.spawn(plan_actor.edit_plan(stage.fleet(), "nightly", batch)) for batch in batches]
    taken_up = [stage.spawn(stage.orchestrator(host=host).standby("nightly")) for host in ("here", "there")]
    asked = [stage.spawn(plan_actor.cancel_plan(stage.fleet(), "nightly")) for _ in range(3)]
    outcomes = await asyncio.gather(*edits, return_exceptions=True)
    await asyncio.gather(*asked)
    assert [outcome.state for outcome in await asyncio.gather(*taken_up)] == [CANCELLED, CANCELLED]
    added = {f"t{number}" for number, outcome in enumerate(outcomes) if isinstance(outcome, EditAnswer)}
    assert set((await stage.load()).plan.nodes) == {"a", *added}
    assert all(isinstance(outcome, EditAnswer | PlanError) for outcome in outcomes), outcomes
    assert DONE == {}


async def test_an_ended_plan_cannot_be_cancelled(stage: Stage) -> None:
    with pytest.raises(UnknownConstellation):
        await plan_actor.cancel_plan(stage.fleet(), "nightly")
    await stage.orchestrator().run(chain("a"))
    with pytest.raises(PlanError, match="is completed: it cannot be cancelled"):
        await plan_actor.cancel_plan(stage.fleet(), "nightly")
    assert (await read_head(stage.store, "nightly"))[0].cancel_reason is None


async def test_the_name_of_a_removed_cancelled_plan_can_be_used_again(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await plan_actor.cancel_plan(stage.fleet(), "nightly")
    await running
    await plan_actor.cancel_plan(stage.fleet(), "nightly")  # a cancelled plan stays cancelled
    await asyncio.sleep(10_000.0)
    await stage.fleet().prune(1000.0)
    left_over = {register.key.partition("/")[0] for register in await stage.store.registers("")}
    assert not left_over & {"plan", "journal", "workflow-version", "cancel"}
    assert (await stage.orchestrator().run(chain("a"))).state == "completed"
