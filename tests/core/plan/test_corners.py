"""Corners that only an independent look found."""

from __future__ import annotations

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.edits import AddDependency, AddTask, EditBatch, RemoveTask
from asterism.core.plan.explain import why
from asterism.core.plan.invariants import check_invariants
from asterism.core.plan.lock import AssignmentLock, CycleClaimed, edit_on_all
from asterism.core.plan.status import COMPLETED
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, start


def test_a_base_version_ahead_of_the_plan_is_rejected() -> None:
    with pytest.raises(EditRejected, match="base_version 5 is ahead of the plan, which is at version 0"):
        chain("a").apply(EditBatch((AddTask(Task("b")),), base_version=5), 0.0)


def test_a_replacement_takes_over_its_own_dependents_alone() -> None:
    plan = chain("a", "b")
    plan.add(Task("x"))
    plan.add(Task("y"), after="x")
    plan.edit([RemoveTask("a"), RemoveTask("x"), AddTask(Task("a")), AddTask(Task("x"))])
    assert {(d.source, d.target) for d in plan.dependencies} == {("a", "b"), ("x", "y")}
    check_invariants(plan)


def test_a_removal_of_everything_below_is_stale_if_something_was_added_there() -> None:
    plan = chain("a", "b")
    plan.edit([AddTask(Task("new")), AddDependency("b", "new")])
    with pytest.raises(EditRejected) as caught:
        plan.apply(EditBatch((RemoveTask("a", "remove"),), base_version=0), 0.0)
    assert [violation.rule for violation in caught.value.violations] == ["stale", "stale"]
    plan.apply(EditBatch((RemoveTask("a", "remove"),), base_version=1), 0.0)
    assert len(plan) == 0


def test_the_cycle_of_an_editor_in_this_process_cannot_be_claimed() -> None:
    plan = begin(chain("a"))
    lock = AssignmentLock(plan, edit_on=edit_on_all)
    start(plan, "a")
    lock.finish(plan.node("a"), COMPLETED, 2.0)
    lock.open(3.0)
    with pytest.raises(CycleClaimed, match="the editor of this process"):
        lock.claim(1, "somebody", 4.0, 60.0)


def test_a_ready_task_may_be_kept_outside_the_queue_if_that_is_said() -> None:
    plan = begin(chain("a"))
    node = plan.queue.pop(None)
    with pytest.raises(AssertionError, match="a is not queued"):
        check_invariants(plan)
    check_invariants(plan, outside={node})


def test_under_speculative_a_review_does_not_hold_what_may_be_revoked() -> None:
    plan = chain("a", "b", revocable=True)
    lock = AssignmentLock(plan, "speculative", edit_on=edit_on_all)
    begin(plan, speculative=True)
    start(plan, "a")
    lock.finish(plan.node("a"), COMPLETED, 2.0)
    assert why(plan, lock, plan.node("b"), None, 3.0).holders[0].kind == "turn"


def test_a_lane_that_was_set_aside_is_looked_at_again_when_it_is_said() -> None:
    queue = begin(chain("a")).queue
    assert list(queue.active_lanes) == [None]
    queue.deactivate(None)
    assert not queue.active_lanes
    queue.activate(("nowhere", frozenset()))  # a lane without work is not worth it
    assert not queue.active_lanes
    queue.activate(None)
    assert list(queue.active_lanes) == [None]
    queue.deactivate(None)
    queue.activate_all()
    assert list(queue.active_lanes) == [None]
    queue.pop(None)
    assert not queue.active_lanes
