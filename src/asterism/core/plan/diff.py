"""Differences between two plans as an edit batch, and a three-way merge with a plan that has changed since.

``diff(base, new)`` returns the batch that turns ``base`` into ``new``. It ignores progress: the reports of devices
count, whatever a copy contains. ``merge(live, base, new)`` leaves out the edits that progress has overtaken, and
returns them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    Edit,
    EditBatch,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.graph import Graph, is_modifiable
from asterism.core.plan.task import Dependency, Task, differences


@dataclass(frozen=True, slots=True)
class Outline:
    """The structure of a plan at one version, which is all that ``diff`` reads. Cheap: tasks and dependencies are
    immutable."""

    version: int
    tasks: dict[str, Task]
    dependencies: dict[tuple[str, str], Dependency]

    @classmethod
    def of(cls, graph: Graph) -> Outline:
        nodes = graph.nodes.values()
        return cls(
            graph.version,
            {node.id: node.task for node in nodes},
            {(d.source, d.target): d for node in nodes for d in node.parents.values()},
        )


def diff(base: Graph | Outline, new: Graph | Outline, **about: Any) -> EditBatch:
    """The batch that turns ``base`` into ``new``. ``about`` are fields of the batch: author, reason, triggers."""
    old = base if isinstance(base, Outline) else Outline.of(base)
    now = new if isinstance(new, Outline) else Outline.of(new)
    edits: list[Edit] = [  # removals first: a reversed edge must not close a cycle
        *(RemoveDependency(*key) for key in old.dependencies if key not in now.dependencies),
        *(RemoveTask(task_id) for task_id in old.tasks if task_id not in now.tasks),
        *(AddTask(task) for task_id, task in now.tasks.items() if task_id not in old.tasks),
    ]
    for task_id, task in now.tasks.items():
        changes = differences(old.tasks[task_id], task) if task_id in old.tasks else {}
        if changes:
            edits.append(UpdateTask(task_id, **changes))
    for key, dependency in now.dependencies.items():
        kind = AddDependency if key not in old.dependencies else UpdateDependency
        if old.dependencies.get(key) != dependency:
            edits.append(kind(*key, dependency.on, dependency.when, dependency.handled))
    return EditBatch(tuple(edits), base_version=old.version, **about)


def merge(live: Graph, base: Graph | Outline, new: Graph | Outline, **about: Any) -> tuple[EditBatch, list[Edit]]:
    """The batch that applies the changes from ``base`` to ``new`` to ``live``, and the edits that were left out because
    their tasks have started or ended since."""
    wanted = diff(base, new, **about)
    applicable: list[Edit] = []
    dropped: list[Edit] = []
    stays = {edit.task_id for edit in wanted.edits if isinstance(edit, RemoveTask) and _overtaken(live, edit)}
    for edit in wanted.edits:
        # a task that depends on one that cannot be removed keeps that dependency
        orphaned = isinstance(edit, RemoveDependency) and edit.source in stays
        (dropped if orphaned or _overtaken(live, edit) else applicable).append(edit)
    return EditBatch(tuple(applicable), wanted.author, wanted.reason, wanted.base_version, wanted.triggers), dropped


def _overtaken(live: Graph, edit: Edit) -> bool:
    if isinstance(edit, AddTask):
        return False
    changed = edit.task_id if isinstance(edit, RemoveTask | UpdateTask) else edit.target  # type: ignore[union-attr]
    node = live.nodes.get(changed)
    return node is not None and not is_modifiable(node)
