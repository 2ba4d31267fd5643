"""A stored plan that has ended is retried: one commit reopens it, and completed work is not done again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.errors import AlreadyRunning, EditRejected, PlanError
from asterism.core.plan import edits, plan_end
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ApprovalRule, EditScope
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.task import Task
from asterism.durable import compaction, plan_actor
from asterism.durable.approval_store import list_approvals
from asterism.durable.journal_store import UnknownConstellation, head_key, read_head
from asterism.durable.plan_actor import NotAnswered, edit_plan, retry_plan
from asterism.fleet import retention
from asterism.orchestrator.waiting_edits import WaitingEdits
from asterism.store.protocol import PutRegister, Query
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, task
from tests.laboratory.plan_invariants import check_invariants

pytestmark = pytest.mark.virtual_time

BROKEN = "tests.durable.durable_work:fail"
WORKS = "tests.durable.durable_work:work"


def broken_plan() -> Constellation:
    """a -> b (fails) -> c."""
    plan = Constellation("nightly")
    plan.add(task("a"))
    plan.add(task("b", "fail"), "a")
    plan.add(task("c"), "b")
    return plan


MEND = EditBatch((edits.UpdateTask("b", call=WORKS),), "ann")


async def failed(stage: Stage, local: int = 4) -> None:
    result = await stage.orchestrator(local=local).run(broken_plan())
    assert result.state == "partially_failed"


async def test_a_failed_plan_is_retried_and_completed_work_is_not_done_again(stage: Stage) -> None:
    await failed(stage)
    result = await stage.orchestrator().retry("nightly", edits=MEND, reason="mended")
    assert result.state == "completed"
    assert {name: DONE[name] for name in "abc"} == {"a": 1, "b": 2, "c": 1}
    stored = await stage.load()
    check_invariants(stored.plan)
    assert stored.head.state == "completed"
    assert [entry.why for entry in stored.plan.story("b") if entry.what == "retried"] == ["by ann: mended"]
    assert [stored.plan.node(name).epoch for name in "abc"] == [1, 3, 4]


async def test_a_dry_run_tells_what_would_run_again_and_writes_nothing(stage: Stage) -> None:
    await failed(stage)
    before, revision = await read_head(stage.store, "nightly")
    reopened = await retry_plan(stage.fleet(), "nightly", from_tasks=["b"], batch=MEND, submit=True, dry_run=True)
    assert set(reopened.tasks) == {"b", "c"}
    assert await read_head(stage.store, "nightly") == (before, revision)
    wrong = EditBatch((edits.UpdateTask("a", call=WORKS),), "ann")
    with pytest.raises(EditRejected):
        await retry_plan(stage.fleet(), "nightly", from_tasks=["b"], batch=wrong, dry_run=True)


async def test_it_may_fail_again_and_be_retried_again(stage: Stage) -> None:
    await failed(stage)
    for _ in range(2):
        assert (await stage.orchestrator().retry("nightly")).state == "partially_failed"
    assert (await stage.orchestrator().retry("nightly", edits=list(MEND.edits))).state == "completed"
    assert DONE["a"] == 1


async def test_from_a_task_everything_below_runs_again(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("a"))
    plan.add(task("b"), "a")
    plan.add(task("c"), "b")
    await stage.orchestrator().run(plan)
    result = await stage.orchestrator().retry("nightly", from_tasks=["b"])
    assert result.state == "completed"
    assert {name: DONE[name] for name in "abc"} == {"a": 1, "b": 2, "c": 2}


async def test_after_a_crash_a_reopened_plan_is_resumed(stage: Stage) -> None:
    """The process dies between the commit that reopens the plan and its first step."""
    await failed(stage)
    reopened = await retry_plan(stage.fleet(), "nightly", batch=MEND)
    assert (reopened.tasks, reopened.version) == (("b",), 1)
    head, _ = await read_head(stage.store, "nightly")
    assert (head.state, head.owner, head.ended_at) == ("executing", None, None)
    assert (await stage.orchestrator().run_stored("nightly")).state == "completed"
    assert {name: DONE[name] for name in "abc"} == {"a": 1, "b": 2, "c": 1}


async def test_of_two_retries_one_succeeds(stage: Stage) -> None:
    await failed(stage)
    both = [retry_plan(stage.fleet(), "nightly", batch=MEND) for _ in range(2)]
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, PlanError)]
    assert len(refused) == 1
    assert str(refused[0]) == "plan 'nightly' has not ended; resume it with: asterism resume nightly"
    stored = await stage.load()
    assert [entry.what for entry in stored.plan.story("b")].count("retried") == 1


async def test_a_rejected_edit_reopens_nothing(stage: Stage) -> None:
    await failed(stage)
    before = await stage.load()
    with pytest.raises(EditRejected):
        await stage.orchestrator().retry("nightly", edits=[edits.RemoveTask("nothing")])
    after = await stage.load()
    assert (after.number, after.revision, after.head) == (before.number, before.revision, before.head)


async def test_a_plan_that_is_running_cannot_be_retried(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    running = stage.spawn(stage.orchestrator().run(plan))
    await durable_work.gate("a begun").wait()
    with pytest.raises(
        AlreadyRunning, match="plan 'nightly' is run by 'nightly@here': it can be retried when it has e"
    ):
        await retry_plan(stage.fleet(), "nightly")
    durable_work.gate("a").set()
    assert (await running).state == "completed"
    with pytest.raises(PlanError, match="in plan 'nightly' no task failed"):
        await stage.orchestrator().retry("nightly")
    with pytest.raises(UnknownConstellation):
        await stage.orchestrator().retry("other")


async def test_a_cancelled_plan_stays_cancelled(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    runner = stage.orchestrator()
    running = stage.spawn(runner.run(plan))
    await durable_work.gate("a begun").wait()
    await runner.cancel("nightly")
    await running
    with pytest.raises(PlanError, match="plan 'nightly' was cancelled, for good"):
        await stage.orchestrator().retry("nightly", from_tasks=["a"])
    with pytest.raises(EditRejected, match="was cancelled, for good"):
        await plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch((edits.AddTask(task("b")),)))


async def test_a_retry_withdraws_the_pause_of_a_plan_that_ended(stage: Stage) -> None:
    await failed(stage)
    head, revision = await read_head(stage.store, "nightly")
    await stage.store.commit([PutRegister(head_key("nightly"), head.changed(paused="by bob").to_json(), revision)])
    assert (await stage.orchestrator().retry("nightly", edits=MEND)).state == "completed"
    assert (await read_head(stage.store, "nightly"))[0].paused is None


async def test_an_edit_that_adds_a_task_reopens_a_plan(stage: Stage) -> None:
    await failed(stage)
    fix = [edits.AddTask(task("fix")), edits.AddDependency("b", "fix", "failure", handled=True)]
    dry = await plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch(tuple(fix)), dry_run=True)
    assert dry.reopened
    assert (await read_head(stage.store, "nightly"))[0].ended, "only checked"
    applied = await plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch(tuple(fix)))
    assert (applied.applied.version, dry.applied.version) == (1, 1)
    head, _ = await read_head(stage.store, "nightly")
    assert (head.state, head.ended_at) == ("executing", None)
    result = await stage.orchestrator().run_stored("nightly")
    assert (result.state, result.repaired) == ("completed", True)
    assert DONE["a"] == 1


async def test_other_edits_of_an_ended_plan_are_rejected(stage: Stage) -> None:
    await failed(stage)
    with pytest.raises(EditRejected, match=r"has ended .partially_failed.; only an edit that adds a task reopens it"):
        await plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch((edits.UpdateTask("c", timeout=1),)))


async def test_an_edit_of_a_plan_that_ended_a_moment_ago_waits_for_its_owner(stage: Stage) -> None:
    """The journal has the end, the head has not: its owner is about to write that."""
    await failed(stage)
    head, revision = await read_head(stage.store, "nightly")
    device = await stage.device("owner")
    ending = head.changed(state="executing", owner=device.session.id, ended_at=None)
    await stage.store.commit([PutRegister(head_key("nightly"), ending.to_json(), revision)])
    with pytest.raises(NotAnswered, match="'owner' runs plan 'nightly', but did not answer"):
        await retry_plan(stage.fleet(), "nightly")
    retry = asyncio.create_task(retry_plan(stage.fleet(), "nightly"))
    await asyncio.sleep(1.0)
    await stage.store.commit([PutRegister(head_key("nightly"), head.to_json(), revision + 1)])
    assert (await retry).tasks == ("b",)


async def test_a_compacted_journal_is_reopened_and_its_snapshot_knows_of_the_retry(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 1)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    await failed(stage)
    orchestrator = stage.orchestrator()
    again = stage.spawn(orchestrator.retry("nightly", edits=EditBatch((edits.AddTask(task("z", "wait")),), "ann")))
    await durable_work.gate("z begun").wait()
    await asyncio.sleep(1.0)
    durable_work.gate("z").set()
    assert (await again).state == "partially_failed"
    stored = await stage.load()
    assert stored.head.snapshot is not None
    assert stored.plan.node("b").spent == 1
    assert (await stage.orchestrator().retry("nightly", edits=MEND)).state == "completed"
    assert (await stage.load()).plan.node("b").attempts == 3
    assert DONE["a"] == 1


async def test_retention_does_not_remove_a_plan_that_is_being_reopened(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await failed(stage)
    await prune_while_reopened(stage, monkeypatch)
    assert (await stage.orchestrator().run_stored("nightly")).state == "completed"


async def test_without_the_fence_retention_would_remove_its_journal(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = retention._remove
    monkeypatch.setattr(retention, "_remove", lambda store, registers, *fences: remove(store, registers))
    await failed(stage)
    await prune_while_reopened(stage, monkeypatch)
    assert not await stage.store.registers("journal/nightly/")


async def prune_while_reopened(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention has read the head of the plan; then somebody retries the plan."""
    remove_plan = retention._remove_plan

    async def reopened_first(store: Any, head: Any) -> None:
        monkeypatch.setattr(retention, "_remove_plan", remove_plan)
        await retry_plan(stage.fleet(), "nightly", batch=MEND)
        await remove_plan(store, head)

    await asyncio.sleep(10.0)
    monkeypatch.setattr(retention, "_remove_plan", reopened_first)
    await stage.fleet().prune(1.0)


async def test_the_run_of_a_plan_is_not_retried_by_itself(stage: Stage) -> None:
    await stage.device("kitchen")
    await failed(stage, local=0)
    fleet = stage.fleet()
    (run,) = [run for run in await stage.store.find(Query()) if run.status == "failed"]
    with pytest.raises(Exception, match=f"run {run.id} belongs to plan 'nightly'.* asterism plan retry nightly"):
        await fleet.retry(run.id)


async def test_a_result_that_was_consumed_before_the_retry_never_counts_again(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(Task("a", call="tests.durable.durable_work:who"))
    first = (await stage.orchestrator().run(plan))["a"].value
    second = (await stage.orchestrator().retry("nightly", from_tasks=["a"]))["a"].value
    assert first != second, "another run"


async def test_without_a_new_epoch_the_retry_meets_the_run_that_was_consumed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ablation: the epoch of the execution that failed is used again, and the key of its run is taken: no run tells of
    the second execution."""
    reset: Callable[..., None] = plan_end._reset

    def same_epoch(graph: Any, node: Any) -> None:
        graph.epochs = node.epoch - 1 if node.epoch else graph.epochs
        reset(graph, node)

    monkeypatch.setattr(plan_end, "_reset", same_epoch)
    await failed(stage)
    retry = stage.spawn(stage.orchestrator().retry("nightly", edits=MEND))
    done, _ = await asyncio.wait([retry], timeout=100.0)
    assert len(done) == 1
    runs = await stage.store.find(Query())
    assert len(runs) < DONE["a"] + DONE["b"] + DONE["c"]


# -- rules about edits -------------------------------------------------------------------------------------------------

LIMITS: dict[str, Any] = {
    "approvals": [ApprovalRule.parse("edits=update_task")],
    "scopes": [EditScope.parse("edits=add_task tasks=* executors=* fields=*")],
}


@pytest.mark.parametrize(
    ("editor", "batch", "rule"),
    [
        (None, MEND, "approval"),
        ("robot", MEND, "scope"),
        ("robot", EditBatch((edits.AddTask(task("d")), *MEND.edits)), "scope"),
        (None, EditBatch((edits.AddTask(task("d")),)), None),
    ],
)
async def test_edits_of_a_retry_obey_the_rules_of_the_plan(
    stage: Stage, editor: str | None, batch: EditBatch, rule: str | None
) -> None:
    await stage.orchestrator(**LIMITS).run(broken_plan())
    before = await read_head(stage.store, "nightly")
    if rule is None:
        assert (await retry_plan(stage.fleet(), "nightly", batch=batch, editor=editor)).version == 1
        return
    with pytest.raises(EditRejected) as rejected:
        await retry_plan(stage.fleet(), "nightly", batch=batch, editor=editor)
    assert [violation.rule for violation in rejected.value.violations] == [rule]
    assert await read_head(stage.store, "nightly") == before, "nothing runs again"
    assert (await retry_plan(stage.fleet(), "nightly", editor=editor)).tasks == ("b",)


async def test_without_that_check_a_retry_would_apply_an_edit_that_needs_approval(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WaitingEdits, "check_retry", lambda *about: None)
    await stage.orchestrator(**LIMITS).run(broken_plan())
    assert (await retry_plan(stage.fleet(), "nightly", batch=MEND)).version == 1


@pytest.mark.parametrize("dry_run", [False, True])
async def test_an_edit_that_needs_approval_does_not_wait_for_a_plan_that_has_ended(stage: Stage, dry_run: bool) -> None:
    await stage.orchestrator(approvals=[ApprovalRule()]).run(broken_plan())
    with pytest.raises(
        EditRejected, match=r"has ended .*needs approval .*retry the plan, and then edit it"
    ) as rejected:
        await edit_plan(stage.fleet(), "nightly", EditBatch((edits.AddTask(task("d")),)), dry_run=dry_run)
    assert [violation.rule for violation in rejected.value.violations] == ["ended"]
    assert await list_approvals(stage.store, "nightly") == []
