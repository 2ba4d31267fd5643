"""Joins: ``join="any"`` starts a task when one dependency holds and every other is decided."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.plan import edits, joins
from asterism.core.plan.assignment_lock import AssignmentLock
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.explain import why
from asterism.core.plan.graph import Graph
from asterism.core.plan.node import Node
from asterism.core.plan.status import CANCELLED, ConstellationState, TaskStatus
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, end, fail, ready, review, start, through_json, told, violations
from tests.laboratory.plan_invariants import check_invariants


def truth(condition: str, status: TaskStatus, result: Any) -> bool | str:
    return bool(result) if condition == "yes" else not result


def choice(join: str = "any") -> Constellation:
    """check -> (yes: fast | no: slow -> polish) -> publish."""
    plan = Constellation("choice")
    plan.evaluate = truth
    plan.add(Task("check"))
    plan.add(Task("fast"), {"check": {"when": "yes"}})
    plan.add(Task("slow"), {"check": {"when": "no"}})
    plan.add(Task("polish"), "slow")
    plan.add(Task("publish", join=join), ["fast", "polish"])
    return begin(plan)


@pytest.mark.parametrize(("result", "branch"), [(True, ["fast"]), (False, ["slow", "polish"])])
def test_a_join_of_any_starts_after_the_branch_that_was_taken(result: bool, branch: list[str]) -> None:
    plan = choice()
    end(plan, "check", result)
    for task in branch:
        check_invariants(plan)
        assert ready(plan) == [task]
        end(plan, task)
    assert ready(plan) == ["publish"]
    end(plan, "publish")
    assert plan.close(9.0) is ConstellationState.COMPLETED
    check_invariants(plan)


def test_a_join_of_all_is_not_needed_after_an_if_else() -> None:
    plan = choice("all")
    end(plan, "check", True)
    end(plan, "fast")
    assert ready(plan) == []
    plan.close(9.0)
    assert told(plan, "publish")[-1] == ("cancelled", "not needed: 'polish' was not needed")


def test_it_waits_for_every_dependency_that_may_still_hold() -> None:
    plan = Constellation("race")
    for name in "ab":
        plan.add(Task(name))
    plan.add(Task("c", join="any"), ["a", "b"])
    begin(plan)
    start(plan, "b")
    end(plan, "a")
    assert ready(plan) == [], "b may complete yet"
    lock = AssignmentLock(plan)
    assert str(why(plan, lock, plan.node("c"), None, 3.0)) == (
        "c is waiting: it waits until 'b' is decided, and 'b' is running"
    )
    fail(plan, "b")
    assert ready(plan) == ["c"]


def test_if_no_branch_completes_it_cannot_start_and_the_reason_names_the_failure() -> None:
    plan = choice()
    end(plan, "check", True)
    fail(plan, "fast")
    assert ready(plan) == []
    assert str(why(plan, AssignmentLock(plan), plan.node("publish"), None, 3.0)) == (
        "publish is waiting: it needs 'fast' to succeed, but 'fast' failed; "
        "it needs 'polish' to succeed, and 'polish' is pending"
    )
    assert plan.close(9.0) is ConstellationState.PARTIALLY_FAILED
    assert told(plan, "publish")[-1] == (
        "cancelled",
        "unreachable: it needs 'fast' to succeed, but 'fast' failed",
    )


def test_if_no_branch_was_needed_it_was_not_needed_either() -> None:
    plan = Constellation("neither")
    plan.evaluate = truth
    plan.add(Task("check"))
    for name in "ab":
        plan.add(Task(name), {"check": {"when": "yes"}})
    plan.add(Task("c", join="any"), ["a", "b"])
    begin(plan)
    end(plan, "check", False)
    assert plan.close(9.0) is ConstellationState.COMPLETED
    assert told(plan, "c")[-1] == ("cancelled", "not needed: 'b' was not needed")


def under_review() -> Constellation:
    """'other' has completed; the editor reviews the end of 'check', and may still change what 'slow' needs."""
    plan = Constellation("reviewed")
    plan.evaluate = truth
    plan.add(Task("check"))
    plan.add(Task("other"))
    plan.add(Task("slow"), {"check": {"when": "no"}})
    plan.add(Task("c", join="any"), ["other", "slow"])
    begin(plan)
    end(plan, "other")
    end(plan, "check", True, review=True)
    return plan


def test_the_decision_waits_for_the_review_of_the_end_that_it_follows_from() -> None:
    plan = under_review()
    assert ready(plan) == []
    review(plan, "check")
    assert ready(plan) == ["c"]
    check_invariants(plan)


def test_if_an_end_decided_before_its_review_the_join_would_start_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = joins.ended

    def hasty(graph: Graph, node: Node) -> None:
        node.unsettled = False
        ended(graph, node)

    monkeypatch.setattr(joins, "ended", hasty)
    assert ready(under_review()) == ["c"]


def test_an_edit_revives_a_branch_and_the_join_waits_again() -> None:
    plan = choice()
    end(plan, "check", True)
    plan.edit([edits.UpdateDependency("check", "slow")])
    check_invariants(plan)
    end(plan, "fast")
    assert ready(plan) == ["slow"]
    end(plan, "slow")
    end(plan, "polish")
    assert ready(plan) == ["publish"]


def test_a_join_that_runs_does_not_mind_a_revived_branch() -> None:
    plan = choice()
    end(plan, "check", True)
    end(plan, "fast")
    start(plan, "publish")
    plan.edit([edits.UpdateDependency("check", "slow")])
    check_invariants(plan)
    assert ready(plan) == ["slow"]
    end(plan, "publish")
    check_invariants(plan)


def test_cancelling_a_branch_decides_it() -> None:
    plan = choice()
    end(plan, "check", False)
    plan.edit([edits.CancelTask("slow")])
    check_invariants(plan)
    assert ready(plan) == [], "no branch holds"
    plan.edit([edits.UpdateDependency("check", "fast")])
    end(plan, "fast")
    assert ready(plan) == ["publish"]
    check_invariants(plan)


def test_an_edit_turns_a_join_round_and_undo_turns_it_back() -> None:
    plan = choice("all")
    end(plan, "check", True)
    end(plan, "fast")
    applied = plan.edit([edits.UpdateTask("publish", join="any")])
    assert ready(plan) == ["publish"]
    check_invariants(plan)
    assert applied.inverse is not None
    plan.apply(applied.inverse, 5.0)
    assert (ready(plan), plan.deciders) == ([], 0)
    check_invariants(plan)


def test_a_rejected_edit_leaves_the_queue_as_it_was() -> None:
    plan = choice()
    end(plan, "check", True)
    end(plan, "fast")
    violations(plan, edits.UpdateTask("publish", join="all"), edits.RemoveTask("nothing"))
    violations(plan, edits.RemoveTask("publish"), edits.AddTask(Task("x", join="any")), edits.RemoveTask("nothing"))
    assert ready(plan) == ["publish"]


def test_the_first_join_of_any_in_a_running_plan_counts_what_was_decided_before() -> None:
    plan = choice("all")
    end(plan, "check", True)
    end(plan, "fast")
    plan.edit(
        [
            edits.AddTask(Task("mail", join="any")),
            edits.AddDependency("fast", "mail"),
            edits.AddDependency("polish", "mail"),
        ]
    )
    check_invariants(plan)
    assert ready(plan) == ["mail"]
    plan.edit([edits.RemoveTask("mail")])
    assert plan.deciders == 0
    check_invariants(plan)


def test_a_join_of_any_without_dependencies_is_ready() -> None:
    plan = Constellation("alone")
    plan.add(Task("a", join="any"))
    assert ready(begin(plan)) == ["a"]


def test_joins_are_written_and_read() -> None:
    plan = choice()
    end(plan, "check", True)
    twin = through_json(plan)
    check_invariants(twin)
    assert twin.node("publish").open == plan.node("publish").open
    assert "join" not in plan.to_json()["tasks"][0]["task"], "the default is not written"


@pytest.mark.long
def test_a_long_doomed_chain_is_decided_without_recursion() -> None:
    plan = Constellation("long")
    plan.evaluate = truth
    plan.add(Task("check"))
    plan.add(Task("t0"), {"check": {"when": "no"}})
    for number in range(1, 5000):
        plan.add(Task(f"t{number}"), f"t{number - 1}")
    plan.add(Task("last", join="any"), {"check": "success", "t4999": "success"})
    begin(plan)
    end(plan, "check", True)
    assert ready(plan) == ["last"]


def test_many_ends_above_one_join_cost_one_visit_each(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Constellation("wide")
    for number in range(300):
        plan.add(Task(f"t{number}"))
    plan.add(Task("join", join="any"), [f"t{number}" for number in range(300)])
    begin(plan)
    visits = 0
    count = joins.counters

    def counted(node: Node) -> tuple[int, bool]:
        nonlocal visits
        visits += 1
        return count(node)

    monkeypatch.setattr(joins, "counters", counted)
    for number in range(300):
        end(plan, f"t{number}")
    assert ready(plan) == ["join"]
    assert visits == 300


def test_a_plan_without_such_a_join_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = choice("all")
    monkeypatch.setattr(joins, "refresh", lambda *_: pytest.fail("unused features cost nothing"))
    monkeypatch.setattr(joins, "ended", lambda *_: pytest.fail("unused features cost nothing"))
    end(plan, "check", True)
    end(plan, "fast")
    plan.close(9.0)
    assert plan.node("publish").status is CANCELLED
