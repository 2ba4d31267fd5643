"""Building a plan, and what it says about itself."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import CycleFound, DuplicateTask, EditRejected, InvalidTask, PlanError, UnknownTask, Violation
from asterism.core.plan.constellation import Constellation, ConstellationView
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.status import TaskStatus
from asterism.core.plan.task import Dependency, Task
from tests.core.plan.tiny_plans import begin, chain, end, facts, ready, start
from tests.laboratory.plan_invariants import check_invariants


def test_a_plan_is_built_task_by_task_and_its_version_stays_zero() -> None:
    plan = Constellation("release")
    fetch = plan.add(Task("fetch"))
    plan.add(Task("build"), after="fetch")
    plan.add(Task("report"), after={"build": "completion"})
    assert fetch == Task("fetch")
    assert plan.version == 0
    assert list(plan.dependencies) == [Dependency("fetch", "build"), Dependency("build", "report", "completion")]
    assert repr(plan) == "<Constellation 'release' version 0, 3 tasks, created>"
    check_invariants(plan)


def test_tasks_may_be_connected_afterwards() -> None:
    plan = Constellation()
    plan.add(Task("a"))
    plan.add(Task("b"))
    assert plan.connect("b", "a", "failure", "x") == Dependency("b", "a", "failure", "x")
    assert plan.topological() == ["b", "a"]


def test_a_plan_behaves_like_a_collection_of_its_tasks() -> None:
    plan = chain("a", "b")
    assert (len(plan), "a" in plan, "ghost" in plan) == (2, True, False)
    assert [view.id for view in plan] == ["a", "b"]
    assert plan["a"].id == "a"
    with pytest.raises(UnknownTask):
        plan["ghost"]


# -- bad input: each is refused, and the plan stays as it was ----------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda plan: plan.add(Task("a")), DuplicateTask, "task 'a' already exists"),
        (lambda plan: plan.add("x"), InvalidTask, "add takes a Task, not 'x'"),
        (lambda plan: plan.add(Task("x"), after="ghost"), UnknownTask, "there is no task 'ghost' in the plan"),
        (lambda plan: plan.add(Task("x"), after=["a", "ghost"]), UnknownTask, "there is no task 'ghost' in the plan"),
        (lambda plan: plan.add(Task("x"), after="x"), InvalidTask, "task 'x' cannot depend on itself"),
        (
            lambda plan: plan.add(Task("x"), after={"a": "soon"}),
            InvalidTask,
            "on is one of success, failure, completion",
        ),
        (lambda plan: plan.connect("a", "a"), InvalidTask, "task 'a' cannot depend on itself"),
        (lambda plan: plan.connect("a", "b"), PlanError, "'b' already depends on 'a'"),
        (lambda plan: plan.connect("ghost", "b"), UnknownTask, "there is no task 'ghost' in the plan"),
        (lambda plan: plan.connect("a", "ghost"), UnknownTask, "there is no task 'ghost' in the plan"),
        (lambda plan: plan.connect("c", "a"), CycleFound, "this dependency would close a cycle: c -> a -> b -> c"),
    ],
)
def test_a_mistake_in_building_is_refused_and_the_plan_stays_as_it_was(
    build: Any, error: type[Exception], words: str
) -> None:
    plan = chain("a", "b", "c")
    before = facts(plan)
    with pytest.raises(error) as caught:
        build(plan)
    assert words in str(caught.value)
    assert facts(plan) == before
    check_invariants(plan)


# -- once it runs, building is editing ---------------------------------------------------------------------------------


def test_adding_to_a_running_plan_is_an_edit() -> None:
    plan = begin(chain("a"))
    plan.clock = lambda: 7.0
    assert plan.add(Task("b"), after={"a": "failure"}) == Task("b")
    assert plan.version == 1
    assert plan["b"].dependencies == (Dependency("a", "b", "failure"),)
    assert plan.story("b")[0].at == 7.0
    assert ready(plan) == ["a"]


def test_connecting_in_a_running_plan_is_an_edit() -> None:
    plan = begin(chain("a"))
    plan.add(Task("b"))
    plan.connect("a", "b", when="x")
    assert plan.version == 2
    assert ready(plan) == ["a"]


def test_a_mistake_in_a_running_plan_is_rejected_as_an_edit() -> None:
    plan = begin(chain("a"))
    start(plan, "a")
    with pytest.raises(EditRejected, match="task 'a' already exists"):
        plan.add(Task("a"))
    with pytest.raises(EditRejected, match="there is no task 'ghost'"):
        plan.add(Task("b"), after="ghost")
    assert "b" not in plan
    plan.add(Task("b"))
    with pytest.raises(EditRejected, match="task 'a' is running"):
        plan.connect("b", "a")
    check_invariants(plan)


def test_an_edit_before_the_beginning_counts_as_a_version() -> None:
    plan = chain("a")
    plan.edit([AddTask(Task("b"))], author="ada", reason="why not")
    assert plan.version == 1


# -- what may be changed -----------------------------------------------------------------------------------------------


def test_modifiable_are_the_tasks_and_dependencies_that_an_edit_may_change() -> None:
    plan = begin(chain("a", "b", "c", "d"))
    assert plan.modifiable() == ["a", "b", "c", "d"]
    end(plan, "a")
    start(plan, "b")
    assert plan.modifiable() == ["c", "d"]
    assert plan.modifiable_dependencies() == [Dependency("b", "c"), Dependency("c", "d")]


def test_a_provisional_task_is_modifiable() -> None:
    plan = begin(chain("a", "b", revocable=True), speculative=True)
    end(plan, "a", review=True)
    start(plan, "b")
    assert plan.modifiable() == ["b"]
    assert plan.modifiable_dependencies() == [Dependency("a", "b")]


def test_a_plan_tells_what_is_new_in_its_story_and_how_its_tasks_stand() -> None:
    plan = begin(chain("a", "b"))
    start(plan, "a")
    told = plan.story()
    end(plan, "a")
    view = ConstellationView(plan)
    assert view.story_after(len(told)) == plan.story()[len(told) :] != []
    assert view.status_counts() == {status: sum(task.status is status for task in plan) for status in TaskStatus}
    assert (plan["a"].attempts, plan["a"].losses) == (1, 0)


def test_a_batch_that_is_rejected_from_outside_changes_nothing() -> None:
    plan = begin(chain("a"))
    with pytest.raises(EditRejected, match="not within its scope"):
        plan.reject(EditBatch((AddTask(Task("b")),)), [Violation(0, "scope", "not within its scope")])
    assert facts(plan) == facts(begin(chain("a")))
