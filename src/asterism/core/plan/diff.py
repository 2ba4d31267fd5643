"""Differences between two plans as an edit batch, and a three-way merge with a plan that has changed since.

``diff(base, new)`` returns the batch that turns ``base`` into ``new``. It ignores progress: the reports of devices
count, whatever a copy contains. A task that is cancelled in ``new`` and not in ``base`` is no progress: somebody wants
it not to be executed. ``merge(live, base, new)`` leaves out the edits that progress has overtaken, and returns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from operator import is_not
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
from asterism.core.plan.node_records import NodeRecord, own_task
from asterism.core.plan.status import CANCELLED, TRANSITIONS
from asterism.core.plan.task import Dependency, Task, differences
from asterism.core.record import Record


class Outline(Record):
    """The structure of a plan at one version, which is all that ``diff`` reads. Cheap: the records are those that
    copies of the plan share."""

    version: int
    records: Mapping[str, NodeRecord]

    @classmethod
    def of(cls, graph: Graph) -> Outline:
        return cls(graph.version, graph.records.table(graph.nodes))

    @property
    def tasks(self) -> dict[str, Task]:
        return {task_id: record.state.task for task_id, record in self.records.items()}

    @property
    def dependencies(self) -> dict[tuple[str, str], Dependency]:
        return {(d.source, d.target): d for record in self.records.values() for d in record.state.parents}

    @property
    def cancelled(self) -> set[str]:
        return {task_id for task_id, record in self.records.items() if record.state.status is CANCELLED}

    def without(self, other: Outline) -> Outline:
        """The part that the other does not share: tasks that it lacks, and those that may differ."""
        theirs = map(other.records.get, self.records)  # no step for each task in Python: a plan may be large
        return Outline(self.version, dict(compress(self.records.items(), map(is_not, self.records.values(), theirs))))


def diff(base: Graph | Outline, new: Graph | Outline, **about: Any) -> EditBatch:
    """The batch that turns ``base`` into ``new``. ``about`` are fields of the batch: author, reason, triggers."""
    base = base if isinstance(base, Outline) else Outline.of(base)
    new = new if isinstance(new, Outline) else Outline.of(new)
    old, now = base.without(new), new.without(base)
    tasks, tasks_before = now.tasks, old.tasks
    dependencies, dependencies_before = now.dependencies, old.dependencies
    edits: list[Edit] = [  # removals first: a reversed edge must not close a cycle
        *(RemoveDependency(*key) for key in dependencies_before if key not in dependencies),
        *(RemoveTask(task_id) for task_id in tasks_before if task_id not in tasks),
        *(AddTask(own_task(task)) for task_id, task in tasks.items() if task_id not in tasks_before),
    ]
    for task_id, task in tasks.items():
        before = tasks_before.get(task_id, task)
        changes = (
            differences(before, own_task(task)) if before is not task else {}
        )  # a copy shares the tasks it did not change
        if changes:
            edits.append(UpdateTask(task_id, **changes))
    for key, dependency in dependencies.items():
        kind = AddDependency if key not in dependencies_before else UpdateDependency
        if dependencies_before.get(key) != dependency:
            edits.append(kind(*key, dependency.on, dependency.when, dependency.handled))
    cancelled = now.cancelled - old.cancelled
    edits += (CancelTask(task_id) for task_id in tasks if task_id in cancelled)
    return EditBatch(tuple(edits), base_version=base.version, **about)


def merge(live: Graph, base: Graph | Outline, new: Graph | Outline, **about: Any) -> tuple[EditBatch, list[Edit]]:
    """The batch that applies the changes from ``base`` to ``new`` to ``live``, and the edits that were left out because
    their tasks have started or ended since."""
    wanted = diff(base, new, **about)
    applicable: list[Edit] = []
    dropped: list[Edit] = []
    stays = {edit.task_id for edit in wanted.edits if isinstance(edit, RemoveTask) and _overtaken(live, edit)}
    added = {edit.task.id for edit in wanted.edits if isinstance(edit, AddTask)}
    for edit in wanted.edits:
        # a task that depends on one that cannot be removed keeps that dependency
        orphaned = isinstance(edit, RemoveDependency) and edit.source in stays
        if isinstance(edit, CancelTask):  # of a task that was removed since
            orphaned = edit.task_id not in live.nodes and edit.task_id not in added
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
