"""The editor: every command is an edit of the core, refused or done completely, and undone by the core's inverse."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.compat.galaxy import (
    CommandExecutionError,
    ConstellationEditor,
    DependencyType,
    TaskConstellationSchema,
    TaskPriority,
    TaskStar,
    TaskStarLine,
    TaskStatus,
)
from tests.compat.compat_scenes import DIALECTS, GALAXY, Devices, Dialect, Session, at
from tests.laboratory.plan_invariants import check_invariants

pytestmark = pytest.mark.virtual_time


def look(plan: Any) -> Any:
    """All of a plan but its version and its times, in no particular order."""
    data = json.loads(plan.to_json())
    for part in (data, *data["tasks"].values(), *data["dependencies"].values()):
        for name in ("version", "updated_at", "created_at"):
            part.pop(name, None)
    return data


def pipeline() -> ConstellationEditor:
    editor = ConstellationEditor()
    for task_id in ("fetch", "clean", "train"):
        editor.create_and_add_task(task_id, f"do {task_id}")
    editor.create_and_add_dependency("fetch", "clean", "SUCCESS_ONLY")
    editor.create_and_add_dependency("clean", "train", "SUCCESS_ONLY")
    return editor


def test_the_ways_to_add_a_task() -> None:
    editor = ConstellationEditor()
    star = TaskStar("a", description="one")
    assert editor.add_task(star) is star
    assert editor.add_task({"task_id": "b", "description": "two", "timeout": 300.0}).timeout == 300.0
    made = editor.create_and_add_task("c", "three", "C", priority="HIGH", retry_count=2)
    assert (made.name, made.priority, made.retry_count) == ("C", TaskPriority.HIGH, 2)
    assert [task.task_id for task in editor.list_tasks()] == ["a", "b", "c"]
    assert editor.get_task("a") is star
    assert editor.constellation.task_count == 3


def test_a_task_is_updated_in_one_edit() -> None:
    editor = pipeline()
    star = editor.update_task("train", description="train BERT", timeout=7200.0, priority="CRITICAL")
    assert (star.description, star.timeout, star.priority) == ("train BERT", 7200.0, TaskPriority.CRITICAL)
    editor.update_task("train", task_data={"epochs": 10})
    assert star.task_data == {"epochs": 10}
    version = editor.constellation.plan.version
    with pytest.raises(CommandExecutionError):
        editor.update_task("train", description="half", timeout=-1.0)
    assert (star.description, editor.constellation.plan.version) == ("train BERT", version), "nothing of it was done"
    with pytest.raises(CommandExecutionError, match="no field 'colour'"):
        editor.update_task("train", colour="red")


def test_dependencies() -> None:
    editor = pipeline()
    line = editor.list_dependencies()[0]
    assert editor.get_dependency(line.line_id) is line
    assert editor.get_task_dependencies("clean") == [line]
    editor.update_dependency(line.line_id, dependency_type="CONDITIONAL", condition_description="if it is good")
    assert (line.dependency_type, line.condition_description) == (DependencyType.CONDITIONAL, "if it is good")
    assert editor.undo()
    assert (line.dependency_type, line.condition_description) == (DependencyType.SUCCESS_ONLY, "")
    assert editor.get_dependency(line.line_id) is line
    assert editor.redo()
    assert line.dependency_type is DependencyType.CONDITIONAL
    assert editor.remove_dependency(line.line_id) == line.line_id
    assert editor.list_dependencies() != [line]
    editor.undo()
    assert editor.get_dependency(line.line_id) is line, "the line itself comes back"
    for mistake in (
        lambda: editor.add_dependency({"from_task_id": "train", "to_task_id": "fetch"}),
        lambda: editor.add_dependency({"from_task_id": "train"}),
        lambda: editor.add_dependency(TaskStarLine("fetch", "train", line_id=line.line_id)),
        lambda: editor.update_dependency("nothing", condition_description="x"),
        lambda: editor.update_dependency(line.line_id, colour="red"),
        lambda: editor.remove_dependency("nothing"),
    ):
        with pytest.raises(CommandExecutionError):
            mistake()


def test_undo_and_redo() -> None:
    editor = ConstellationEditor()
    assert (editor.can_undo(), editor.can_redo(), editor.undo(), editor.redo()) == (False, False, False, False)
    editor.create_and_add_task("a", "A")
    editor.create_and_add_task("b", "B")
    editor.create_and_add_dependency("a", "b")
    editor.update_task("b", description="another")
    assert editor.get_history() == ["Add task: a", "Add task: b", "Add dependency: a → b", "Update task: b"]
    assert editor.get_undo_description() == "Update task: b"
    full = look(editor.constellation)
    for _ in range(4):
        assert editor.undo()
    assert editor.constellation.task_count == 0
    assert editor.get_redo_description() == "Add task: a"
    for _ in range(4):
        assert editor.redo()
    assert look(editor.constellation) == full
    editor.undo()
    editor.create_and_add_task("c", "C")
    assert not editor.can_redo(), "a new command forgets what was undone"
    editor.clear_history()
    assert not editor.can_undo()


def test_a_removed_task_comes_back_with_its_dependencies_and_its_handle() -> None:
    editor = pipeline()
    star, before = editor.get_task("clean"), look(editor.constellation)
    assert editor.remove_task("clean") == "clean"
    assert editor.list_dependencies() == []
    editor.undo()
    assert look(editor.constellation) == before
    assert editor.get_task("clean") is star
    assert star is not None
    star.description = "it is in the plan again"
    assert editor.constellation.tasks["clean"].description == "it is in the plan again"


def test_undo_does_not_overwrite_a_later_change() -> None:
    editor = pipeline()
    editor.update_task("train", description="mine")
    editor.constellation.tasks["train"].description = "yours"
    with pytest.raises(CommandExecutionError, match="was changed in version"):
        editor.undo()
    assert editor.constellation.tasks["train"].description == "yours"
    assert editor.can_undo(), "what was refused stays in the history"
    editor.constellation.tasks["fetch"].description = "something else"
    editor.create_and_add_task("last", "L")
    assert editor.undo(), "what others did to other tasks does not matter"


def test_history_has_a_limit_and_can_be_off() -> None:
    editor = ConstellationEditor(max_history_size=2)
    for task_id in "abc":
        editor.create_and_add_task(task_id, task_id)
    assert editor.get_history() == ["Add task: b", "Add task: c"]
    without = ConstellationEditor(enable_history=False)
    without.create_and_add_task("a", "A")
    assert not without.can_undo()
    assert without.get_statistics()["editor_execution_count"] == 1


def test_refusals() -> None:
    editor = pipeline()
    before = look(editor.constellation)
    for mistake in (
        lambda: editor.create_and_add_task("fetch", "again"),
        lambda: editor.create_and_add_task("x", "X", timeout=-1.0),
        lambda: editor.create_and_add_task("x", "X", colour="red"),
        lambda: editor.remove_task("nothing"),
        lambda: editor.update_task("nothing", description="x"),
        lambda: editor.create_and_add_dependency("train", "fetch", "UNCONDITIONAL"),
        lambda: editor.create_and_add_dependency("fetch", "nothing"),
        lambda: editor.load_constellation("/no/such/file.json"),
        lambda: editor.load_from_json_string("[]"),
        lambda: editor.create_subgraph(["nothing"]),
        lambda: editor.execute_command_by_name("dance"),
        lambda: editor.execute_command_by_name("remove_task", colour="red"),
    ):
        with pytest.raises(CommandExecutionError) as caught:
            mistake()
        assert isinstance(caught.value, ValueError)
        assert caught.value.violations
    assert look(editor.constellation) == before
    assert len(editor.get_history()) == 5


CONFIG: dict[str, Any] = {
    "name": "ml_pipeline",
    "tasks": [{"task_id": "fetch", "description": "Fetch"}, {"task_id": "process", "description": "Process"}],
    "dependencies": [{"from_task_id": "fetch", "to_task_id": "process", "dependency_type": "SUCCESS_ONLY"}],
    "metadata": {"version": "1.0"},
}


@pytest.mark.parametrize("config", [CONFIG, TaskConstellationSchema.model_validate(CONFIG)], ids=["dict", "schema"])
def test_a_plan_is_built_in_one_edit(config: Any) -> None:
    editor = pipeline()
    before, old = look(editor.constellation), editor.constellation
    built = editor.build_constellation(config, clear_existing=True)
    assert built is old
    assert (built.name, built.metadata) == ("ml_pipeline", {"version": "1.0"})
    assert [task.task_id for task in built.get_all_tasks()] == ["fetch", "process"]
    assert built.tasks["fetch"].description == "Fetch"
    assert built.plan.version == 6, "one edit on top of the five that built the pipeline"
    editor.undo()
    assert look(editor.constellation) == before
    with pytest.raises(CommandExecutionError, match="fetch"):
        editor.build_constellation(config, clear_existing=False)
    assert look(editor.constellation) == before, "half a plan is never left behind"


def test_building_from_lists_and_clearing() -> None:
    editor = ConstellationEditor()
    plan = editor.build_from_tasks_and_dependencies(
        [{"task_id": "a"}, {"task_id": "b"}], [{"from_task_id": "a", "to_task_id": "b"}], metadata={"author": "me"}
    )
    assert (plan.task_count, plan.dependency_count, plan.metadata) == (2, 1, {"author": "me"})
    assert editor.clear_constellation().task_count == 0
    editor.undo()
    assert plan.task_count == 2
    plan.mark_task_completed("a", True)
    with pytest.raises(CommandExecutionError, match="'a' is completed"):
        editor.clear_constellation()
    assert plan.task_count == 2


def test_batch_operations_continue_after_a_failure() -> None:
    editor = ConstellationEditor()
    results = editor.batch_operations(
        [
            lambda e: e.create_and_add_task("a", "A"),
            lambda e: e.create_and_add_task("a", "again"),
            lambda e: e.create_and_add_task("b", "B"),
            lambda e: e.create_and_add_dependency("a", "b", "UNCONDITIONAL"),
        ]
    )
    assert [type(result).__name__ for result in results] == [
        "TaskStar",
        "CommandExecutionError",
        "TaskStar",
        "TaskStarLine",
    ]


def test_files(tmp_path: Path) -> None:
    editor = pipeline()
    path = str(tmp_path / "plan.json")
    assert editor.save_constellation(path) == path
    other = ConstellationEditor()
    empty = other.constellation
    loaded = other.load_constellation(path)
    assert loaded is other.constellation
    assert look(loaded) == look(editor.constellation)
    other.undo()
    assert other.constellation is empty
    other.redo()
    assert other.constellation is loaded
    assert other.load_from_dict(CONFIG).name == "ml_pipeline"
    assert other.load_from_json_string(Path(path).read_text(encoding="utf-8")).task_count == 3


def test_parts_and_merging() -> None:
    editor = pipeline()
    editor.constellation.mark_task_completed("fetch", True, result=1)
    part = editor.create_subgraph(["fetch", "clean"])
    assert (part.constellation.task_count, part.constellation.dependency_count) == (2, 1)
    assert part.get_task("fetch") is not editor.get_task("fetch")
    other = pipeline()
    other.update_dependency(
        other.list_dependencies()[0].line_id, condition_evaluator=bool, dependency_type="conditional"
    )
    before = look(editor.constellation)
    editor.merge_constellation(other, prefix="imported_")
    assert editor.constellation.task_count == 6
    line = editor.get_task_dependencies("imported_clean")[0]
    assert (line.from_task_id, line.condition_evaluator) == ("imported_fetch", bool)
    editor.undo()
    assert look(editor.constellation) == before


def test_observers_are_called_after_each_command(caplog: pytest.LogCaptureFixture) -> None:
    editor, heard = ConstellationEditor(), list[tuple[str, Any]]()

    def observer(source: Any, command: str, result: Any) -> None:
        assert source is editor
        heard.append((command, result))

    def broken(source: Any, command: str, result: Any) -> None:
        raise RuntimeError("oh")

    editor.add_observer(observer)
    editor.add_observer(observer)
    editor.add_observer(broken)
    star = editor.create_and_add_task("a", "A")
    editor.undo()
    assert heard == [("add_task", star), ("undo", "Add task: a")]
    assert "the change stands" in caplog.text
    editor.remove_observer(observer)
    editor.remove_observer(observer)
    editor.redo()
    assert len(heard) == 2


def test_commands_by_name(tmp_path: Path) -> None:
    editor = ConstellationEditor()
    commands = editor.list_available_commands()
    assert set(commands) == {
        *("add_task", "remove_task", "update_task", "add_dependency", "remove_dependency", "update_dependency"),
        *("build_constellation", "clear_constellation", "load_constellation", "save_constellation"),
    }
    assert editor.get_command_categories() == ["bulk", "dependency", "file", "task"]
    assert editor.get_command_metadata("add_task") == {"category": "task", "description": "Add a task"}
    assert editor.get_command_metadata("dance") is None
    editor.execute_command_by_name("add_task", task_data={"task_id": "a", "description": "A"})
    editor.execute_command_by_name("add_task", task_data={"task_id": "b", "description": "B"})
    line = editor.execute_command_by_name("add_dependency", dependency_data={"from_task_id": "a", "to_task_id": "b"})
    editor.execute_command_by_name("update_task", task_id="a", description="another")
    editor.execute_command_by_name("update_dependency", dependency_id=line.line_id, condition_description="so")
    editor.execute_command_by_name("save_constellation", file_path=str(tmp_path / "plan.json"))
    editor.execute_command_by_name("remove_dependency", dependency_id=line.line_id)
    editor.execute_command_by_name("remove_task", task_id="b")
    editor.execute_command_by_name("clear_constellation")
    assert editor.execute_command_by_name("build_constellation", config=CONFIG).task_count == 2
    assert editor.execute_command_by_name("load_constellation", file_path=str(tmp_path / "plan.json")).task_count == 2


def test_queries(capsys: pytest.CaptureFixture[str]) -> None:
    editor = pipeline()
    assert editor.validate_constellation() == (True, [])
    assert not editor.has_cycles()
    assert editor.get_topological_order() == ["fetch", "clean", "train"]
    assert [task.task_id for task in editor.get_ready_tasks()] == ["fetch"]
    statistics = editor.get_statistics()
    assert (statistics["total_tasks"], statistics["editor_history_size"], statistics["editor_can_redo"]) == (
        3,
        5,
        False,
    )
    for mode, said in (
        ("overview", "3 pending"),
        ("topology", "clean <- fetch (success_only)"),
        ("details", "train: task_train, pending, priority MEDIUM, any device"),
        ("execution", "fetch: pending"),
    ):
        editor.display_constellation(mode)
        assert said in capsys.readouterr().out
    with pytest.raises(ValueError, match="mode is one of"):
        editor.display_constellation("nonsense")


@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
async def test_the_editor_edits_a_plan_that_runs(dialect: Dialect) -> None:
    """Its commands are edits like any other: checked against started tasks, and undone while none has started."""
    editor_class = getattr(dialect.module, f"{dialect.noun.capitalize()}Editor")
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", lines=["A>B"])
    editor = editor_class(plan)
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.5)
    editor.create_and_add_task("C", "never")
    editor.undo()
    editor.create_and_add_task("D", "also")
    with pytest.raises(CommandExecutionError, match="'A' is completed"):
        editor.remove_task("A")
    await session.bus.publish_event(dialect.modified("plan", ["A"]))
    session.agent()
    await at(2.0)
    with pytest.raises(CommandExecutionError, match="'D' is running"):
        editor.undo()
    await running
    assert sorted(session.devices.started) == ["A", "B", "D"]
    assert getattr(editor, dialect.noun) is plan


def test_an_editor_of_a_copy_is_how_an_agent_answers() -> None:
    session = Session(GALAXY, Devices())

    def edit(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            editor = ConstellationEditor(mine)
            editor.remove_task("B")
            editor.create_and_add_task("wrong", "W")
            editor.undo()
            editor.create_and_add_task("B'", "another way")
            editor.create_and_add_dependency("A", "B'")

    session.agent(edit)
    assert session.run(GALAXY.plan("A", "B", lines=["A>B"]))["status"] == "completed"
    assert session.devices.started == ["A", "B'"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 6)),
        st.tuples(st.just("remove"), st.integers(0, 6)),
        st.tuples(st.just("update"), st.integers(0, 6)),
        st.tuples(st.just("link"), st.integers(0, 6), st.integers(0, 6)),
        st.tuples(st.just("unlink"), st.integers(0, 6)),
        st.tuples(st.just("relink"), st.integers(0, 6), st.sampled_from(list(DependencyType))),
        st.tuples(st.just("clear")),
        st.tuples(st.just("undo")),
        st.tuples(st.just("redo")),
    ),
    max_size=30,
)


@given(STEPS)
@settings(max_examples=60)
def test_undo_returns_to_every_state_in_turn(steps: list[Any]) -> None:
    """Undoing and redoing all commands passes through the same states."""
    editor = ConstellationEditor()
    for number, (what, *where) in enumerate(steps):
        lines = editor.list_dependencies()
        try:
            match what, where:
                case "add", [i]:
                    editor.create_and_add_task(f"t{i}", f"step {number}")
                case "remove", [i]:
                    editor.remove_task(f"t{i}")
                case "update", [i]:
                    editor.update_task(f"t{i}", description=f"step {number}")
                case "link", [i, j]:
                    editor.create_and_add_dependency(f"t{i}", f"t{j}", line_id=f"line {number}")
                case "unlink", [i] if lines:
                    editor.remove_dependency(lines[i % len(lines)].line_id)
                case "relink", [i, kind] if lines:
                    editor.update_dependency(lines[i % len(lines)].line_id, dependency_type=kind)
                case "clear", _:
                    editor.clear_constellation()
                case "undo", _:
                    editor.undo()
                case "redo", _:
                    editor.redo()
        except CommandExecutionError:
            pass
        check_invariants(editor.constellation.plan)
    states = [look(editor.constellation)]
    while editor.undo():
        states.append(look(editor.constellation))
    check_invariants(editor.constellation.plan)
    assert editor.constellation.task_count == 0
    while len(states) > 1:
        assert look(editor.constellation) == states.pop()
        assert editor.redo()
    assert look(editor.constellation) == states[0]
    assert copy.deepcopy(editor.constellation).task_count == editor.constellation.task_count
    assert all(task.status is TaskStatus.PENDING for task in editor.list_tasks())
