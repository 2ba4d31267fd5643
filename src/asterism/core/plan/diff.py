"""Differences between two plans as an edit batch, and a three-way merge with a plan that has changed since.

``diff(base, new)`` returns the batch that turns ``base`` into ``new``. It ignores progress: the reports of devices
count, whatever a copy contains. A task that is cancelled in ``new`` and not in ``base`` is no progress: somebody wants
it not to be executed. ``merge(live, base, new)`` leaves out the edits that progress has overtaken, and returns them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    CancelTask,
    Edit,
    EditBatch,
    RemoveDependency,
    RemoveTaint,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.graph import Graph, is_modifiable
from asterism.core.plan.status import CANCELLED, TRANSITIONS
from asterism.core.plan.task import Dependency, Task, differences


@dataclass(frozen=True, slots=True)
class Outline:
    """The structure of a plan at one version, which is all that ``diff`` reads. Cheap: tasks and dependencies are
    immutable."""

    version: int
    tasks: dict[str, Task]
    dependencies: dict[tuple[str, str], Dependency]
    cancelled: frozenset[str]

    @classmethod
    def of(cls, graph: Graph) -> Outline:
        nodes = graph.nodes.values()
        return cls(
            graph.version,
            {node.id: node.task for node in nodes},
            {(d.source, d.target): d for node in nodes for d in node.parents.values()},
            frozenset(node.id for node in nodes if node.status is CANCELLED),
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
        before = old.tasks.get(task_id, task)
        changes = differences(before, task) if before is not task else {}  # a copy shares the tasks it did not change
        if changes:
            edits.append(UpdateTask(task_id, **changes))
    for key, dependency in now.dependencies.items():
        kind = AddDependency if key not in old.dependencies else UpdateDependency
        if old.dependencies.get(key) != dependency:
            edits.append(kind(*key, dependency.on, dependency.when, dependency.handled))
    cancelled = now.cancelled - old.cancelled
    edits += (CancelTask(task_id) for task_id in now.tasks if task_id in cancelled)
    return EditBatch(tuple(edits), base_version=old.version, **about)


def merge(live: Graph, base: Graph | Outline, new: Graph | Outline, **about: Any) -> tuple[EditBatch, list[Edit]]:
    """The batch that applies the changes from ``base`` to ``new`` to ``live``, and the edits that were left out because
    their tasks have started or ended since."""
    wanted = diff(base, new, **about)
    applicable: list[Edit] = []
    dropped: list[Edit] = []
    stays = {edit.task_id for edit in wanted.edits if isinstance(edit, RemoveTask) and _overtaken(live, edit)}
    known = live.nodes.keys() | {edit.task.id for edit in wanted.edits if isinstance(edit, AddTask)}
    for edit in wanted.edits:
        # a task that depends on one that cannot be removed keeps that dependency
        orphaned = isinstance(edit, RemoveDependency) and edit.source in stays
        orphaned = orphaned or (isinstance(edit, CancelTask) and edit.task_id not in known)  # it was removed since
        (dropped if orphaned or _overtaken(live, edit) else applicable).append(edit)
    return EditBatch(tuple(applicable), wanted.author, wanted.reason, wanted.base_version, wanted.triggers), dropped


def _overtaken(live: Graph, edit: Edit) -> bool:
    if isinstance(edit, AddTask | RemoveTaint):
        return False
    if isinstance(edit, CancelTask):
        node = live.nodes.get(edit.task_id)
        return node is not None and node.status not in TRANSITIONS["cancel"]
    changed = edit.task_id if isinstance(edit, RemoveTask | UpdateTask) else edit.target
    node = live.nodes.get(changed)
    return node is not None and not is_modifiable(node)
