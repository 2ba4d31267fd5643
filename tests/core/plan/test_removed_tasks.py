"""Which tasks are removed because another one is, as a diff names them."""

from __future__ import annotations

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_trial import removed_tasks, trial
from asterism.core.plan.edits import Edit, EditBatch, RemoveTask
from asterism.core.plan.task import Task


def test_tasks_that_depend_on_a_removed_one_are_named_with_its_edit_the_nearest_first() -> None:
    plan = Constellation("release")
    for task, after in (("a", None), ("b", "a"), ("c", "b"), ("other", None)):
        plan.add(Task(task, shell="true"), after=after)
    edits: list[Edit] = [RemoveTask("other"), RemoveTask("a", dependents="remove")]
    assert removed_tasks(trial(plan, EditBatch(tuple(edits))), edits) == {1: ["b", "c"]}
    assert removed_tasks(trial(plan, EditBatch((RemoveTask("c"),))), [RemoveTask("c")]) == {}
