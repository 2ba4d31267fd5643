"""Groups: how many tasks they may become, and what their elements execute."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.plan.edits import AddDependency, AddTask, CancelTask, EditBatch, RemoveTask, UpdateTask
from asterism.core.plan.group_elements import DEFAULT_ELEMENTS, edit_texts, most_tasks, tasks_added, work_of
from asterism.core.plan.task import Task


def over_a_result(most: Any = None, **template: Any) -> dict[str, Any]:
    return {"from": "fetch", "template": template, **({} if most is None else {"max": most})}


@pytest.mark.parametrize(
    ("foreach", "tasks"),
    [
        (None, 1),
        (over_a_result(3, shell="true"), 1 + 3),
        (over_a_result(shell="true"), 1 + DEFAULT_ELEMENTS),
        (over_a_result("many", shell="true"), 1 + DEFAULT_ELEMENTS),
        (over_a_result(4, foreach=over_a_result(3, shell="true")), 1 + 4 + 4 * 3),
        ({"of": ["g[0]", "g[1]"]}, 1),  # its elements are tasks of their own already
        (over_a_result(3, priority="urgent"), 1),  # its elements can never be made
    ],
)
def test_how_many_tasks_a_task_may_become(foreach: Any, tasks: int) -> None:
    assert most_tasks(Task("g", foreach=foreach)) == tasks


def test_how_many_tasks_a_batch_may_add() -> None:
    group = over_a_result(3, shell="true")
    edits = [
        AddTask(Task("a")),
        AddTask(Task("g", foreach=group)),
        UpdateTask("h", foreach=group),
        UpdateTask("h", priority=4),
        UpdateTask("i", foreach=5),  # it will be rejected
        CancelTask("a"),
    ]
    assert [tasks_added(EditBatch((edit,))) for edit in edits] == [1, 4, 3, 0, 0, 0]
    assert tasks_added(EditBatch(tuple(edits))) == 8


def test_a_group_executes_what_its_elements_do() -> None:
    group = Task("g", foreach=over_a_result(foreach=over_a_result(shell="rm")))
    assert [work.shell for work in work_of(group)] == [None, None, "rm"]


def test_the_edits_that_expand_a_group_are_one_line() -> None:
    group = UpdateTask("load", foreach={"of": ["load[a]", "load[b]"]})
    added = [AddTask(Task("load[a]")), AddDependency("list", "load[a]"), AddDependency("load[a]", "load")]
    assert edit_texts([*added, group]) == ["expand 'load' into 2 elements"]
    for other in (AddTask(Task("mail")), RemoveTask("list"), AddDependency("list", "mail")):
        edits = [*added, other, group]
        assert edit_texts(edits) == list(map(str, edits))
    assert edit_texts([]) == []
    assert edit_texts(added) == list(map(str, added))
    assert edit_texts([UpdateTask("load", foreach=None)]) == [str(UpdateTask("load", foreach=None))]
