"""Provisional tasks: started before the plan above them is certain, then confirmed or revoked."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import InvalidTransition
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
from asterism.core.plan.node import provisional_below
from asterism.core.plan.status import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, TaskStatus
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, end, fail, ready, review, start, told
from tests.laboratory.plan_invariants import check_invariants


def speculative(*ids: str) -> Constellation:
    """A chain of revocable tasks whose first one has ended and waits for its review."""
    plan = begin(chain(*ids, revocable=True), speculative=True)
    end(plan, ids[0], review=True)
    return plan


def diamond() -> Constellation:
    """a and b above c and d, c above e, d above e; a and b have ended and wait for their reviews."""
    plan = Constellation()
    for task_id, after in {"a": [], "b": [], "c": ["a"], "d": ["b"], "e": ["c", "d"]}.items():
        plan.add(Task(task_id, revocable=True), after=after)
    begin(plan, speculative=True)
    end(plan, "a", review=True)
    end(plan, "b", review=True)
    return plan


# -- starting ----------------------------------------------------------------------------------------------------------


def test_a_revocable_task_may_start_below_an_end_that_is_not_reviewed() -> None:
    plan = speculative("a", "b")
    assert ready(plan) == ["b"]
    start(plan, "b")
    assert plan["b"].provisional
    assert plan.provisionals == 1
    assert told(plan, "b") == [("started provisionally", "laptop")]
    check_invariants(plan)


def test_a_task_that_is_not_revocable_waits_for_the_review() -> None:
    plan = begin(chain("a", "b"), speculative=True)
    end(plan, "a", review=True)
    assert ready(plan) == []


def test_a_revocable_task_waits_too_when_the_policy_is_not_speculative() -> None:
    plan = begin(chain("a", "b", revocable=True), speculative=False)
    end(plan, "a", review=True)
    assert ready(plan) == []


def test_a_task_below_a_provisional_end_is_provisional_in_turn() -> None:
    plan = speculative("a", "b", "c")
    end(plan, "b")
    start(plan, "c")
    assert plan["c"].provisional
    check_invariants(plan)


def test_a_task_that_is_not_revocable_waits_until_the_provisional_one_above_it_is_confirmed() -> None:
    plan = chain("a", "b", revocable=True)
    plan.add(Task("c"), after="b")
    begin(plan, speculative=True)
    end(plan, "a", review=True)
    end(plan, "b")
    assert ready(plan) == []
    review(plan, "a")
    assert ready(plan) == ["c"]
    check_invariants(plan)


# -- ending ------------------------------------------------------------------------------------------------------------


def test_a_provisional_end_does_not_look_like_one_that_stands() -> None:
    plan = speculative("a", "b")
    end(plan, "b", value=7)
    assert (plan["b"].status, plan["b"].value, plan["b"].error) == (RUNNING, None, None)
    assert told(plan, "b")[-1] == ("completed provisionally", "")
    check_invariants(plan)


def test_a_provisional_task_ends_once() -> None:
    plan = speculative("a", "b")
    end(plan, "b", value=7)
    with pytest.raises(InvalidTransition, match="task 'b' is running: it cannot fail"):
        plan.finish(plan.node("b"), FAILED, 5.0)
    assert plan.node("b").value == 7
    check_invariants(plan)


# -- confirming --------------------------------------------------------------------------------------------------------


def test_a_running_provisional_task_is_confirmed_by_the_review_and_goes_on() -> None:
    plan = speculative("a", "b")
    start(plan, "b")
    assert review(plan, "a") == ["b"]
    assert (plan["b"].status, plan["b"].provisional, plan.provisionals) == (RUNNING, False, 0)
    assert told(plan, "b")[-1] == ("confirmed", "")
    check_invariants(plan)
    end(plan, "b", value=7)
    assert (plan["b"].status, plan["b"].value) == (COMPLETED, 7)


def test_a_provisional_end_stands_from_its_confirmation_on() -> None:
    plan = speculative("a", "b")
    end(plan, "b", value=7)
    assert review(plan, "a") == ["b"]
    assert (plan["b"].status, plan["b"].value) == (COMPLETED, 7)
    assert [what for what, _ in told(plan, "b")][-2:] == ["confirmed", "completed"]
    check_invariants(plan)


def test_a_confirmed_failure_keeps_its_reason_in_the_story() -> None:
    plan = speculative("a", "b")
    fail(plan, "b", "out of paper")
    review(plan, "a")
    assert plan["b"].status is FAILED
    assert told(plan, "b")[-1] == ("failed", "RuntimeError: out of paper")


def test_a_confirmation_runs_down_a_chain_of_ends() -> None:
    plan = speculative("a", "b", "c", "d")
    end(plan, "b")
    end(plan, "c")
    start(plan, "d")
    assert review(plan, "a") == ["b", "c", "d"]
    assert [plan[task_id].status for task_id in "bcd"] == [COMPLETED, COMPLETED, RUNNING]
    assert plan.provisionals == 0
    check_invariants(plan)


def test_a_provisional_end_that_is_itself_unreviewed_holds_what_lies_below_it_after_its_confirmation() -> None:
    plan = speculative("a", "b", "c")
    end(plan, "b", review=True)
    start(plan, "c")
    assert review(plan, "a") == ["b"]
    assert plan["b"].status is COMPLETED
    assert plan["c"].provisional
    check_invariants(plan)
    assert review(plan, "b") == ["c"]
    check_invariants(plan)


def test_a_provisional_end_that_is_reviewed_first_settles_when_it_is_confirmed() -> None:
    plan = speculative("a", "b", "c")
    end(plan, "b", review=True)
    start(plan, "c")
    assert review(plan, "b") == []  # what lies above it is not certain yet
    assert plan["b"].status is RUNNING
    check_invariants(plan)
    assert review(plan, "a") == ["b", "c"]
    check_invariants(plan)


def test_a_task_below_two_uncertain_parents_is_confirmed_with_the_second() -> None:
    plan = diamond()
    end(plan, "c")
    end(plan, "d")
    start(plan, "e")
    assert plan.node("e").held == 2
    assert review(plan, "a") == ["c"]
    assert plan["e"].provisional
    assert review(plan, "b") == ["d", "e"]
    check_invariants(plan)


# -- revoking ----------------------------------------------------------------------------------------------------------


def test_an_edit_revokes_the_provisional_task_it_reaches() -> None:
    plan = speculative("a", "b")
    epoch = start(plan, "b")
    applied = plan.edit([UpdateTask("b", timeout=5)], author="ada", reason="too slow")
    assert applied.stopped == (("b", epoch),)
    node = plan.node("b")
    assert (node.status, node.provisional, node.epoch, node.attempts, node.device) == (PENDING, False, 0, 0, None)
    assert told(plan, "b")[1] == ("revoked", "version 1 by ada: too slow")
    check_invariants(plan)
    assert ready(plan) == ["b"]
    assert start(plan, "b") > epoch


def test_a_revocation_takes_every_provisional_task_below_along() -> None:
    plan = speculative("a", "b", "c", "d")
    end(plan, "b")
    end(plan, "c")
    epoch = start(plan, "d")
    applied = plan.edit([UpdateTask("b", timeout=5)])
    assert applied.stopped == (("d", epoch),)  # b and c had ended: there is nothing to stop
    assert [plan[task_id].status for task_id in "bcd"] == [PENDING] * 3
    assert all(plan.node(task_id).value is None for task_id in "bcd")
    assert plan.provisionals == 0
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_a_revocation_leaves_the_provisional_tasks_beside_and_above_alone() -> None:
    plan = diamond()
    end(plan, "c")
    end(plan, "d")
    start(plan, "e")
    plan.edit([UpdateTask("c", timeout=5)])
    assert [plan[task_id].status for task_id in "cde"] == [PENDING, RUNNING, PENDING]
    assert plan["d"].provisional
    check_invariants(plan)


def test_a_diamond_below_is_revoked_once() -> None:
    plan = chain("a", "b", revocable=True)
    for task_id, after in {"c": ["b"], "d": ["b"], "e": ["c", "d"]}.items():
        plan.add(Task(task_id, revocable=True), after=after)
    begin(plan, speculative=True)
    end(plan, "a", review=True)
    for task_id in "bcd":
        end(plan, task_id)
    start(plan, "e")
    assert sorted(node.id for node in provisional_below(plan.node("b"))) == ["b", "c", "d", "e"]
    plan.edit([UpdateTask("b", timeout=5), UpdateTask("e", timeout=5)])
    assert [entry.what for entry in plan.story("e")].count("revoked") == 1
    check_invariants(plan)


@pytest.mark.parametrize(
    "edit",
    [
        UpdateTask("b", retries=1),
        AddDependency("x", "b"),
        RemoveDependency("a", "b"),
        UpdateDependency("a", "b", "completion"),
    ],
    ids=str,
)
def test_an_edit_of_the_edges_into_a_provisional_task_revokes_it_too(edit: Any) -> None:
    plan = speculative("a", "b", "c")
    plan.edit([AddTask(Task("x"))])
    end(plan, "b")
    start(plan, "c")
    plan.edit([edit])
    assert [plan[task_id].status for task_id in "bc"] == [PENDING, PENDING]
    check_invariants(plan)


def test_an_edit_of_what_lies_below_a_provisional_task_leaves_it_alone() -> None:
    plan = speculative("a", "b", "c")
    start(plan, "b")
    applied = plan.edit([UpdateTask("c", timeout=5)])
    assert applied.stopped == ()
    assert plan["b"].provisional
    check_invariants(plan)


def test_what_only_waits_below_a_provisional_task_is_not_revoked() -> None:
    plan = speculative("a", "b", "c", "d")
    end(plan, "b")
    start(plan, "c")
    assert [node.id for node in provisional_below(plan.node("b"))] == ["b", "c"]
    applied = plan.edit([UpdateTask("b", timeout=5)])
    assert [node.id for node in applied.revoked] == ["b", "c"]
    assert plan.story("d") == []


def test_an_update_that_changes_nothing_never_strands_a_provisional_task() -> None:
    plan = speculative("a", "b")
    start(plan, "b")
    plan.edit([UpdateTask("b", retries=0)])
    check_invariants(plan)
    assert plan["b"].provisional or ready(plan) == ["b"]


def test_a_rejected_edit_revokes_nothing() -> None:
    plan = speculative("a", "b")
    start(plan, "b")
    with pytest.raises(Exception, match="no task 'ghost'"):
        plan.edit([UpdateTask("b", timeout=5), RemoveTask("ghost")])
    assert plan["b"].provisional
    check_invariants(plan)


def test_a_removed_provisional_task_is_stopped_and_gone() -> None:
    plan = speculative("a", "b", "c")
    end(plan, "b")
    epoch = start(plan, "c")
    applied = plan.edit([RemoveTask("b", dependents="bridge")])
    assert applied.stopped == (("c", epoch),)
    assert "b" not in plan
    assert plan["c"].dependencies[0].source == "a"
    assert ready(plan) == ["c"]  # below a, whose end is still under review
    check_invariants(plan)


def test_a_removed_provisional_task_may_take_everything_below_it_along() -> None:
    plan = speculative("a", "b", "c")
    epoch = start(plan, "b")
    applied = plan.edit([RemoveTask("b", dependents="remove")])
    assert applied.stopped == (("b", epoch),)
    assert len(plan) == 1
    assert ready(plan) == []
    check_invariants(plan)


def test_a_provisional_task_that_is_replaced_under_its_name_starts_afresh() -> None:
    plan = speculative("a", "b")
    old = start(plan, "b")
    plan.edit([RemoveTask("b"), AddTask(Task("b", revocable=True)), AddDependency("a", "b")])
    assert ready(plan) == ["b"]
    assert start(plan, "b") != old
    check_invariants(plan)


def test_the_review_of_a_revoked_end_is_void() -> None:
    plan = speculative("a", "b", "c")
    old = end(plan, "b", review=True)
    plan.edit([UpdateTask("b", timeout=5)])
    end(plan, "b", review=True)
    review(plan, "a")
    assert plan.settle([("b", old)], 5.0) == []
    assert plan.node("c").held == 1
    assert review(plan, "b") == []
    assert plan.node("c").held == 0
    check_invariants(plan)


def test_a_task_that_is_not_revocable_forgets_the_provisional_end_it_counted_on() -> None:
    plan = chain("a", "b", revocable=True)
    plan.add(Task("c"), after="b")
    begin(plan, speculative=True)
    end(plan, "a", review=True)
    end(plan, "b")
    plan.edit([UpdateTask("b", timeout=5)])
    assert (plan.node("c").open, plan.node("c").held) == (1, 0)
    check_invariants(plan)


def test_a_provisional_task_between_two_attempts_has_nothing_to_stop() -> None:
    plan = speculative("a", "b")
    start(plan, "b")
    plan.retry(plan.node("b"), 2.0, "bad luck")
    plan.queue.push(plan.node("b"))
    assert plan.edit([UpdateTask("b", timeout=5)]).stopped == ()
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_a_provisional_task_that_is_given_back_is_pending_again() -> None:
    plan = speculative("a", "b")
    start(plan, "b")
    plan.release(plan.node("b"), 2.0, "the device left")
    assert (plan["b"].status, plan.provisionals) == (PENDING, 0)
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_an_edit_that_takes_away_revocability_makes_the_task_wait_for_the_review() -> None:
    plan = speculative("a", "b")
    start(plan, "b")
    plan.edit([UpdateTask("b", revocable=False)])
    assert ready(plan) == []
    review(plan, "a")
    assert ready(plan) == ["b"]
    check_invariants(plan)


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_cancelled_provisional_task_is_stopped_and_what_lies_below_it_is_revoked() -> None:
    plan = speculative("a", "b", "c")
    end(plan, "b")
    epoch = start(plan, "c")
    applied = plan.apply(EditBatch((CancelTask("b", "wrong way"),)), 4.0)
    assert applied.stopped == (("c", epoch),)
    assert ([node.id for node in applied.revoked], [node.id for node in applied.cancelled]) == (["c"], ["b"])
    assert [plan[task_id].status for task_id in "bc"] == [CANCELLED, PENDING]
    assert ready(plan) == []
    check_invariants(plan)


def test_a_cancelled_provisional_task_that_runs_names_its_execution() -> None:
    plan = speculative("a", "b")
    epoch = start(plan, "b")
    assert plan.edit([CancelTask("b")]).stopped == (("b", epoch),)
    check_invariants(plan)


def test_a_provisional_task_that_is_changed_and_cancelled_in_one_batch_is_stopped_once() -> None:
    plan = speculative("a", "b")
    epoch = start(plan, "b")
    assert plan.edit([UpdateTask("b", timeout=5), CancelTask("b")]).stopped == (("b", epoch),)
    assert plan["b"].status is CANCELLED
    check_invariants(plan)


# -- conditions --------------------------------------------------------------------------------------------------------


def big(condition: str, status: TaskStatus, result: Any) -> bool:
    return result > 5


def conditional() -> Constellation:
    plan = chain("a", "b", revocable=True)
    plan.add(Task("c", revocable=True), after={"b": {"when": "big"}})
    plan.evaluate = big
    begin(plan, speculative=True)
    end(plan, "a", review=True)
    return plan


def test_a_condition_is_asked_about_a_provisional_end() -> None:
    plan = conditional()
    end(plan, "b", value=7)
    assert ready(plan) == ["c"]
    review(plan, "a")
    assert ready(plan) == ["c"]
    check_invariants(plan)


def test_a_condition_sees_how_a_task_ended_provisionally_or_not() -> None:
    plan = chain("a", "b", revocable=True)
    plan.add(Task("below a"), after={"a": {"when": "x"}})
    plan.add(Task("below b"), after={"b": {"when": "x", "on": "failure"}})
    seen = []
    plan.evaluate = lambda condition, status, result: bool(seen.append(status))
    begin(plan, speculative=True)
    end(plan, "a", review=True)
    fail(plan, "b")
    assert seen == [COMPLETED, FAILED]


def test_a_condition_that_does_not_hold_for_a_provisional_end_blocks() -> None:
    plan = conditional()
    end(plan, "b", value=1)
    assert ready(plan) == []
    check_invariants(plan)


@pytest.mark.parametrize("first", [7, 1])
def test_a_condition_is_asked_anew_after_a_revocation(first: int) -> None:
    plan = conditional()
    end(plan, "b", value=first)
    plan.edit([UpdateTask("b", timeout=5)])
    assert plan.node("c").verdicts == {}
    check_invariants(plan)
    end(plan, "b", value=8 - first)
    assert (ready(plan) == ["c"]) is (first == 1)
    check_invariants(plan)


def test_a_provisional_task_below_a_condition_is_revoked_with_it() -> None:
    plan = conditional()
    end(plan, "b", value=7)
    epoch = start(plan, "c")
    assert plan.edit([UpdateTask("b", timeout=5)]).stopped == (("c", epoch),)
    assert plan.node("c").open == 1
    check_invariants(plan)


def test_a_join_forgets_the_provisional_end_that_it_counted_on() -> None:
    plan = Constellation()
    plan.add(Task("a", revocable=True))
    plan.add(Task("b", revocable=True), ["a"])
    plan.add(Task("c", revocable=True))
    plan.add(Task("either", join="any"), ["b", "c"])
    begin(plan, speculative=True)
    end(plan, "a", review=True)
    end(plan, "b", review=True)
    plan.revoke([plan.node("b")], 5.0, "the plan changed")
    check_invariants(plan)
    assert plan["b"].status is PENDING
    end(plan, "c")
    assert "either" not in ready(plan)
