"""What an editor has cost: added up, kept with the cycle in the journal, and read from journals without it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.errors import InvalidTask
from asterism.core.plan.assignment_lock import edit_on_all
from asterism.core.plan.editor_cost import EditorCost, dollars_text
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, replay
from asterism.core.plan.status import COMPLETED
from asterism.core.plan.task import Task

costs = st.builds(
    EditorCost,
    st.sampled_from(["", "openai:gpt-5"]),
    st.integers(0, 9),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.none() | st.floats(0, 100),
    st.floats(0, 1e4),
)


@given(costs, costs)
@settings(max_examples=50)
def test_costs_add_up_and_survive_json(first: EditorCost, other: EditorCost) -> None:
    both = first + other
    assert both.tokens == first.tokens + other.tokens
    assert both.calls == first.calls + other.calls
    assert (both.dollars is None) == (first.dollars is None or other.dollars is None)
    assert EditorCost.from_json(both.to_json()) == both


def test_a_cost_in_words() -> None:
    cost = EditorCost("openai:gpt-5", 1, 1204, 88, 0.0031, 2.06)
    assert str(cost) == "1 call of openai:gpt-5, 1,204 tokens in, 88 out, $0.0031, 2.1 s"
    assert [dollars_text(value) for value in (0, 2, 0.5, 0.0031, 0.00002)] == [
        *("$0.00", "$2.00", "$0.50", "$0.0031", "$2e-05"),
    ]
    assert not EditorCost()


def reviewed(cost: EditorCost | None) -> tuple[RecordedLock, list[Any]]:
    """A plan with one end that was reviewed, and its journal."""
    steps: list[Any] = []
    plan = RecordedConstellation("p")
    plan.add(Task("a"))
    lock = RecordedLock(plan, edit_on=edit_on_all)
    plan.record = steps.append
    plan.begin(0.0)
    node = plan.node("a")
    node.entry = None
    plan.start(node, "desk", 1.0)
    lock.finish(node, COMPLETED, 2.0)
    cycle = lock.open(2.0)
    assert cycle is not None
    cycle.cost = cost
    lock.close(cycle, 3.0, "empty")
    return lock, steps


def test_the_journal_keeps_the_cost_of_a_cycle() -> None:
    for cost in (None, EditorCost("m", 1, 10, 5, 0.25, 2.0)):
        _, steps = reviewed(cost)
        plan = RecordedConstellation("p")
        plan.add(Task("a"))
        lock = RecordedLock(plan, edit_on=edit_on_all)
        replay(plan, lock, steps)
        assert lock.history[0].cost == cost


def test_a_cycle_on_hold_does_not_expire() -> None:
    plan = RecordedConstellation("p")
    plan.add(Task("a"))
    plan.record = lambda step: None
    lock = RecordedLock(plan, edit_on=edit_on_all, edit_timeout=10.0)
    plan.begin(0.0)
    cycle = lock.open_stuck(0.0, always=True)
    assert cycle is not None
    lock.hold(cycle, "the budget is spent")
    assert lock.overdue(1e9) == []
    assert lock.next_deadline() == float("inf")
    lock.release(cycle, 100.0)
    assert lock.overdue(109.0) == []
    assert lock.overdue(110.0) == [(cycle, "timeout")]


def test_a_cost_of_another_type_is_not_read() -> None:
    with pytest.raises(InvalidTask, match=r"the cost of an editor is not readable: calls"):
        EditorCost.from_json({"calls": "3"})
