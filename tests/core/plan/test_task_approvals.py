"""Tasks that a person approves before they start: the field, the decision, and who may take it away."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import InvalidTask, InvalidTransition
from asterism.core.plan.apply import apply
from asterism.core.plan.assignment_lock import AssignmentLock, CycleGone, edit_on_all
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import EditScope, scope_violations
from asterism.core.plan.edit_trial import trial
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    ApprovalForbidden,
    EditBatch,
    UpdateTask,
    WaitingEdit,
    split_dependencies,
)
from asterism.core.plan.explain import approval_holder
from asterism.core.plan.group_elements import failed_elements, needs_person, results_without_failures
from asterism.core.plan.status import COMPLETED, FAILED
from asterism.core.plan.taint import approval_violations
from asterism.core.plan.task import Task
from asterism.core.plan.task_approval import APPROVED, approval_text, may_decide
from tests.laboratory.plan_invariants import check_invariants

GATE = {"by": ["ann", "group:ops"], "timeout": 60.0}


def waiting(**approval: Any) -> Constellation:
    plan = Constellation("release")
    plan.add(Task("deploy", approval={**GATE, **approval}))
    plan.begin(0.0)
    plan.wait(plan.node("deploy"), 1.0)
    return plan


@pytest.mark.parametrize(
    ("approval", "problem"),
    [
        ({"who": "ann"}, "unknown key 'approval.who'; the keys are by, timeout, else"),
        ({"by": 5}, "approval.by must be a name or a list of names, not 5"),
        ({"timeout": 0}, "approval.timeout must be above 0, not 0"),
        ({"else": "wait"}, "approval.else must be 'fail' or 'skip', not 'wait'"),
    ],
)
def test_an_approval_that_cannot_be(approval: Any, problem: str) -> None:
    with pytest.raises(InvalidTask) as error:
        Task("deploy", approval=approval)
    assert problem in [found.text for found in error.value.problems]


def test_a_heartbeat_timeout_that_cannot_be() -> None:
    with pytest.raises(InvalidTask, match="heartbeat_timeout must be 1 or more"):
        Task("deploy", heartbeat_timeout=0.5)


def test_a_set_up_needs_no_approval() -> None:
    plan = Constellation("release")
    plan.add(Task("rent", approval=GATE))
    plan.add(Task("return"))
    with pytest.raises(Exception, match="needs approval, so it can be neither a set-up nor a teardown"):
        plan.connect("rent", "return", on="teardown")


def test_who_may_decide() -> None:
    assert may_decide([], "bob", [])
    assert may_decide(["ann"], "ann", [])
    assert may_decide(["group:ops"], "bob", ["ops"])
    assert not may_decide(["group:ops"], "group:ops", [])
    assert not may_decide(["ann"], "bob", ["dev"])
    assert approval_text({}) == "for approval"
    assert approval_text(GATE) == "for approval by ann or group:ops"


@pytest.mark.parametrize(("approval", "needless"), [({}, False), ({"else": "skip"}, True)])
def test_a_decision_is_recorded_once(approval: Any, needless: bool) -> None:
    plan = waiting(**approval)
    node = plan.node("deploy")
    plan.decide(node, 2.0, "refused", "bob")
    assert (node.decision, node.needless, node.awaits) == ("refused", needless, False)
    with pytest.raises(InvalidTransition):
        plan.decide(node, 3.0, APPROVED, "ann")


def test_an_approved_task_is_ready_and_an_edit_makes_it_ask_again() -> None:
    plan = waiting()
    node = plan.node("deploy")
    plan.decide(node, 2.0, APPROVED, "ann")
    assert not node.needs_approval
    assert plan.story("deploy")[-1].what == "approved"
    apply(plan, EditBatch((UpdateTask("deploy", description="another"),)), 3.0)
    assert node.needs_approval
    apply(plan, EditBatch((UpdateTask("deploy", description="a third"),)), 4.0)  # nobody had decided yet
    assert node.needs_approval
    check_invariants(plan)


def test_only_those_who_may_decide_take_it_away() -> None:
    plan = waiting()
    tried = trial(plan, EditBatch((UpdateTask("deploy", approval=None),)))
    [violation] = approval_violations(tried, "bob", ["dev"])
    assert "only ann or group:ops removes" in str(violation)
    assert approval_violations(tried, "bob", ["ops"]) == []


def test_a_group_needs_a_person_for_its_elements() -> None:
    template = {"shell": "true", "approval": {"by": "ann"}}
    assert needs_person(Task("g", foreach={"from": "list", "template": template}))
    assert not needs_person(Task("g", foreach={"from": "list", "template": {"shell": "true"}}))


def test_a_waiting_start_says_what_waits_and_who_decides() -> None:
    start = WaitingEdit(1, EditBatch(()), 0.0, 60.0, ("why",), ("deploy",), task="deploy", by=("ann",))
    assert start.subject == "the start of task 'deploy'"
    start.check_approver("ann")
    with pytest.raises(ApprovalForbidden, match="is decided by ann, and not by 'bob'"):
        start.check_approver("bob")
    assert "it waits for approval 1 by ann" in str(approval_holder(start, "deploy"))
    edit = WaitingEdit(2, EditBatch((), author="bob"), 0.0, 60.0, ("why",), ())
    assert (edit.subject, WaitingEdit(2, EditBatch(()), 0.0, 60.0, (), ()).subject) == ("an edit by bob", "an edit")


def test_a_task_that_is_added_names_what_it_comes_after() -> None:
    data = {"op": "add_task", "task": {"id": "mail", "shell": "x", "after": {"load": "completion"}}, "teardown": "rent"}
    rest, added = split_dependencies(data)
    assert rest == {"op": "add_task", "task": {"id": "mail", "shell": "x"}}
    assert {(edit.source, edit.target, edit.on) for edit in added if isinstance(edit, AddDependency)} >= {
        ("load", "mail", "completion")
    }
    for plain in (
        5,
        {"op": "remove_task"},
        {"op": "add_task", "task": {"id": "a"}},
        {"op": "add_task", "task": {"after": "b"}},
    ):
        assert split_dependencies(plain) == (plain, [])


def test_a_cycle_that_was_released_says_why_it_is_gone() -> None:
    plan = Constellation("p")
    plan.add(Task("a"))
    plan.add(Task("b"), after="a")
    plan.begin(0.0)
    lock = AssignmentLock(plan, edit_on=edit_on_all)
    plan.start(plan.node("a"), "here", 1.0)
    lock.finish(plan.node("a"), COMPLETED, 2.0)
    cycle = lock.open(3.0)
    assert cycle is not None
    lock.close(cycle, 4.0, "released")
    with pytest.raises(CycleGone, match="a person released it"):
        lock.get(cycle.id)


def test_failed_elements_are_counted_and_left_out_of_results() -> None:
    plan = Constellation("p")
    for name, of in (("g[0]", None), ("g[1]", None), ("g", ["g[0]", "g[1]"])):
        plan.add(Task(name, foreach=None if of is None else {"of": of}))
    group = plan.node("g")
    assert failed_elements(plan.nodes, group) == ""
    plan.node("g[0]").value, plan.node("g[1]").status, plan.node("g[1]").error = 7, FAILED, "broken"
    assert failed_elements(plan.nodes, group) == "1 of 2 elements failed: g[1] (str: broken)"
    assert results_without_failures(plan.nodes, group) == [7]
    group.status = FAILED
    plan.add(Task("outer", foreach={"of": ["g"]}))
    assert results_without_failures(plan.nodes, plan.node("outer")) == [[7]]


def test_a_group_that_becomes_a_task_has_less_work_than_before() -> None:
    plan = Constellation("p")
    plan.add(Task("list"))
    plan.add(Task("g", foreach={"from": "list", "template": {"shell": "x"}}), after="list")
    batch = EditBatch((UpdateTask("g", foreach=None, shell="y"), AddTask(Task("h", shell="z"))), author="ann")
    scope = EditScope.parse("edits=* tasks=* executors=* fields=*")
    assert scope_violations([scope], "ann", batch, trial(plan, batch), plan) == []


def test_a_task_with_approval_has_no_other_field_that_decides_about_its_start() -> None:
    with pytest.raises(InvalidTask, match="a task with approval cannot have"):
        Task("a", approval={"by": ["ops"]}, revocable=True, wait_for={"until": "2026-01-01"})
