"""Edits of stored plans that wait for a person: kept in the store, and decided once, by any owner of the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ApprovalRule
from asterism.core.plan.edits import AddTask, ApprovalGone, EditBatch, EditWaits, RemoveTask, WaitingEdit
from asterism.durable import approval_store, plan_actor
from asterism.durable.approval_store import ApprovalRecords, list_approvals
from asterism.durable.commands import ApproveEdit
from asterism.durable.journal_store import insert_plan
from asterism.durable.plan_actor import AnswerLost, answer_cycle, approve_edit, edit_plan, refuse_edit
from asterism.durable.plan_history import plan_events
from asterism.durable.stored_plans import explain_task
from asterism.fleet import retention
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister, Write
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, left, task
from tests.durable.test_plan_requests import withdrawing_late

pytestmark = pytest.mark.virtual_time

RULES = (ApprovalRule.parse("destructive"),)
TERMS = {"approvals": {"rules": [rule.to_json() for rule in RULES], "timeout": 5000.0}}


async def running(stage: Stage, *names: str, **options: Any) -> asyncio.Task[Any]:
    """A plan with rules whose first task waits at its gate."""
    plan = chain(*(names or ("a", "b", "c")), call="wait")
    job = stage.spawn(stage.orchestrator(**{"approvals": RULES, **options}).run(plan))
    await durable_work.gate("a begun").wait()
    return job


async def resting(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", "b", "c"))
    head = await stage.store.register("plan/nightly")
    assert head is not None
    plan_terms = {**head.value["terms"], **TERMS}
    await stage.store.commit([PutRegister("plan/nightly", {**head.value, "terms": plan_terms}, head.revision)])


def removing(name: str = "b", author: str = "robot") -> EditBatch:
    return EditBatch((RemoveTask(name, dependents="bridge"),), author, "not needed")


async def submitted(stage: Stage, batch: EditBatch | None = None) -> WaitingEdit:
    with pytest.raises(EditWaits) as waits:
        await edit_plan(stage.fleet(), "nightly", batch or removing())
    return waits.value.approval


def open_gates() -> None:
    for name in "abcd":
        durable_work.gate(name).set()


async def states(stage: Stage) -> list[str]:
    return [approval.state for approval in await list_approvals(stage.store, "nightly")]


# -- decided by the owner ----------------------------------------------------------------------------------------------


async def test_an_approved_edit_is_applied_by_the_owner(stage: Stage) -> None:
    job = await running(stage)
    edit = await submitted(stage)
    assert await list_approvals(stage.store, "nightly") == [edit]  # durable when it is told
    assert (edit.id, edit.tasks, edit.state) == (1, ("b", "c"), "waiting")
    open_gates()
    await asyncio.sleep(60.0)
    assert dict(DONE) == {"a": 1}
    answer = await approve_edit(stage.fleet(), "nightly", 1, who="bob")
    assert (answer.by, answer.applied.version, answer.applied.batch.edits) == ("nightly@here", 1, removing().edits)
    assert set((await job).values) == {"a", "c"}
    (decided,) = await list_approvals(stage.store, "nightly")
    assert (decided.state, decided.decided_by, decided.version) == ("approved", "bob", 1)
    events = [event.data for event in (await plan_events(stage.store, "nightly")).events if event.kind == "approval"]
    assert [(event["approval"], event["what"]) for event in events] == [(1, "edit waits"), (1, "edit approved")]


async def test_a_refused_edit_changes_nothing(stage: Stage) -> None:
    job = await running(stage)
    await submitted(stage)
    refused = await refuse_edit(stage.fleet(), "nightly", 1, "we need it")
    assert (refused.state, refused.decided_by, refused.why) == ("refused", "ann", "we need it")
    for ask in (approve_edit(stage.fleet(), "nightly", 1), refuse_edit(stage.fleet(), "nightly", 1)):
        with pytest.raises(ApprovalGone):
            await ask
    open_gates()
    assert set((await job).values) == {"a", "b", "c"}
    assert await states(stage) == ["refused"]


async def test_a_rejected_approval_leaves_the_edit_waiting_and_a_changed_one_is_applied(stage: Stage) -> None:
    job = await running(stage)
    await submitted(stage)
    with pytest.raises(EditRejected):
        await approve_edit(stage.fleet(), "nightly", 1, EditBatch((RemoveTask("nobody"),)))
    assert await states(stage) == ["waiting"]
    changed = EditBatch((AddTask(task("d", call="wait")),), "ann")
    assert (await approve_edit(stage.fleet(), "nightly", 1, changed)).applied.batch == changed
    open_gates()
    assert set((await job).values) == {"a", "b", "c", "d"}
    (decided,) = await list_approvals(stage.store, "nightly")
    assert (decided.state, decided.batch, decided.why) == ("approved", changed, "changed")


async def test_answers_of_editors_outside_wait_too(stage: Stage) -> None:
    job = await running(stage, external=True, claim_timeout=float("inf"), edit_on=lambda task: task.id == "a")
    open_gates()
    await asyncio.sleep(2.0)
    with pytest.raises(EditWaits):
        await answer_cycle(stage.fleet(), "nightly", 1, removing())
    assert [approval.cycle for approval in await list_approvals(stage.store, "nightly")] == [1]
    await approve_edit(stage.fleet(), "nightly", 1)
    assert set((await job).values) == {"a", "c"}


async def test_the_commands_of_the_orchestrator_are_durable_on_return(stage: Stage) -> None:
    orchestrator = stage.orchestrator(approvals=RULES)
    job = stage.spawn(orchestrator.run(chain("a", "b", "c", call="wait")))
    await durable_work.gate("a begun").wait()
    for _ in range(2):
        with pytest.raises(EditWaits):
            await orchestrator.edit("nightly", removing())
    assert await states(stage) == ["waiting", "waiting"]
    assert [approval.id for approval in orchestrator.approvals()] == [1, 2]
    await orchestrator.refuse(1, "ann")
    assert (await orchestrator.approve(2, "ann")).version == 1
    assert await states(stage) == ["refused", "approved"]
    open_gates()
    await job


async def test_a_cancelled_plan_keeps_no_edit_waiting(stage: Stage) -> None:
    orchestrator = stage.orchestrator(approvals=RULES)
    job = stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()

    async def both() -> None:  # in one commit
        asking = asyncio.ensure_future(orchestrator.edit("nightly", removing()))
        await asyncio.sleep(0)
        await orchestrator.cancel("nightly")
        await asyncio.gather(asking, return_exceptions=True)

    await both()
    await job
    assert await states(stage) == ["expired"]
    assert str((await stage.load()).plan.state) == "cancelled"


# -- other owners ------------------------------------------------------------------------------------------------------


async def test_a_waiting_edit_and_its_hold_survive_the_owner(stage: Stage) -> None:
    plan = chain("a", "b", "c", call="wait")
    first = stage.spawn(stage.orchestrator(approvals=RULES, approval_timeout=1000.0).run(plan))
    await durable_work.gate("a begun").wait()
    await submitted(stage)
    started = stage.now()
    first.cancel()
    await asyncio.sleep(30.0)
    second = stage.spawn(stage.orchestrator(host="there").run_stored("nightly"))  # the rules are those of the plan
    open_gates()
    await asyncio.sleep(60.0)
    assert dict(DONE) == {"a": 1}
    await submitted(stage, removing("c"))
    assert await states(stage) == ["waiting", "waiting"]
    await refuse_edit(stage.fleet(), "nightly", 2)
    assert set((await second).values) == {"a", "b", "c"}
    assert 999.9 <= stage.now() - started < 1100.0  # its time went on
    assert await states(stage) == ["expired", "refused"]


async def test_a_waiting_edit_at_rest(stage: Stage) -> None:
    await resting(stage)
    edit = await submitted(stage)
    assert await list_approvals(stage.store, "nightly") == [edit]
    assert (await stage.load()).plan.version == 0
    assert (await edit_plan(stage.fleet(), "nightly", removing(), dry_run=True)).applied.version == 1
    await submitted(stage, removing("c"))
    answer = await approve_edit(stage.fleet(), "nightly", 1)
    assert (answer.by, answer.applied.version) == (None, 1)
    assert (await refuse_edit(stage.fleet(), "nightly", 2, "no")).why == "no"
    assert await states(stage) == ["approved", "refused"]
    assert set((await stage.orchestrator().run_stored("nightly")).values) == {"a", "c"}
    assert await stage.store.registers("mailbox/") == []


async def test_an_edit_whose_time_is_up_cannot_be_approved_at_rest(stage: Stage) -> None:
    await resting(stage)
    await submitted(stage)
    await asyncio.sleep(5001.0)
    with pytest.raises(ApprovalGone):
        await approve_edit(stage.fleet(), "nightly", 1)
    await stage.orchestrator().run_stored("nightly")
    assert await states(stage) == ["expired"]


async def test_a_plan_without_rules(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    registers = stage.store.registers

    async def watched(prefix: str) -> Any:
        assert not prefix.startswith("approval/")
        return await registers(prefix)

    monkeypatch.setattr(stage.store, "registers", watched)
    await insert_plan(stage.store, chain("a", "b"))
    with pytest.raises(ApprovalGone, match="has no rules for approvals"):
        await approve_edit(stage.fleet(), "nightly", 1)
    await edit_plan(stage.fleet(), "nightly", removing())
    await stage.orchestrator().run_stored("nightly")
    assert await list_approvals(stage.store, "nightly") == []


async def test_a_plan_that_is_being_cancelled(stage: Stage) -> None:
    await resting(stage)
    await submitted(stage)
    await plan_actor.cancel_plan(stage.fleet(), "nightly")
    with pytest.raises(PlanError, match="is being cancelled"):
        await approve_edit(stage.fleet(), "nightly", 1)


# -- once or not at all ------------------------------------------------------------------------------------------------


async def test_an_approval_that_is_withdrawn_before_the_commit_is_not_applied(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(stage)
    await submitted(stage)
    withdrawing_late(stage, monkeypatch)
    with pytest.raises(AnswerLost):
        await approve_edit(stage.fleet(), "nightly", 1)
    await asyncio.sleep(5.0)
    assert ((await stage.load()).plan.version, await states(stage)) == (0, ["waiting"])
    assert (await approve_edit(stage.fleet(), "nightly", 1)).applied.version == 1


async def test_many_processes_approve_and_one_succeeds(stage: Stage) -> None:
    await running(stage)
    await submitted(stage)
    asked = [approve_edit(stage.fleet(), "nightly", 1, who=f"p{number}") for number in range(5)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in results) == ["ApprovalGone"] * 4 + ["EditAnswer"]
    assert (await stage.load()).plan.version == 1


def every_state(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each state of the store, as a crash right then would leave it."""
    commit, seen = stage.store.commit, list[Any]()

    async def watched(writes: Sequence[Write]) -> None:
        await commit(writes)
        seen.append(await stage.store.registers(""))

    monkeypatch.setattr(stage.store, "commit", watched)
    return seen


async def check_states(seen: list[Any]) -> set[tuple[str, ...]]:
    """In each of them an edit is approved if and only if it was applied. Returns the states of the edits there were."""
    states = set()
    for registers in seen:
        store = MemoryStore(lambda: 0.0)
        await store.commit([PutRegister(register.key, register.value, None) for register in registers])
        if not await store.registers("plan/nightly"):
            continue
        applied = [change.data for change in (await plan_events(store, "nightly")).events if change.kind == "edit"]
        edits = await list_approvals(store, "nightly")
        for edit in edits:
            times = sum(change["edits"] == edit.batch.to_json()["edits"] for change in applied)
            assert times == (edit.state == "approved"), (edit, applied)
        states.add(tuple(edit.state for edit in edits))
    return states


async def many_edits(stage: Stage) -> None:
    job = await running(stage, *"abcd")
    for number in range(3):
        await submitted(stage, EditBatch((RemoveTask(f"{'bcd'[number]}", dependents="bridge"),), f"p{number}"))
    await approve_edit(stage.fleet(), "nightly", 2)
    await refuse_edit(stage.fleet(), "nightly", 1)
    await approve_edit(stage.fleet(), "nightly", 3)
    open_gates()
    await job


async def test_a_crash_at_any_commit_leaves_an_edit_approved_and_applied_or_neither(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = every_state(stage, monkeypatch)
    await many_edits(stage)
    assert ("refused", "approved", "approved") in await check_states(seen)


async def test_without_one_commit_for_both_a_crash_separates_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(self: ApprovalRecords, edit: WaitingEdit) -> None:
        key, revision = approval_store.approval_key("nightly", edit.id), self._revisions.get(edit.id)
        self._revisions[edit.id] = (revision or 0) + 1
        stage.spawn(stage.store.commit([PutRegister(key, edit.to_json(), revision)]))

    monkeypatch.setattr(ApprovalRecords, "_save", apart)
    seen = every_state(stage, monkeypatch)
    await many_edits(stage)
    with pytest.raises(AssertionError):
        await check_states(seen)


async def test_a_killed_process_that_asked_is_answered_once(stage: Stage) -> None:
    async def work() -> Any:
        return await stage.orchestrator(approvals=RULES).run(chain("a", "b", "c", call="wait"))

    async def edit() -> None:
        await durable_work.gate("a begun").wait()
        await submitted(stage)

    asking = stage.spawn(edit())
    await left(work(), asking.done, stage)
    value = {"do": ApproveEdit(1, "bob").to_json(), "at": stage.store.clock()}
    await stage.store.commit([PutRegister("mailbox/nightly/1", value, None)])
    open_gates()
    assert set((await stage.orchestrator().run_stored("nightly")).values) == {"a", "c"}
    assert await states(stage) == ["approved"]


async def test_only_the_newest_decided_edits_are_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval_store, "MOST_DECIDED", 2)
    job = await running(stage)
    for number in range(1, 6):
        await submitted(stage)
        await refuse_edit(stage.fleet(), "nightly", number)
    assert [approval.id for approval in await list_approvals(stage.store, "nightly")] == [4, 5]
    open_gates()
    await job
    head = await stage.store.register("plan/nightly")
    assert head is not None
    await retention._remove_plan(stage.store, head)
    assert await stage.store.registers("approval/") == []


# -- a plan that an edit holds open ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True])
async def test_why_names_the_edit_that_keeps_a_stuck_plan_open(stage: Stage, stopped: bool) -> None:
    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    plan.add(task("f", "fail"))
    plan.add(task("b"), "f")
    job = stage.spawn(stage.orchestrator(approvals=[ApprovalRule()]).run(plan))
    await durable_work.gate("a begun").wait()
    await submitted(stage, EditBatch((AddTask(task("d")),), "robot"))
    open_gates()
    await asyncio.sleep(60.0)
    if stopped:
        job.cancel()
        await asyncio.wait([job])
    told = await explain_task(stage.fleet(), "nightly", "b")
    assert (told.reasons[0].kind, told.reasons[0].name) == ("dependency", "f")
    assert told.reasons[-1].text == "an edit waits for approval 1, by robot, and until then the plan does not end"
    await refuse_edit(stage.fleet(), "nightly", 1)
    if not stopped:
        assert (await job).state == "partially_failed"


@pytest.mark.parametrize("stopped", [False, True])
async def test_the_reason_of_an_approval_is_kept(stage: Stage, stopped: bool) -> None:
    job = None if stopped else await running(stage)
    if stopped:
        await resting(stage)
    for name in ("b", "c"):
        await submitted(stage, removing(name))
    await approve_edit(stage.fleet(), "nightly", 1, reason="fine by me")
    other = EditBatch((AddTask(task("d")),), "ann")
    await approve_edit(stage.fleet(), "nightly", 2, other, "this is better")
    assert [approval.why for approval in await list_approvals(stage.store, "nightly")] == [
        "fine by me",
        "changed: this is better",
    ]
    told = [entry.why for entry in (await stage.load()).plan.story(None) if entry.what == "edit approved"]
    assert told == ["approval 1, by ann: fine by me", "approval 2, by ann, changed: this is better"]
    open_gates()
    if job is not None:
        await job
