"""How tasks move: starts, ends, retries, releases, cancellations, reviews and the close."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import InvalidTransition, PlanError, UnknownTask, error_text
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import CancelTask
from asterism.core.plan.graph import accept_condition, cannot_evaluate
from asterism.core.plan.status import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, ConstellationState, TaskStatus
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, end, fail, ready, review, start, told
from tests.laboratory.plan_invariants import check_invariants


def fork(**edges: Any) -> Constellation:
    """Task a, and one task below it for each keyword, with these terms."""
    plan = Constellation()
    plan.add(Task("a"))
    for task_id, condition in edges.items():
        plan.add(Task(task_id), after={"a": condition})
    return plan


def truth(condition: str, status: TaskStatus, result: Any) -> bool | str:
    """An evaluator: ``ok`` holds for the result "ok", ``failed`` for a failure, ``bad`` cannot be told."""
    return {"ok": result == "ok", "failed": status is FAILED, "bad": "no such name"}[condition]


# -- the beginning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_constellation_has_a_name(name: Any) -> None:
    with pytest.raises(PlanError, match="the id of a plan is a non-empty string"):
        Constellation(name)


def test_a_task_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownTask, match="there is no task 'ghost' in the plan"):
        chain("a").node("ghost")


def test_nothing_is_ready_before_the_plan_begins() -> None:
    plan = chain("a", "b")
    assert ready(plan) == []
    plan.begin(5.0)
    assert ready(plan) == ["a"]
    assert (plan.state, plan.started_at) == (ConstellationState.EXECUTING, 5.0)
    assert told(plan, None) == [("began", "")]


def test_a_plan_begins_once() -> None:
    plan = begin(chain("a"))
    with pytest.raises(PlanError, match="plan 'tiny' is executing: it cannot begin"):
        plan.begin(1.0)


def test_a_plan_that_an_orchestrator_has_taken_on_may_begin() -> None:
    plan = chain("a")
    plan.state = ConstellationState.READY
    plan.begin(0.0)
    assert plan.state is ConstellationState.EXECUTING


# -- starting ----------------------------------------------------------------------------------------------------------


def test_every_execution_has_an_epoch_of_its_own() -> None:
    plan = chain("a")
    plan.add(Task("b"))
    begin(plan)
    assert (start(plan, "a"), start(plan, "b")) == (1, 2)
    node = plan.node("a")
    assert (node.status, node.device, node.attempts, node.started_at) == (RUNNING, "laptop", 1, 1.0)
    assert told(plan, "a") == [("started", "laptop")]


def test_a_task_with_open_dependencies_cannot_start() -> None:
    plan = begin(chain("a", "b"))
    with pytest.raises(InvalidTransition, match="task 'b' is pending: it cannot start"):
        plan.start(plan.node("b"), "laptop", 1.0)
    check_invariants(plan)


def test_a_running_task_cannot_start_again() -> None:
    plan = begin(chain("a"))
    start(plan, "a")
    with pytest.raises(
        InvalidTransition, match=r"task 'a' is running: it cannot start. Its story:\n.*a started: laptop"
    ):
        plan.start(plan.node("a"), "desktop", 2.0)


def test_a_finished_task_cannot_start_again() -> None:
    plan = begin(chain("a"))
    end(plan, "a")
    with pytest.raises(InvalidTransition, match="task 'a' is completed: it cannot start") as caught:
        plan.start(plan.node("a"), "laptop", 3.0)
    assert [entry.what for entry in caught.value.story] == ["started", "completed"]


def test_a_held_task_that_may_not_be_revoked_cannot_start() -> None:
    plan = begin(chain("a", "b"))
    end(plan, "a", review=True)
    with pytest.raises(InvalidTransition, match="'b' is pending: it cannot start"):
        plan.start(plan.node("b"), "laptop", 3.0)


# -- ends and dependencies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "released"),
    [(COMPLETED, ["success", "completion"]), (FAILED, ["failure", "completion"]), (CANCELLED, [])],
)
def test_an_end_releases_the_dependents_that_wait_for_it(status: TaskStatus, released: list[str]) -> None:
    plan = begin(fork(success="success", failure="failure", completion="completion"))
    end(plan, "a", status=status)
    assert ready(plan) == released
    check_invariants(plan)


def test_a_task_is_ready_when_its_last_dependency_is_satisfied() -> None:
    plan = chain("a")
    plan.add(Task("b"))
    plan.add(Task("c"), after=["a", "b"])
    begin(plan)
    end(plan, "a")
    assert ready(plan) == ["b"]
    end(plan, "b")
    assert ready(plan) == ["c"]


def test_an_end_keeps_what_the_device_said() -> None:
    plan = begin(chain("a"))
    plan.add(Task("b"))
    error = ValueError("no")
    end(plan, "a", value={"x": 1}, now=4.0)
    end(plan, "b", status=FAILED, error=error)
    assert (plan["a"].value, plan["a"].ended_at, plan["b"].error) == ({"x": 1}, 4.0, error)
    assert told(plan, "b")[-1] == ("failed", "ValueError: no")


def test_an_end_is_recorded_once() -> None:
    plan = begin(chain("a"))
    end(plan, "a", value=1)
    with pytest.raises(InvalidTransition, match="task 'a' is completed: it cannot fail"):
        plan.finish(plan.node("a"), FAILED, 5.0)
    assert plan["a"].value == 1
    check_invariants(plan)


def test_a_pending_task_may_fail_for_want_of_a_device() -> None:
    plan = begin(fork(b="failure"))
    plan.finish(plan.node("a"), FAILED, 3.0)
    assert ready(plan) == ["b"]
    check_invariants(plan)


# -- conditions --------------------------------------------------------------------------------------------------------


def test_a_condition_decides_over_the_result() -> None:
    plan = fork(b={"when": "ok"}, c={"when": "ok", "on": "completion"}, d={"when": "failed", "on": "completion"})
    plan.evaluate = truth
    begin(plan)
    end(plan, "a", value="ok")
    assert ready(plan) == ["b", "c"]
    assert plan.node("d").verdicts == {"a": False}
    check_invariants(plan)


def test_a_condition_is_not_asked_when_the_outcome_does_not_fit() -> None:
    plan = fork(b={"when": "ok"})
    begin(plan)
    fail(plan, "a")
    assert plan.node("b").verdicts is None
    check_invariants(plan)


def test_a_condition_is_asked_once() -> None:
    asked = []

    def count(condition: str, status: TaskStatus, result: Any) -> bool:
        asked.append(condition)
        return True

    plan = fork(b={"when": "ok"})
    plan.add(Task("c"), after={"a": {"when": "other"}})
    plan.evaluate = count
    begin(plan)
    end(plan, "a")
    check_invariants(plan)
    assert asked == ["ok", "other"]


def test_a_condition_that_cannot_be_evaluated_counts_as_false_and_its_error_is_kept() -> None:
    plan = fork(b={"when": "bad"})
    plan.evaluate = truth
    begin(plan)
    end(plan, "a", value="ok")
    assert ready(plan) == []
    assert plan.node("b").verdicts == {"a": "no such name"}
    check_invariants(plan)


def test_an_evaluator_that_raises_counts_as_false_and_leaves_the_counters_right() -> None:
    def crash(condition: str, status: TaskStatus, result: Any) -> bool:
        raise ZeroDivisionError("crash")

    plan = fork(b={"when": "ok"}, c="success")
    plan.evaluate = crash
    begin(plan)
    end(plan, "a")
    assert ready(plan) == ["c"]
    assert "crash" in str(plan.node("b").verdicts)
    check_invariants(plan)


def test_a_plan_that_no_runtime_has_taken_on_starts_nothing_by_accident() -> None:
    assert accept_condition("result >") is None
    assert cannot_evaluate("ok", COMPLETED, 1) == "'ok' cannot be evaluated: the plan has no orchestrator"
    plan = begin(fork(b={"when": "ok"}))
    end(plan, "a")
    assert ready(plan) == []


# -- retry and release -------------------------------------------------------------------------------------------------


def test_a_retried_task_stays_running_and_its_next_attempt_has_a_new_epoch() -> None:
    plan = begin(chain("a"))
    start(plan, "a")
    node = plan.node("a")
    plan.retry(node, 2.0, "bad luck")
    assert (node.status, node.device, node.attempts) == (RUNNING, None, 1)
    plan.queue.push(node)
    assert start(plan, "a", now=3.0, device="desktop") == 2
    assert (node.attempts, node.device, node.started_at) == (2, "desktop", 1.0)
    assert told(plan, "a") == [("started", "laptop"), ("attempt failed", "bad luck"), ("started", "desktop")]


def test_a_task_that_is_given_back_is_pending_and_counts_no_attempt() -> None:
    plan = begin(chain("a"))
    start(plan, "a")
    plan.release(plan.node("a"), 2.0, "the device left")
    node = plan.node("a")
    assert (node.status, node.attempts, node.epoch, node.device, node.started_at) == (PENDING, 0, 0, None, None)
    assert ready(plan) == ["a"]
    assert told(plan, "a")[-1] == ("put back", "the device left")
    check_invariants(plan)
    assert start(plan, "a") == 2


def test_a_task_that_is_given_back_after_an_attempt_stays_running_so_that_no_edit_takes_it_for_untouched() -> None:
    plan = begin(chain("a"))
    start(plan, "a")
    node = plan.node("a")
    plan.retry(node, 2.0, "bad luck")
    plan.queue.push(node)
    start(plan, "a")
    plan.release(node, 4.0, "the device left")
    assert (node.status, node.attempts, node.device) == (RUNNING, 1, None)
    assert ready(plan) == ["a"]
    check_invariants(plan)


@pytest.mark.parametrize("event", ["retry", "release"])
def test_only_a_task_that_a_device_works_on_can_be_retried_or_given_back(event: str) -> None:
    plan = begin(chain("a"))
    move = getattr(plan, event)
    with pytest.raises(InvalidTransition, match=f"task 'a' is pending: it cannot {event}"):
        move(plan.node("a"), 1.0, "why")
    start(plan, "a")
    plan.retry(plan.node("a"), 2.0, "bad luck")
    with pytest.raises(InvalidTransition, match=f"task 'a' is running: it cannot {event}"):
        move(plan.node("a"), 3.0, "why")


@pytest.mark.parametrize("event", ["retry", "release"])
def test_a_provisional_task_that_has_ended_cannot_be_retried_or_given_back(event: str) -> None:
    plan = begin(chain("a", "b", revocable=True), speculative=True)
    end(plan, "a", review=True)
    end(plan, "b")
    with pytest.raises(InvalidTransition, match=f"it cannot {event}"):
        getattr(plan, event)(plan.node("b"), 3.0, "why")


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_cancelled_pending_task_leaves_the_queue_and_satisfies_nobody() -> None:
    plan = begin(fork(b="completion"))
    assert plan.cancel(plan.node("a"), 1.0, "changed my mind") == []
    assert ready(plan) == []
    assert (plan["a"].status, plan["a"].ended_at) == (CANCELLED, 1.0)
    assert told(plan, "a") == [("cancelled", "changed my mind")]
    check_invariants(plan)


def test_a_cancelled_running_task_names_the_execution_that_has_to_stop() -> None:
    plan = begin(chain("a"))
    epoch = start(plan, "a")
    assert plan.cancel(plan.node("a"), 2.0, "enough") == [("a", epoch)]
    check_invariants(plan)


def test_a_task_between_two_attempts_has_nothing_to_stop() -> None:
    plan = begin(chain("a"))
    start(plan, "a")
    plan.retry(plan.node("a"), 2.0, "bad luck")
    plan.queue.push(plan.node("a"))
    assert plan.cancel(plan.node("a"), 3.0, "enough") == []
    assert ready(plan) == []
    check_invariants(plan)


def test_an_end_cannot_be_cancelled() -> None:
    plan = begin(chain("a"))
    end(plan, "a")
    with pytest.raises(InvalidTransition, match="task 'a' is completed: it cannot cancel"):
        plan.cancel(plan.node("a"), 3.0, "too late")


# -- reviews -----------------------------------------------------------------------------------------------------------


def test_the_step_that_records_an_end_holds_what_lies_below_it() -> None:
    plan = begin(chain("a", "b"))
    end(plan, "a", review=True)
    assert ready(plan) == []
    assert (plan.node("b").open, plan.node("b").held) == (0, 1)
    assert review(plan, "a") == []
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_a_task_is_held_until_every_end_above_it_is_reviewed() -> None:
    plan = chain("a")
    plan.add(Task("b"))
    plan.add(Task("c"), after=["a", "b"])
    begin(plan)
    end(plan, "a", review=True)
    end(plan, "b", review=True)
    review(plan, "a")
    assert ready(plan) == []
    review(plan, "b")
    assert ready(plan) == ["c"]


def test_a_review_of_another_execution_or_of_nothing_is_void() -> None:
    plan = begin(chain("a", "b"))
    epoch = end(plan, "a", review=True)
    assert plan.settle([("a", epoch + 1), ("ghost", 1)], 3.0) == []
    assert ready(plan) == []
    plan.settle([("a", epoch)], 3.0)
    plan.settle([("a", epoch)], 4.0)  # a second review changes nothing
    assert ready(plan) == ["b"]
    check_invariants(plan)


# -- the close ---------------------------------------------------------------------------------------------------------


def test_an_empty_plan_completes() -> None:
    plan = begin(Constellation())
    assert plan.close(1.0) is ConstellationState.COMPLETED
    assert plan.ended_at == 1.0
    assert told(plan, None)[-1] == ("completed", "")


def test_a_plan_in_which_everything_completed_is_completed() -> None:
    plan = begin(chain("a", "b"))
    end(plan, "a")
    end(plan, "b")
    assert plan.close(3.0) is ConstellationState.COMPLETED


def test_a_plan_in_which_nothing_completed_has_failed() -> None:
    plan = begin(chain("a", "b"))
    fail(plan, "a")
    assert plan.close(3.0) is ConstellationState.FAILED
    assert told(plan, "b") == [("cancelled", "unreachable: it needs 'a' to succeed, but 'a' failed")]
    check_invariants(plan)


def test_a_plan_in_which_some_completed_has_partially_failed() -> None:
    plan = chain("a")
    plan.add(Task("b"))
    begin(plan)
    end(plan, "a")
    fail(plan, "b")
    assert plan.close(3.0) is ConstellationState.PARTIALLY_FAILED


def test_a_plan_that_was_repaired_after_a_failure_still_says_that_a_task_failed() -> None:
    plan = begin(fork(repair="failure"))
    fail(plan, "a")
    end(plan, "repair")
    assert plan.close(3.0) is ConstellationState.PARTIALLY_FAILED


def test_a_plan_that_is_cancelled_says_so_to_every_task_that_was_left() -> None:
    plan = begin(chain("a", "b"))
    end(plan, "a")
    plan.begin_cancel(3.0, "by ann: too slow")
    assert plan.close(3.0, cancelled=True) is ConstellationState.CANCELLED
    assert told(plan, "b") == [("cancelled", "the constellation was cancelled by ann: too slow")]
    check_invariants(plan)


def test_an_unreachable_task_counts_against_the_plan_and_so_does_what_lies_below_it() -> None:
    plan = begin(chain("a", "b", "c"))
    plan.edit([CancelTask("a", "not today")])
    assert plan.close(3.0) is ConstellationState.FAILED
    assert told(plan, "b")[-1] == ("cancelled", "unreachable: it needs 'a' to succeed, but 'a' was cancelled")
    assert told(plan, "c")[-1] == ("cancelled", "unreachable: it needs 'b' to succeed, but 'b' was cancelled")


def test_a_task_for_a_failure_that_did_not_happen_was_not_needed_and_neither_was_what_lies_below_it() -> None:
    plan = fork(repair="failure")
    plan.add(Task("check"), after="repair")
    begin(plan)
    end(plan, "a")
    assert plan.close(3.0) is ConstellationState.COMPLETED
    assert told(plan, "repair") == [("cancelled", "not needed: it runs only if 'a' fails, and 'a' completed")]
    assert told(plan, "check") == [("cancelled", "not needed: 'repair' was not needed")]


def test_a_task_for_the_failure_of_one_that_was_cancelled_is_unreachable() -> None:
    plan = begin(fork(repair="failure"))
    plan.cancel(plan.node("a"), 1.0, "not today")
    assert plan.close(3.0) is ConstellationState.FAILED
    assert told(plan, "repair") == [("cancelled", "unreachable: it needs 'a' to fail, but 'a' was cancelled")]


def test_a_task_whose_condition_does_not_hold_was_not_needed() -> None:
    plan = fork(b={"when": "ok"})
    plan.evaluate = truth
    begin(plan)
    end(plan, "a", value="no")
    assert plan.close(3.0) is ConstellationState.COMPLETED
    assert told(plan, "b") == [("cancelled", "not needed: 'ok' does not hold for 'a'")]


def test_a_task_whose_condition_could_not_be_evaluated_is_unreachable() -> None:
    plan = fork(b={"when": "bad"})
    plan.evaluate = truth
    begin(plan)
    end(plan, "a")
    assert plan.close(3.0) is ConstellationState.PARTIALLY_FAILED
    [(_, why)] = told(plan, "b")
    assert why == "unreachable: the condition on 'a' could not be evaluated: no such name"


def test_a_task_that_one_parent_makes_needless_is_not_needed_whatever_the_others_say() -> None:
    plan = fork()
    plan.add(Task("b"))
    plan.add(Task("c"), after={"a": "success", "b": "failure"})
    begin(plan)
    end(plan, "b")
    fail(plan, "a")
    plan.close(3.0)
    assert plan.node("c").needless


def test_a_satisfied_parent_is_not_the_reason() -> None:
    plan = fork()
    plan.add(Task("b"))
    plan.add(Task("c"), after=["a", "b"])
    begin(plan)
    end(plan, "a")
    fail(plan, "b")
    plan.close(3.0)
    assert told(plan, "c") == [("cancelled", "unreachable: it needs 'b' to succeed, but 'b' failed")]


def test_a_ready_task_that_was_never_started_says_that_nothing_could_start_it() -> None:
    plan = begin(chain("a"))
    assert plan.close(1.0) is ConstellationState.FAILED
    assert told(plan, "a") == [("cancelled", "unreachable: no task could start it")]
    assert ready(plan) == []
    check_invariants(plan)


# -- stories -----------------------------------------------------------------------------------------------------------


def test_the_story_is_told_of_the_whole_plan_or_of_one_task() -> None:
    plan = begin(chain("a", "b"))
    end(plan, "a")
    assert [entry.what for entry in plan.story()] == ["began", "started", "completed"]
    assert [entry.what for entry in plan.story("a")] == ["started", "completed"]
    assert plan.story("b") == []


def test_a_reason_is_the_error_in_words() -> None:
    assert error_text(None) == ""
    assert error_text(ValueError("no")) == "ValueError: no"


def test_a_note_is_an_entry_of_the_story_and_changes_nothing_else() -> None:
    plan = Constellation()
    plan.add(Task("a"))
    before, version = plan.node("a").status, plan.version
    plan.note(3.0, "abandoned", "a", "it did not stop when asked")
    plan.note(2.0, "late result refused", "a")
    assert [(entry.at, entry.what, entry.why) for entry in plan.story("a")] == [
        (3.0, "abandoned", "it did not stop when asked"),
        (3.0, "late result refused", ""),
    ]
    assert (plan.node("a").status, plan.version) == (before, version)


def test_a_task_that_a_person_cancelled_as_unreachable_was_not_given_up() -> None:
    plan = begin(chain("a", "b"))
    plan.cancel(plan.node("b"), 1.0, "unreachable: the site is closed")
    fail(plan, "a")
    plan.close(3.0)
    plan.reopen(["a"], 4.0, "again")
    assert (plan.node("a").status, plan.node("b").status) == (PENDING, CANCELLED)
