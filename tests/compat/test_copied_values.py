"""Mutable values of a plan and of its copies: results, data of tasks, metadata."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.compat.galaxy import ExecutionResult, TaskStar, TaskStarLine
from tests.compat.compat_scenes import DIALECTS, Dialect
from tests.core.plan.test_node_records import mutate, nested

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
objects = st.dictionaries(st.text(max_size=2), nested, max_size=3)


def build(dialect: Dialect, result: Any, facts: dict[str, Any], wrapped: bool) -> Any:
    plan = dialect.plan("B", "C")
    plan.add_task(TaskStar("A", description="do A", task_data=facts))
    plan.add_dependency(TaskStarLine("A", "B", line_id="line", metadata=facts))
    plan.update_metadata(facts)
    plan.mark_task_completed(
        "A", True, ExecutionResult("A", "completed", result, metadata=facts) if wrapped else result
    )
    return plan


def shown(plan: Any) -> Any:
    """What somebody can read of a plan, as values of its own."""
    values = {star.task_id: (star.result, star.task_data) for star in plan.get_all_tasks()}
    return copy.deepcopy((values, plan.get_dependency("line").metadata, plan.metadata, sorted(plan.tasks)))


def change(plan: Any, what: str, choice: int) -> None:
    result = plan.tasks["A"].result
    if what == "result":
        mutate(result.result if isinstance(result, ExecutionResult) else result, choice)
    elif what == "metadata of the result" and isinstance(result, ExecutionResult):
        mutate(result.metadata, choice)
    elif what == "metadata":
        mutate(plan.metadata, choice)
    elif what == "data":
        data = plan.tasks["C"].task_data
        mutate(data, choice)
        plan.tasks["C"].update_task_data({"n": [choice], **data})
        mutate(plan.tasks["C"].task_data, choice)
    elif what == "line":
        mutate(plan.get_dependency("line").metadata, choice)
        plan.get_dependency("line").update_metadata({"n": [choice]})
        mutate(plan.get_dependency("line").metadata, choice)
    elif what == "task":
        plan.add_task(TaskStar(f"new{len(plan.tasks)}", description="new", task_data={"n": [choice]}))


changes = st.sampled_from(["result", "metadata of the result", "metadata", "data", "line", "task"])


@each_dialect
@given(nested, objects, st.booleans(), st.lists(st.tuples(st.integers(0, 3), changes, st.integers(0)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_change_in_place_is_seen_in_one_plan(
    dialect: Dialect, result: Any, facts: dict[str, Any], wrapped: bool, chosen: list[tuple[int, str, int]]
) -> None:
    """In the live plan, or in one of its copies: whatever is changed there, the others show what they showed."""
    live = build(dialect, result, facts, wrapped)
    first, second = copy.deepcopy(live), copy.deepcopy(live)
    sides = [live, first, second, copy.deepcopy(first)]
    for side, what, choice in chosen:
        changed = sides[side]
        before = [shown(other) for other in sides if other is not changed]
        change(changed, what, choice)
        assert [shown(other) for other in sides if other is not changed] == before
        assert shown(copy.deepcopy(changed)) == shown(changed)


@each_dialect
def test_a_result_that_is_changed_in_a_copy_stays_in_the_live_plan(dialect: Dialect) -> None:
    live = dialect.plan("A")
    live.mark_task_completed("A", True, {"a": {"b": 1}})
    mine = copy.deepcopy(live)
    mine.tasks["A"].result["a"]["b"] = 2
    assert live.tasks["A"].result == {"a": {"b": 1}}
    live.tasks["A"].result["a"]["b"] = 3
    assert mine.tasks["A"].result == {"a": {"b": 2}}


@each_dialect
def test_a_result_that_cannot_be_copied_is_shared_and_the_rest_is_not(dialect: Dialect) -> None:
    live, lock, error = dialect.plan("A", "B"), threading.Lock(), ValueError("no")
    live.mark_task_completed("A", True, ExecutionResult("A", "completed", lock, error, {"a": [1]}))
    live.mark_task_completed("B", True, lock)
    mine = copy.deepcopy(live)
    assert (mine.tasks["A"].result.result, mine.tasks["B"].result) == (lock, lock)
    assert mine.tasks["A"].result.error is error
    mine.tasks["A"].result.metadata["a"].append(2)
    assert live.tasks["A"].result.metadata == {"a": [1]}


@each_dialect
def test_a_task_that_is_copied_into_another_plan_has_its_own_values(dialect: Dialect) -> None:
    live, other, facts = dialect.plan(), dialect.plan(), {"x": [1]}
    live.add_task(TaskStar("A", description="do A", task_data=facts))
    live.mark_task_completed("A", True, {"a": [1]})
    other.add_task(live.tasks["A"])
    alone = copy.deepcopy(live.tasks["A"])
    facts["x"].append(2)
    other.tasks["A"].result["a"].append(2)
    alone.result["a"].append(3)
    assert live.tasks["A"].result == {"a": [1]}
    assert live.tasks["A"].task_data == other.tasks["A"].task_data == {"x": [1]}
