"""Scopes and taint of a stored plan: every owner obeys them, through every way into the plan."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import EditScope
from asterism.core.plan.edits import AddTask, CancelTask, EditBatch, EditWaits, RemoveTaint, RemoveTask
from asterism.core.plan.task import Task
from asterism.durable import approval_store
from asterism.durable.approval_store import approval_terms, list_approvals
from asterism.durable.journal_store import read_head
from asterism.durable.plan_actor import (
    answer_cycle,
    approve_edit,
    edit_plan,
    list_cycles,
    refuse_edit,
    retry_plan,
    undo_edit,
)
from asterism.durable.plan_submissions import submit_plan
from asterism.durable.rejected_edits import rejected_edits
from asterism.execution.foreach_expansion import deferred_group
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, chain, task

pytestmark = pytest.mark.virtual_time

SCOPES = (EditScope.parse("edits=add_task,cancel_task tasks=fix-*,b executors=call"),)
OUTSIDE: dict[str, Any] = {"external": True, "claim_timeout": float("inf"), "edit_on": lambda one: one.id == "a"}


def adding(name: str) -> EditBatch:
    return EditBatch((AddTask(task(name)),), "ann")


def untrusted(*names: str) -> Constellation:
    """A chain whose first task is untrusted."""
    made = Constellation("nightly")
    for before, name in zip(["", *names], names, strict=False):
        fields = {"call": "tests.durable.durable_work:wait", "inputs": {"name": name}, "untrusted": name == names[0]}
        made.add(Task(name, **fields), before or None)
    return made


def open_gates() -> None:
    for name in (*"abc", "fix-1"):
        durable_work.gate(name).set()


async def begun(stage: Stage, plan: Constellation, **options: Any) -> asyncio.Task[Any]:
    job = stage.spawn(stage.orchestrator(**options).run(plan))
    await durable_work.gate("a begun").wait()
    return job


async def rules(awaitable: Any) -> list[str]:
    with pytest.raises(EditRejected) as rejected:
        await awaitable
    return [violation.rule for violation in rejected.value.violations]


async def test_the_edits_of_an_editor_have_a_scope_wherever_they_come_from(stage: Stage) -> None:
    job = await begun(stage, chain("a", "b", "c", call="wait"), scopes=SCOPES, **OUTSIDE)
    fleet = stage.fleet()
    assert await rules(edit_plan(fleet, "nightly", adding("x"), editor="robot")) == ["scope"]
    assert await rules(edit_plan(fleet, "nightly", adding("x"), editor="robot", dry_run=True)) == ["scope"]
    await edit_plan(fleet, "nightly", adding("fix-1"), editor="robot")
    await edit_plan(fleet, "nightly", adding("x"))  # a person
    assert await rules(undo_edit(fleet, "nightly", editor="robot")) == ["immutable", "scope"]  # it runs already
    durable_work.gate("x").set()
    open_gates()
    await asyncio.sleep(5.0)
    (cycle,) = (await list_cycles(fleet, "nightly")).cycles
    batch = EditBatch((RemoveTask("b", dependents="bridge"),), "ann")
    assert await rules(answer_cycle(fleet, "nightly", cycle.id, batch, who="robot")) == ["scope"]
    await answer_cycle(fleet, "nightly", cycle.id, EditBatch((CancelTask("b"),), "ann"), who="robot")
    result = await job
    assert str(result.plan["b"].status) == "cancelled"
    kept = await rejected_edits(stage.store, "nightly")
    assert [edit.violations[-1]["rule"] for edit in kept] == ["scope"] * 3  # what a dry run rejects is not kept
    edited = [entry.why for entry in result.plan.story() if entry.what == "edited" and entry.task is None]
    assert [why.split(" (")[0] for why in edited] == ["version 1 by robot", "version 2 by ann", "version 3 by robot"]


async def test_scopes_hold_at_rest_and_for_the_next_owner(stage: Stage) -> None:
    await submit_plan(stage.fleet(), chain("a", "b", call="wait"), options=approval_terms((), scopes=SCOPES))
    assert await rules(edit_plan(stage.fleet(), "nightly", adding("x"), editor="robot")) == ["scope"]
    await edit_plan(stage.fleet(), "nightly", adding("fix-1"), editor="robot")
    stage.spawn(stage.orchestrator(host="there").run_stored("nightly"))
    await durable_work.gate("a begun").wait()
    assert await rules(edit_plan(stage.fleet(), "nightly", adding("x"), editor="robot")) == ["scope"]
    open_gates()


async def test_untrusted_input_lets_an_edit_wait_in_a_plan_without_rules(stage: Stage) -> None:
    first = await begun(stage, untrusted("a", "b"))
    with pytest.raises(EditWaits):
        await edit_plan(stage.fleet(), "nightly", adding("x"), editor="robot")
    (edit,) = await list_approvals(stage.store, "nightly")
    assert edit.reasons == ("add task 'x' (the editor may have read untrusted data of 'a')",)
    assert approval_store.TERM in (await read_head(stage.store, "nightly"))[0].terms
    notices = [notice.message for _, notice in await stage.store.notices() if notice.kind == "approval"]
    assert notices == ["plan nightly: an edit by robot waits for approval 1 (asterism plan approvals nightly)"]
    first.cancel()
    await asyncio.sleep(30.0)
    second = stage.spawn(stage.orchestrator(host="there").run_stored("nightly"))  # it knows of the edit
    await asyncio.sleep(5.0)
    with pytest.raises(EditWaits):
        await edit_plan(stage.fleet(), "nightly", adding("y"), editor="robot")
    open_gates()
    durable_work.gate("y").set()
    await approve_edit(stage.fleet(), "nightly", 2)
    await refuse_edit(stage.fleet(), "nightly", 1)
    assert set((await second).values) == {"a", "b", "y"}


async def test_untrusted_input_lets_an_edit_wait_at_rest(stage: Stage) -> None:
    await submit_plan(stage.fleet(), untrusted("a", "b"))
    with pytest.raises(EditWaits):
        await edit_plan(stage.fleet(), "nightly", adding("x"), editor="robot")
    await edit_plan(stage.fleet(), "nightly", EditBatch((CancelTask("b"),)), editor="robot")
    assert (await approve_edit(stage.fleet(), "nightly", 1)).applied.version == 2


async def test_a_retry_keeps_the_taint_until_a_person_removes_it(stage: Stage) -> None:
    """The retry removes the untrusted elements of a group, and the list runs again: an editor has read them."""
    plan, call = Constellation("nightly"), "tests.durable.durable_work:given"
    plan.add(Task("list", call=call, inputs={"value": ["x"]}))
    template = Task("it", call="tests.durable.durable_work:work", inputs={"name": "{item}"}, untrusted=True)
    plan.add(deferred_group(template, {"from": "list"}, {}), "list")
    plan.add(task("last"), "it")
    plan.add(task("a", "wait"), "last")
    job = await begun(stage, plan)
    open_gates()
    await job
    durable_work.GO.clear()
    await retry_plan(stage.fleet(), "nightly", from_tasks=["list"], reason="by a person")
    assert "it[x]" not in (await stage.load()).plan
    assert await waits(stage, "x")  # at rest
    job = stage.spawn(stage.orchestrator(host="there").run_stored("nightly"))
    await durable_work.gate("a begun").wait()
    assert await waits(stage, "y")
    assert await rules(edit_plan(stage.fleet(), "nightly", EditBatch((RemoveTaint("trust me"),)), editor="robot")) == [
        "untrusted"
    ]
    await edit_plan(stage.fleet(), "nightly", EditBatch((RemoveTaint("a form letter"),), "ann"))
    assert not await waits(stage, "fix-1")
    assert (await stage.load()).plan.tainted == set()
    open_gates()
    for number in (1, 2):
        await refuse_edit(stage.fleet(), "nightly", number)
    assert (await job).state == "completed"


async def waits(stage: Stage, name: str) -> bool:
    """Whether an edit of an editor waits for a person."""
    try:
        await edit_plan(stage.fleet(), "nightly", adding(name), editor="robot")
    except EditWaits:
        return True
    return False


async def test_a_refusal_reaches_an_editor_outside(stage: Stage) -> None:
    job = await begun(stage, untrusted("a", "b"), **OUTSIDE)
    open_gates()
    await asyncio.sleep(5.0)
    with pytest.raises(EditWaits):
        await answer_cycle(stage.fleet(), "nightly", 1, adding("x"), who="robot")
    await refuse_edit(stage.fleet(), "nightly", 1, "not today", who="bob")
    (cycle,) = (await list_cycles(stage.fleet(), "nightly")).cycles
    assert cycle.refusals == ({"approval": 1, "by": "bob", "reason": "not today", "edits": "add task 'x'"},)
    assert [*cycle.to_json()["refusals"]] == [dict(cycle.refusals[0])]
    await answer_cycle(stage.fleet(), "nightly", cycle.id, who="robot")
    assert (await job).state == "completed"


async def test_people_are_told_again(stage: Stage) -> None:
    job = await begun(stage, untrusted("a", "b"), approval_escalation=100.0, approval_timeout=400.0)
    with pytest.raises(EditWaits):
        await edit_plan(stage.fleet(), "nightly", adding("x"), editor="robot")
    open_gates()
    await asyncio.sleep(110.0)
    (edit,) = await list_approvals(stage.store, "nightly")
    assert edit.escalated_at is not None
    messages = [notice.message for _, notice in await stage.store.notices() if notice.kind == "approval"]
    assert "still waits for approval 1" in messages[1]
    assert (await job).state == "completed"
    assert [approval.state for approval in await list_approvals(stage.store, "nightly")] == ["expired"]
    assert len([notice for _, notice in await stage.store.notices() if notice.kind == "approval"]) == 2
