"""Staleness: a batch is stale if an accepted batch after its base version changed what it names, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import EditRejected
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
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, end, fail, start, violations


def diamond() -> Constellation:
    plan = chain("a", "b", "d")
    plan.add(Task("c"), after="a")
    plan.add(Task("free"))
    return begin(plan)


def apply(plan: Constellation, *edits: Any, base: int | None) -> int:
    return plan.apply(EditBatch(tuple(edits), base_version=base), 5.0).version


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (UpdateTask("b", timeout=5), UpdateTask("b", retries=1)),
        (UpdateTask("b", timeout=5), RemoveTask("b", "bridge")),
        (UpdateTask("b", timeout=5), CancelTask("b")),
        (UpdateTask("b", timeout=5), AddDependency("free", "b")),
        (UpdateTask("b", timeout=5), AddDependency("b", "c")),
        (AddDependency("c", "d"), UpdateDependency("c", "d", "completion")),
        (AddDependency("c", "d"), RemoveDependency("c", "d")),
        (UpdateDependency("a", "b", "completion"), RemoveDependency("a", "b")),
        (AddTask(Task("new")), UpdateTask("new", timeout=5)),
        (AddTask(Task("new")), AddDependency("a", "new")),
        (RemoveTask("c"), AddTask(Task("c"))),
    ],
    ids=str,
)
def test_a_batch_that_names_what_was_changed_since_is_stale(first: Any, second: Any) -> None:
    plan = diamond()
    apply(plan, first, base=0)
    [violation] = [problem for problem in violations(plan, second, base_version=0) if problem.rule == "stale"]
    assert violation.edit == 0
    assert (
        "changed in version 1, after version 0, on which this edit is based; read the plan again" in violation.message
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (UpdateTask("b", timeout=5), UpdateTask("c", timeout=5)),
        (UpdateTask("b", timeout=5), AddDependency("c", "d")),
        (AddDependency("c", "d"), UpdateTask("d", timeout=5)),
        (AddDependency("c", "d"), UpdateTask("c", timeout=5)),
        (AddTask(Task("new")), AddTask(Task("newer"))),
        (RemoveDependency("b", "d"), UpdateDependency("a", "b", "completion")),
    ],
    ids=str,
)
def test_everything_else_rebases_silently(first: Any, second: Any) -> None:
    plan = diamond()
    apply(plan, first, base=0)
    assert apply(plan, second, base=0) == 2


def test_a_batch_based_on_the_version_that_made_the_change_is_not_stale() -> None:
    plan = diamond()
    apply(plan, UpdateTask("b", timeout=5), base=0)
    assert apply(plan, UpdateTask("b", timeout=6), base=1) == 2


def test_a_batch_without_a_base_is_never_stale() -> None:
    plan = diamond()
    apply(plan, UpdateTask("b", timeout=5), base=None)
    assert apply(plan, UpdateTask("b", timeout=6), base=None) == 2


def test_progress_is_not_staleness() -> None:
    plan = diamond()
    end(plan, "a")
    start(plan, "b")
    fail(plan, "c")
    assert apply(plan, UpdateTask("d", timeout=5), AddDependency("c", "d", "failure"), base=0) == 1


def test_an_edit_of_a_task_that_has_started_is_immutable_not_stale() -> None:
    plan = diamond()
    start(plan, "a")
    [violation] = violations(plan, UpdateTask("a", timeout=5), base_version=0)
    assert violation.rule == "immutable"


def test_a_rejected_batch_makes_nothing_stale() -> None:
    plan = diamond()
    apply(plan, UpdateTask("free", timeout=5), base=0)
    violations(plan, UpdateTask("b", timeout=5), RemoveTask("ghost"))
    assert apply(plan, UpdateTask("b", timeout=6), base=0) == 2


def test_a_cancellation_by_edit_makes_batches_that_name_the_task_stale() -> None:
    plan = diamond()
    apply(plan, CancelTask("b"), base=0)
    rules = [violation.rule for violation in violations(plan, UpdateTask("b", timeout=5), base_version=0)]
    assert rules == ["stale", "immutable"]


def test_removing_a_task_changes_its_dependencies_too() -> None:
    plan = diamond()
    apply(plan, RemoveTask("b", "bridge"), base=0)
    problems = violations(plan, RemoveDependency("b", "d"), base_version=0)
    messages = [violation.message for violation in problems if violation.rule == "stale"]
    assert messages[0].startswith("the dependency 'b' -> 'd' was changed in version 1")
    assert messages[1].startswith("task 'b' was changed in version 1")


def test_the_edits_of_one_batch_do_not_make_each_other_stale() -> None:
    plan = diamond()
    assert apply(plan, UpdateTask("b", timeout=5), UpdateTask("b", timeout=6), base=0) == 1


def test_every_stale_edit_is_reported() -> None:
    plan = diamond()
    apply(plan, UpdateTask("b", timeout=5), UpdateTask("c", timeout=5), base=0)
    problems = violations(
        plan, UpdateTask("b", retries=1), AddTask(Task("x")), UpdateTask("c", retries=1), base_version=0
    )
    assert [(violation.edit, violation.rule) for violation in problems] == [(0, "stale"), (2, "stale")]


def test_a_base_version_ahead_of_the_plan_is_rejected() -> None:
    with pytest.raises(EditRejected, match="base_version 5 is ahead of the plan, which is at version 0"):
        chain("a").apply(EditBatch((AddTask(Task("b")),), base_version=5), 0.0)


def test_a_removal_of_everything_below_is_stale_if_something_was_added_there() -> None:
    plan = chain("a", "b")
    plan.edit([AddTask(Task("new")), AddDependency("b", "new")])
    with pytest.raises(EditRejected) as caught:
        plan.apply(EditBatch((RemoveTask("a", "remove"),), base_version=0), 0.0)
    assert [violation.rule for violation in caught.value.violations] == ["stale", "stale"]
    plan.apply(EditBatch((RemoveTask("a", "remove"),), base_version=1), 0.0)
    assert len(plan) == 0
