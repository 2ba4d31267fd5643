"""The facts of the public API: names, signatures, tasks, lines, plans and their JSON."""

from __future__ import annotations

import copy
import inspect
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asterism.compat import galaxy, orion
from asterism.compat.galaxy import (
    ConstellationEvent,
    ConstellationState,
    DependencyType,
    DeviceType,
    EventType,
    ExecutionResult,
    ModificationRejected,
    TaskConstellation,
    TaskConstellationOrchestrator,
    TaskEvent,
    TaskPriority,
    TaskStar,
    TaskStarLine,
    TaskStatus,
)
from tests.compat.compat_scenes import DIALECTS, GALAXY, Devices, Dialect, Session, run

DOCUMENTED = {
    *("TaskConstellation", "TaskStar", "TaskStarLine", "DependencyType", "TaskStatus", "TaskPriority"),
    *("ConstellationState", "TaskConstellationOrchestrator", "ConstellationModificationSynchronizer", "EventBus"),
    *("get_event_bus", "EventType", "Event", "TaskEvent", "ConstellationEvent", "IEventObserver", "ExecutionResult"),
}
ORION_NAMES = {
    *("TaskOrion", "TaskStar", "TaskStarLine", "DependencyType", "TaskStatus", "TaskPriority", "TaskOrionOrchestrator"),
    *("OrionModificationSynchronizer", "EventBus", "get_event_bus", "EventType", "Event", "TaskEvent", "OrionEvent"),
    *("IEventObserver", "ExecutionResult"),
}

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


# -- names and signatures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "names"), [(galaxy, DOCUMENTED), (orion, ORION_NAMES)])
def test_every_name_is_exported(module: Any, names: set[str]) -> None:
    assert names <= set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_signatures() -> None:
    star = "task_id name description tips target_device_id device_type priority timeout retry_count task_data"
    assert parameters(TaskStar)[:10] == star.split()
    assert parameters(TaskStar)[-1] == "config"
    assert parameters(TaskStarLine)[:3] == ["from_task_id", "to_task_id", "dependency_type"]
    assert "line_id" in parameters(TaskStarLine)
    assert parameters(TaskConstellation) == ["constellation_id", "name", "metadata"]
    assert parameters(orion.TaskOrion) == ["orion_id", "name", "metadata"]
    assert parameters(TaskConstellationOrchestrator) == ["device_manager", "enable_logging", "event_bus"]
    more = ["device_assignments", "assignment_strategy", "metadata"]
    assert parameters(TaskConstellationOrchestrator.orchestrate_constellation) == ["constellation", *more]
    assert parameters(orion.TaskOrionOrchestrator.orchestrate_orion) == ["orion", *more]
    assert parameters(TaskConstellation.mark_task_completed) == ["task_id", "success", "result", "error"]
    synchronizer = galaxy.ConstellationModificationSynchronizer
    assert parameters(synchronizer.merge_and_sync_constellation_states) == ["orchestrator_constellation"]
    assert parameters(orion.OrionModificationSynchronizer.merge_and_sync_orion_states) == ["orchestrator_orion"]
    event = ["event_type", "source_id", "timestamp", "data"]
    assert parameters(TaskEvent) == [*event, "task_id", "status", "result", "error"]
    assert parameters(ConstellationEvent)[:6] == [*event, "constellation_id", "constellation_state"]
    assert parameters(orion.OrionEvent)[:6] == [*event, "orion_id", "orion_state"]
    assert parameters(ExecutionResult)[:5] == ["task_id", "status", "result", "error", "metadata"]
    assert parameters(galaxy.EventBus.subscribe) == ["observer", "event_types"]


def test_enumerations() -> None:
    assert {status.value for status in TaskStatus} == {
        "pending",
        "waiting_dependency",
        "running",
        "completed",
        "failed",
        "cancelled",
    }
    assert [(priority.name, priority.value) for priority in TaskPriority] == [
        ("LOW", 1),
        ("MEDIUM", 2),
        ("HIGH", 3),
        ("CRITICAL", 4),
    ]
    assert {kind.name for kind in DependencyType} == {"UNCONDITIONAL", "CONDITIONAL", "SUCCESS_ONLY", "COMPLETION_ONLY"}
    assert {state.value for state in ConstellationState} >= {
        "created",
        "ready",
        "executing",
        "completed",
        "failed",
        "partially_failed",
    }
    for noun in ("CONSTELLATION", "ORION"):
        for what in ("STARTED", "COMPLETED", "FAILED", "MODIFIED"):
            assert EventType[f"{noun}_{what}"].value == f"{noun}_{what}".lower()


# -- stars -------------------------------------------------------------------------------------------------------------


def test_a_star_on_its_own() -> None:
    star = TaskStar(
        task_id="A",
        name="first",
        description="open the door",
        tips=["knock first"],
        target_device_id="robot",
        device_type=DeviceType.LINUX,
        priority=TaskPriority.HIGH,
        timeout=5.0,
        retry_count=2,
        task_data={"door": 7},
    )
    assert (star.task_id, star.name, star.description, star.tips) == ("A", "first", "open the door", ["knock first"])
    assert (star.target_device_id, star.device_type, star.priority) == ("robot", DeviceType.LINUX, TaskPriority.HIGH)
    assert (star.timeout, star.retry_count, star.task_data) == (5.0, 2, {"door": 7})
    assert (star.status, star.result, star.error) == (TaskStatus.PENDING, None, None)
    assert star.execution_start_time is star.execution_end_time is star.execution_duration is None
    assert star.is_ready_to_execute
    star.description, star.priority, star.device_type = "close it", "low", None
    star.tips, star.timeout, star.retry_count, star.target_device_id = None, None, 0, None
    star.name = "second"
    star.update_task_data({"key": 1})
    assert (star.name, star.description, star.priority, star.task_data) == (
        "second",
        "close it",
        TaskPriority.LOW,
        {"door": 7, "key": 1},
    )
    assert len(TaskStar().task_id) == 36, "an id is made up"


def test_the_life_of_a_star_by_hand() -> None:
    star = TaskStar("A")
    before = datetime.now(UTC)
    star.start_execution()
    assert star.status is TaskStatus.RUNNING
    assert star.execution_start_time is not None
    assert before <= star.execution_start_time
    with pytest.raises(ValueError, match="running"):
        star.start_execution()
    with pytest.raises(ValueError, match="running"):
        star.description = "too late"
    star.complete_with_success(42)
    assert (star.status, star.result, star.is_terminal) == (TaskStatus.COMPLETED, 42, True)
    assert star.execution_duration is not None
    with pytest.raises(ValueError, match="completed"):
        star.complete_with_failure(RuntimeError())
    twin = copy.deepcopy(star)
    assert (twin.status, twin.result, twin.plan is star.plan) == (TaskStatus.COMPLETED, 42, False)
    other = TaskStar("B")
    other.cancel()
    assert other.status is TaskStatus.CANCELLED


@pytest.mark.parametrize("wrong", [{"priority": "enormous"}, {"device_type": "toaster"}])
def test_an_invalid_star(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        TaskStar("A", **wrong)


def test_execute_calls_the_device_manager() -> None:
    devices = Devices(answers={"A": ExecutionResult("A", TaskStatus.COMPLETED, "done", metadata={"steps": 3})})
    star = TaskStar("A", description="open", tips=["knock"], target_device_id="robot", task_data={"door": 7})
    result = run(star.execute(devices))
    assert {k: v for k, v in devices.calls[0].items() if k != "at"} == {
        "task_id": "A",
        "device_id": "robot",
        "task_description": "Task Description: open\nTips for Completion:\n - knock",
        "task_data": {"door": 7},
        "timeout": 1000.0,
    }
    assert (result.result, result.metadata, result.is_successful) == ("done", {"steps": 3}, True)
    assert result.execution_time >= 0
    assert ExecutionResult("A", "completed").execution_time is None


def test_execute_never_raises_for_the_device() -> None:
    failed = run(TaskStar("A", target_device_id="robot").execute(Devices(answers={"A": OSError("unplugged")})))
    assert (failed.status, str(failed.error)) == (TaskStatus.FAILED, "unplugged")
    with pytest.raises(ValueError, match="no device"):
        run(TaskStar("A").execute(Devices()))


def test_a_manager_with_a_result_class_of_its_own() -> None:
    class Manager(Devices):
        async def assign_task_to_device(self, *, task_id: str, **about: Any) -> Any:
            if task_id == "A":
                return SimpleNamespace(status="completed", result="from elsewhere")
            return "not a result at all"

    session = Session(GALAXY, Manager())
    session.agent()
    plan = GALAXY.plan("A", "B", lines=["A>B"])
    outcome = session.run(plan)
    assert plan.tasks["A"].result.result == "from elsewhere"
    assert "not an ExecutionResult" in str(outcome["results"]["B"].error)


# -- lines -------------------------------------------------------------------------------------------------------------


def test_the_ways_to_make_a_line() -> None:
    plain = TaskStarLine("A", "B", line_id="mine")
    assert (plain.line_id, plain.dependency_type) == ("mine", DependencyType.UNCONDITIONAL)
    assert TaskStarLine.create_unconditional("A", "B").dependency_type is DependencyType.UNCONDITIONAL
    assert TaskStarLine.create_success_only("A", "B").dependency_type is DependencyType.SUCCESS_ONLY
    line = TaskStarLine.create_conditional("A", "B", "big enough", lambda result: result > 5)
    assert (line.dependency_type, line.condition_description) == (DependencyType.CONDITIONAL, "big enough")
    plain.set_condition_evaluator(bool)
    plain.dependency_type = DependencyType.CONDITIONAL
    assert plain.condition_evaluator is bool
    with pytest.raises(ValueError, match="itself"):
        GALAXY.plan("A", lines=["A>A"])


def holds(line: TaskStarLine, **end: Any) -> bool:
    plan = GALAXY.plan("A", "B", lines=[line])
    return [task.task_id for task in plan.mark_task_completed("A", **end)] == ["B"]


@pytest.mark.parametrize(
    ("kind", "on_success", "on_failure"),
    [
        (DependencyType.UNCONDITIONAL, True, True),
        (DependencyType.COMPLETION_ONLY, True, True),
        (DependencyType.SUCCESS_ONLY, True, False),
        (DependencyType.CONDITIONAL, True, False),  # without a function
        ("SUCCESS_ONLY", True, False),
    ],
)
def test_when_a_line_fires(kind: Any, on_success: bool, on_failure: bool) -> None:
    assert holds(TaskStarLine("A", "B", kind), success=True, result=1) is on_success
    assert holds(TaskStarLine("A", "B", kind), success=False, error=RuntimeError()) is on_failure


def test_a_condition_is_a_function_of_the_result() -> None:
    def line(function: Any) -> TaskStarLine:
        return TaskStarLine.create_conditional("A", "B", "", function)

    assert holds(line(lambda result: result > 5), success=True, result=6)
    assert not holds(line(lambda result: result > 5), success=True, result=5)
    assert not holds(line(lambda result: result["missing"]), success=True, result={}), "an exception counts as false"
    assert holds(line(lambda result: result is None), success=False, error=RuntimeError()), (
        "a failed task has no result"
    )
    wrapped = ExecutionResult("A", "completed", {"ok": True})
    assert holds(line(lambda result: result["ok"]), success=True, result=wrapped)
    assert holds(line(lambda result: result.result["ok"]), success=True, result=wrapped)


@each_dialect
def test_conditions_decide_in_a_run(dialect: Dialect) -> None:
    def when(function: Any, target: str) -> TaskStarLine:
        return TaskStarLine.create_conditional("A", target, "", function)

    lines = [
        when(lambda result: result["score"] > 80, "good"),
        when(lambda result: result["score"] <= 80, "bad"),
        when(lambda result: result.nonsense, "raises"),
    ]
    session = Session(dialect, Devices(answers={"A": {"score": 90}}))
    session.agent()
    outcome = session.run(dialect.plan("A", "good", "bad", "raises", lines=lines))
    assert session.devices.started == ["A", "good"]
    assert outcome["status"] == "completed"


def test_a_line_can_be_changed_in_its_plan() -> None:
    plan = GALAXY.plan("A", "B", lines=["A>B"])
    line = next(iter(plan.dependencies.values()))
    line.dependency_type = DependencyType.SUCCESS_ONLY
    assert plan.mark_task_completed("A", False, error=RuntimeError()) == []
    line.dependency_type = "unconditional"
    assert [task.task_id for task in plan.get_ready_tasks()] == ["B"]
    plan.tasks["B"].start_execution()
    with pytest.raises(ModificationRejected, match="running"):
        line.dependency_type = DependencyType.SUCCESS_ONLY
    assert line.dependency_type is DependencyType.UNCONDITIONAL
    with pytest.raises(ModificationRejected, match="running"):
        line.set_condition_evaluator(bool)
    assert line.condition_evaluator is None


# -- constellations ----------------------------------------------------------------------------------------------------


@each_dialect
def test_building_and_reading(dialect: Dialect) -> None:
    plan = dialect.plan_class(name="named")
    assert (plan.name, plan.state) == ("named", ConstellationState.CREATED)
    assert getattr(plan, f"{dialect.noun}_id") == plan.plan_id
    assert dialect.plan_class().plan_id != dialect.plan_class().plan_id
    star, line = TaskStar("A"), TaskStarLine("A", "B", line_id="L")
    plan.add_task(star)
    plan.add_task(TaskStar("B"))
    plan.add_dependency(line)
    assert plan.tasks == {"A": star, "B": plan.get_task("B")}
    assert plan.dependencies == {"L": line}
    assert plan.get_task("C") is None
    assert plan.get_dependency("L") is line
    assert plan.state is ConstellationState.READY
    assert not plan.is_complete()
    assert plan.get_topological_order() == ["A", "B"]
    assert plan.get_ready_tasks() == [star]
    assert plan.get_modifiable_tasks() == list(plan.tasks.values())
    plan.update_state()
    plan.remove_dependency("L")
    plan.remove_dependency("L")
    assert plan.dependencies == {}
    assert len(plan.get_ready_tasks()) == 2


@each_dialect
def test_mistakes_are_value_errors(dialect: Dialect) -> None:
    plan = dialect.plan("A", "B", "C", lines=["A>B", "B>C"])
    line = next(iter(plan.dependencies.values()))
    for mistake, said in (
        (lambda: plan.add_task(TaskStar("A")), "already"),
        (lambda: plan.remove_task("nothing"), "no task 'nothing'"),
        (lambda: plan.add_dependency(TaskStarLine("C", "A")), "cycle: .*A -> B -> C"),
        (lambda: plan.add_dependency(TaskStarLine("A", "nothing")), "no task 'nothing'"),
        (lambda: plan.add_dependency(TaskStarLine("A", "B")), "already"),
        (lambda: plan.add_dependency(TaskStarLine("A", "C", line_id=line.line_id)), "already"),
        (lambda: plan.mark_task_completed("nothing", True), "no task 'nothing'"),
        (lambda: plan.mark_task_completed("B", True), "cannot start"),
        (lambda: type(plan).from_json("[]"), "JSON object"),
        (lambda: type(plan).from_json(), "either"),
    ):
        with pytest.raises(ValueError, match=said):
            mistake()
    assert len(plan.tasks) == 3


@each_dialect
def test_remove_task_drops_its_edges(dialect: Dialect) -> None:
    plan = dialect.plan("A", "B", "C", lines=["A>B", "B>C"])
    star = plan.tasks["B"]
    plan.remove_task("B")
    assert plan.dependencies == {}
    assert [task.task_id for task in plan.get_ready_tasks()] == ["A", "C"]
    star.description = "it stands on its own again"
    plan.add_task(star)
    assert plan.tasks["B"] is star


def test_a_task_of_another_constellation_is_copied() -> None:
    first, second = GALAXY.plan("A"), GALAXY.plan(id="two")
    first.mark_task_completed("A", True, result=1)
    second.add_task(first.tasks["A"])
    assert second.tasks["A"] is not first.tasks["A"]
    assert (second.tasks["A"].status, second.tasks["A"].result) == (TaskStatus.COMPLETED, 1)


@each_dialect
def test_states_of_a_plan_that_is_driven_by_hand(dialect: Dialect) -> None:
    plan = dialect.plan("A", "B", "C", lines=["A>B", "A>C"])
    assert [task.task_id for task in plan.mark_task_completed("A", True, result="r")] == ["B", "C"]
    assert plan.state is ConstellationState.EXECUTING
    plan.tasks["B"].start_execution()
    assert [task.task_id for task in plan.get_modifiable_tasks()] == ["C"]
    plan.mark_task_completed("B", False, error=RuntimeError("no"))
    plan.mark_task_completed("C", True)
    assert plan.is_complete()
    assert plan.state is ConstellationState.PARTIALLY_FAILED
    alone = dialect.plan("A")
    alone.tasks["A"].cancel()
    assert alone.state == "cancelled"
    failed = dialect.plan("A")
    failed.mark_task_completed("A", False)
    assert failed.state is ConstellationState.FAILED


@each_dialect
def test_figures(dialect: Dialect) -> None:
    assert dialect.plan().get_parallelism_metrics() == {
        "critical_path_length": 0,
        "total_work": 0,
        "parallelism_ratio": 0.0,
        "calculation_mode": "empty",
        "critical_path_tasks": [],
        "max_width": 0,
    }
    plan = dialect.plan("A", "B", "C", "D", lines=["A>B", "A>C", "B>D"])
    assert plan.get_parallelism_metrics() == {
        "critical_path_length": 3,
        "total_work": 4,
        "parallelism_ratio": 4 / 3,
        "calculation_mode": "node_count",
        "critical_path_tasks": ["A", "B", "D"],
        "max_width": 2,
    }
    session = Session(dialect, Devices(seconds={"C": 3.0}))
    session.agent()
    statistics = session.run(plan)["statistics"]
    assert statistics == plan.get_statistics()
    assert set(statistics) == {
        f"{dialect.noun}_id",
        "name",
        "state",
        "total_tasks",
        "total_dependencies",
        "task_status_counts",
        "longest_path_length",
        "longest_path_tasks",
        "max_width",
        "critical_path_length",
        "total_work",
        "parallelism_ratio",
        "parallelism_calculation_mode",
        "critical_path_tasks",
        "execution_duration",
        "created_at",
        "updated_at",
    }
    assert (statistics["total_tasks"], statistics["total_dependencies"], statistics["max_width"]) == (4, 3, 2)
    assert statistics["task_status_counts"] == {"completed": 4}
    assert (statistics["critical_path_length"], statistics["critical_path_tasks"]) == (4.0, ["A", "C"])
    assert (statistics["total_work"], statistics["execution_duration"]) == (6.0, 4.0)


@each_dialect
def test_json_round_trip(dialect: Dialect, tmp_path: Path) -> None:
    line = TaskStarLine.create_conditional("A", "B", "fine", lambda result: True)
    star = TaskStar("B", "b", "do B", ["tip"], "robot", "linux", "high", 5.0, 2, {"deep": {"list": [1]}}, "text")
    plan = dialect.plan("A", star, "C", "D", lines=[line, TaskStarLine.create_success_only("A", "C"), "A>D"])
    plan.metadata["owner"] = "somebody"
    plan.mark_task_completed("A", True, result=ExecutionResult("A", TaskStatus.COMPLETED, {1, 2}))
    plan.mark_task_completed("C", False, error=RuntimeError("no"))
    plan.tasks["D"].start_execution()
    file = str(tmp_path / "plan.json")
    text = plan.to_json(save_path=file)
    read = type(plan).from_json(file_path=file)
    assert json.loads(text)[f"{dialect.noun}_id"] == read.plan_id == "plan"
    written, again = json.loads(text), json.loads(read.to_json())
    assert written["dependencies"] == again["dependencies"]
    for task_id, task in written["tasks"].items():
        assert task.pop("execution_duration") == pytest.approx(
            again["tasks"][task_id].pop("execution_duration"), abs=1e-5
        )
        assert task == again["tasks"][task_id]
    assert read.metadata == {"owner": "somebody"}
    assert {task_id: task.status.value for task_id, task in read.tasks.items()} == {
        "A": "completed",
        "B": "pending",
        "C": "failed",
        "D": "running",
    }
    assert read.tasks["B"].is_ready_to_execute, "what the condition said before is remembered"
    assert read.tasks["B"].node.task == star.node.task
    assert str(read.tasks["C"].error) == "no"
    assert read.tasks["A"].result["result"] == "{1, 2}", "what JSON cannot hold is written as text"
    assert read.tasks["D"].execution_start_time == plan.tasks["D"].execution_start_time


def test_json_without_the_function_of_a_condition() -> None:
    """The function cannot be written. Until it is set again the condition cannot be evaluated, and no task starts."""
    line = TaskStarLine.create_conditional("A", "B", "fine", bool)
    read = TaskConstellation.from_json(GALAXY.plan("A", "B", lines=[line]).to_json())
    assert copy.deepcopy(read).mark_task_completed("A", True, result=1) == []
    valid, errors = read.validate_dag()
    assert not valid
    assert "no condition_evaluator is known" in errors[0]
    again = next(iter(read.dependencies.values()))
    again.set_condition_evaluator(bool)
    assert read.validate_dag() == (True, [])
    assert [task.task_id for task in read.mark_task_completed("A", True, result=1)] == ["B"]


def test_json_holds_what_json_can_hold() -> None:
    plan = GALAXY.plan(TaskStar("A", task_data={"odd": float("nan")}))
    assert "nan" in TaskConstellation.from_json(plan.to_json()).to_json()


def test_representations() -> None:
    line = TaskStarLine("A", "B")
    plan = GALAXY.plan("A", "B", lines=[line])
    assert repr(plan) == "<TaskConstellation 'plan' ready, 2 tasks>"
    assert repr(plan.tasks["A"]) == "<TaskStar 'A' pending>"
    assert repr(copy.deepcopy(line)) == "<TaskStarLine 'A' -> 'B' unconditional>"


def test_json_of_another_program() -> None:
    """Names of enumerations in capitals, lists instead of objects, and nothing that could be left out."""
    plan = TaskConstellation.from_dict(
        {
            "tasks": [
                {"task_id": "A", "priority": "HIGH", "status": "PENDING"},
                {"task_id": "B", "device_type": "LINUX"},
            ],
            "dependencies": [{"from_task_id": "A", "to_task_id": "B", "dependency_type": "SUCCESS_ONLY"}],
        }
    )
    assert plan.tasks["A"].priority is TaskPriority.HIGH
    assert plan.tasks["B"].device_type is DeviceType.LINUX
    assert not plan.tasks["B"].is_ready_to_execute
    with pytest.raises(ValueError, match="cycle"):
        TaskConstellation.from_dict(
            {
                "tasks": [{"task_id": "A"}, {"task_id": "B"}],
                "dependencies": [
                    {"from_task_id": "A", "to_task_id": "B"},
                    {"from_task_id": "B", "to_task_id": "A"},
                ],
            }
        )


@each_dialect
def test_a_copy_is_independent(dialect: Dialect) -> None:
    plan = dialect.plan("A", "B", lines=["A>B"])
    for mine in (copy.copy(plan), copy.deepcopy(plan)):
        mine.add_task(TaskStar("C"))
        mine.tasks["A"].description = "mine"
        mine.remove_task("B")
        mine.mark_task_completed("A", True)
    assert list(plan.tasks) == ["A", "B"]
    assert len(plan.dependencies) == 1
    assert (plan.tasks["A"].description, plan.tasks["A"].status) == ("do A", TaskStatus.PENDING)
