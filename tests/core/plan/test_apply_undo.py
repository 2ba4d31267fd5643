"""Undo and redo: the inverse of a batch restores the plan, as long as nothing has moved past it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    EditBatch,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, end, ready, start, structure, through_json, violations
from tests.laboratory.plan_invariants import check_invariants

BATCHES: list[list[Any]] = [
    [AddTask(Task("x", retries=1)), AddDependency("a", "x", "failure"), AddDependency("x", "c", when="ok")],
    [UpdateTask("b", timeout=5, needs=["gpu"], inputs={"n": 1}), UpdateTask("b", retries=2)],
    [UpdateTask("b", retries=0)],
    [RemoveDependency("b", "c")],
    [UpdateDependency("a", "b", "completion", "ok")],
    [RemoveDependency("a", "b"), RemoveDependency("b", "c"), AddDependency("c", "b"), AddDependency("b", "a")],
    [RemoveTask("b", "bridge")],
    [RemoveTask("b", "remove")],
    [RemoveTask("b"), AddDependency("a", "c")],
    [RemoveTask("b"), AddTask(Task("b", retries=3)), AddDependency("d", "b")],
    [RemoveTask("b"), AddTask(Task("b")), AddDependency("b", "c", "failure")],
    [RemoveTask("c"), RemoveTask("b")],
    [RemoveTask("b"), RemoveDependency("b", "c")],
    [AddTask(Task("x")), RemoveTask("x")],
]
named = pytest.mark.parametrize("edits", BATCHES, ids=lambda edits: "; ".join(map(str, edits)))


def plan_of_four() -> Constellation:
    plan = Constellation("four")
    plan.add(Task("a"))
    plan.add(Task("b", retries=0, shell="make"), after="a")
    plan.add(Task("c", priority="high"), after={"b": {"on": "completion", "when": "ok"}})
    plan.add(Task("d"))
    return begin(plan)


def inverse(applied: Applied) -> EditBatch:
    assert applied.inverse is not None
    return applied.inverse


@named
def test_undo_restores_the_plan_and_redo_the_edit(edits: list[Any]) -> None:
    plan = plan_of_four()
    before, was_ready = structure(plan), set(ready(plan))
    applied = plan.edit(edits)
    after = structure(plan)
    undone = plan.apply(inverse(applied), 2.0)
    check_invariants(plan)
    assert structure(plan) == before
    assert set(ready(plan)) == was_ready
    redone = plan.apply(inverse(undone), 3.0)
    check_invariants(plan)
    assert structure(plan) == after
    plan.apply(inverse(redone), 4.0)
    assert structure(plan) == before


@named
def test_an_inverse_can_be_stored_and_applied_later(edits: list[Any]) -> None:
    plan = plan_of_four()
    before = structure(plan)
    text = json.dumps(inverse(plan.edit(edits)).to_json())
    twin = through_json(plan)
    twin.apply(EditBatch.from_json(json.loads(text)), 2.0)
    assert structure(twin) == before
    check_invariants(twin)


def test_an_undo_says_what_it_undoes() -> None:
    plan = chain("a")
    applied = plan.edit([UpdateTask("a", timeout=5)], author="ada")
    undo = inverse(applied)
    assert (undo.author, undo.reason, undo.base_version) == ("ada", "undo version 1", 1)


def test_an_undo_is_a_version_of_its_own() -> None:
    plan = chain("a")
    assert plan.apply(inverse(plan.edit([UpdateTask("a", timeout=5)])), 2.0).version == 2


def test_an_undo_of_what_was_edited_again_is_stale() -> None:
    plan = chain("a")
    applied = plan.edit([UpdateTask("a", timeout=5)])
    plan.edit([UpdateTask("a", timeout=6)])
    undo = inverse(applied)
    [violation] = violations(plan, *undo.edits, base_version=undo.base_version)
    assert violation.rule == "stale"


def test_an_undo_of_what_has_started_is_rejected_with_why() -> None:
    plan = begin(chain("a"))
    applied = plan.edit([AddTask(Task("b"))])
    start(plan, "b")
    undo = inverse(applied)
    [violation] = violations(plan, *undo.edits, base_version=undo.base_version)
    assert violation.rule == "immutable"
    assert "task 'b' is running" in violation.message


def test_an_undo_of_an_addition_that_others_depend_on_is_rejected() -> None:
    plan = begin(chain("a"))
    applied = plan.edit([AddTask(Task("b"))])
    plan.edit([AddTask(Task("c")), AddDependency("b", "c")])
    undo = inverse(applied)
    [violation] = violations(plan, *undo.edits, base_version=undo.base_version)
    assert violation.rule == "dependents"


def test_an_undo_of_a_removal_brings_the_task_back_as_one_that_never_ran() -> None:
    plan = begin(chain("a", "b", revocable=True), speculative=True)
    end(plan, "a", review=True)
    start(plan, "b")
    applied = plan.edit([RemoveTask("b")])
    plan.apply(inverse(applied), 4.0)
    assert plan["b"].started_at is None
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_an_undo_asks_a_condition_again() -> None:
    plan = chain("a")
    plan.add(Task("b"), after={"a": {"when": "ok"}})
    plan.evaluate = lambda condition, status, result: result == 1
    begin(plan)
    end(plan, "a", value=1)
    applied = plan.edit([RemoveDependency("a", "b"), AddDependency("a", "b", "failure")])
    assert ready(plan) == []
    plan.apply(inverse(applied), 4.0)
    assert ready(plan) == ["b"]
    check_invariants(plan)
