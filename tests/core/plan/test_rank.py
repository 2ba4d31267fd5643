"""The critical-path rank: the longer tail goes first, also after edits."""

from __future__ import annotations

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddDependency, AddTask, RemoveDependency, RemoveTask, UpdateTask
from asterism.core.plan.ready_queue import CriticalPathRanks
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, end, ready, start, violations


def ranked(plan: Constellation, default: float = 1.0) -> Constellation:
    plan.ranks = CriticalPathRanks(default)
    plan.ranks.all(plan.nodes)
    return plan


def ranks(plan: Constellation) -> dict[str, float]:
    return {node.id: node.rank for node in plan.nodes.values()}


def fresh(plan: Constellation) -> dict[str, float]:
    """The ranks computed from scratch."""
    return ranks(ranked(plan.copy()))


def two_heads() -> Constellation:
    """a (tail of 2) and b (alone)."""
    plan = chain("a", "aa")
    plan.add(Task("b"))
    return ranked(plan)


def test_a_rank_is_the_estimated_work_that_hangs_on_a_task() -> None:
    plan = chain("a", "b")
    plan.add(Task("long", estimate=10), after="a")
    assert ranks(ranked(plan, default=2.0)) == {"a": 12.0, "b": 2.0, "long": 10.0}


def test_of_two_ready_tasks_the_one_with_the_longer_tail_goes_first() -> None:
    plan = Constellation()
    plan.add(Task("short"))
    plan.add(Task("head"))
    plan.add(Task("tail", estimate=5), after="head")
    assert ready(begin(ranked(plan))) == ["head", "short"]


def test_priority_goes_before_rank() -> None:
    plan = two_heads()
    plan.add(Task("urgent", priority="high"))
    assert ready(begin(plan))[0] == "urgent"


def test_building_keeps_ranks_right() -> None:
    plan = two_heads()
    plan.add(Task("c", estimate=4), after="aa")
    plan.connect("b", "c")
    assert ranks(plan) == {"a": 6.0, "aa": 5.0, "b": 5.0, "c": 4.0} == fresh(plan)


def test_edits_of_the_structure_keep_ranks_right() -> None:
    plan = begin(two_heads())
    plan.edit([AddTask(Task("x", estimate=7)), AddDependency("aa", "x")])
    assert ranks(plan) == fresh(plan)
    plan.edit([RemoveDependency("aa", "x"), AddDependency("b", "x")])
    assert ranks(plan) == fresh(plan)
    plan.edit([RemoveTask("aa")])
    assert ranks(plan) == fresh(plan)


def test_an_edit_of_an_estimate_keeps_ranks_right() -> None:
    plan = begin(two_heads())
    plan.edit([UpdateTask("aa", estimate=7)])
    assert ranks(plan) == fresh(plan) == {"a": 8.0, "aa": 7.0, "b": 1.0}


def test_a_rejected_edit_leaves_ranks_as_they_were() -> None:
    plan = begin(two_heads())
    violations(plan, AddTask(Task("x", estimate=7)), AddDependency("b", "x"), RemoveTask("aa"), RemoveTask("ghost"))
    violations(plan, UpdateTask("aa", estimate=7), RemoveTask("ghost"))
    assert ranks(plan) == fresh(plan)


def test_a_rejected_edit_leaves_the_order_of_equals_as_it_was() -> None:
    plan = chain("first")
    plan.add(Task("second"))
    begin(ranked(plan))
    violations(plan, AddTask(Task("x", estimate=7)), AddDependency("first", "x"), RemoveTask("ghost"))
    assert ready(plan) == ["first", "second"]


def test_a_ready_task_whose_tail_grows_by_an_edit_moves_up_in_the_queue() -> None:
    plan = begin(two_heads())
    assert ready(plan) == ["a", "b"]
    plan.edit([AddTask(Task("bb", estimate=50)), AddDependency("b", "bb")])
    assert ready(plan) == ["b", "a"]


def test_a_change_stops_where_it_no_longer_matters() -> None:
    plan = chain("root", "a", "b")
    plan.add(Task("long", estimate=10), after="a")
    ranked(plan)
    plan.nodes["root"].rank = -1.0  # it would be corrected if it were visited
    plan.add(Task("short"), after="b")
    assert (plan.nodes["b"].rank, plan.nodes["a"].rank, plan.nodes["root"].rank) == (2.0, 11.0, -1.0)


def test_a_change_is_not_passed_on_past_tasks_that_have_started() -> None:
    plan = begin(two_heads())
    start(plan, "a")
    plan.edit([AddTask(Task("x", estimate=7)), AddDependency("a", "x")])
    assert plan.nodes["a"].rank == 2.0
    end(plan, "a")
    assert ready(plan) == ["x", "b", "aa"]
