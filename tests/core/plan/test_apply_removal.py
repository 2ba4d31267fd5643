"""Removing a task that others depend on: an edge is never dropped silently, for that would start things early."""

from __future__ import annotations

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddDependency, AddTask, RemoveDependency, RemoveTask, UpdateTask
from asterism.core.plan.task import Dependency, Task
from tests.core.plan.tiny_plans import begin, chain, end, ready, structure, told, violations
from tests.laboratory.plan_invariants import check_invariants


def edges(plan: Constellation) -> set[tuple[str, str]]:
    return {(dependency.source, dependency.target) for dependency in plan.dependencies}


def test_removing_a_task_with_dependents_is_rejected_with_what_to_do() -> None:
    plan = chain("a", "b")
    plan.add(Task("c"), after="a")
    problems = violations(plan, UpdateTask("b", timeout=5), RemoveTask("a"))
    assert [(violation.edit, violation.rule) for violation in problems] == [(1, "dependents"), (1, "dependents")]
    assert problems[0].message == (
        "task 'b' depends on 'a', which is removed; rewire or remove 'b' in the same batch, "
        "or set dependents='remove' or dependents='bridge'"
    )


def test_a_task_without_dependents_is_simply_removed() -> None:
    plan = begin(chain("a", "b"))
    plan.edit([RemoveTask("b")], author="ada", reason="not needed")
    assert list(plan.nodes) == ["a"]
    assert plan["a"].dependents == ()
    assert told(plan, "b") == [("removed", "version 1 by ada: not needed")]
    check_invariants(plan)


def test_the_batch_may_rewire_the_dependents() -> None:
    plan = begin(chain("a", "b", "c"))
    plan.edit([RemoveTask("b"), AddDependency("a", "c")])
    assert edges(plan) == {("a", "c")}
    assert ready(plan) == ["a"]
    check_invariants(plan)


def test_the_batch_may_rewire_the_dependents_first() -> None:
    plan = begin(chain("a", "b", "c"))
    plan.edit([AddDependency("a", "c"), RemoveTask("b")])
    assert edges(plan) == {("a", "c")}
    check_invariants(plan)


@pytest.mark.parametrize("order", [("b", "c"), ("c", "b")])
def test_the_batch_may_remove_the_dependents_before_or_after(order: tuple[str, str]) -> None:
    plan = begin(chain("a", "b", "c"))
    plan.edit([RemoveTask(task_id) for task_id in order])
    assert list(plan.nodes) == ["a"]
    check_invariants(plan)


@pytest.mark.parametrize("first", [True, False])
def test_the_batch_may_say_that_the_dependency_goes(first: bool) -> None:
    plan = begin(chain("a", "b", "c"))
    batch = [RemoveDependency("b", "c"), RemoveTask("b")]
    plan.edit(batch if first else reversed(batch))
    assert ready(plan) == ["a", "c"]
    check_invariants(plan)


def test_dependents_remove_takes_everything_below_out() -> None:
    plan = chain("a", "b", "c", "d")
    plan.add(Task("e"), after=["b", "d"])
    plan.add(Task("other"), after="a")
    begin(plan)
    plan.edit([RemoveTask("b", dependents="remove")])
    assert list(plan.nodes) == ["a", "other"]
    check_invariants(plan)


def test_dependents_remove_takes_a_task_out_that_has_other_parents_too() -> None:
    plan = chain("a", "b")
    plan.add(Task("c"), after="a")
    plan.connect("c", "b")
    plan.edit([RemoveTask("c", dependents="remove")])
    assert list(plan.nodes) == ["a"]
    check_invariants(plan)


def test_bridge_makes_the_parents_of_the_removed_task_those_of_its_children() -> None:
    plan = Constellation()
    for task_id in ("a", "b"):
        plan.add(Task(task_id))
    plan.add(Task("mid"), after={"a": "completion", "b": {"when": "x"}})
    plan.add(Task("c"), after="mid")
    plan.add(Task("d"), after={"mid": "failure", "a": "success"})
    plan.edit([RemoveTask("mid", dependents="bridge")])
    assert structure(plan)[1] == {
        ("a", "c"): Dependency("a", "c", "completion"),
        ("b", "c"): Dependency("b", "c", "success", "x"),
        ("a", "d"): Dependency("a", "d", "success"),  # was there already: it stays as it was
        ("b", "d"): Dependency("b", "d", "success", "x"),
    }
    check_invariants(plan)


def test_bridging_a_task_without_parents_lets_its_children_go() -> None:
    plan = begin(chain("a", "b"))
    plan.edit([RemoveTask("a", dependents="bridge")])
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_a_bridge_over_an_end_counts_at_once() -> None:
    plan = begin(chain("a", "b", "c"))
    end(plan, "a")
    plan.edit([RemoveTask("b", dependents="bridge")])
    assert ready(plan) == ["c"]
    check_invariants(plan)


def test_a_replacement_under_the_same_id_takes_over_the_dependents() -> None:
    plan = chain("a", "b", "c")
    plan.add(Task("d"), after={"b": "failure"})
    begin(plan)
    plan.edit([RemoveTask("b"), AddTask(Task("b", retries=3)), AddDependency("a", "b", "completion")])
    assert plan["b"].task.retries == 3
    assert plan["c"].dependencies == (Dependency("b", "c"),)
    assert plan["d"].dependencies == (Dependency("b", "d", "failure"),)
    assert ready(plan) == ["a"]
    check_invariants(plan)


def test_a_replacement_may_spell_out_the_dependents_it_takes_over() -> None:
    plan = begin(chain("a", "b", "c"))
    plan.edit([RemoveTask("b"), AddTask(Task("b")), AddDependency("a", "b"), AddDependency("b", "c")])
    assert edges(plan) == {("a", "b"), ("b", "c")}


def test_a_replacement_may_spell_out_other_terms_than_it_would_take_over() -> None:
    plan = begin(chain("a", "b", "c"))
    plan.edit([RemoveTask("b"), AddTask(Task("b")), AddDependency("b", "c", "failure")])
    assert plan["c"].dependencies == (Dependency("b", "c", "failure"),)
    check_invariants(plan)


def test_a_dependent_that_a_replacement_took_over_may_be_let_go_and_taken_back() -> None:
    plan = begin(chain("a", "b", "c"))
    plan.edit([RemoveTask("b"), AddTask(Task("b")), RemoveDependency("b", "c"), AddDependency("b", "c", "failure")])
    assert plan["c"].dependencies == (Dependency("b", "c", "failure"),)
    check_invariants(plan)


def test_a_dependent_is_spelled_out_once() -> None:
    plan = begin(chain("a", "b", "c"))
    spelled = AddDependency("b", "c")
    [violation] = violations(plan, RemoveTask("b"), AddTask(Task("b")), spelled, spelled)
    assert (violation.edit, violation.rule) == (3, "duplicate_dependency")


def test_a_replacement_does_not_adopt_a_dependent_that_was_removed_meanwhile() -> None:
    plan = begin(chain("a", "b", "c"))
    plan.edit([RemoveTask("b"), RemoveTask("c"), AddTask(Task("b"))])
    assert edges(plan) == set()
    check_invariants(plan)


def test_a_dependent_that_is_rewired_to_a_task_which_goes_too_is_not_set_free() -> None:
    plan = begin(chain("b", "c"))
    edits = RemoveTask("b"), AddTask(Task("x")), AddDependency("x", "c"), RemoveTask("x")
    assert {violation.rule for violation in violations(plan, *edits)} == {"dependents"}


def test_a_dependent_whose_new_dependency_is_refused_still_counts_as_severed() -> None:
    plan = begin(chain("a", "b", "c"))
    problems = violations(plan, RemoveTask("b"), AddDependency("ghost", "c"))
    assert [(violation.edit, violation.rule) for violation in problems] == [(1, "unknown_task"), (0, "dependents")]
