"""Plans of a hundred thousand tasks: nothing recurses, and an edit costs what it disturbs."""

from __future__ import annotations

import pytest

from asterism.core.errors import CycleFound
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import diff
from asterism.core.plan.edits import AddDependency, AddTask, RemoveTask, UpdateTask
from asterism.core.plan.ready_queue import CriticalPathRanks
from asterism.core.plan.status import CANCELLED, COMPLETED, ConstellationState
from asterism.core.plan.task import Task
from asterism.orchestrator.result import parallelism
from tests.core.plan.tiny_plans import begin, end, fail, ready, start
from tests.laboratory.plan_invariants import check_invariants

pytestmark = pytest.mark.long

MANY = 100_000
DEEP = 10_000  # ten times what Python's own stack would hold


def long_chain(length: int = MANY, revocable: bool = False) -> Constellation:
    """t0 -> t1 -> t2 -> …"""
    plan = Constellation("long")
    before = None
    for number in range(length):
        plan.add(Task(f"t{number}", revocable=revocable), after=before)
        before = f"t{number}"
    return plan


def labels(plan: Constellation) -> dict[str, int]:
    return {node.id: node.label for node in plan.nodes.values()}


def moved(plan: Constellation, before: dict[str, int]) -> set[str]:
    return {task_id for task_id, label in labels(plan).items() if label != before.get(task_id)}


def test_a_chain_of_many_is_built_ordered_and_edited_at_the_cost_of_what_changes() -> None:
    plan = long_chain()
    assert plan.topological() == [f"t{number}" for number in range(MANY)]
    with pytest.raises(CycleFound) as caught:
        plan.connect(f"t{MANY - 1}", "t0")
    assert len(caught.value.path) == MANY + 1
    assert caught.value.path[:3] == (f"t{MANY - 1}", "t0", "t1")
    begin(plan)
    before = labels(plan)
    middle = MANY // 2
    plan.edit([AddTask(Task("new")), AddDependency("new", f"t{middle}"), AddDependency(f"t{middle - 1}", "new")])
    assert moved(plan, before) == {"new"}  # and nothing behind it


def test_many_independent_tasks_are_all_ready_at_once() -> None:
    plan = Constellation()
    for number in range(MANY):
        plan.add(Task(f"t{number}"))
    begin(plan)
    assert len(plan.queue) == MANY
    for number in range(100):
        start(plan, f"t{number}")
    assert len(plan.queue) == MANY - 100


def test_an_edge_against_the_order_visits_only_what_it_disturbs() -> None:
    plan = Constellation()
    for number in range(MANY // 2):  # pairs: h0 -> t0, h1 -> t1, …
        plan.add(Task(f"h{number}"))
        plan.add(Task(f"t{number}"), after=f"h{number}")
    before = labels(plan)
    plan.connect("t25001", "h24999")
    assert 0 < len(moved(plan, before)) <= 4
    before = labels(plan)
    plan.connect("t40000", "h39000")  # a thousand pairs lie between, and none of them is touched
    assert 0 < len(moved(plan, before)) <= 4


def test_a_deep_chain_is_measured_verified_stored_and_compared() -> None:
    plan = long_chain(DEEP)
    assert parallelism(plan.nodes).critical_path == DEEP
    check_invariants(plan)
    twin = Constellation.from_json(plan.to_json())
    assert twin.topological() == plan.topological()
    assert diff(plan, twin).edits == ()


def test_a_chain_that_is_built_from_its_end_is_ordered_all_the_same() -> None:
    plan = Constellation()
    for number in range(DEEP):
        plan.add(Task(f"t{number}"))
    for number in range(1, DEEP):
        plan.connect(f"t{number}", f"t{number - 1}")
    assert plan.topological() == [f"t{number}" for number in reversed(range(DEEP))]


def test_a_failure_at_the_head_of_a_chain_closes_it_to_its_end() -> None:
    plan = begin(long_chain(DEEP))
    fail(plan, "t0")
    assert plan.close(3.0) is ConstellationState.FAILED
    assert plan.counts[CANCELLED] == DEEP - 1


def test_a_chain_is_removed_whole_and_brought_back() -> None:
    plan = begin(long_chain(DEEP))
    applied = plan.edit([RemoveTask("t1", dependents="remove")])
    assert len(plan) == 1
    assert applied.inverse is not None
    plan.apply(applied.inverse, 2.0)
    assert len(plan) == DEEP
    assert ready(plan) == ["t0"]
    check_invariants(plan)


def test_half_a_chain_of_provisional_ends_is_revoked_and_the_other_half_confirmed() -> None:
    plan = begin(long_chain(DEEP, revocable=True), speculative=True)
    end(plan, "t0", review=True)
    for number in range(1, DEEP):
        end(plan, f"t{number}")
    plan.edit([UpdateTask(f"t{DEEP // 2}", timeout=5)])
    assert plan.provisionals == DEEP // 2 - 1
    confirmed = plan.settle([("t0", 1)], 5.0)
    assert len(confirmed) == DEEP // 2 - 1
    assert confirmed[-1].status is COMPLETED
    check_invariants(plan)


def test_ranks_run_up_a_chain() -> None:
    plan = long_chain(DEEP)
    plan.ranks = CriticalPathRanks()
    plan.ranks.all(plan.nodes)
    plan.add(Task("last", estimate=5), after=f"t{DEEP - 1}")
    assert plan.nodes["t0"].rank == DEEP + 5
