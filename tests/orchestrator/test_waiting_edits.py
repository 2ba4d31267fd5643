"""Edits that wait for a person: they hold what they touch, the rest goes on, and nothing waits forever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ApprovalRule
from asterism.core.plan.edits import AddDependency, AddTask, ApprovalGone, EditBatch, EditWaits, RemoveTask, UpdateTask
from asterism.core.plan.task import Task
from asterism.orchestrator.devices import LocalDevice
from asterism.orchestrator.events import EditEvent
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.orchestrator.waiting_edits import WaitingEdits
from tests.laboratory.plan_invariants import check_invariants

pytestmark = pytest.mark.virtual_time

DESTRUCTIVE = [ApprovalRule.parse("destructive")]
ORDER: list[str] = []


async def work(name: str, seconds: float = 1.0) -> None:
    await asyncio.sleep(seconds)
    ORDER.append(name)


def task(name: str, seconds: float = 1.0) -> Task:
    return Task(name, call=work, inputs={"name": name, "seconds": seconds})


def plan(*edges: str) -> Constellation:
    """``"ab"``: b after a."""
    ORDER.clear()
    made = Constellation("p")
    for name in sorted(set("".join(edges))):
        made.add(task(name))
    for source, target in edges:
        made.connect(source, target)
    return made


def orchestrator(**options: Any) -> Orchestrator:
    return Orchestrator([LocalDevice("here", slots=9)], **{"approvals": DESTRUCTIVE, **options})


def removing(name: str, author: str = "robot") -> EditBatch:
    return EditBatch((RemoveTask(name, dependents="bridge"),), author, "not needed")


def submit(runner: Orchestrator, batch: EditBatch) -> int:
    with pytest.raises(EditWaits) as waits:
        runner.edit("p", batch)
    return waits.value.approval.id


async def test_a_waiting_edit_holds_what_it_touches_and_the_rest_goes_on() -> None:
    runner = orchestrator()
    running = asyncio.ensure_future(runner.run(plan("ab", "bc", "ad", "de")))
    await asyncio.sleep(0.5)
    number = submit(runner, removing("b"))
    (edit,) = runner.approvals()
    assert (edit.id, edit.tasks, edit.reasons) == (
        number,
        ("b", "c"),
        ("remove task 'b', bridged (edits=remove_task,cancel_task,remove_dependency)",),
    )
    await asyncio.sleep(60.0)
    assert ORDER == ["a", "d", "e"]
    assert not running.done()
    assert "waits for approval 1, by robot" in str(runner.why("b"))
    applied = runner.approve(number, "ann")
    assert applied.version == 1
    result = await running
    assert ORDER == ["a", "d", "e", "c"]
    assert (result.state, "b" in result.plan) == ("completed", False)
    notes = [(entry.what, entry.why) for entry in result.plan.story() if entry.what.startswith("edit ")]
    assert notes == [
        ("edit waits", "approval 1, by robot: remove task 'b', bridged"),
        ("edit approved", "approval 1, by ann"),
    ]


async def test_a_refused_edit_lets_the_tasks_go() -> None:
    runner = orchestrator()
    heard: list[EditEvent] = []
    runner.events.subscribe(heard.append, EditEvent)
    running = asyncio.ensure_future(runner.run(plan("ab")))
    await asyncio.sleep(0.5)
    number = submit(runner, removing("b"))
    await asyncio.sleep(10.0)
    decided = runner.refuse(number, "ann", "we need it")
    assert (decided.state, decided.decided_by, decided.why) == ("refused", "ann", "we need it")
    assert (await running).state == "completed"
    assert ORDER == ["a", "b"]
    assert [(event.kind, event.approval, event.reason) for event in heard][-1] == ("edit_refused", number, "we need it")


async def test_a_person_may_change_a_waiting_edit() -> None:
    runner = orchestrator()
    running = asyncio.ensure_future(runner.run(plan("ab")))
    await asyncio.sleep(0.5)
    number = submit(runner, removing("b"))
    with pytest.raises(EditRejected):  # it still waits
        runner.approve(number, "ann", EditBatch((RemoveTask("nobody"),)))
    assert [approval.id for approval in runner.approvals()] == [number]
    runner.approve(number, "ann", EditBatch((UpdateTask("b", priority=4), AddTask(task("c"))), "ann"))
    with pytest.raises(ApprovalGone, match="nothing waits for approval 1"):
        runner.approve(number, "ann")
    await running
    assert sorted(ORDER) == ["a", "b", "c"]


async def test_nobody_decides_and_the_plan_goes_on_after_the_timeout() -> None:
    runner = orchestrator(approval_timeout=100.0)
    running = asyncio.ensure_future(runner.run(plan("ab")))
    await asyncio.sleep(0.5)
    submit(runner, removing("b"))
    result = await running
    assert ORDER == ["a", "b"]
    assert 100.0 < asyncio.get_running_loop().time() < 110.0
    assert [entry.what for entry in result.plan.story() if entry.what.startswith("edit ")] == [
        *("edit waits", "edit expired")
    ]


async def test_an_edit_that_adds_tasks_keeps_the_plan_open() -> None:
    runner = orchestrator(approvals=[ApprovalRule(edits=("add_task",))])
    running = asyncio.ensure_future(runner.run(plan("ab")))
    await asyncio.sleep(0.5)
    number = submit(runner, EditBatch((AddTask(task("c")), AddDependency("b", "c"))))
    await asyncio.sleep(50.0)
    assert ORDER == ["a", "b"]
    runner.approve(number, "ann")
    await running
    assert ORDER == ["a", "b", "c"]


async def test_the_answer_of_an_editor_waits_and_its_cycle_closes() -> None:
    calls = 0

    def editor(view: Any, events: Any) -> Any:
        nonlocal calls
        calls += 1
        return [RemoveTask("b", dependents="bridge")] if calls == 1 else None

    runner = orchestrator(editor=editor)
    running = asyncio.ensure_future(runner.run(plan("ab", "ad")))
    await asyncio.sleep(30.0)
    assert ORDER == ["a", "d"]
    (edit,) = runner.approvals()
    assert (edit.cycle, edit.batch.author, edit.batch.triggers) == (1, "editor", ("a",))
    runner.refuse(edit.id, "ann")
    result = await running
    assert ORDER == ["a", "d", "b"]
    assert result.cycles[0].outcome == "waiting"


async def test_an_edit_that_cannot_be_applied_is_rejected_at_once() -> None:
    runner = orchestrator()
    running = asyncio.ensure_future(runner.run(plan("ab")))
    await asyncio.sleep(0.5)
    with pytest.raises(EditRejected):
        runner.edit("p", EditBatch((RemoveTask("a"),)))
    assert runner.approvals() == []
    await running


async def test_what_has_changed_since_makes_an_approved_edit_stale() -> None:
    runner = orchestrator()
    running = asyncio.ensure_future(runner.run(plan("ab")))
    await asyncio.sleep(0.5)
    number = submit(runner, removing("b"))
    runner.edit("p", EditBatch((UpdateTask("b", priority=4),)))
    with pytest.raises(EditRejected) as rejected:
        runner.approve(number, "ann")
    assert [violation.rule for violation in rejected.value.violations] == ["stale"]
    runner.refuse(number, "ann")
    await running


async def test_two_edits_that_hold_the_same_task_both_have_to_be_decided() -> None:
    runner = orchestrator()
    running = asyncio.ensure_future(runner.run(plan("ab")))
    await asyncio.sleep(0.5)
    first, second = submit(runner, removing("b")), submit(runner, removing("b", "other"))
    await asyncio.sleep(5.0)
    runner.refuse(first, "ann")
    await asyncio.sleep(5.0)
    assert ORDER == ["a"]
    execution = runner.scheduler.find("p")
    check_invariants(execution.plan, set(execution.waits))
    runner.refuse(second, "ann")
    await running
    assert ORDER == ["a", "b"]


async def test_a_cancelled_plan_waits_for_nobody() -> None:
    runner = orchestrator()
    running = asyncio.ensure_future(runner.run(plan("ab")))
    await asyncio.sleep(0.5)
    submit(runner, removing("b"))
    await runner.cancel("p")
    assert (await running).state == "cancelled"


async def test_without_the_hold_a_touched_task_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitingEdits, "holds", lambda self, node: False)
    runner = orchestrator()
    running = asyncio.ensure_future(runner.run(plan("ab")))
    await asyncio.sleep(0.5)
    number = submit(runner, removing("b"))
    await asyncio.sleep(10.0)
    assert ORDER == ["a", "b"]
    with pytest.raises(EditRejected):
        runner.approve(number, "ann")
    runner.refuse(number, "ann")
    await running


async def test_edits_of_a_retry_obey_the_rules_too() -> None:
    runner = orchestrator()
    result = await runner.run(plan("ab"))
    with pytest.raises(EditRejected, match=r"needs approval .*retry the plan without edits"):
        await runner.retry(result, from_tasks=["b"], edits=removing("b"))
    assert result.plan.state == "completed", "nothing has changed"


async def test_an_edit_that_names_a_device_which_never_joined_is_rejected_and_names_those_that_did() -> None:
    runner = Orchestrator([LocalDevice("here", slots=9), LocalDevice("attic")])
    made = plan("ab")
    job = asyncio.create_task(runner.run(made))
    await asyncio.sleep(0.5)
    there, nowhere = (Task("c", call=work, device=device, inputs={"name": "c"}) for device in ("attic", "atic"))
    with pytest.raises(EditRejected, match=r"no device 'atic' has joined.*the devices are: attic, here"):
        runner.edit("p", EditBatch((AddTask(nowhere),), "bob"))
    runner.leave("attic")  # it has been there, and may come back
    runner.edit("p", EditBatch((AddTask(there),), "bob"))
    runner.join(LocalDevice("attic"))
    assert (await job).state == "completed"
    assert sorted(ORDER) == ["a", "b", "c"]


async def test_an_answer_of_an_editor_that_names_an_unknown_device_goes_back_to_it() -> None:
    asked: list[Any] = []

    def editor(view: Any, events: Any) -> Any:
        asked.append([violation.rule for event in events for violation in getattr(event, "violations", ())])
        if len(asked) > 2:
            return None
        device = "atic" if len(asked) == 1 else "here"
        return EditBatch((AddTask(Task("c", call=work, device=device, inputs={"name": "c"})),))

    result = await Orchestrator([LocalDevice("here", slots=9)], editor=editor).run(plan("ab"))
    assert (asked[0], asked[1]) == ([], ["unknown_device"])
    assert result.state == "completed"
    assert sorted(ORDER) == ["a", "b", "c"]
