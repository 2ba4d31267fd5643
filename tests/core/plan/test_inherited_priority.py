"""Inherited priority: a task counts with the highest priority among itself and everything that waits for it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.errors import EditRejected
from asterism.core.plan import graph as graph_module
from asterism.core.plan import inherited_priority
from asterism.core.plan.assignment_lock import AssignmentLock
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    CancelTask,
    EditBatch,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.explain import why
from asterism.core.plan.status import COMPLETED, TERMINAL
from asterism.core.plan.task import Priority, Task
from tests.core.plan.tiny_plans import begin, ready
from tests.laboratory.plan_invariants import check_invariants


def inverted(on: str = "success") -> Constellation:
    """low -> urgent (critical), beside plain tasks."""
    plan = Constellation("p")
    plan.add(Task("plain"))
    plan.add(Task("low", priority="low"))
    plan.add(Task("urgent", priority="critical"), {"low": on})
    return plan


def urgencies(plan: Constellation) -> dict[str, str]:
    return {node.id: node.urgency.name.lower() for node in plan.nodes.values() if node.status not in TERMINAL}


def fresh(plan: Constellation) -> dict[str, str]:
    """The urgencies computed from scratch."""
    copied = plan.copy()
    inherited_priority.recompute(copied)
    return urgencies(copied)


def test_what_critical_work_waits_for_goes_first() -> None:
    assert ready(begin(inverted())) == ["low", "plain"]


def test_without_inheritance_critical_work_below_a_low_task_runs_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module.inherited_priority, "linked", lambda *arguments: None)
    assert ready(begin(inverted())) == ["plain", "low"]


def test_a_dependency_on_a_failure_lends_nothing() -> None:
    assert ready(begin(inverted("failure"))) == ["plain", "low"]
    plan = begin(inverted("completion"))
    plan.edit([UpdateDependency("low", "urgent", "failure")])
    assert urgencies(plan)["low"] == "low"
    plan.edit([UpdateTask("urgent", priority="high"), RemoveDependency("low", "urgent")])
    check_invariants(plan)


@pytest.mark.parametrize(
    ("edits", "low"),
    [
        ([], "critical"),
        ([UpdateTask("urgent", priority="high")], "high"),
        ([UpdateTask("urgent", priority="low")], "low"),
        ([RemoveTask("urgent")], "low"),
        ([CancelTask("urgent")], "low"),
        ([RemoveDependency("low", "urgent")], "low"),
        ([AddTask(Task("more")), AddDependency("low", "more"), CancelTask("urgent")], "normal"),
        ([UpdateTask("low", priority="high"), CancelTask("urgent")], "high"),
    ],
)
def test_queued_tasks_move_with_what_waits_for_them(edits: list[Any], low: str) -> None:
    plan = begin(inverted())
    applied = plan.edit(edits)
    assert urgencies(plan)["low"] == low
    check_invariants(plan)
    if applied.inverse is not None:
        plan.apply(applied.inverse, 5.0)
        assert ready(plan) == ["low", "plain"]


def test_a_rejected_edit_leaves_the_queue_as_it_was() -> None:
    plan = begin(inverted())
    with pytest.raises(EditRejected):
        plan.edit([RemoveTask("urgent"), UpdateTask("plain", priority="high"), RemoveTask("nothing")])
    assert ready(plan) == ["low", "plain"]
    check_invariants(plan)


def test_a_raise_stops_where_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Constellation("p")
    for number in range(100):
        plan.add(Task(str(number)), str(number - 1) if number else None)
    plan.edit([UpdateTask("50", priority="high")])
    visited: list[str] = []
    original = inherited_priority._set

    def counted(graph: Any, node: Any, urgency: Priority) -> None:
        visited.append(node.id)
        original(graph, node, urgency)

    monkeypatch.setattr(inherited_priority, "_set", counted)
    plan.edit([AddTask(Task("x", priority="high")), AddDependency("60", "x")])
    assert visited == [str(number) for number in range(60, 50, -1)]
    visited.clear()
    plan.edit([RemoveTask("x")])
    assert visited == [str(number) for number in range(60, 50, -1)]
    visited.clear()
    plan.edit([AddTask(Task("y")), AddDependency("99", "y"), UpdateTask("y", timeout=3.0), RemoveTask("y")])
    assert visited == []  # a task without a priority of its own


def test_a_task_that_has_ended_waits_for_nothing() -> None:
    """A task with join="any" may end while one of those before it runs."""
    plan = Constellation("p")
    plan.add(Task("a"))
    plan.add(Task("b", priority="low"))
    plan.add(Task("join", join="any", priority="critical"), ["a", "b"])
    begin(plan)
    plan.queue.pop(None)
    plan.queue.pop(None)
    for name in "ab":
        plan.start(plan.node(name), "d", 1.0)
    assert set(plan.urged) == set()
    plan.edit([RemoveDependency("b", "join")])
    assert [node.id for node in plan.urged] == ["b"]
    assert urgencies(plan)["b"] == "low"
    plan.finish(plan.node("a"), COMPLETED, 2.0)
    plan.queue.pop(None)
    plan.start(plan.node("join"), "d", 3.0)
    plan.finish(plan.node("join"), COMPLETED, 4.0)
    check_invariants(plan)


def test_a_retry_brings_the_urgencies_back() -> None:
    plan = begin(inverted())
    for name in ("low", "urgent", "plain"):
        plan.queue.pop(None)
        plan.start(plan.node(name), "d", 1.0)
        plan.finish(plan.node(name), COMPLETED, 2.0)
    plan.close(3.0)
    plan.run_again(4.0, ["low"])
    assert urgencies(plan) == {"low": "critical", "urgent": "critical"}
    check_invariants(plan)


def test_why_says_from_whom_a_task_has_its_priority() -> None:
    plan = inverted()
    plan.add(Task("below"), "urgent")
    plan.add(Task("above", priority="low"))
    plan.connect("above", "low")
    begin(plan)
    lock = AssignmentLock(plan)
    told = why(plan, lock, plan.node("above"), None, 1.0)
    assert [(holder.kind, holder.name) for holder in told.holders] == [("turn", ""), ("priority", "urgent")]
    assert str(told).endswith("it counts with the priority critical of 'urgent', which waits for it")
    assert [holder.kind for holder in why(plan, lock, plan.node("plain"), None, 1.0).holders] == ["turn"]
    plan.queue.pop(None)
    plan.start(plan.node("above"), "d", 1.0)
    plan.finish(plan.node("above"), COMPLETED, 2.0)
    assert [holder.kind for holder in why(plan, lock, plan.node("above"), None, 3.0).holders] == ["ended"]


names = st.sampled_from([f"t{number}" for number in range(7)])
priorities = st.sampled_from(list(Priority))
some_edits = st.one_of(
    st.builds(lambda name, priority: AddTask(Task(name, priority=priority)), names, priorities),
    st.builds(lambda name, priority: UpdateTask(name, priority=priority), names, priorities),
    st.builds(AddDependency, names, names, st.sampled_from(["success", "failure", "completion"])),
    st.builds(UpdateDependency, names, names, st.sampled_from(["success", "failure"])),
    st.builds(RemoveDependency, names, names),
    st.builds(RemoveTask, names, st.sampled_from([None, "remove", "bridge"])),
    st.builds(CancelTask, names),
)


@given(st.lists(st.lists(some_edits, max_size=3), max_size=12), st.lists(priorities, min_size=4, max_size=4))
@settings(max_examples=300)
def test_after_any_edits_urgencies_are_as_from_scratch(batches: list[list[Any]], first: list[Priority]) -> None:
    plan = Constellation("p")
    for number, priority in enumerate(first):
        plan.add(Task(f"t{number}", priority=priority), f"t{number - 1}" if number else None)
    begin(plan)
    for edits in batches:
        with contextlib.suppress(EditRejected):
            plan.apply(EditBatch(tuple(edits)), 2.0)
        assert urgencies(plan) == fresh(plan)
        check_invariants(plan)
