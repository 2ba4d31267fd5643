"""``always`` and ``teardown``: what runs however others end, when it is due, and what an edit may still change."""

from __future__ import annotations

import random
from typing import Any

import pytest

from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan import apply, graph, joins
from asterism.core.plan.assignment_lock import AssignmentLock
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import diff
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    CancelTask,
    Edit,
    EditBatch,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.explain import why
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, decode_steps, replay
from asterism.core.plan.node import AttemptTimes, Node
from asterism.core.plan.status import (
    CANCELLED,
    COMPLETED,
    ENDED_STATES,
    FAILED,
    PENDING,
    RUNNING,
    ConstellationState,
)
from asterism.core.plan.task import Task
from asterism.core.plan.teardowns import NO_SCOPE, between, teardowns_of
from asterism.core.record import encode
from tests.core.plan.tiny_plans import begin, chain, end, fail, ready, review, start, violations
from tests.laboratory.plan_invariants import check_invariants

CREATE_LOAD_VERIFY = ("create", "load", "verify")


def database() -> Constellation:
    """create -> load -> verify, and drop, which tears create down."""
    plan = chain(*CREATE_LOAD_VERIFY)
    plan.add(Task("drop"), teardown="create")
    return plan


def nested() -> Constellation:
    """A machine in a network: each has a teardown, and a report reads everything at the end."""
    plan = chain("network", "machine", "test")
    plan.add(Task("stop"), teardown="machine")
    plan.add(Task("disconnect"), teardown="network")
    plan.add(Task("report"), after={"test": "always", "disconnect": "always"})
    return plan


def told(plan: Constellation, task_id: str) -> str:
    return plan.node(task_id).reason


def names(nodes: list[Any]) -> list[str]:
    return [node.id for node in nodes]


# -- always ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["success", "failure", "completion", "always"])
def test_a_cancelled_task_satisfies_only_always(on: str) -> None:
    plan = chain("a")
    plan.add(Task("b"), after={"a": on})
    begin(plan).edit([CancelTask("a")])
    assert ready(plan) == (["b"] if on == "always" else [])
    check_invariants(plan)


@pytest.mark.parametrize("join", ["all", "any"])
def test_a_cleanup_runs_although_something_further_up_failed(join: str) -> None:
    plan = chain(*CREATE_LOAD_VERIFY)
    plan.add(Task("clean", join=join), after={"verify": "always", "create": "always"})
    plan.add(Task("mail"), after="clean")
    begin(plan)
    fail(plan, "create")
    assert ready(plan) == []
    assert plan.close(5.0) is ConstellationState.EXECUTING
    check_invariants(plan)
    assert (plan["load"].status, plan["verify"].status) == (CANCELLED, CANCELLED)
    assert ready(plan) == ["clean"]
    end(plan, "clean")
    end(plan, "mail")
    assert plan.close(9.0) is ConstellationState.PARTIALLY_FAILED
    check_invariants(plan)


def test_closing_goes_on_until_no_task_becomes_ready() -> None:
    plan = chain("a", "b")
    plan.add(Task("first"), after={"b": "always"})
    plan.add(Task("never"), after={"first": "failure"})
    plan.add(Task("second"), after={"never": "always"})
    begin(plan)
    fail(plan, "a")
    assert plan.close(3.0) is ConstellationState.EXECUTING
    end(plan, "first")
    assert plan.close(4.0) is ConstellationState.EXECUTING
    assert ready(plan) == ["second"]
    end(plan, "second")
    assert plan.close(5.0) is ConstellationState.PARTIALLY_FAILED
    assert told(plan, "never").startswith("not needed")


def test_a_condition_of_always_sees_that_its_source_was_cancelled() -> None:
    plan = chain("a")
    plan.evaluate = lambda condition, status, result: condition == str(status)
    plan.add(Task("yes"), after={"a": {"on": "always", "when": "cancelled"}})
    plan.add(Task("no"), after={"a": {"on": "always", "when": "failed"}})
    begin(plan).edit([CancelTask("a")])
    assert ready(plan) == ["yes"]
    end(plan, "yes")
    assert plan.close(3.0) is ConstellationState.COMPLETED
    assert told(plan, "no") == "not needed: 'failed' does not hold for 'a'"


def test_an_end_that_is_unreachable_still_counts_after_the_plan_was_stored_in_between() -> None:
    plan = chain("a", "b")
    plan.add(Task("clean"), after={"b": "always"})
    begin(plan)
    plan.edit([CancelTask("a")])
    assert plan.close(3.0) is ConstellationState.EXECUTING
    again = Constellation.from_json(plan.to_json())
    assert ready(again) == ["clean"]
    end(again, "clean")
    assert again.close(4.0) is ConstellationState.PARTIALLY_FAILED


# -- when a teardown is due --------------------------------------------------------------------------------------------


def test_a_teardown_waits_for_everything_below_its_set_up() -> None:
    plan = begin(database())
    for task_id in CREATE_LOAD_VERIFY:
        assert ready(plan) == [task_id]
        end(plan, task_id)
        check_invariants(plan)
    assert ready(plan) == ["drop"]
    end(plan, "drop")
    assert plan.close(9.0) is ConstellationState.COMPLETED


def test_a_teardown_runs_as_soon_as_the_rest_can_never_run() -> None:
    plan = database()
    plan.add(Task("other"))
    begin(plan)
    end(plan, "create")
    fail(plan, "load")
    assert ready(plan) == ["other", "drop"], "it waits neither for 'verify' nor for the end of the plan"
    check_invariants(plan)


def test_a_teardown_waits_for_the_review_of_a_failure() -> None:
    plan = begin(database())
    end(plan, "create")
    fail(plan, "load", review=True)
    assert ready(plan) == []
    review(plan, "load")
    assert ready(plan) == ["drop"]
    check_invariants(plan)


def test_a_teardown_waits_for_the_repair_and_for_the_cleanup_below_a_failure() -> None:
    plan = database()
    plan.add(Task("repair"), handles="load")
    plan.add(Task("collect"), after={"verify": "always"})
    begin(plan)
    end(plan, "create")
    fail(plan, "load")
    end(plan, "repair")
    assert ready(plan) == []
    assert plan.close(5.0) is ConstellationState.EXECUTING
    end(plan, "collect")
    assert ready(plan) == ["drop"]


def test_a_set_up_that_failed_is_torn_down() -> None:
    plan = begin(database())
    fail(plan, "create")
    assert ready(plan) == ["drop"]


def test_a_set_up_that_was_cancelled_while_it_ran_is_torn_down() -> None:
    plan = begin(database())
    start(plan, "create")
    plan.edit([CancelTask("create")])
    assert ready(plan) == ["drop"]


def test_a_set_up_that_its_device_gave_back_has_not_started() -> None:
    plan = begin(database())
    start(plan, "create")
    plan.release(plan.node("create"), 2.0, "the device left")
    plan.edit([CancelTask("create")])
    assert ready(plan) == []


def test_the_teardown_of_a_set_up_that_never_started_is_not_needed() -> None:
    plan = chain("fetch", "create")
    plan.add(Task("drop"), teardown="create")
    begin(plan)
    fail(plan, "fetch")
    assert plan.close(5.0) is ConstellationState.FAILED
    assert told(plan, "drop") == "not needed: its set-up 'create' never started"
    check_invariants(plan)


def test_nested_pairs_are_torn_down_from_the_inside_and_a_report_comes_last() -> None:
    plan = begin(nested())
    for task_id in ("network", "machine", "test", "stop", "disconnect", "report"):
        assert ready(plan) == [task_id]
        end(plan, task_id)
        check_invariants(plan)


def test_several_teardowns_of_one_set_up_run_at_once_or_in_their_order() -> None:
    plan = database()
    plan.add(Task("log out"), teardown="create")
    plan.add(Task("last"), after={"drop": "always"}, teardown="create")
    begin(plan)
    for task_id in CREATE_LOAD_VERIFY:
        end(plan, task_id)
    assert sorted(ready(plan)) == ["drop", "log out"]
    end(plan, "drop")
    assert sorted(ready(plan)) == ["last", "log out"]


def test_what_needs_the_end_of_another_teardown_is_between_all_the_same() -> None:
    plan = chain("first", "use")
    plan.add(Task("free"), teardown="first")
    plan.add(Task("second"))
    plan.add(Task("work"), after={"second": "success", "free": "always"})
    plan.add(Task("undo"), teardown="second")
    begin(plan)
    end(plan, "second")
    assert "undo" not in ready(plan)
    for task_id in ("first", "use", "free", "work"):
        end(plan, task_id)
    assert ready(plan) == ["undo"]


def test_a_teardown_is_between_only_if_its_set_up_is() -> None:
    """Each teardown waits for the work of the other pair; both run."""
    plan = chain("a", "use a")
    plan.add(Task("b"))
    plan.add(Task("use b"), after="b")
    plan.add(Task("drop a"), after={"use b": "always"}, teardown="a")
    plan.add(Task("drop b"), after={"use a": "always"}, teardown="b")
    begin(plan)
    for task_id in ("a", "b", "use a", "use b"):
        end(plan, task_id)
    assert ready(plan) == ["drop a", "drop b"]
    check_invariants(plan)


def test_tasks_and_teardowns_that_wait_for_each_other_do_not_keep_the_plan_from_its_end() -> None:
    plan = Constellation("contradiction")
    for name in "ab":
        plan.add(Task(name))
        plan.add(Task(f"drop {name}"), teardown=name)
    plan.add(Task("x"), after={"a": "success", "drop b": "always"})
    plan.add(Task("y"), after={"b": "success", "drop a": "always"})
    begin(plan)
    end(plan, "a")
    end(plan, "b")
    assert ready(plan) == []
    assert plan.close(5.0) is ConstellationState.EXECUTING
    assert told(plan, "x") == "unreachable: it needs 'drop b' to be over, and 'drop b' waits for it"
    assert ready(plan) == ["drop a", "drop b"], "what was set up is torn down in any case"


def test_teardowns_that_wait_for_each_other_are_given_up_last() -> None:
    plan = Constellation("worse")
    for outer, inner in ("ab", "cd"):
        plan.add(Task(outer))
        plan.add(Task(inner), after=outer)
        plan.add(Task(f"drop {outer}"), teardown=outer)
    plan.add(Task("drop b"), after={"drop c": "always"}, teardown="b")
    plan.add(Task("drop d"), after={"drop a": "always"}, teardown="d")
    begin(plan)
    for task_id in "acbd":
        end(plan, task_id)
    assert plan.close(5.0) is ConstellationState.PARTIALLY_FAILED
    assert told(plan, "drop a") == "unreachable: tasks between it and its set-up wait for it"


@pytest.mark.parametrize("task_id", ["create", "drop"])
def test_neither_a_set_up_nor_a_teardown_starts_provisionally(task_id: str) -> None:
    plan = chain("fetch", "create", revocable=True)
    plan.add(Task("drop", revocable=True), after={"fetch": "always"}, teardown="create")
    begin(plan, speculative=True)
    if task_id == "create":
        end(plan, "fetch", review=True)
    else:
        end(plan, "fetch")
        end(plan, "create", review=True)
    assert ready(plan) == []
    check_invariants(plan)


def test_why_names_what_a_teardown_waits_for() -> None:
    plan = begin(database())
    lock = AssignmentLock(plan)

    def reason() -> str:
        return why(plan, lock, plan.node("drop"), None, 9.0).holders[0].text

    assert reason() == "it tears down 'create', which is pending"
    end(plan, "create")
    start(plan, "load")
    waits = "it tears down 'create' when everything between them is over, and waits for"
    assert reason() == f"{waits} 'load' (running), 'verify' (pending)"
    plan.edit([AddTask(Task(f"t{number}")) for number in range(3)])
    plan.edit([AddDependency("create", f"t{number}") for number in range(3)])
    assert reason() == f"{waits} 'load' (running), 'verify' (pending), 't0' (pending) and 2 more"
    unborn = begin(database())
    unborn.edit([CancelTask("create")])
    held = why(unborn, AssignmentLock(unborn), unborn.node("drop"), None, 9.0)
    assert held.holders[0].text == "it tears down 'create', which never started"


# -- a plan that is cancelled ------------------------------------------------------------------------------------------


def test_a_cancelled_plan_tears_down_what_was_set_up() -> None:
    plan = database()
    plan.add(Task("other"))
    begin(plan)
    end(plan, "create")
    start(plan, "load")
    assert names(plan.begin_cancel(5.0, "by ann")) == ["verify", "other"]
    assert plan.state is ConstellationState.CANCELLING
    assert ready(plan) == [], "a task still runs below the set-up"
    plan.cancel(plan.node("load"), 6.0, "the constellation was cancelled")
    assert ready(plan) == ["drop"]
    check_invariants(plan)
    end(plan, "drop")
    assert plan.close(9.0, cancelled=True) is ConstellationState.CANCELLED
    assert plan["drop"].status is COMPLETED


def test_a_cancelled_plan_tears_down_nothing_that_never_started() -> None:
    plan = begin(database())
    assert names(plan.begin_cancel(5.0)) == ["create", "load", "verify", "drop"]
    assert plan.close(9.0, cancelled=True) is ConstellationState.CANCELLED


def test_in_a_plan_that_is_cancelled_nobody_reviews_an_end() -> None:
    plan = begin(nested())
    lock = AssignmentLock(plan, "scoped", edit_on=lambda *end: True)
    for task_id in ("network", "machine"):
        lock.finish(_started(plan, task_id), COMPLETED, 2.0)
        review(plan, task_id)
    lock.finish(_started(plan, "test"), FAILED, 2.0)
    plan.begin_cancel(3.0)
    assert ready(plan) == ["stop"]
    lock.finish(_started(plan, "stop"), COMPLETED, 4.0)
    assert ready(plan) == ["disconnect"]


def _started(plan: Constellation, task_id: str) -> Any:
    start(plan, task_id)
    return plan.node(task_id)


def test_a_provisional_task_that_a_cancelled_plan_revokes_does_not_delay_the_teardown() -> None:
    plan = chain("create", "load", "verify", revocable=True)
    plan.add(Task("drop"), teardown="create")
    begin(plan, speculative=True)
    end(plan, "create")
    end(plan, "load", review=True)
    start(plan, "verify")
    plan.edit([AddTask(Task("next", revocable=True)), AddDependency("verify", "next", "completion")])
    plan.finish(plan.node("verify"), COMPLETED, 3.0)
    start(plan, "next")
    plan.state = ConstellationState.CANCELLING  # as if the end of ``load`` could not be settled
    plan.cancel(plan.node("verify"), 4.0, "the constellation was cancelled")
    assert (plan["verify"].status, plan["next"].status) == (CANCELLED, CANCELLED)


def test_only_a_plan_that_runs_can_be_cancelled() -> None:
    plan = begin(chain("a"))
    plan.begin_cancel(1.0)
    with pytest.raises(PlanError, match="plan 'tiny' is cancelling: it cannot be cancelled"):
        plan.begin_cancel(2.0)


# -- edits -------------------------------------------------------------------------------------------------------------


def test_an_edit_adds_removes_and_moves_a_teardown() -> None:
    plan = begin(chain(*CREATE_LOAD_VERIFY))
    first = plan.edit([AddTask(Task("drop")), AddDependency("create", "drop", "teardown")])
    check_invariants(plan)
    assert plan["drop"].tears_down == "create"
    assert names(between(plan, plan.node("create"))) == ["load", "verify"]
    second = plan.edit([RemoveDependency("create", "drop"), AddDependency("load", "drop", "teardown")])
    check_invariants(plan)
    assert names(between(plan, plan.node("load"))) == ["verify"]
    plan.edit([UpdateDependency("load", "drop", "always")])
    check_invariants(plan)
    assert not plan.setups
    assert plan["drop"].tears_down is None
    plan.edit([UpdateDependency("load", "drop", "teardown")])
    assert second.inverse is not None
    assert first.inverse is not None
    for inverse in (second.inverse, first.inverse):
        plan.edit(inverse.edits)
        check_invariants(plan)
    assert "drop" not in plan


def test_work_that_is_added_between_is_waited_for() -> None:
    plan = begin(database())
    for task_id in CREATE_LOAD_VERIFY:
        end(plan, task_id)
    assert ready(plan) == ["drop"]
    plan.edit([AddTask(Task("check")), AddDependency("verify", "check")])
    assert ready(plan) == ["check"]
    plan.edit([RemoveTask("check")])
    assert ready(plan) == ["drop"]
    check_invariants(plan)


def test_nothing_is_added_below_a_set_up_that_is_torn_down() -> None:
    plan = database()
    plan.add(Task("other"))
    plan.add(Task("late"), after="other")
    begin(plan)
    for task_id in CREATE_LOAD_VERIFY:
        end(plan, task_id)
    start(plan, "drop")
    (violation,) = violations(plan, AddTask(Task("check")), AddDependency("load", "check"))
    assert (violation.edit, violation.rule) == (0, "torn_down")
    assert violation.message == (
        "task 'check' would run below 'create', which 'drop' has torn down; make it independent of 'create', or add "
        "another set-up for it, or retry the plan from 'create' when it has ended"
    )
    assert [violation.edit for violation in violations(plan, AddDependency("verify", "late"))] == [0]
    plan.edit([AddTask(Task("mail")), AddDependency("drop", "mail", "always")])
    check_invariants(plan)


def test_an_edit_elsewhere_does_not_revive_what_is_below_a_set_up_that_is_torn_down() -> None:
    plan = database()
    plan.add(Task("fetch"))
    plan.add(Task("unpack"), after="fetch")
    plan.connect("unpack", "verify")
    begin(plan)
    fail(plan, "fetch")
    end(plan, "create")
    end(plan, "load")
    start(plan, "drop")
    (violation,) = violations(plan, UpdateDependency("fetch", "unpack", "completion"))
    assert (violation.edit, violation.rule) == (None, "torn_down")
    assert "task 'verify' would run below 'create'" in violation.message


MISFITS: list[tuple[list[Edit], str]] = [
    ([AddDependency("load", "drop", "success")], "'drop' is a teardown and runs however 'load' ends: write after: "),
    ([AddDependency("load", "drop", "always", "result.ok")], "'drop' is a teardown and runs however 'load' ends"),
    ([AddDependency("load", "drop", "teardown")], "'drop' tears down 'create' and 'load'; a task tears down one"),
    ([UpdateTask("drop", join="any")], "'drop' is a teardown, so it cannot have join: any"),
    ([UpdateTask("drop", foreach={"of": []})], "'drop' is a group, which no device executes; a teardown is"),
    ([UpdateTask("create", foreach={"of": []})], "'create' is a group, which no device executes; a set-up is"),
    ([AddTask(Task("x")), AddDependency("drop", "x", "teardown")], "'drop' is a teardown, so it cannot be a set-up"),
    ([AddTask(Task("x")), AddDependency("x", "create", "teardown")], "'create' is a teardown, so it cannot be"),
]


@pytest.mark.parametrize(("edits", "reason"), MISFITS)
def test_an_edit_that_breaks_a_pair_is_rejected(edits: list[Edit], reason: str) -> None:
    plan = begin(database())
    problems = violations(plan, *edits)
    assert {violation.rule for violation in problems} == {"teardown"}
    assert any(violation.message.startswith(reason) for violation in problems), problems
    check_invariants(plan)


def test_a_teardown_of_itself_or_above_its_set_up_is_a_cycle() -> None:
    plan = begin(database())
    (violation,) = violations(plan, AddDependency("verify", "create", "teardown"))
    assert violation.rule == "cycle"
    with pytest.raises(PlanError, match="task 'a' cannot depend on itself"):
        Constellation().add(Task("a"), teardown="a")


def test_a_task_that_runs_provisionally_gets_no_teardown() -> None:
    plan = chain("fetch", "create", revocable=True)
    begin(plan, speculative=True)
    end(plan, "fetch", review=True)
    start(plan, "create")
    (violation,) = violations(plan, AddTask(Task("drop")), AddDependency("create", "drop", "teardown"))
    assert violation.message.startswith("'create' has started provisionally, and a set-up never does")


def test_a_plan_under_construction_refuses_a_misfit_and_stays_as_it_was() -> None:
    plan = chain("a", "b")
    before = plan.to_json()
    for after in ({"b": "success"}, {"b": {"on": "always", "when": "result"}}):
        with pytest.raises(PlanError, match="'drop' is a teardown and runs however 'b' ends"):
            plan.add(Task("drop"), after=after, teardown="a")
    with pytest.raises(PlanError, match="teardown= takes the id of a task, not 5"):
        plan.add(Task("drop"), teardown=5)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="a teardown takes no condition"):
        plan.connect("a", "b", "teardown", "result.ok")
    assert plan.to_json() == before
    plan.add(Task("drop"), teardown="a")
    with pytest.raises(PlanError, match="'drop' is a teardown and runs however 'b' ends"):
        plan.connect("b", "drop")
    plan.connect("b", "drop", "always")
    check_invariants(begin(plan))


def test_removing_a_set_up_needs_a_word_about_its_teardown() -> None:
    plan = begin(chain("create"))
    plan.edit([AddTask(Task("drop")), AddDependency("create", "drop", "teardown")])
    (violation,) = violations(plan, RemoveTask("create"))
    assert violation.rule == "dependents"
    plan.edit([RemoveTask("create", "remove")])
    assert len(plan) == 0
    check_invariants(plan)


def test_a_whole_new_plan_may_have_other_teardowns() -> None:
    base, new = chain("a", "b"), Constellation("tiny")
    new.add(Task("a"))
    new.add(Task("b"), teardown="a")
    base.apply(diff(base, new), 0.0)
    check_invariants(base)
    assert base["b"].tears_down == "a"


# -- retries -----------------------------------------------------------------------------------------------------------


def ended_after_a_failure() -> Constellation:
    plan = database()
    plan.add(Task("side"), after="create")
    begin(plan)
    end(plan, "create")
    end(plan, "side")
    fail(plan, "load")
    end(plan, "drop")
    assert plan.close(9.0) is ConstellationState.PARTIALLY_FAILED
    return plan


@pytest.mark.parametrize("first", [(), ("load",)])
def test_a_retry_runs_the_pair_again(first: tuple[str, ...]) -> None:
    plan = ended_after_a_failure()
    again = plan.run_again(10.0, first)
    assert again == [name for name in ("create", "load", "verify", "drop") if name != "verify" or first]
    check_invariants(plan)
    for task_id in ("create", "load", "verify", "drop"):
        assert ready(plan) == [task_id]
        end(plan, task_id, now=11.0)
    assert plan.close(19.0) is ConstellationState.COMPLETED


def test_a_retry_of_the_teardown_alone_runs_only_that() -> None:
    plan = begin(database())
    for task_id in CREATE_LOAD_VERIFY:
        end(plan, task_id)
    fail(plan, "drop")
    plan.close(9.0)
    assert plan.run_again(10.0) == ["drop"]
    assert ready(plan) == ["drop"]


def test_a_retry_leaves_a_set_up_alone_that_was_not_torn_down() -> None:
    plan = begin(database())
    end(plan, "create")
    plan.edit([CancelTask("drop", "look at it first")])
    fail(plan, "load")
    plan.close(9.0)
    assert plan.run_again(10.0) == ["load"]
    assert ready(plan) == ["load"]
    check_invariants(plan)


def test_a_retry_of_an_inner_pair_runs_the_outer_pair_again() -> None:
    plan = begin(nested())
    end(plan, "network")
    end(plan, "machine")
    fail(plan, "test")
    for task_id in ("stop", "disconnect", "report"):
        end(plan, task_id)
    plan.close(9.0)
    assert plan.run_again(10.0) == ["network", "machine", "test", "stop", "disconnect"]


def test_a_retry_above_tasks_that_were_given_up_runs_their_set_up_again() -> None:
    plan = chain("fetch", "unpack")
    plan.add(Task("create"))
    plan.add(Task("load"), after=["create", "unpack"])
    plan.add(Task("drop"), teardown="create")
    begin(plan)
    end(plan, "create")
    fail(plan, "fetch")
    end(plan, "drop")
    plan.close(9.0)
    assert plan.run_again(10.0) == ["fetch", "create", "drop"]


def test_an_edit_of_a_plan_that_has_ended_adds_nothing_below_a_set_up_that_is_torn_down() -> None:
    plan = ended_after_a_failure()
    (violation,) = violations(plan, AddTask(Task("check")), AddDependency("side", "check"))
    assert violation.rule == "torn_down"
    assert plan.state is ConstellationState.PARTIALLY_FAILED
    check_invariants(plan)
    plan.edit([AddTask(Task("mail")), AddDependency("drop", "mail")])
    assert ready(plan) == ["mail"]


# -- cost --------------------------------------------------------------------------------------------------------------


def test_a_plan_without_teardowns_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a plan without teardowns pays for them")

    monkeypatch.setattr(graph.teardowns, "update", never)
    monkeypatch.setattr(joins, "refresh", never)
    plan = chain(*CREATE_LOAD_VERIFY)
    plan.add(Task("clean"), after={"verify": "always"})
    begin(plan)
    fail(plan, "create")
    plan.close(3.0)
    plan.edit([AddTask(Task("more"))])


def test_an_edit_of_a_large_plan_renews_only_the_scopes_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Constellation("wide")
    plan.add(Task("create"))
    for number in range(500):
        plan.add(Task(f"t{number}"), after="create")
    plan.add(Task("drop"), teardown="create")
    begin(plan)
    renewed = 0
    scope = graph.teardowns._scope

    def counted(*arguments: Any) -> Any:
        nonlocal renewed
        renewed += 1
        return scope(*arguments)

    monkeypatch.setattr(graph.teardowns, "_scope", counted)
    plan.edit([AddTask(Task("more")), AddDependency("t7", "more")])
    assert renewed == 1
    assert plan.node("create").below == 501


# -- set-ups that a fleet has only queued ------------------------------------------------------------------------------


def queued() -> tuple[RecordedConstellation, list[Any]]:
    """The plan of a fleet, with its steps: create has started, and waits for a device."""
    plan = RecordedConstellation.of(database())
    steps: list[Any] = []
    plan.record = steps.append
    begin(plan)
    start(plan, "create")
    return plan, steps


def ran(plan: RecordedConstellation, epoch: int, *executed: bool | None) -> None:
    plan.record_run("create", epoch, 5.0, AttemptTimes(1.0, None, None, 5.0, *executed), "never began")
    check_invariants(plan)


def replayed(steps: list[Any]) -> RecordedConstellation:
    plan = RecordedConstellation.of(database())
    replay(plan, RecordedLock(plan, "scoped"), decode_steps(encode(steps)))
    return plan


def test_a_set_up_that_no_device_has_begun_needs_no_teardown() -> None:
    plan, steps = queued()
    create = plan.node("create")
    assert create.has_begun, "nobody knows"
    ran(plan, create.epoch, False)
    plan.finish(create, FAILED, 6.0)
    assert not create.has_begun
    assert not plan.queue.has_ready()
    held = why(plan, AssignmentLock(plan), plan.node("drop"), None, 6.0)
    assert held.holders[0].text == "it tears down 'create', which never started"
    plan.close(7.0)
    assert plan["drop"].reason == "not needed: its set-up 'create' never started"
    assert replayed(steps).to_json() == plan.to_json()


@pytest.mark.parametrize("executed", [(True,), (None,)], ids=["begun", "unknown"])
def test_a_set_up_that_may_have_begun_is_torn_down(executed: tuple[bool | None, ...]) -> None:
    plan, steps = queued()
    ran(plan, plan.node("create").epoch, *executed)
    plan.finish(plan.node("create"), FAILED, 6.0)
    assert ready(plan) == ["drop"]
    start(plan, "drop")
    assert replayed(steps).to_json() == plan.to_json()


def test_a_cancelled_set_up_needs_no_teardown_from_the_moment_that_it_is_known_not_to_have_begun() -> None:
    plan, steps = queued()
    epoch = plan.node("create").epoch
    plan.begin_cancel(4.0)
    plan.cancel(plan.node("create"), 4.0, "enough")
    assert ready(plan) == ["drop"]
    ran(plan, epoch, False)
    assert not plan.queue.has_ready()
    assert plan.close(6.0, cancelled=True) is ConstellationState.CANCELLED
    assert plan["drop"].status is CANCELLED
    assert replayed(steps).to_json() == plan.to_json()


def test_a_set_up_that_began_in_an_earlier_attempt_is_torn_down() -> None:
    plan, _ = queued()
    plan.retry(plan.node("create"), 2.0, "it failed")
    plan.start(plan.node("create"), "laptop", 3.0)
    ran(plan, plan.node("create").epoch, False)
    plan.finish(plan.node("create"), FAILED, 6.0)
    assert ready(plan) == ["drop"]


def test_ablation_a_set_up_that_was_only_queued_would_be_torn_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "has_begun", property(lambda node: node.started_at is not None))
    plan, _ = queued()
    ran(plan, plan.node("create").epoch, False)
    plan.finish(plan.node("create"), FAILED, 6.0)
    assert ready(plan) == ["drop"]


# -- ablations ---------------------------------------------------------------------------------------------------------


def test_without_the_count_of_what_is_between_a_teardown_runs_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph.teardowns, "_scope", lambda graph, node: NO_SCOPE)
    plan = begin(database())
    end(plan, "create")
    assert "drop" in ready(plan), "the ablation tears down what 'load' is about to use"


def test_without_the_rule_an_edit_adds_work_that_misses_what_was_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply.Attempt, "check_teardowns", lambda self, batch: self.graph.rescope())
    plan = begin(database())
    for task_id in CREATE_LOAD_VERIFY:
        end(plan, task_id)
    end(plan, "drop")
    plan.edit([AddTask(Task("check")), AddDependency("load", "check")])
    assert ready(plan) == ["check"]


def test_without_the_pair_a_retry_runs_a_task_in_what_was_torn_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.core.plan.plan_end._add_pairs", lambda graph, chosen: None)
    plan = ended_after_a_failure()
    plan.run_again(10.0)
    assert ready(plan) == ["load"]
    start(plan, "load", 11.0)
    with pytest.raises(AssertionError, match="torn down"):
        check_invariants(plan)


# -- random plans ------------------------------------------------------------------------------------------------------


class World:
    """A random plan with set-ups and teardowns, its journal, and random steps."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        plan = Constellation("random")
        for number in range(self.chance.randint(3, 12)):
            self._add(plan, f"t{number}")
        self.first = RecordedConstellation.of(plan)
        self.plan = RecordedConstellation.of(plan)
        self.steps: list[Any] = []
        self.plan.record = self.steps.append
        policy = self.chance.choice(["scoped", "speculative", "global"])
        self.lock = RecordedLock(self.plan, policy, edit_on=lambda *end: self.chance.random() < 0.3)
        self.now, self.by_hand = 0.0, set[str]()
        self.too_early = set[str]()  # teardowns that started before the plan learned that their set-ups never began

    def _add(self, plan: Constellation, name: str) -> None:
        known = [task.id for task in plan]
        above = self.chance.sample(known, min(len(known), self.chance.randint(0, 2)))
        kinds = ["success", "success", "failure", "completion", "always"]
        join = self.chance.choice(["all", "all", "all", "any"])
        task = Task(name, revocable=self.chance.random() < 0.4, join=join)
        after = {source: self.chance.choice(kinds) for source in above}
        if above and self.chance.random() < 0.4:
            after = dict.fromkeys(above, "always") | {above[0]: "teardown"}
        try:
            plan.add(task, after=after)
        except PlanError:  # not every task can be a set-up or a teardown
            plan.add(task)

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def run(self) -> None:
        self.plan.begin(self.tick())
        cancel_at = self.chance.randint(0, 120)
        for number in range(60):
            if number == cancel_at:
                self.cancel()
            self.step()
            check_invariants(self.plan)
        while True:
            while self.move():
                check_invariants(self.plan)
            cancelled = self.plan.state is ConstellationState.CANCELLING
            if self.plan.close(self.tick(), cancelled) in ENDED_STATES:
                break
            check_invariants(self.plan)

    def step(self) -> None:
        choice = self.chance.random()
        if choice < 0.6 or self.plan.state is ConstellationState.CANCELLING:
            self.move()
        elif choice < 0.9:
            self.edit()
        elif self.plan.nodes:
            node = self.chance.choice(list(self.plan.nodes.values()))
            if node.status in (PENDING, RUNNING):
                self.plan.edit([CancelTask(node.id)])
                self.by_hand.add(node.id)

    def move(self) -> bool:
        running = [n for n in self.plan.nodes.values() if n.status is RUNNING and n.tentative is None]
        moves = []
        if running:
            moves.append(lambda: self.end(self.chance.choice(running)))
        if self.plan.queue.has_ready() and not self.lock.holds_everything:
            moves.append(self.start)
        if self.lock.waiting or self.lock.cycles:
            moves.append(self.review)
        if moves:
            self.chance.choice(moves)()
        return bool(moves)

    def start(self) -> None:
        node = self.plan.queue.pop(next(iter(self.plan.queue.lanes)))
        if node.setup is not None:
            assert not between(self.plan, node.setup), "a teardown starts before everything between is over"
        self.plan.start(node, "device", self.tick())

    def end(self, node: Any) -> None:
        if self.chance.random() < 0.1:
            self.plan.release(node, self.tick(), "given back")
        else:
            self.ran(node, node.epoch)
            self.lock.finish(node, COMPLETED if self.chance.random() < 0.6 else FAILED, self.tick())

    def ran(self, node: Any, epoch: int) -> None:
        """The run of a fleet has ended: it tells whether a device had begun it, unless that is not known."""
        if self.chance.random() < 0.7:
            executed = self.chance.choice([True, False, None])
            self.plan.record_run(node.id, epoch, self.tick(), AttemptTimes(0.0, executed=executed), "")
            self.too_early |= {teardown.id for teardown in teardowns_of(node) if teardown.started_at is not None}

    def review(self) -> None:
        cycle = self.lock.open(self.tick()) or next(iter(self.lock.cycles.values()), None)
        if cycle is not None:
            self.lock.close(cycle, self.tick(), "empty")

    def edit(self) -> None:
        names = [*self.plan.nodes, "new"]
        source, target = self.chance.choice(names), self.chance.choice(names)
        on = self.chance.choice(["success", "always", "teardown", "completion"])
        edits: list[Edit] = self.chance.choice(
            [
                [AddTask(Task(f"n{self.now:g}")), AddDependency(source, f"n{self.now:g}", on)],
                [AddDependency(source, target, on)],
                [UpdateDependency(source, target, on)],
                [RemoveDependency(source, target)],
                [RemoveTask(source, self.chance.choice([None, "bridge", "remove"]))],
            ]
        )
        try:
            self.plan.apply(EditBatch(tuple(edits)), self.tick())
        except EditRejected:
            return

    def cancel(self) -> None:
        while self.lock.waiting or self.lock.cycles:
            self.review()
        self.plan.begin_cancel(self.tick())
        self.lock.waiting.clear()
        for node in list(self.plan.nodes.values()):
            if node.status is RUNNING and node.setup is None:
                epoch = node.epoch
                self.plan.cancel(node, self.tick(), "the constellation was cancelled")
                self.ran(node, epoch)

    def check_end(self) -> None:
        for setup in self.plan.setups:
            for teardown in teardowns_of(setup):
                if not setup.has_begun:
                    needed = teardown.started_at is not None and teardown.id not in self.too_early
                    assert not needed, "a teardown ran, and its set-up had not begun"
                    continue
                waited = "wait for it" in teardown.reason
                assert teardown.started_at is not None or teardown.id in self.by_hand or waited, (
                    "a teardown was skipped"
                )

    def check_replay(self) -> None:
        lock = RecordedLock(self.first, self.lock.policy)
        replay(self.first, lock, decode_steps(encode(self.steps)))
        assert self.first.to_json() == self.plan.to_json()
        check_invariants(self.first)


@pytest.mark.hunt(few=15, many=5000)
def test_whatever_happens_what_was_set_up_is_torn_down(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        world.run()
        world.check_end()
        world.check_replay()
