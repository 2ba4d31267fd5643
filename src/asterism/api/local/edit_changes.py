"""What the edits of a batch change, line by line: a person approves what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from asterism.base.text import clean
from asterism.core.plan.edits import AddTask, Edit, UpdateDependency, UpdateTask, addition_of
from asterism.core.plan.graph import Graph


def change_lines(edits: Sequence[Edit], plan: Graph | None = None) -> Iterator[str]:
    """All edits, with each field of a task that they add, and the old and the new value of each field that they
    change. Without ``plan`` the old values are left out."""
    tasks = {} if plan is None else {task_id: node.task for task_id, node in plan.nodes.items()}
    for edit in edits:
        yield clean(str(edit)) + _old_dependency(edit, plan)
        if isinstance(edit, AddTask):
            tasks[edit.task.id] = edit.task
            fields = edit.task.to_json()
            yield from (f"    {field}: {_value(value)}" for field, value in fields.items() if field != "id")
        elif isinstance(edit, UpdateTask):
            old = tasks.get(edit.task_id)
            for field, value in edit.to_json()["changes"].items():
                before = "" if old is None else f"{_value(old.field_to_json(field))} -> "
                yield f"    {field}: {before}{_value(value)}"
            if old is not None:
                tasks[edit.task_id] = old.changed(edit.changes)


def _old_dependency(edit: Edit, plan: Graph | None) -> str:
    if plan is None or not isinstance(edit, UpdateDependency):
        return ""
    node = plan.nodes.get(edit.target)
    edge = node.parents.get(edit.source) if node is not None else None
    return "" if edge is None else clean(f" (before: {addition_of(edge)})")


def _value(value: Any) -> str:
    """A value on one line. A text whose characters cannot all be seen is quoted."""
    if isinstance(value, str) and value.isprintable() and value == value.strip() != "":
        return value
    return clean(json.dumps(value, ensure_ascii=isinstance(value, str), sort_keys=True))
