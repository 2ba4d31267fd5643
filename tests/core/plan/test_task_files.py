"""Files between tasks in the core: outputs, ``files_from``, the dependencies that follow from it, and edits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.errors import EditRejected, InvalidTask, InvalidTransition, PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch, RemoveDependency, RemoveTask, UpdateTask
from asterism.core.plan.journal import Files, RecordedConstellation, RecordedLock, Step
from asterism.core.plan.status import COMPLETED
from asterism.core.plan.step_changes import replay_step
from asterism.core.plan.task import Dependency, Task
from asterism.core.plan.task_files import handles_files, makers_of, outputs_of, path_problem

FRAMES = {"frames": {"files_from": "render.frames"}}


def render(**fields: Any) -> Task:
    return Task("render", shell="render", **{"outputs": {"frames": "out/*.png", "log": "render.log"}, **fields})


def pack(**fields: Any) -> Task:
    return Task("pack", shell="pack", **{"inputs": FRAMES, **fields})


def film() -> Constellation:
    plan = Constellation("film")
    plan.add(render())
    plan.add(pack())
    return plan


def running(plan: Constellation) -> Constellation:
    plan.begin(0.0)
    return plan


def rejected(plan: Constellation, *edits: Any) -> list[tuple[int | None, str, str]]:
    with pytest.raises(EditRejected) as error:
        plan.apply(EditBatch(edits), 1.0)
    return [(violation.edit, violation.rule, violation.message) for violation in error.value.violations]


def test_json_keeps_the_files() -> None:
    assert Task.from_json(render().to_json()) == render()
    assert Task.from_json(pack().to_json()) == pack()
    assert "outputs" not in Task("a", shell="true").to_json()


def test_only_tasks_with_files_have_a_folder() -> None:
    assert handles_files(render())
    assert handles_files(pack())
    assert not handles_files(Task("a", shell="true"))
    assert not handles_files(Task("a", shell="true", inputs={"frames": {"from": "render"}}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"outputs": {"frames": "/out/*.png"}}, "the output 'frames' is '/out/*.png', an absolute path"),
        ({"outputs": {"log": "../render.log"}}, "which leaves the working folder of the task"),
        ({"outputs": {"log": "a/../../b"}}, "write a path without '..'"),
        ({"outputs": {"log": "./"}}, "is './', the working folder itself; write '**/*' for all files in it"),
        ({"outputs": {"log": "a/b**"}}, "is 'a/b**', but '**' must stand alone between slashes"),
        ({"outputs": {"log": " "}}, "must be a path or pattern, not ' '"),
        ({"outputs": {"log": "a\0b"}}, "must be a path or pattern"),
        ({"outputs": {"log": 7}}, "outputs.log must be text"),
        ({"outputs": {"my log": "log"}}, "letters, digits and '_' only, unlike 'my log'"),
        ({"outputs": {7: "log"}}, "a key of outputs must be text"),
        ({"outputs": ["log"]}, "outputs must be a mapping, not a list"),
        ({"outputs": {}, "inputs": {"a": {"files_from": "render"}}}, "such as 'render.frames'"),
        ({"outputs": {}, "inputs": {"a": {"files_from": 7}}}, "such as 'render.frames'"),
        ({"cwd": "/tmp"}, "cwd cannot be combined with outputs"),
        (
            {"skip_if_unchanged": {"outputs": ["a"]}},
            "skip_if_unchanged of a task with outputs or files_from is {} or has",
        ),
        ({"skip_if_unchanged": {"shared": ""}}, "skip_if_unchanged.shared is empty"),
        ({"skip_if_unchanged": {}, "inputs": 5}, "inputs must be a mapping"),
        ({"outputs": {}, "inputs": FRAMES, "cwd": "/tmp"}, "cwd cannot be combined with files_from"),
        ({"shell": None, "http": {"url": "http://a"}}, "outputs needs one of argv, shell, call"),
        ({"shell": None, "agent": "Render it"}, "outputs needs one of argv, shell, call"),
    ],
)
def test_problems_are_sentences(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidTask) as error:
        Task("render", **{"shell": "render", "outputs": {"frames": "out/*.png"}, **fields})
    assert words in str(error.value)


@given(st.text(alphabet="ab./*", min_size=1))
def test_no_accepted_path_leaves_the_folder(path: str) -> None:
    if path_problem(path) is None:
        depth = 0
        for part in path.split("/"):
            depth += -1 if part == ".." else part not in ("", ".")
            assert depth >= 0
        assert not path.startswith("/")


def test_a_task_comes_after_those_whose_files_it_takes() -> None:
    assert film()["pack"].dependencies == (Dependency("render", "pack"),)


def test_a_dependency_that_is_given_counts() -> None:
    plan = Constellation("film")
    plan.add(render())
    plan.add(pack(), after={"render": "always"})
    assert plan["pack"].dependencies == (Dependency("render", "pack", "always"),)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rendr.frames", "the input 'frames' takes files of 'rendr', but there is no such task"),
        ("render.frame", "which has no output 'frame'; its outputs are frames, log"),
        ("bare.frames", "which has no output 'frames'; it has no outputs"),
    ],
)
def test_unknown_files(name: str, words: str) -> None:
    plan, task = Constellation("film"), pack(inputs={"frames": {"files_from": name}})
    plan.add(render())
    plan.add(Task("bare", shell="true"))
    with pytest.raises(PlanError, match=words):
        plan.add(task)
    assert "pack" not in plan
    ((edit, rule, message),) = rejected(running(plan), AddTask(task))
    assert (edit, rule) == (0, "files")
    assert words in message


def test_an_edit_implies_the_dependency_and_undoes_it() -> None:
    plan = Constellation("film")
    plan.add(render())
    running(plan)
    plan.apply(EditBatch((AddTask(Task("late", shell="true")),)), 0.5)
    applied = plan.apply(EditBatch((AddTask(pack()),)), 1.0)
    assert plan["pack"].dependencies == (Dependency("render", "pack"),)
    late = plan.apply(EditBatch((UpdateTask("late", inputs=FRAMES),)), 2.0)
    assert plan["late"].dependencies == (Dependency("render", "late"),)
    assert late.inverse is not None
    assert applied.inverse is not None
    plan.apply(late.inverse, 3.0)
    assert plan["late"].dependencies == ()
    plan.apply(applied.inverse, 4.0)
    assert "pack" not in plan


def test_edits_that_take_the_files_away() -> None:
    plan = running(film())
    ((edit, rule, message),) = rejected(plan, UpdateTask("render", outputs={"log": "render.log"}))
    assert (edit, rule) == (None, "files")
    assert message.startswith("task 'pack': the input 'frames' takes files of 'render', which has no output 'frames'")
    assert rejected(plan, RemoveDependency("render", "pack")) == [
        (0, "files", "task 'pack': the input 'frames' takes files of 'render', so it must depend on it")
    ]
    ((_, rule, message),) = rejected(plan, RemoveTask("render", dependents="bridge"))
    assert (rule, "there is no such task" in message) == ("files", True)
    plan.apply(EditBatch((AddTask(Task("gone", shell="true")), RemoveTask("gone"))), 1.0)
    plan.apply(EditBatch((UpdateTask("render", outputs={"frames": "*.png"}),)), 2.0)
    both = RemoveTask("render", dependents="remove")
    plan.apply(EditBatch((UpdateTask("render", outputs={"log": "*.png"}), both)), 3.0)


def test_files_that_would_close_a_cycle() -> None:
    plan = running(film())
    fields = {"inputs": {"film": {"files_from": "pack.film"}}}
    violations = rejected(plan, UpdateTask("pack", outputs={"film": "a"}), UpdateTask("render", **fields))
    assert [(edit, rule) for edit, rule, _ in violations] == [(1, "files")]
    assert "cycle" in violations[0][2]


def test_the_files_are_recorded_with_a_running_task() -> None:
    plan = running(film())
    node = plan.node("render")
    with pytest.raises(InvalidTransition):
        plan.set_files(node, "a" * 64)
    plan.start(node, "here", 1.0)
    plan.set_files(node, "a" * 64)
    plan.finish(node, COMPLETED, 2.0)
    assert Constellation.from_json(plan.to_json()).node("render").files == "a" * 64
    assert plan.copy().node("render").files == "a" * 64


def test_a_task_that_runs_again_has_no_files() -> None:
    plan = running(film())
    node = plan.node("render")
    plan.start(node, "here", 1.0)
    plan.set_files(node, "a" * 64)
    plan.release(node, 2.0, "its device left")
    assert node.files is None


# -- plans in a store --------------------------------------------------------------------------------------------------


def test_the_journal_and_a_snapshot_have_the_files() -> None:
    stored = RecordedConstellation.of(film())
    steps: list[Step] = []
    stored.record = steps.append
    stored.begin(0.0)
    node = stored.node("render")
    stored.start(node, "here", 1.0)
    snapshot = stored.take_snapshot()
    stored.set_files(node, "a" * 64)
    stored.finish(node, COMPLETED, 2.0)
    assert Files("render", "a" * 64) in steps
    read = RecordedConstellation.of(film())
    lock = RecordedLock(read)
    changes = [change for step in steps for change in replay_step(read, lock, step)]
    assert read.node("render").files == "a" * 64
    assert "files kept" in [change.data["what"] for change in changes if change.data.get("task") == "render"]
    snapshot.copy_nodes()
    [before] = [item for item in json.loads("".join(snapshot.chunks()))["tasks"] if item["task"]["id"] == "render"]
    assert "files" not in before


# -- files of groups ---------------------------------------------------------------------------------------------------

TEMPLATE = {"shell": "render", "outputs": {"frames": "*.png"}}


@pytest.mark.parametrize(
    ("foreach", "outputs"),
    [
        ({"of": ["a"], "outputs": ["frames"]}, ["frames"]),
        ({"of": ["a"]}, []),
        ({"from": "list", "template": TEMPLATE}, ["frames"]),
        ({"from": "list", "template": TEMPLATE, "of": ["a"]}, ["frames"]),
        ({"from": "list", "template": {"foreach": {"from": "list", "template": TEMPLATE}}}, ["frames"]),
        ({"from": "list", "template": {"shell": "x"}}, []),
        ({"of": ["a"], "template": 3}, []),
        ({"of": ["a"], "outputs": 3}, []),
        ({"of": ["a"], "outputs": [3, "frames"]}, ["frames"]),
    ],
)
def test_a_group_has_the_outputs_of_its_elements(foreach: dict[str, Any], outputs: list[str]) -> None:
    assert list(outputs_of(Task("group", foreach=foreach))) == outputs


def groups() -> Constellation:
    """Two levels of groups. The outer names a task that is missing, one that it does not depend on, and itself."""
    plan = Constellation("film")
    for name in ("a", "b", "c", "stray"):
        plan.add(Task(name, shell="x", outputs={"frames": "*.png"}))
    plan.add(Task("inner", foreach={"of": ["b", "c"], "outputs": ["frames"]}), {"b": "completion", "c": "completion"})
    of = ["a", "gone", "inner", "stray", "outer"]
    plan.add(Task("outer", foreach={"of": of, "outputs": ["frames"]}), {"a": "completion", "inner": "completion"})
    return plan


def test_the_files_of_a_group_are_made_by_its_elements() -> None:
    nodes = groups().nodes
    assert [node.id for node in makers_of(nodes, "outer")] == ["a", "b", "c"]
    assert [node.id for node in makers_of(nodes, "a")] == ["a"]
    assert list(makers_of(nodes, "gone")) == []


def test_a_task_that_takes_files_of_a_group_comes_after_it() -> None:
    plan = groups()
    plan.add(Task("pack", shell="pack", inputs={"frames": {"files_from": "outer.frames"}}))
    assert list(plan.nodes["pack"].parents) == ["outer"]
    with pytest.raises(PlanError, match="no output 'log'; its outputs are frames"):
        plan.add(Task("read", shell="read", inputs={"log": {"files_from": "outer.log"}}))


def test_an_edit_of_a_group_keeps_the_files_that_others_take() -> None:
    plan = groups()
    plan.add(Task("pack", shell="pack", inputs={"frames": {"files_from": "outer.frames"}}))
    running(plan)
    [(_, rule, message)] = rejected(plan, UpdateTask("outer", foreach={"of": ["a"]}))
    assert rule == "files"
    assert "no output 'frames'; it has no outputs" in message
