"""Tasks that a person has to approve before they start: they wait without a device, and ask for the task as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from asterism.core.errors import EditRejected, InvalidTask, PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ApprovalRule, EditScope
from asterism.core.plan.edits import (
    AddTask,
    ApprovalForbidden,
    ApprovalGone,
    CancelTask,
    EditBatch,
    EditWaits,
    RemoveTask,
    UpdateTask,
)
from asterism.core.plan.task import Task
from asterism.orchestrator.devices import LocalDevice
from asterism.orchestrator.events import EditEvent
from asterism.orchestrator.orchestrator import Orchestrator
from tests.laboratory.plan_invariants import check_invariants

pytestmark = pytest.mark.virtual_time

ORDER: list[str] = []


async def work(name: str) -> str:
    ORDER.append(name)
    return name


def task(name: str, **fields: Any) -> Task:
    return Task(name, call=work, inputs={"name": name}, **fields)


def release(approval: Mapping[str, Any], **fields: Any) -> Constellation:
    """build, deploy, mail: deploy needs approval."""
    ORDER.clear()
    plan = Constellation("p")
    plan.add(task("build"))
    plan.add(task("deploy", approval=approval, **fields), "build")
    plan.add(task("mail"), "deploy")
    plan.add(task("docs"), "build")
    return plan


async def asking(approval: Mapping[str, Any], **options: Any) -> tuple[Orchestrator, asyncio.Future[Any]]:
    """A plan whose task asks for its start."""
    runner = Orchestrator([LocalDevice("here")], **options)
    running = asyncio.ensure_future(runner.run(release(approval)))
    await asyncio.sleep(1.0)
    return runner, running


async def test_a_task_starts_when_a_person_has_approved_it() -> None:
    runner, running = await asking({"by": ["ann", "release-*"]})
    (waiting,) = runner.approvals()
    assert (waiting.task, waiting.by, waiting.tasks) == ("deploy", ("ann", "release-*"), ("deploy",))
    assert str(runner.why("deploy")) == "deploy is waiting: it waits for approval 1 by ann or release-*"
    await asyncio.sleep(3600.0)
    assert ORDER == ["build", "docs"]  # its only slot is free for others
    with pytest.raises(ApprovalForbidden, match="decided by ann or release-\\*, and not by 'bob'"):
        runner.approve(1, "bob")
    with pytest.raises(EditRejected, match="to change the task, edit the plan"):
        runner.approve(1, "ann", EditBatch((RemoveTask("mail"),)))
    runner.approve(1, "ann", reason="tested")
    result = await running
    assert (result.state, ORDER) == ("completed", ["build", "docs", "deploy", "mail"])
    assert [(entry.what, entry.why) for entry in result.plan.story("deploy")][:2] == [
        ("waits", "for approval by ann or release-*"),
        ("approved", "by ann: tested"),
    ]
    check_invariants(result.plan)


@pytest.mark.parametrize(("otherwise", "state"), [({}, "partially_failed"), ({"else": "skip"}, "completed")])
async def test_a_task_that_is_refused_or_that_nobody_approves_fails_or_is_skipped(
    otherwise: dict[str, str], state: str
) -> None:
    runner, running = await asking(otherwise)
    assert runner.refuse(1, "ann", "too risky").state == "refused"
    result = await running
    assert (result.state, ORDER) == (state, ["build", "docs"])
    assert "the start was refused by ann: too risky" in str(result.plan.story("deploy"))
    runner, running = await asking({"timeout": 60.0, **otherwise})
    result = await running
    assert (result.state, ORDER) == (state, ["build", "docs"])
    assert "not approved: nobody approved it in time" in str(result.plan.story("deploy"))


async def test_people_are_told_when_it_begins_to_wait_and_again_after_the_escalation() -> None:
    heard: list[EditEvent] = []
    runner = Orchestrator([LocalDevice("here")], approval_escalation=100.0)
    runner.events.subscribe(heard.append, EditEvent)
    await runner.run(release({"timeout": 300.0}))
    assert [(event.kind, event.approval) for event in heard] == [
        ("edit_waiting", 1),
        ("edit_escalated", 1),
        ("edit_refused", 1),
    ]


async def test_an_approval_is_for_the_task_as_it_is() -> None:
    runner, running = await asking({"by": "ann"})
    runner.edit("p", EditBatch((UpdateTask("deploy", inputs={"name": "other"}),)))
    await asyncio.sleep(1.0)
    assert [edit.id for edit in runner.approvals()] == [2]  # what ann may have seen is gone
    with pytest.raises(ApprovalGone):
        runner.approve(1, "ann")
    runner.pause("p")
    runner.approve(2, "ann")
    runner.edit("p", EditBatch((UpdateTask("deploy", inputs={"name": "third"}),)))  # after it was approved
    runner.resume("p")
    await asyncio.sleep(1.0)
    assert [edit.id for edit in runner.approvals()] == [3]
    runner.approve(3, "ann")
    await running
    assert ORDER == ["build", "docs", "third", "mail"]


async def test_a_person_may_take_the_approval_away_and_cancel_the_task() -> None:
    runner, running = await asking({"by": "ann"})
    runner.edit("p", EditBatch((UpdateTask("deploy", approval=None),), author="ann"))
    assert (await running).state == "completed"
    runner, running = await asking({"by": "nobody"})
    runner.edit("p", EditBatch((CancelTask("deploy"),)))
    await running
    assert ORDER == ["build", "docs"]


TAKEN_AWAY = [
    (UpdateTask("deploy", approval=None),),
    (UpdateTask("deploy", approval={"by": "bob"}),),
    (RemoveTask("deploy", dependents="bridge"),),
    (RemoveTask("deploy"), AddTask(Task("deploy", shell="true"))),
]


@pytest.mark.parametrize("edits", TAKEN_AWAY)
async def test_only_a_person_who_may_decide_takes_the_approval_away(edits: tuple[Any, ...]) -> None:
    runner, running = await asking({"by": "ann"}, approvals=[ApprovalRule.parse("tasks=mail")])
    for author in ("bob", ""):
        with pytest.raises(EditRejected, match="'deploy' needs approval; only ann removes"):
            runner.edit("p", EditBatch(edits, author))
    with pytest.raises(EditWaits):
        runner.edit("p", EditBatch((UpdateTask("mail", description="later"),), "bob"))
    with pytest.raises(EditRejected, match="only ann removes"):
        runner.approve(2, "bob", EditBatch(edits, "bob"))
    runner.approve(2, "bob")
    runner.edit("p", EditBatch((UpdateTask("deploy", inputs={"name": "other"}),), "bob"))  # it asks again
    await asyncio.sleep(1.0)
    runner.approve(3, "ann")
    assert (await running).state == "completed"


@pytest.mark.parametrize("options", [{}, {"scopes": [EditScope()]}], ids=["no scopes", "scopes"])
@pytest.mark.parametrize("approval", [{"by": "ann"}, {}], ids=["ann", "everybody"])
@pytest.mark.parametrize("edits", TAKEN_AWAY)
async def test_an_editor_does_not_take_the_approval_away(
    edits: tuple[Any, ...], approval: dict[str, Any], options: dict[str, Any]
) -> None:
    runner, running = await asking(approval, **options)
    with pytest.raises(EditRejected, match="'deploy' needs approval; only a person removes"):
        runner.edit("p", EditBatch(edits), editor="robot")
    runner.approve(1, "ann")
    await running


async def test_an_editor_function_does_not_take_the_approval_away() -> None:
    async def editor(view: Any, events: Any) -> list[Any]:
        return [UpdateTask("deploy", approval=None)]

    runner = Orchestrator([LocalDevice("here")], editor=editor)
    result = await runner.run(release({"by": "ann", "timeout": 60.0}))
    assert "deploy" not in ORDER
    assert result.plan["deploy"].status == "failed"


async def test_an_editor_does_not_take_the_approval_of_the_elements_of_a_group_away() -> None:
    plan = Constellation("p")
    plan.add(task("slow"))
    template = {"shell": "true", "approval": {}}
    plan.add(Task("hosts", foreach={"from": "slow", "template": template}), "slow")
    runner = Orchestrator([LocalDevice("here")])
    running = asyncio.ensure_future(runner.run(plan))
    await asyncio.sleep(0)
    bare = {"from": "slow", "template": {"shell": "true"}}
    with pytest.raises(EditRejected, match="'hosts' needs approval; only a person"):
        runner.edit("p", EditBatch((UpdateTask("hosts", foreach=bare),)), editor="robot")
    await runner.cancel("p")
    await running


async def test_a_cancelled_plan_waits_for_nobody_and_a_retry_asks_again() -> None:
    runner, running = await asking({})
    await runner.cancel("p")
    assert (await running).state == "cancelled"
    runner, running = await asking({})
    runner.refuse(1, "ann")
    plan = (await running).plan
    running = asyncio.ensure_future(runner.retry(plan))
    await asyncio.sleep(1.0)
    (waiting,) = runner.approvals()
    runner.approve(waiting.id, "ann")
    assert (await running).state == "completed"


def test_what_cannot_need_approval_is_refused() -> None:
    with pytest.raises(InvalidTask, match=r"approval\.else must be 'fail' or 'skip', not 'run'"):
        Task("a", shell="x", approval={"else": "run"})
    with pytest.raises(InvalidTask, match=r"approval\.timeout must be above 0"):
        Task("a", shell="x", approval={"timeout": 0})
    with pytest.raises(InvalidTask, match=r"approval\.by must be a name or a list of names"):
        Task("a", shell="x", approval={"by": 3})
    with pytest.raises(InvalidTask, match=r"unknown key 'approval\.who'"):
        Task("a", shell="x", approval={"who": "ann"})
    with pytest.raises(InvalidTask, match="a task with approval cannot have wait_for"):
        Task("a", wait_for={"event": "x"}, approval={})
    plan = Constellation("p")
    plan.add(Task("up", shell="x", approval={}))
    with pytest.raises(PlanError, match="needs approval, so it can be neither a set-up nor a teardown"):
        plan.add(Task("down", shell="x"), {"up": "teardown"})
