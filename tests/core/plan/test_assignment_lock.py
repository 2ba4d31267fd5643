"""The assignment lock: the step without a gap, cycles, batching, claims and deadlines."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.plan.assignment_lock import (
    AssignmentLock,
    CycleClaimed,
    CycleGone,
    EditCycle,
    edit_on_all,
    edit_on_failure,
)
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import RemoveTask, UpdateTask
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED, FAILED, TaskStatus
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, ready, start
from tests.laboratory.plan_invariants import check_invariants


def pairs(*sources: str, **fields: Any) -> Constellation:
    """Independent tasks, each with one task below it whose name is doubled: a -> aa."""
    plan = Constellation()
    for source in sources:
        plan.add(Task(source, **fields))
        plan.add(Task(source * 2, **fields), after=source)
    return plan


def locked(plan: Constellation, **options: Any) -> AssignmentLock:
    lock = AssignmentLock(plan, **{"edit_on": edit_on_all, **options})
    plan.begin(0.0)
    return lock


def end(lock: AssignmentLock, task_id: str, status: TaskStatus = COMPLETED, now: float = 2.0) -> None:
    assert isinstance(lock.graph, Constellation)
    start(lock.graph, task_id, now - 1)
    lock.finish(lock.graph.node(task_id), status, now)


def opened(lock: AssignmentLock, now: float = 3.0) -> EditCycle:
    cycle = lock.open(now)
    assert cycle is not None
    return cycle


# -- the step without a gap --------------------------------------------------------------------------------------------


def test_an_end_holds_what_lies_below_it_before_any_cycle_is_open() -> None:
    plan = pairs("a", "b")
    lock = locked(plan)
    end(lock, "a")
    assert lock.waiting == [("a", 1)]
    assert not lock.cycles
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_the_hold_ends_when_the_cycle_closes() -> None:
    plan = pairs("a")
    lock = locked(plan)
    end(lock, "a")
    cycle = opened(lock)
    assert ready(plan) == []
    assert lock.close(cycle, 4.0, "empty") == []
    assert ready(plan) == ["aa"]
    assert (cycle.closed_at, cycle.outcome) == (4.0, "empty")
    assert lock.idle


def test_without_an_editor_there_is_no_cycle_and_no_hold() -> None:
    plan = pairs("a")
    lock = locked(plan, edit_on=None)
    end(lock, "a")
    assert ready(plan) == ["aa"]
    assert lock.idle
    assert lock.open(3.0) is None
    assert lock.open_stuck(3.0) is None


def test_edit_on_failure_reviews_failures_alone() -> None:
    plan = pairs("a", "b")
    lock = locked(plan, edit_on=edit_on_failure)
    end(lock, "a")
    assert lock.waiting == []
    end(lock, "b", FAILED)
    assert lock.waiting == [("b", 2)]


def test_a_predicate_decides_which_ends_are_reviewed() -> None:
    plan = pairs("a", "b")
    lock = locked(plan, edit_on=lambda node, *end: node.id == "b")
    end(lock, "a")
    end(lock, "b")
    assert lock.waiting == [("b", 2)]


def test_a_predicate_that_raises_loses_no_end_and_asks_for_a_review() -> None:
    def crash(node: Node, *end: Any) -> bool:
        raise ZeroDivisionError("crash")

    plan = pairs("a")
    lock = locked(plan, edit_on=crash)
    end(lock, "a")
    assert plan["a"].status is COMPLETED
    assert lock.waiting == [("a", 1)]


# -- policies ----------------------------------------------------------------------------------------------------------


def test_global_holds_every_assignment_while_an_end_is_unreviewed() -> None:
    lock = locked(pairs("a", "b"), policy="global")
    assert not lock.holds_everything
    end(lock, "a")
    assert lock.holds_everything
    cycle = opened(lock)
    assert lock.holds_everything
    lock.close(cycle, 4.0, "empty")
    assert not lock.holds_everything


def test_scoped_lets_unrelated_branches_go_on() -> None:
    plan = pairs("a", "b")
    lock = locked(plan, policy="scoped")
    end(lock, "a")
    assert not lock.holds_everything
    assert ready(plan) == ["b"]


def test_speculative_lets_revocable_tasks_start_and_confirms_them_at_the_close() -> None:
    plan = pairs("a", revocable=True)
    lock = locked(plan, policy="speculative")
    end(lock, "a")
    start(plan, "aa")
    assert plan["aa"].provisional
    assert [node.id for node in lock.close(opened(lock), 5.0, "empty")] == ["aa"]
    check_invariants(plan)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "local"}, "the lock policy is one of global, scoped, speculative, not 'local'"),
        ({"max_cycles": 0}, "max_cycles is 1 or more, not 0"),
    ],
)
def test_terms_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AssignmentLock(Constellation(), **options)


# -- cycles ------------------------------------------------------------------------------------------------------------


def test_one_cycle_takes_everything_that_waits() -> None:
    lock = locked(pairs("a", "b"))
    end(lock, "a")
    end(lock, "b")
    cycle = opened(lock, now=5.0)
    assert (cycle.id, cycle.ends, cycle.tasks, cycle.opened_at) == (1, (("a", 1), ("b", 2)), ("a", "b"), 5.0)
    assert lock.open(5.0) is None


def test_cycles_overlap_up_to_the_limit_and_later_ends_join_the_next_one() -> None:
    plan = pairs("a", "b", "c", "d")
    lock = locked(plan, max_cycles=2)
    end(lock, "a")
    first = opened(lock)
    end(lock, "b")
    opened(lock)
    end(lock, "c")
    end(lock, "d")
    assert lock.open(4.0) is None
    assert ready(plan) == []  # the hold begins with the end, not with the cycle
    lock.close(first, 5.0, "empty")
    assert opened(lock).tasks == ("c", "d")
    assert [cycle.id for cycle in lock.history] == [1, 2, 3]


def test_an_end_that_was_revoked_while_it_waited_needs_no_review() -> None:
    plan = chain("a", "b", revocable=True)
    lock = locked(plan, policy="speculative")
    end(lock, "a")
    opened(lock)
    end(lock, "b")
    plan.edit([UpdateTask("b", timeout=5)])
    assert lock.waiting
    assert lock.open(4.0) is None
    assert not lock.waiting


def test_an_end_that_was_removed_while_it_waited_needs_no_review() -> None:
    plan = chain("a", "b", revocable=True)
    plan.add(Task("c"))
    lock = locked(plan, policy="speculative")
    end(lock, "a")
    opened(lock)
    end(lock, "b")
    end(lock, "c")
    plan.edit([RemoveTask("b")])
    assert opened(lock).tasks == ("c",)


def test_a_cycle_knows_the_version_of_the_plan_when_it_opened() -> None:
    plan = pairs("a")
    lock = locked(plan)
    plan.edit([UpdateTask("aa", timeout=5)])
    end(lock, "a")
    assert opened(lock).version == 1


def test_a_rejected_answer_is_followed_by_one_that_is_based_on_the_plan_as_it_is_then() -> None:
    plan = pairs("a")
    lock = locked(plan)
    end(lock, "a")
    cycle = opened(lock)
    plan.edit([UpdateTask("aa", timeout=5)])
    lock.record_rejection(cycle)
    assert (cycle.rejections, cycle.version) == (1, 1)


def test_the_stuck_cycle_is_the_last_chance_and_comes_back_only_after_something_has_ended() -> None:
    plan = chain("a", "b", "c")
    lock = locked(plan)
    end(lock, "a", FAILED)
    lock.close(opened(lock), 3.0, "empty")
    cycle = lock.open_stuck(4.0)
    assert cycle is not None
    assert cycle.stuck
    assert cycle.tasks == ()
    assert not lock.idle
    lock.close(cycle, 5.0, "empty")
    assert lock.open_stuck(6.0) is None
    plan.add(Task("d"))
    end(lock, "d")
    assert lock.open_stuck(7.0) is not None


# -- claims and deadlines ----------------------------------------------------------------------------------------------


def outside(**options: Any) -> tuple[AssignmentLock, EditCycle]:
    """A cycle for editors outside the process, opened at 10."""
    lock = locked(pairs("a"), **{"claim_timeout": 30.0, "edit_timeout": 600.0, **options})
    end(lock, "a")
    return lock, opened(lock, now=10.0)


def test_a_cycle_is_claimed_for_a_while_and_the_holder_may_renew() -> None:
    lock, cycle = outside()
    assert lock.claim(1, "ada", 12.0, lease=20.0) is cycle
    assert (cycle.claimed_by, cycle.claim_by) == ("ada", 32.0)
    lock.claim(1, "ada", 30.0, lease=20.0)
    assert cycle.claim_by == 50.0


def test_a_claimed_cycle_is_not_given_to_another() -> None:
    lock, _ = outside()
    lock.claim(1, "ada", 12.0, lease=20.0)
    with pytest.raises(CycleClaimed, match="cycle 1 is claimed by 'ada' for another 8 s"):
        lock.claim(1, "bob", 24.0, lease=20.0)


def test_a_claim_that_ran_out_may_be_taken_over() -> None:
    lock, cycle = outside()
    lock.claim(1, "ada", 12.0, lease=20.0)
    lock.claim(1, "bob", 32.0, lease=20.0)
    assert cycle.claimed_by == "bob"


@pytest.mark.parametrize("number", [1, 7])
def test_a_cycle_that_is_not_open_cannot_be_claimed(number: int) -> None:
    lock, cycle = outside()
    lock.close(cycle, 11.0, "accepted")
    with pytest.raises(CycleGone, match=f"cycle {number} is not open: it was answered, timed out, or never existed"):
        lock.claim(number, "ada", 12.0, lease=20.0)


def test_nothing_is_overdue_before_its_time() -> None:
    lock, _ = outside()
    assert lock.next_deadline() == 40.0
    assert lock.overdue(39.9) == []


def test_a_cycle_that_nobody_claims_is_overdue() -> None:
    lock, cycle = outside()
    assert lock.overdue(40.0) == [(cycle, "unclaimed")]


def test_a_lease_that_ran_out_makes_its_cycle_free_again_for_as_long_as_a_new_one() -> None:
    lock, cycle = outside()
    lock.claim(1, "ada", 12.0, lease=20.0)
    assert lock.next_deadline() == 32.0
    assert lock.overdue(32.0) == []
    assert (cycle.claimed_by, cycle.claim_by) == (None, 62.0)
    assert lock.overdue(62.0) == [(cycle, "unclaimed")]


def test_a_cycle_that_outlives_its_timeout_is_overdue_claimed_or_not() -> None:
    lock, cycle = outside(edit_timeout=25.0)
    lock.claim(1, "ada", 12.0, lease=600.0)
    assert lock.next_deadline() == 35.0
    assert lock.overdue(35.0) == [(cycle, "timeout")]


def test_an_editor_in_the_process_needs_no_claim() -> None:
    lock, cycle = outside(claim_timeout=None)
    assert cycle.claim_by == float("inf")
    assert lock.next_deadline() == 610.0
    assert lock.overdue(609.0) == []


def test_without_cycles_there_is_no_deadline() -> None:
    assert locked(pairs("a")).next_deadline() == float("inf")


def test_a_plan_under_a_lock_begins_like_any_other() -> None:
    plan = begin(pairs("a"))
    assert AssignmentLock(plan).edit_on is None
    assert ready(plan) == ["a"]


def test_the_cycle_of_an_editor_in_this_process_cannot_be_claimed() -> None:
    plan = begin(chain("a"))
    lock = AssignmentLock(plan, edit_on=edit_on_all)
    start(plan, "a")
    lock.finish(plan.node("a"), COMPLETED, 2.0)
    lock.open(3.0)
    with pytest.raises(CycleClaimed, match="the editor of this process"):
        lock.claim(1, "somebody", 4.0, 60.0)
