"""The undo stack: edits are undone newest first, and replay of the journal gives the same stack."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.errors import EditRejected, InvalidTask
from asterism.core.plan.apply import UNDO_LIMIT
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import diff
from asterism.core.plan.edits import AddTask, CancelTask, EditBatch, RemoveTask
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, decode_steps, replay
from asterism.core.plan.task import Dependency, Task
from asterism.core.record import encode
from asterism.execution.foreach_expansion import deferred_group, expansion
from tests.core.plan.test_plan_properties import plans, structure

FIRST = EditBatch((AddTask(Task("a")),))


def recorded(plan: Constellation) -> tuple[RecordedConstellation, list[Any]]:
    steps: list[Any] = []
    own = RecordedConstellation.of(plan)
    own.record = steps.append
    return own, steps


@given(st.lists(plans(), min_size=2, max_size=5))
@settings(max_examples=40, deadline=None)
def test_undoing_every_edit_leads_back_through_all_versions(states: list[Constellation]) -> None:
    plan, steps = recorded(states[0])
    start = RecordedConstellation.of(states[0])
    before = []
    for state in states[1:]:
        batch = diff(plan, state, author="x")
        if batch.edits:
            before.append(structure(plan))
            plan.apply(batch, 0.0)
    while before:
        plan.apply(plan.undo_stack.batch("y"), 1.0)
        assert structure(plan) == before.pop()
    with pytest.raises(EditRejected, match="no edit that can be undone"):
        plan.undo_stack.batch("y")
    replay(start, RecordedLock(start), decode_steps(encode(steps)))
    assert start.to_json() == plan.to_json()
    assert start.undo_stack._inverses == plan.undo_stack._inverses == {}


def test_the_stack_of_a_replayed_journal_is_that_of_its_writer() -> None:
    plan, steps = recorded(Constellation("p"))
    for name in "abc":
        plan.apply(EditBatch((AddTask(Task(name)),), "x"), 0.0)
    plan.apply(plan.undo_stack.batch("y", "why not"), 1.0)
    again = RecordedConstellation("p")
    replay(again, RecordedLock(again), decode_steps(encode(steps)))
    batch = again.undo_stack.batch("z")
    assert (batch.undoes, batch.base_version, batch.edits) == (2, 4, (RemoveTask("b"),))
    assert (batch.author, batch.reason) == ("z", "undo version 2")
    assert batch == plan.undo_stack.batch("z")


def test_an_edit_that_was_undone_does_not_make_an_older_undo_stale() -> None:
    plan, _ = recorded(Constellation("p"))
    plan.apply(FIRST, 0.0)
    plan.apply(EditBatch((RemoveTask("a"),)), 0.0)
    for _ in range(2):
        plan.apply(plan.undo_stack.batch("x"), 0.0)
    assert "a" not in plan


def test_a_later_edit_of_the_same_task_makes_an_undo_stale() -> None:
    plan, _ = recorded(Constellation("p"))
    plan.apply(FIRST, 0.0)
    undo = plan.undo_stack.batch("x")
    plan.apply(EditBatch((RemoveTask("a"), AddTask(Task("a", retries=1)))), 0.0)
    with pytest.raises(EditRejected, match="stale"):
        plan.apply(undo, 0.0)


def test_a_cancelled_task_is_not_undone_and_an_empty_batch_is_no_edit() -> None:
    plan, _ = recorded(Constellation("p"))
    plan.apply(FIRST, 0.0)
    plan.apply(EditBatch(()), 0.0)
    assert plan.undo_stack.batch("x").undoes == 1
    plan.apply(EditBatch((CancelTask("a"),)), 0.0)
    with pytest.raises(EditRejected, match="version 2 cannot be undone: it cancelled a task"):
        plan.undo_stack.batch("x")


def test_the_stack_is_bounded() -> None:
    plan, _ = recorded(Constellation("p"))
    for number in range(UNDO_LIMIT + 5):
        plan.apply(EditBatch((AddTask(Task(f"t{number}")),)), 0.0)
    for _ in range(UNDO_LIMIT):
        plan.apply(plan.undo_stack.batch("x"), 0.0)
    with pytest.raises(EditRejected):
        plan.undo_stack.batch("x")


def test_what_a_batch_undoes_is_in_its_json_only_if_it_undoes_something() -> None:
    assert "undoes" not in FIRST.to_json()
    batch = EditBatch((), undoes=3)
    assert EditBatch.from_json(batch.to_json()) == batch
    with pytest.raises(InvalidTask, match="a batch: undoes must be a whole number, not 'x'"):
        EditBatch.from_json({"edits": [], "undoes": "x"})


def test_the_expansion_of_a_group_is_not_what_a_person_undoes() -> None:
    plan, steps = recorded(Constellation("p"))
    plan.add(Task("list"))
    plan.add(deferred_group(Task("it", argv=("echo", "{item}")), {"from": "list"}, {}), "list")
    start = RecordedConstellation.of(plan)
    plan.apply(FIRST, 0.0)
    expanded = expansion(plan["it"].task, (Dependency("list", "it"),), ["x"])
    plan.apply(expanded, 0.0)
    batch = plan.undo_stack.batch("y")
    assert (batch.undoes, batch.edits) == (1, (RemoveTask("a"),))
    plan.apply(batch, 1.0)
    assert ("a" in plan, "it[x]" in plan) == (False, True)
    replay(start, RecordedLock(start), decode_steps(encode(steps[-3:])))
    assert start.undo_stack._inverses == plan.undo_stack._inverses == {}


def test_an_older_edit_is_undone_before_a_newer_one() -> None:
    plan, _ = recorded(Constellation("p"))
    plan.apply(FIRST, 0.0)
    undo = plan.undo_stack.batch("x")
    plan.apply(EditBatch((AddTask(Task("z")),)), 0.0)
    plan.apply(undo, 0.0)
    assert plan.undo_stack.batch("x").undoes == 2
