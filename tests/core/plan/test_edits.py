"""Edits as data: what they name, how they read, and their JSON form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asterism.core.errors import InvalidTask, NotJson
from asterism.core.plan.edits import (
    EDITS,
    AddDependency,
    AddTask,
    CancelTask,
    EditBatch,
    RemoveDependency,
    RemoveTaint,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
    edit_from_json,
)
from asterism.core.plan.task import Priority, Task

EXAMPLES: list[tuple[Any, dict[str, Any], str]] = [
    (AddTask(Task("a", retries=1)), {"op": "add_task", "task": {"id": "a", "retries": 1}}, "add task 'a'"),
    (RemoveTask("a"), {"op": "remove_task", "task_id": "a"}, "remove task 'a'"),
    (
        RemoveTask("a", "remove"),
        {"op": "remove_task", "task_id": "a", "dependents": "remove"},
        "remove task 'a' and what depends on it",
    ),
    (
        RemoveTask("a", "bridge"),
        {"op": "remove_task", "task_id": "a", "dependents": "bridge"},
        "remove task 'a', bridged",
    ),
    (
        UpdateTask("a", timeout=5, priority="high"),
        {"op": "update_task", "task_id": "a", "changes": {"timeout": 5, "priority": "high"}},
        "update task 'a': timeout, priority",
    ),
    (
        AddDependency("a", "b"),
        {"op": "add_dependency", "source": "a", "target": "b", "on": "success"},
        "add dependency 'a' -> 'b' on success",
    ),
    (
        AddDependency("a", "b", "failure", "x"),
        {"op": "add_dependency", "source": "a", "target": "b", "on": "failure", "when": "x"},
        "add dependency 'a' -> 'b' on failure when x",
    ),
    (
        UpdateDependency("a", "b", "completion"),
        {"op": "update_dependency", "source": "a", "target": "b", "on": "completion"},
        "update dependency 'a' -> 'b' on completion",
    ),
    (
        RemoveDependency("a", "b"),
        {"op": "remove_dependency", "source": "a", "target": "b"},
        "remove dependency 'a' -> 'b'",
    ),
    (CancelTask("a", "enough"), {"op": "cancel_task", "task_id": "a", "reason": "enough"}, "cancel task 'a'"),
    (RemoveTaint("read it"), {"op": "remove_taint", "reason": "read it"}, "remove the taint: read it"),
]


@pytest.mark.parametrize(("edit", "data", "words"), EXAMPLES, ids=lambda value: str(value))
def test_an_edit_has_a_json_form_and_reads_like_a_sentence(edit: Any, data: dict[str, Any], words: str) -> None:
    assert edit.to_json() == data
    assert edit_from_json(json.loads(json.dumps(data))) == edit
    assert str(edit) == words


def test_every_operation_has_an_example_here() -> None:
    assert {data["op"] for _, data, _ in EXAMPLES} == set(EDITS)


@pytest.mark.parametrize("edit", [AddTask(Task("a")), RemoveTask("a"), UpdateTask("a", timeout=5), CancelTask("a")])
def test_an_edit_of_a_task_names_the_task(edit: Any) -> None:
    assert edit.names() == ("a",)


@pytest.mark.parametrize("kind", [AddDependency, UpdateDependency, RemoveDependency])
def test_an_edit_of_a_dependency_names_it_and_its_ends(kind: Any) -> None:
    assert kind("a", "b").names() == (("a", "b"), "a", "b")


# -- updates -----------------------------------------------------------------------------------------------------------


def test_updates_are_equal_when_they_change_the_same() -> None:
    assert UpdateTask("a", timeout=5) == UpdateTask("a", timeout=5)
    assert UpdateTask("a", timeout=5) != UpdateTask("a", timeout=6)
    assert UpdateTask("a", timeout=5) != UpdateTask("b", timeout=5)
    assert UpdateTask("a", timeout=5) != RemoveTask("a")


def test_an_update_shows_what_it_changes() -> None:
    assert repr(UpdateTask("a", timeout=5)) == "UpdateTask('a', **{'timeout': 5})"


def test_an_update_without_changes_has_no_json_form() -> None:
    with pytest.raises(InvalidTask, match="the update changes nothing"):
        UpdateTask("a").to_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": Priority.LOW},
        {"priority": Priority.NORMAL},
        {"needs": frozenset({"gpu"})},
        {"needs": frozenset()},
        {"argv": ("ls", "-l")},
        {"argv": None, "shell": "ls"},
        {"inputs": {"n": 1}},
        {"inputs": Task("blank").inputs},
        {"http": None},
        {"call": "package.module:function"},
        {"timeout": None, "retries": 0},
    ],
    ids=str,
)
def test_the_json_form_of_an_update_is_json_and_changes_the_same(changes: dict[str, Any]) -> None:
    data = json.loads(json.dumps(UpdateTask("a", **changes).to_json()))
    old = Task("a", priority=Priority.HIGH, needs="cpu", env={"X": "1"})
    again = edit_from_json(data)
    assert isinstance(again, UpdateTask)
    assert old.changed(again.changes) == old.changed(changes)


def test_a_callable_without_an_import_path_has_no_json_form() -> None:
    with pytest.raises(NotJson, match="no import path"):
        UpdateTask("a", call=lambda: None).to_json()
    with pytest.raises(NotJson, match="no import path"):
        AddTask(Task("a", call=lambda: None)).to_json()


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [None, "add_task", 5, [], {}, {"op": None}, {"op": "explode"}, {"op": ["add_task"]}])
def test_json_without_a_known_operation_is_refused_with_the_operations_there_are(data: Any) -> None:
    with pytest.raises(
        InvalidTask, match="an edit is an object whose 'op' is one of add_task, remove_task, "
    ) as caught:
        edit_from_json(data)
    assert repr(data) in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {"op": "add_task"},
        {"op": "add_task", "task": {"id": "a"}, "after": "b"},
        {"op": "remove_task"},
        {"op": "remove_task", "task": "a"},
        {"op": "update_task", "task_id": "a"},
        {"op": "update_task", "changes": {}},
        {"op": "update_task", "task_id": "a", "changes": 5},
        {"op": "update_task", "task_id": "a", "changes": {"timeout": 5}, "retries": 1},
        {"op": "add_dependency", "source": "a"},
        {"op": "cancel_task", "task_id": "a", "because": "x"},
    ],
    ids=str,
)
def test_an_edit_with_a_field_missing_or_too_many_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match=f"edit '{data['op']}': "):
        edit_from_json(data)


def test_a_bad_task_inside_an_edit_is_refused_with_its_own_reason() -> None:
    with pytest.raises(InvalidTask, match="task 'a': retries must be 0 or more"):
        edit_from_json({"op": "add_task", "task": {"id": "a", "retries": -1}})


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_batch_comes_back_from_json_as_it_was() -> None:
    batch = EditBatch(tuple(edit for edit, _, _ in EXAMPLES), "ada", "because", 7, ("a", "b"))
    assert EditBatch.from_json(json.loads(json.dumps(batch.to_json()))) == batch


def test_a_batch_needs_nothing_but_its_edits() -> None:
    assert EditBatch.from_json({"edits": []}) == EditBatch(())


@pytest.mark.parametrize("data", [None, [], {}, {"edits": None}, {"edits": 5}])
def test_json_without_edits_is_no_batch(data: Any) -> None:
    with pytest.raises(InvalidTask, match="a batch is an object with a list 'edits'"):
        EditBatch.from_json(data)


@pytest.mark.parametrize(
    "about",
    [{"base_version": "3"}, {"base_version": 1.5}, {"triggers": 5}, {"author": 5}, {"editor": 5}, {"reason": ["x"]}],
    ids=str,
)
def test_a_batch_that_is_labelled_with_nonsense_is_refused(about: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        EditBatch.from_json({"edits": [], **about})


def test_edits_and_a_batch_of_them_are_the_same_batch() -> None:
    cancel = CancelTask("a")
    batch = EditBatch((cancel,), "ann")
    assert EditBatch.of([cancel]) == EditBatch((cancel,))
    assert EditBatch.of(batch) is batch
