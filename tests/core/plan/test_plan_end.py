"""A plan that has ended is reopened: by a retry, or by an edit that adds tasks."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import EditRejected, PlanError, UnknownTask, Violation
from asterism.core.plan import edits, plan_end
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.status import PENDING, ConstellationState, TaskStatus
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, end, facts, fail, ready, through_json, told
from tests.laboratory.plan_invariants import check_invariants


def failed_plan() -> Constellation:
    """fetch -> build (failed) -> test; build -> alarm on failure."""
    plan = chain("fetch", "build", "test")
    plan.add(Task("alarm"), {"build": "failure"})
    begin(plan)
    end(plan, "fetch", "files")
    fail(plan, "build")
    end(plan, "alarm")
    assert plan.close(9.0) is ConstellationState.PARTIALLY_FAILED
    return plan


def statuses(plan: Constellation) -> dict[str, str]:
    return {task.id: str(task.status) for task in plan}


def test_what_failed_and_what_was_given_up_because_of_it_is_pending_again() -> None:
    plan = failed_plan()
    assert plan.run_again(10.0, why="by ann") == ["build"]
    check_invariants(plan)
    assert statuses(plan) == {"fetch": "completed", "build": "pending", "test": "pending", "alarm": "completed"}
    assert (plan.state, plan.ended_at) == (ConstellationState.EXECUTING, None)
    assert plan["fetch"].value == "files"
    assert ready(plan) == ["build"]
    end(plan, "build")
    end(plan, "test")
    assert plan.close(20.0) is ConstellationState.COMPLETED
    assert told(plan, "build") == [
        ("started", "laptop"),
        ("failed", "RuntimeError: boom"),
        ("retried", "by ann"),
        ("started", "laptop"),
        ("completed", ""),
    ]
    assert ("reopened", "by ann") in told(plan, None)
    check_invariants(plan)


def test_the_next_execution_has_a_new_epoch_and_counts_its_attempts_on() -> None:
    plan = failed_plan()
    epochs = plan.epochs
    plan.run_again(10.0)
    node = plan.node("build")
    assert (node.epoch, node.attempts, node.spent) == (0, 1, 1)
    end(plan, "build")
    assert (node.epoch, node.attempts) == (epochs + 1, 2)


def test_a_task_that_is_put_back_before_it_began_keeps_what_it_spent() -> None:
    plan = failed_plan()
    plan.run_again(10.0)
    node = plan.node("build")
    node.entry = None
    plan.start(node, "laptop", 11.0)
    plan.release(node, 12.0, "it left")
    assert (node.status, node.attempts) == (PENDING, 1)
    check_invariants(plan)


def test_from_a_task_everything_below_runs_again() -> None:
    plan = chain("a", "b", "c")
    begin(plan)
    for task in "abc":
        end(plan, task)
    plan.close(9.0)
    assert plan.run_again(10.0, ["b"]) == ["b", "c"]
    assert statuses(plan) == {"a": "completed", "b": "pending", "c": "pending"}
    assert ready(plan) == ["b"]
    assert plan["b"].value is None
    check_invariants(plan)


def test_conditions_on_a_task_that_runs_again_are_decided_again() -> None:
    def positive(condition: str, status: TaskStatus, result: Any) -> bool:
        return bool(result > 0)

    plan = Constellation("choice")
    plan.evaluate = positive
    plan.add(Task("check"))
    plan.add(Task("yes"), {"check": {"when": "positive"}})
    begin(plan)
    end(plan, "check", -1)
    plan.close(9.0)
    plan.run_again(10.0, ["check"])
    assert plan.node("yes").verdicts == {}
    end(plan, "check", 1)
    assert ready(plan) == ["yes"]


def test_a_failure_that_was_handled_does_not_run_again() -> None:
    plan = Constellation("handled")
    plan.add(Task("build"))
    plan.add(Task("fix"), handles="build")
    plan.add(Task("other"))
    begin(plan)
    fail(plan, "build")
    end(plan, "fix")
    fail(plan, "other")
    plan.close(9.0)
    assert plan.run_again(10.0) == ["other"]
    end(plan, "other")
    assert plan.close(20.0) is ConstellationState.COMPLETED
    assert plan.repaired


def test_what_an_editor_cancelled_stays_cancelled() -> None:
    plan = chain("a", "b")
    plan.add(Task("c"), "a")
    begin(plan)
    plan.edit([edits.CancelTask("c", "too slow")])
    fail(plan, "a")
    plan.close(9.0)
    plan.run_again(10.0)
    assert statuses(plan) == {"a": "pending", "b": "pending", "c": "cancelled"}


@pytest.mark.parametrize("join", ["all", "any"])
def test_a_join_counts_again(join: str) -> None:
    plan = Constellation("join")
    plan.add(Task("a"))
    plan.add(Task("b"))
    plan.add(Task("c", join=join), ["a", "b"])
    begin(plan)
    fail(plan, "a")
    fail(plan, "b")
    plan.close(9.0)
    plan.run_again(10.0)
    check_invariants(plan)
    end(plan, "a")
    assert ready(plan) == ["b"]
    end(plan, "b")
    assert ready(plan) == ["c"]
    check_invariants(plan)


def test_a_plan_that_runs_was_cancelled_or_has_no_failure_cannot_be_retried() -> None:
    plan = begin(chain("a", "b"))
    with pytest.raises(PlanError, match="plan 'tiny' is executing: only a plan that has ended can be retried"):
        plan.run_again(1.0)
    end(plan, "a")
    end(plan, "b")
    plan.close(9.0)
    with pytest.raises(PlanError, match="in plan 'tiny' no task failed; to run it again, name the task"):
        plan.run_again(10.0)
    with pytest.raises(UnknownTask):
        plan.run_again(10.0, ["nothing"])
    cancelled = begin(chain("a"))
    cancelled.close(9.0, cancelled=True)
    with pytest.raises(PlanError, match="plan 'tiny' was cancelled, for good; to run it again, start it under another"):
        cancelled.run_again(10.0, ["a"])


def test_a_task_that_could_not_start_again_is_refused_with_the_one_to_begin_with() -> None:
    plan = failed_plan()
    before = facts(plan)
    with pytest.raises(PlanError, match="task 'test' could not start again: it needs 'build' to succeed, but 'build' failed; begin with 'build'"):  # fmt: skip # noqa: E501
        plan.run_again(10.0, ["test"])
    assert facts(plan) == before


def test_edits_are_applied_in_the_same_step_or_nothing_happens() -> None:
    plan = failed_plan()
    before = facts(plan)
    with pytest.raises(EditRejected):
        plan.run_again(10.0, (), EditBatch((edits.UpdateTask("build", timeout=5), edits.RemoveTask("nothing"))))
    assert facts(plan) == before
    check_invariants(plan)
    plan.run_again(10.0, (), EditBatch((edits.UpdateTask("build", timeout=5),)))
    assert plan["build"].task.timeout == 5
    assert plan.version == 1


def test_an_edit_that_adds_a_task_reopens_a_plan() -> None:
    plan = failed_plan()
    applied = plan.edit([edits.AddTask(Task("fix")), edits.AddDependency("build", "fix", "failure", handled=True)])
    check_invariants(plan)
    assert statuses(plan) == {
        **{"fetch": "completed", "build": "failed", "test": "pending"},
        **{"alarm": "completed", "fix": "pending"},
    }
    assert ready(plan) == ["fix"]
    end(plan, "fix")
    assert plan.close(20.0) is ConstellationState.COMPLETED
    assert plan.repaired
    assert applied.inverse is not None


def test_a_rejected_edit_leaves_an_ended_plan_ended() -> None:
    plan = failed_plan()
    before = facts(plan)
    with pytest.raises(EditRejected) as caught:
        plan.edit([edits.AddTask(Task("fix")), edits.AddDependency("nothing", "fix")])
    assert [violation.rule for violation in caught.value.violations] == ["unknown_task"]
    assert facts(plan) == before
    check_invariants(plan)


def test_without_the_undo_a_rejected_edit_would_leave_the_plan_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_end, "_undo", lambda graph: lambda: None)
    plan = failed_plan()
    with pytest.raises(EditRejected):
        plan.edit([edits.AddTask(Task("fix")), edits.AddDependency("nothing", "fix")])
    assert plan.state is ConstellationState.EXECUTING


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda plan: None, "plan 'tiny' has ended (partially_failed); only an edit that adds a task reopens it"),
        (lambda plan: setattr(plan, "state", ConstellationState.CANCELLED), "plan 'tiny' was cancelled, for good"),
        (
            lambda plan: setattr(plan, "owner", object()),
            "plan 'tiny' has just ended (partially_failed); edit it again when its orchestrator has left it",
        ),
    ],
)
def test_other_edits_of_an_ended_plan_are_rejected(prepare: Any, message: str) -> None:
    plan = failed_plan()
    prepare(plan)
    with pytest.raises(EditRejected) as caught:
        plan.edit([edits.UpdateTask("test", timeout=1)])
    (only,) = caught.value.violations
    assert (only.rule, only.message) == ("ended", message)


def test_a_reopened_plan_is_written_and_read() -> None:
    plan = failed_plan()
    plan.run_again(10.0)
    twin = through_json(plan)
    check_invariants(twin)
    assert twin.node("build").spent == 1
    assert ready(twin) == ["build"]
    assert "spent" not in next(node for node in plan.to_json()["tasks"] if node["task"]["id"] == "fetch")


def test_the_story_of_a_reopening_does_not_depend_on_rejected_edits() -> None:
    """The journal does not contain a rejected edit, so a plan that is read from it must tell the same story."""

    def reopened(*rejected: edits.Edit) -> list[Any]:
        plan = chain("fetch", "build", "test")
        plan.add(Task("docs"), {"fetch": "success"})
        if rejected:
            with pytest.raises(EditRejected):
                plan.apply(EditBatch(rejected), 0.0)
        begin(plan)
        fail(plan, "fetch")
        plan.close(9.0)
        plan.run_again(10.0)
        return [(entry.what, entry.task) for entry in plan.story()]

    assert reopened(edits.RemoveTask("test"), edits.AddTask(Task("fetch"))) == reopened()


def test_the_time_at_rest_is_not_time_of_the_plan() -> None:
    plan = failed_plan()
    started, ended = plan.started_at, plan.ended_at
    assert ended is not None
    assert (plan_end.time_at_rest(plan), plan_end.opened_at(plan)) == (0.0, started)
    plan.run_again(ended + 1000.0)
    assert (plan_end.time_at_rest(plan), plan_end.opened_at(plan)) == (1000.0, ended + 1000.0)


def test_a_plan_that_runs_cannot_be_reopened() -> None:
    plan = chain("a")
    begin(plan)
    with pytest.raises(PlanError, match="it cannot be reopened"):
        plan.reopen([], 1.0, "")


def test_the_state_in_words() -> None:
    assert failed_plan().state_text == "partially failed"


def test_a_handler_that_was_cancelled_has_handled_nothing() -> None:
    plan = chain("build")
    plan.add(Task("fix"))
    plan.connect("build", "fix", "failure", handled=True)
    begin(plan)
    plan.cancel(plan.node("fix"), 1.0, "not wanted")
    fail(plan, "build")
    assert plan.close(9.0) is ConstellationState.FAILED


def test_edits_of_a_retry_are_checked_before_they_are_applied() -> None:
    plan = failed_plan()
    before = plan.to_json()

    def refuse(batch: EditBatch) -> None:
        raise EditRejected([Violation(0, "approval", f"{len(batch.edits)} edit waits for a person")])

    with pytest.raises(EditRejected, match="1 edit waits for a person"):
        plan.run_again(10.0, batch=EditBatch((edits.AddTask(Task("c")),)), check=refuse)
    assert plan.to_json() == before
