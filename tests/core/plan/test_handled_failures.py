"""Handled failures: when the handler has completed, the failure no longer makes the plan fail."""

from __future__ import annotations

import pytest

from asterism.core.errors import InvalidTask, PlanError
from asterism.core.plan import edits
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.status import ConstellationState
from asterism.core.plan.task import Dependency, Task, dependencies_of
from tests.core.plan.tiny_plans import begin, end, fail, ready, through_json, told


def built() -> Constellation:
    """build -> test; fix handles build."""
    plan = Constellation("built")
    plan.add(Task("build"))
    plan.add(Task("test"), "build")
    plan.add(Task("fix"), handles="build")
    return begin(plan)


def test_a_completed_handler_repairs_the_plan() -> None:
    plan = built()
    fail(plan, "build")
    assert ready(plan) == ["fix"]
    end(plan, "fix")
    assert plan.close(9.0) is ConstellationState.COMPLETED
    assert plan.repaired
    assert plan["build"].status == "failed"
    assert plan["build"].handled_by == "fix"
    assert told(plan, "test")[-1] == ("cancelled", "not needed: 'build' failed, and 'fix' handled that")


def test_a_retry_of_a_repaired_plan_says_that_the_failure_was_handled() -> None:
    plan = built()
    fail(plan, "build")
    end(plan, "fix")
    plan.close(9.0)
    with pytest.raises(PlanError, match="in plan 'built' every failure was handled; to run it again, name the task"):
        plan.run_again(10.0)


def test_a_handler_that_fails_repairs_nothing() -> None:
    plan = built()
    fail(plan, "build")
    fail(plan, "fix")
    assert plan.close(9.0) is ConstellationState.FAILED
    assert not plan.repaired
    assert plan["build"].handled_by is None


def test_the_failure_of_a_handler_can_be_handled_too() -> None:
    plan = built()
    plan.edit([edits.AddTask(Task("fix-2")), edits.AddDependency("fix", "fix-2", "failure", handled=True)])
    fail(plan, "build")
    fail(plan, "fix")
    end(plan, "fix-2")
    assert plan.close(9.0) is ConstellationState.COMPLETED
    assert plan["build"].handled_by == "fix-2"


def test_a_handler_is_not_needed_if_nothing_fails() -> None:
    plan = built()
    end(plan, "build")
    end(plan, "test")
    assert plan.close(9.0) is ConstellationState.COMPLETED
    assert not plan.repaired
    assert told(plan, "fix")[-1][1] == "not needed: it runs only if 'build' fails, and 'build' completed"


def test_a_task_after_a_failure_that_is_not_marked_does_not_handle_it() -> None:
    plan = Constellation("alarm")
    plan.add(Task("build"))
    plan.add(Task("alarm"), {"build": "failure"})
    begin(plan)
    fail(plan, "build")
    end(plan, "alarm")
    assert plan.close(9.0) is ConstellationState.PARTIALLY_FAILED


def test_every_failure_must_be_handled() -> None:
    plan = built()
    plan.edit([edits.AddTask(Task("other"))])
    fail(plan, "build")
    fail(plan, "other")
    end(plan, "fix")
    assert plan.close(9.0) is ConstellationState.PARTIALLY_FAILED
    assert plan["build"].handled_by == "fix"


def test_a_handler_and_a_join_of_any_lead_back_to_the_main_road() -> None:
    plan = built()
    plan.add(Task("deploy", join="any"), ["test", "fix"])
    fail(plan, "build")
    end(plan, "fix")
    assert ready(plan) == ["deploy"]
    end(plan, "deploy")
    assert plan.close(9.0) is ConstellationState.COMPLETED


def test_handled_needs_a_failure() -> None:
    with pytest.raises(InvalidTask, match="'a' -> 'b': handled needs on: failure, not on: completion"):
        Dependency("a", "b", "completion", handled=True)
    with pytest.raises(InvalidTask, match="handled is true or false, not 'yes'"):
        Dependency("a", "b", "failure", handled="yes")  # type: ignore[arg-type]
    after = {"a": {"on": "failure", "handled": True}}
    assert dependencies_of("b", after) == [Dependency("a", "b", "failure", handled=True)]


def test_after_and_handles_name_different_tasks() -> None:
    plan = Constellation("twice")
    plan.add(Task("build"))
    with pytest.raises(PlanError, match="task 'fix' names a task twice: in after=, handles= or teardown="):
        plan.add(Task("fix"), {"build": "failure"}, handles="build")
    assert "fix" not in plan


def test_it_is_written_only_where_it_is_set() -> None:
    plan = built()
    written = {edge["target"]: edge for edge in plan.to_json()["dependencies"]}
    assert written["fix"] == {"source": "build", "target": "fix", "on": "failure", "handled": True}
    assert "handled" not in written["test"]
    assert through_json(plan).node("fix").parents["build"].handled


def test_an_edit_has_it_in_its_words_and_its_json() -> None:
    edit = edits.AddDependency("build", "fix", "failure", handled=True)
    assert str(edit) == "add dependency 'build' -> 'fix' on failure, handled"
    assert edits.edit_from_json(edit.to_json()) == edit
