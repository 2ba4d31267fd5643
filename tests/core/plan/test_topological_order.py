"""The topological order agrees with every edge, and an edge costs what it disturbs; the critical path."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.errors import CycleFound
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.plan.topological_order import parents_first
from tests.core.plan.tiny_plans import chain
from tests.laboratory.plan_invariants import check_invariants

NODES = 9
edges = st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)).filter(lambda edge: edge[0] != edge[1])


def labels(plan: Constellation) -> dict[str, int]:
    return {node.id: node.label for node in plan.nodes.values()}


def reaches(plan: Constellation, source: str, target: str) -> bool:
    """By search, so that the test does not rely on what it tests."""
    seen, stack = {source}, [source]
    while stack:
        below = set(plan.nodes[stack.pop()].children) - seen
        seen |= below
        stack += below
    return target in seen


@given(st.lists(edges, unique=True))
def test_the_order_agrees_with_the_edges_whatever_is_connected_and_refuses_exactly_the_cycles(
    wanted: list[tuple[int, int]],
) -> None:
    plan = Constellation()
    for number in range(NODES):
        plan.add(Task(str(number)))
    for source, target in ((str(s), str(t)) for s, t in wanted):
        before = labels(plan)
        if reaches(plan, target, source):
            with pytest.raises(CycleFound) as caught:
                plan.connect(source, target)
            path = caught.value.path
            assert path[:2] == (source, target)
            assert path[-1] == source
            assert all(below in plan.nodes[above].children for above, below in pairwise(path[1:]))
            assert labels(plan) == before
        else:
            plan.connect(source, target)
        check_invariants(plan)
        assert len(set(labels(plan).values())) == NODES
    place = {task_id: index for index, task_id in enumerate(plan.topological())}
    assert all(place[d.source] < place[d.target] for d in plan.dependencies)


@given(st.lists(st.tuples(edges, st.booleans()), max_size=40))
def test_the_order_agrees_with_the_edges_when_edges_come_and_go(steps: list[tuple[tuple[int, int], bool]]) -> None:
    plan = Constellation()
    for number in range(NODES):
        plan.add(Task(str(number)))
    for (source, target), add in steps:
        dependency = plan.nodes[str(target)].parents.get(str(source))
        if dependency is not None and not add:
            plan.unlink(dependency)
        elif dependency is None and add and not reaches(plan, str(target), str(source)):
            plan.connect(str(source), str(target))
        check_invariants(plan)


def test_a_cycle_is_refused_with_the_shortest_way_to_say_it() -> None:
    plan = chain("a", "b", "c")
    with pytest.raises(CycleFound) as caught:
        plan.connect("c", "a")
    assert str(caught.value) == "this dependency would close a cycle: c -> a -> b -> c"


def test_a_cycle_of_two_is_refused() -> None:
    with pytest.raises(CycleFound, match="b -> a -> b"):
        chain("a", "b").connect("b", "a")


def test_a_side_branch_is_no_part_of_the_path() -> None:
    plan = chain("a", "b", "c", "d")
    plan.add(Task("dead end"), after="a")
    with pytest.raises(CycleFound) as caught:
        plan.connect("d", "a")
    assert caught.value.path == ("d", "a", "b", "c", "d")


def test_an_edge_that_agrees_with_the_order_moves_nothing() -> None:
    plan = chain("a", "b", "c")
    before = labels(plan)
    plan.connect("a", "c")
    assert labels(plan) == before


def test_an_edge_against_the_order_moves_only_what_lies_between_its_ends() -> None:
    plan = Constellation()
    for number in range(100):  # pairs: 0 -> 0', 1 -> 1', …
        plan.add(Task(f"{number}"))
        plan.add(Task(f"{number}'"), after=f"{number}")
    before = labels(plan)
    plan.connect("60'", "59")
    moved = {task_id for task_id, label in labels(plan).items() if label != before[task_id]}
    assert moved <= {"59", "59'", "60", "60'"}
    assert moved
    check_invariants(plan)


@pytest.mark.parametrize(("edge", "mover"), [(("c", "y"), "y"), (("x", "b"), "x"), (("x", "a"), "x")])
def test_a_task_at_the_edge_of_the_plan_steps_aside_alone(edge: tuple[str, str], mover: str) -> None:
    plan = Constellation()
    for pair in (("x", "y"), ("a", "b", "c")) if mover == "y" else (("a", "b", "c"), ("x", "y")):
        for before, task_id in zip((None, *pair), pair, strict=False):
            plan.add(Task(task_id), after=before)
    for number, task_id in enumerate(plan.nodes):  # as far apart as if they had been built one after the other
        plan.nodes[task_id].label = number + 1 << 60
    before = labels(plan)
    plan.connect(*edge)
    assert {task_id for task_id, label in labels(plan).items() if label != before[task_id]} == {mover}
    check_invariants(plan)


def test_a_task_without_neighbours_moves_to_the_one_it_is_joined_to() -> None:
    plan = chain("a", "b", "c")
    plan.add(Task("new"))
    before = labels(plan)
    plan.connect("new", "b")
    plan.connect("a", "new")
    moved = {task_id for task_id, label in labels(plan).items() if label != before[task_id]}
    assert moved == {"new"}
    check_invariants(plan)


def test_parents_come_first_among_some_of_the_tasks() -> None:
    plan = Constellation()
    for name in ("a", "b", "c", "d"):
        plan.add(Task(name))
    plan.connect("d", "b")
    plan.connect("b", "a")
    plan.connect("b", "c")
    some = [plan.node(name) for name in ("a", "b", "d")]
    assert [node.id for node in parents_first(some)] == ["d", "b", "a"]


def test_a_task_comes_after_all_of_its_parents() -> None:
    plan = Constellation()
    for name in ("end", "a", "b"):
        plan.add(Task(name))
    plan.connect("a", "end")
    plan.connect("b", "end")
    assert [node.id for node in parents_first(plan.nodes.values())] == ["a", "b", "end"]
