"""The documented members of tasks, lines and plans."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from asterism.compat.galaxy import (
    ConstellationState,
    DependencyType,
    ModificationRejected,
    TaskConfiguration,
    TaskConstellation,
    TaskPriority,
    TaskStar,
    TaskStarLine,
    TaskStarLineSchema,
    TaskStarSchema,
    TaskStatus,
)
from tests.compat.compat_scenes import DIALECTS, GALAXY, Dialect
from tests.laboratory.plan_invariants import check_invariants

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_validation() -> None:
    star = TaskStar(task_id="", name="", description="", timeout=-1.0, retry_count=-2)
    assert star.get_validation_errors() == [], "nothing was validated yet"
    assert not star.validate()
    assert star.get_validation_errors() == [
        "Task description must be a non-empty string",
        "Timeout must be a positive number",
        "Retry count must be a whole number, 0 or more",
    ]
    assert (star.timeout, star.retry_count) == (-1.0, -2)
    with pytest.raises(ModificationRejected, match=r"timeout=-1.0, retry_count=-2 is not valid"):
        TaskConstellation().add_task(star)
    star.description, star.timeout, star.retry_count = "do it", 5.0, 1
    assert star.validate()
    assert star.get_validation_errors() == []
    TaskConstellation().add_task(star)
    with pytest.raises(ModificationRejected, match="timeout"):
        star.timeout = -1.0
    assert star.timeout == 5.0


def test_configuration_comes_before_the_other_arguments() -> None:
    config = TaskConfiguration(timeout=7.0, retry_count=3, priority=TaskPriority.HIGH, metadata={"a": 1})
    star = TaskStar("A", timeout=1.0, task_data={"a": 0, "b": 2}, config=config)
    assert (star.timeout, star.retry_count, star.priority) == (7.0, 3, TaskPriority.HIGH)
    assert star.task_data == {"a": 1, "b": 2}
    assert star.node.task.backoff == 1.0
    kept = TaskStar("A", timeout=1.0, retry_count=2, config=TaskConfiguration(retry_delay=0.5))
    assert (kept.timeout, kept.retry_count, kept.node.task.backoff) == (1.0, 2, 0.5)


def test_retrying_by_hand() -> None:
    star = TaskStar("A", retry_count=1)
    with pytest.raises(ValueError, match="not failed"):
        star.retry()
    star.start_execution()
    star.complete_with_failure(RuntimeError("no"))
    assert star.should_retry()
    star.retry()
    assert (star.status, star.error, star._current_retry, star._retry_count) == (TaskStatus.PENDING, None, 1, 1)
    star.start_execution()
    assert star._current_retry == 1
    star.complete_with_failure(RuntimeError("no"))
    assert not star.should_retry()
    with pytest.raises(ValueError, match="used up"):
        star.retry()


def test_a_retry_is_refused_after_a_dependent_has_started() -> None:
    plan = GALAXY.plan(
        TaskStar("A", retry_count=1), "B", "C", lines=["A>B", TaskStarLine.create_success_only("A", "C")]
    )
    plan.mark_task_completed("A", False, error=RuntimeError("no"))
    star = plan.tasks["A"]
    star.retry()
    assert (plan.tasks["B"].is_ready_to_execute, plan.state) == (False, ConstellationState.READY)
    check_invariants(plan.plan)
    plan.mark_task_completed("A", False)
    plan.start_task("B")
    star._status = TaskStatus.FAILED
    with pytest.raises(ValueError, match="used up"):
        star.retry()
    other = GALAXY.plan(TaskStar("A", retry_count=5), "B", lines=["A>B"])
    other.mark_task_completed("A", False)
    other.start_task("B")
    with pytest.raises(ValueError, match="'B' started after its end"):
        other.tasks["A"].retry()


def test_times() -> None:
    before = datetime.now(UTC)
    star = TaskStar("A")
    assert before <= star.created_at == star.updated_at
    star.description = "another"
    assert star.updated_at >= star.created_at
    star.start_execution()
    assert star.updated_at == star.execution_start_time
    assert star.task_description == "another"
    other = TaskStar("B")
    other.task_description = "set by its other name"
    assert other.description == "set by its other name"


def test_a_task_as_json(tmp_path: Path) -> None:
    star = TaskStar("A", "a", "do A", ["tip"], "robot", "linux", "high", 5.0, 2, {"deep": {"list": [1]}}, "text")
    star.start_execution()
    star.complete_with_failure(RuntimeError("no"))
    star.retry()
    path = str(tmp_path / "task.json")
    text = star.to_json(save_path=path)
    for read in (
        TaskStar.from_json(json_data=text),
        TaskStar.from_json(file_path=path),
        TaskStar.from_dict(star.to_dict()),
        TaskStar.from_basemodel(star.to_basemodel()),
    ):
        assert read.to_dict() == star.to_dict()
        assert read.node.task == star.node.task
        assert (read._current_retry, read.created_at) == (1, star.created_at)
    done = TaskStar("B")
    done.start_execution()
    done.complete_with_success({"rows": {1, 2}})
    again = TaskStar.from_json(done.to_json())
    assert (again.status, again.result) == (TaskStatus.COMPLETED, {"rows": "{1, 2}"})
    assert isinstance(star.to_basemodel(), TaskStarSchema)
    for wrong in ("[]", "nonsense"):
        with pytest.raises(ValueError, match=r"."):
            TaskStar.from_json(wrong)
    with pytest.raises(ValueError, match="either"):
        TaskStar.from_json()
    with pytest.raises(ValueError, match="TaskStarSchema"):
        TaskStar.from_basemodel({"task_id": "A"})  # type: ignore[arg-type]


def test_dependencies_of_a_task() -> None:
    plan = GALAXY.plan("A", "B", "C")
    star = plan.tasks["B"]
    star.add_dependency("A")
    star.add_dependent("C")
    assert (star._dependencies, star._dependents) == ({"A"}, {"C"})
    assert plan.dependency_count == 2
    star.remove_dependency("A")
    assert star._dependencies == frozenset()
    with pytest.raises(ModificationRejected, match="cycle"):
        star.add_dependency("C")
    with pytest.raises(ModificationRejected, match="does not depend"):
        star.remove_dependency("A")
    with pytest.raises(ModificationRejected, match="in no constellation"):
        TaskStar("alone").add_dependency("A")


# -- lines -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "on_result", "on_nothing"),
    [
        (DependencyType.UNCONDITIONAL, True, True),
        (DependencyType.COMPLETION_ONLY, True, True),
        (DependencyType.SUCCESS_ONLY, True, False),
        (DependencyType.CONDITIONAL, True, False),
    ],
)
def test_evaluating_a_line(kind: DependencyType, on_result: bool, on_nothing: bool) -> None:
    line = TaskStarLine("A", "B", kind)
    assert (line.is_satisfied(), line.last_evaluation_result, line.last_evaluation_time) == (False, None, None)
    assert line.evaluate_condition({"ok": True}) is on_result
    assert line.is_satisfied() is line.last_evaluation_result is on_result
    assert line.last_evaluation_time is not None
    assert line.evaluate_condition(None) is on_nothing
    assert line.is_satisfied() is on_nothing


def test_evaluating_a_function() -> None:
    line = TaskStarLine.create_conditional("A", "B", "enough", lambda result: result["coverage"] > 80)
    assert line.evaluate_condition({"coverage": 85})
    assert not line.evaluate_condition({"coverage": 75})
    assert not line.evaluate_condition({}), "an evaluator that raises counts as false"
    assert line.last_evaluation_result is False
    line.evaluate_condition({"coverage": 85})
    line.set_condition_evaluator(bool)
    assert not line.is_satisfied(), "another function has judged nothing yet"


def test_satisfaction_by_hand_and_by_the_plan() -> None:
    line = TaskStarLine("A", "B")
    line.mark_satisfied()
    assert line.is_satisfied()
    line.reset_satisfaction()
    assert (line.is_satisfied(), line.last_evaluation_time) == (False, None)
    assert line.is_satisfied(["A", "C"])
    assert not line.is_satisfied([])
    plan = GALAXY.plan("A", "B", lines=[line])
    for refused in (line.mark_satisfied, line.reset_satisfaction):
        with pytest.raises(ModificationRejected, match="judges it by itself"):
            refused()
    assert line.evaluate_condition(1)
    assert not line.is_satisfied(), "in a plan the task decides, and it has not run"
    plan.mark_task_completed("A", True)
    assert line.is_satisfied()
    assert line.last_evaluation_time == plan.tasks["A"].execution_end_time


def test_a_line_as_json(tmp_path: Path) -> None:
    line = TaskStarLine("A", "B", "success_only", "after A", line_id="L", metadata={"why": "because"})
    line.evaluate_condition(1)
    line.update_metadata({"who": "me"})
    assert line.metadata == {"why": "because", "who": "me"}
    assert (line.source_task_id, line.target_task_id) == ("A", "B")
    path = str(tmp_path / "line.json")
    text = line.to_json(save_path=path)
    assert json.loads(text)["is_satisfied"] is True
    for read in (
        TaskStarLine.from_json(json_data=text),
        TaskStarLine.from_json(file_path=path),
        TaskStarLine.from_dict(line.to_dict()),
        TaskStarLine.from_basemodel(line.to_basemodel()),
    ):
        assert read.to_dict() == line.to_dict()
    assert isinstance(line.to_basemodel(), TaskStarLineSchema)
    assert line.updated_at >= line.created_at
    with pytest.raises(ValueError, match="needs 'to_task_id'"):
        TaskStarLine.from_dict({"from_task_id": "A"})


# -- plans -------------------------------------------------------------------------------------------------------------


@each_dialect
def test_reading_a_plan(dialect: Dialect) -> None:
    plan = dialect.plan("A", "B", "C", "D", lines=["A>B", "A>C", "B>D"])
    assert (plan.task_count, plan.dependency_count) == (4, 3)
    assert [task.task_id for task in plan.get_pending_tasks()] == ["A", "B", "C", "D"]
    plan.mark_task_completed("A", True)
    plan.start_task("B")
    plan.mark_task_completed("C", False)
    assert [task.task_id for task in plan.get_all_tasks()] == ["A", "B", "C", "D"]
    for status, expected in (("running", ["B"]), ("completed", ["A"]), ("failed", ["C"]), ("pending", ["D"])):
        assert [task.task_id for task in getattr(plan, f"get_{status}_tasks")()] == expected
    assert (plan.is_task_modifiable("D"), plan.is_task_modifiable("B"), plan.is_task_modifiable("?")) == (
        True,
        False,
        False,
    )
    (line,) = plan.get_modifiable_dependencies()
    assert (line.from_task_id, line.to_task_id) == ("B", "D")
    assert plan.is_dependency_modifiable(line.line_id)
    assert not plan.is_dependency_modifiable("?")
    assert plan.get_task_dependencies("D") == [line]
    assert plan.get_task_dependencies("?") == []
    assert len(plan.get_all_dependencies()) == 3
    assert not plan.has_cycle()


def test_paths_and_widths() -> None:
    plan = GALAXY.plan("a", "b", "c", "d", lines=["a>b", "a>c", "b>d", "c>d"])
    assert plan.get_longest_path()[0] == 3
    assert plan.get_longest_path()[1][::2] == ["a", "d"]
    assert plan.get_max_width() == 2
    assert plan.get_critical_path_length_with_time() == (0.0, [])
    assert plan.get_total_work() == 0.0
    for task_id, seconds in (("a", 1.0), ("b", 5.0), ("c", 2.0), ("d", 1.0)):
        star = plan.tasks[task_id]
        star._status = TaskStatus.COMPLETED
        star._execution_start_time = datetime(2026, 1, 1, tzinfo=UTC)
        star._execution_end_time = datetime(2026, 1, 1, 0, 0, int(seconds), tzinfo=UTC)
    assert plan.get_critical_path_length_with_time() == (7.0, ["a", "b", "d"])
    assert plan.get_total_work() == 9.0
    assert plan.get_parallelism_metrics()["parallelism_ratio"] == pytest.approx(9 / 7)


@each_dialect
def test_an_execution_by_hand(dialect: Dialect) -> None:
    plan = dialect.plan("A", "B", lines=["A>B"])
    assert plan.execution_start_time is plan.execution_end_time is plan.execution_duration is None
    plan.start_execution()
    assert plan.state is ConstellationState.EXECUTING
    assert plan.execution_start_time is not None
    with pytest.raises(ModificationRejected, match="cannot begin"):
        plan.start_execution()
    with pytest.raises(ModificationRejected, match="A, B have not ended"):
        plan.complete_execution()
    for task_id in ("A", "B"):
        plan.start_task(task_id)
        plan.mark_task_completed(task_id, True)
        check_invariants(plan.plan)
    plan.complete_execution()
    assert (plan.state, plan.execution_duration is not None) == (ConstellationState.COMPLETED, True)
    plan.complete_execution()
    with pytest.raises(ModificationRejected, match="no task '\\?'"):
        plan.start_task("?")
    plan.add_task(TaskStar("C"))
    plan.start_execution()
    assert plan.execution_duration is None


@each_dialect
def test_a_plan_as_a_model(dialect: Dialect) -> None:
    plan = dialect.plan("A", "B", lines=["A>B"])
    plan.metadata["owner"] = "me"
    plan.mark_task_completed("A", True, result=1)
    model = plan.to_basemodel()
    assert type(model).__name__ == f"Task{dialect.noun.capitalize()}Schema"
    read = type(plan).from_basemodel(model)
    before, after = plan.to_dict(), read.to_dict()
    for data in (before, after):
        assert data["tasks"]["A"].pop("execution_duration") >= 0.0  # times are written to the microsecond
    assert (after["tasks"], after["dependencies"], after["metadata"]) == (
        before["tasks"],
        before["dependencies"],
        before["metadata"],
    )
    with pytest.raises(ValueError, match="Schema"):
        type(plan).from_basemodel({"tasks": []})


def test_metadata_of_a_plan() -> None:
    metadata: dict[str, Any] = {"owner": "me"}
    plan = TaskConstellation("id", "name", metadata=metadata)
    metadata["owner"] = "you"
    assert (plan.constellation_id, plan.name, plan.metadata) == ("id", "name", {"owner": "me"})


def test_displaying(capsys: pytest.CaptureFixture[str]) -> None:
    plan = GALAXY.plan("A", "B", lines=["A>B"])
    plan.mark_task_completed("A", False, error=RuntimeError("no"))
    plan.display_dag()
    assert capsys.readouterr().out == "plan (executing): 2 tasks, 1 dependencies\n  1 pending, 1 failed\n"
    plan.display_dag(mode="details")
    assert "error: no" in capsys.readouterr().out


@pytest.mark.parametrize("data", [{"tasks": ["A"]}, {"tasks": [{"task_id": "A"}], "dependencies": [7]}])
def test_invalid_parts_of_a_plan_are_a_value_error(data: Any) -> None:
    with pytest.raises(ValueError, match="must be an object"):
        TaskConstellation.from_dict(data)
