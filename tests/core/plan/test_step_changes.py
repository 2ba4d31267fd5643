"""Changes of steps: a view to which they are applied equals the plan after each step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import precondition, rule

from asterism.core.plan import step_changes
from asterism.core.plan.assignment_lock import AssignmentLock, edit_on_all
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.editor_cost import EditorCost
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
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, decode_steps, lock_from_json
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED
from asterism.core.plan.step_changes import Change, replay_step, task_progress
from asterism.core.plan.task import Task
from tests.core.plan.test_journal import RecordedPlan, picture, recorded
from tests.core.plan.test_plan_machine import check, evaluate

FRESH = task_progress(Node(Task("fresh"), 0))
"""The progress of a task that was added just now."""

DIFF = ("added", "removed", "changed", "linked", "unlinked", "relinked")


class View:
    """What a person sees of a plan: filled once, and changed by changes alone."""

    def __init__(self, plan: Constellation, lock: AssignmentLock) -> None:
        self.version, self.state = plan.version, str(plan.state)
        self.tasks = {node.id: task_progress(node) for node in plan.nodes.values()}
        self.dependencies = {(d.source, d.target): d.to_json() for d in plan.dependencies}
        self.cycles = {cycle.id: list(cycle.tasks) for cycle in lock.cycles.values()}

    def apply(self, change: Change) -> None:
        json.dumps(change.data)
        getattr(self, f"_{change.kind}")(change.data)

    def _task(self, data: Any) -> None:
        self.tasks[data["task"]] = {name: data[name] for name in FRESH}

    def _plan(self, data: Any) -> None:
        self.state = data["state"]

    def _cycle(self, data: Any) -> None:
        if data["what"] == "opened":
            self.cycles[data["cycle"]] = data["tasks"]
        elif data["what"] == "closed":
            for task in self.cycles.pop(data["cycle"]):
                if task in self.tasks:
                    self.tasks[task]["review"] = False

    def _edit(self, data: Any) -> None:
        diff, self.version = data["diff"], data["version"]
        for task in diff["removed"]:
            del self.tasks[task]
        for task in diff["added"]:
            self.tasks[task] = dict(FRESH)
        for edge in diff["unlinked"]:
            del self.dependencies[tuple(edge)]
        for edge in diff["linked"]:
            assert (edge["source"], edge["target"]) not in self.dependencies
            self.dependencies[edge["source"], edge["target"]] = edge
        for edge in diff["relinked"]:
            assert (edge["source"], edge["target"]) in self.dependencies
            self.dependencies[edge["source"], edge["target"]] = edge


def assert_same(view: View, plan: Constellation, lock: AssignmentLock) -> None:
    assert vars(view) == vars(View(plan, lock))


class FollowedPlan(RecordedPlan):
    """Everything that may happen to a plan, followed by a view."""

    @rule()
    @precondition(lambda self: hasattr(self, "first"))
    def look_back(self) -> None:
        data, waiting = json.loads(self.first)
        plan = RecordedConstellation.from_json(data)
        plan.evaluate, plan.check_condition = evaluate, check
        lock = RecordedLock(plan, self.lock.policy, self.lock.max_cycles)
        lock_from_json(lock, waiting)
        view = View(plan, lock)
        for step in decode_steps(list(map(json.loads, self.steps))):
            for change in replay_step(plan, lock, step):
                view.apply(change)
            assert_same(view, plan, lock)
        assert picture(plan, lock) == picture(self.plan, self.lock)


TestFollowedPlan = FollowedPlan.TestCase
TestFollowedPlan.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def follow(steps: list[Any], *ids: str) -> list[Change]:
    plan, lock, _ = recorded(*ids)
    return [change for step in steps for change in replay_step(plan, lock, step)]


def edited(plan: RecordedConstellation, *edits: Any) -> dict[str, Any]:
    applied: list[Any] = []
    plan.on_applied = applied.append
    plan.apply(EditBatch(edits, "ann", "why not"), 5.0)
    return step_changes.structure_diff(plan, applied[0].reverse)


def test_an_edit_says_who_why_and_what() -> None:
    plan, _, steps = recorded("a", "b")
    plan.begin(1.0)
    plan.apply(EditBatch((AddTask(Task("c")), AddDependency("b", "c")), "ann", "a third", triggers=("a",)), 2.0)
    began, edit = follow(steps, "a", "b")
    assert (began.kind, began.data) == ("plan", {"what": "began", "why": "", "state": "executing"})
    assert (edit.kind, edit.at) == ("edit", 2.0)
    assert {name: edit.data[name] for name in ("version", "author", "reason", "triggers", "undoes")} == {
        **{"version": 1, "author": "ann", "reason": "a third", "triggers": ["a"], "undoes": None}
    }
    assert [edit_json["op"] for edit_json in edit.data["edits"]] == ["add_task", "add_dependency"]
    assert edit.data["diff"] == {
        **{"added": ["c"], "removed": [], "changed": []},
        **{"linked": [{"source": "b", "target": "c", "on": "success"}], "unlinked": [], "relinked": []},
    }


def test_an_empty_edit_is_no_change() -> None:
    plan, _, steps = recorded("a")
    plan.begin(1.0)
    plan.apply(EditBatch(()), 2.0)
    assert [change.kind for change in follow(steps, "a")] == ["plan"]


def test_the_diff_is_what_changed_all_in_all() -> None:
    plan, _, _ = recorded("a", "b", "c")
    plan.connect("a", "b")
    plan.connect("b", "c")
    plan.begin(1.0)
    diff = edited(plan, AddTask(Task("x")), RemoveTask("x"), UpdateTask("a", priority=3))
    assert diff == {name: ["a"] if name == "changed" else [] for name in diff}
    diff = edited(plan, UpdateDependency("a", "b", "failure"))
    assert diff["relinked"] == [{"source": "a", "target": "b", "on": "failure"}]
    diff = edited(plan, RemoveTask("b", dependents="bridge"), CancelTask("a"))
    assert (diff["removed"], diff["linked"]) == (["b"], [{"source": "a", "target": "c", "on": "failure"}])
    assert diff["unlinked"] == [["b", "c"], ["a", "b"]]


def test_a_dependency_that_is_removed_and_added_again_is_no_change() -> None:
    plan, _, _ = recorded("a", "b")
    plan.connect("a", "b")
    plan.begin(1.0)
    diff = edited(plan, RemoveDependency("a", "b"), AddDependency("a", "b"))
    assert diff == {name: [] for name in diff}
    diff = edited(plan, AddTask(Task("c")), AddDependency("b", "c"), RemoveDependency("b", "c"))
    assert diff == {name: ["c"] if name == "added" else [] for name in diff}


def test_a_note_about_a_waiting_edit_is_a_change_of_its_own() -> None:
    plan, _, steps = recorded("a")
    facts = {"approval": 3, "author": "ann", "reason": "add b"}
    plan.note(2.0, "edit waits", None, "approval 3, by ann: add b", facts)
    change = {"what": "edit waits", "why": "approval 3, by ann: add b", **facts}
    assert follow(steps, "a") == [("approval", 2.0, change)]


def test_a_note_about_a_removed_task_is_a_change_of_the_plan() -> None:
    plan, _, steps = recorded("a", "b")
    plan.begin(1.0)
    plan.apply(EditBatch((CancelTask("b"), RemoveTask("b"))), 2.0)
    plan.note(3.0, "late result", "b", "from kitchen")
    began, edit, note = follow(steps, "a", "b")
    assert (began.kind, edit.kind) == ("plan", "edit")  # which says all about "b"
    assert note == ("plan", 3.0, {"what": "late result", "why": "from kitchen", "state": "executing", "task": "b"})


def speculative() -> tuple[RecordedConstellation, RecordedLock, list[Any]]:
    plan, _, steps = recorded("a")
    plan.add(Task("b", revocable=True), "a")
    return plan, RecordedLock(plan, "speculative", edit_on=edit_on_all), steps


def test_a_confirmed_task_is_one_change() -> None:
    plan, lock, steps = speculative()
    plan.begin(1.0)
    for name in "ab":
        plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "kitchen", 2.0)
        lock.finish(plan.node(name), COMPLETED, 3.0)
        if name == "a":
            lock.open(4.0)
    lock.close(lock.cycles[1], 5.0, "empty")
    again, other, _ = speculative()
    *_, ended, closed = [replay_step(again, other, step) for step in steps]
    assert [(change.data["task"], change.data["what"], change.data["status"]) for change in ended] == [
        ("b", "completed provisionally", "running")
    ]
    assert [(change.kind, change.data.get("task"), change.data["what"]) for change in closed] == [
        ("cycle", None, "closed"),
        ("task", "b", "completed"),
    ]


@pytest.mark.parametrize("left_out", ["structure_diff", "_story_changes"])
def test_without_one_of_its_sources_the_view_differs(monkeypatch: pytest.MonkeyPatch, left_out: str) -> None:
    plan, _, steps = recorded("a", "b")
    plan.begin(1.0)
    plan.apply(EditBatch((AddTask(Task("c")), RemoveTask("b"))), 2.0)
    again, other, _ = recorded("a", "b")
    view = View(again, other)
    monkeypatch.setattr(
        step_changes, left_out, lambda *arguments: dict.fromkeys(DIFF, ()) if len(arguments) == 2 else []
    )
    for step in steps:
        for change in replay_step(again, other, step):
            view.apply(change)
    with pytest.raises(AssertionError):
        assert_same(view, again, other)


def test_the_end_of_a_cycle_says_what_its_editor_cost() -> None:
    plan, lock, steps = recorded("a")
    plan.begin(1.0)
    plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "kitchen", 2.0)
    lock.finish(plan.node("a"), COMPLETED, 3.0)
    lock.open(4.0)
    lock.cycles[1].cost = cost = EditorCost("openai:gpt-5", 1, 1204, 88, 0.0031, 2.0)
    lock.close(lock.cycles[1], 5.0, "empty")
    closed = [change for change in follow(steps, "a") if change.data["what"] == "closed"]
    assert [change.data["cost"] for change in closed] == [cost.to_json()]
