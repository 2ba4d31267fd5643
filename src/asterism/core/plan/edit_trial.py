"""Try a batch of edits: what each edit would change, and why the batch would be rejected. Nothing changes.

The rules about edits (edit_rules.py, taint.py) judge what a batch *does*, not what it says. A batch is
carried out in order, so an edit may reach tasks that it does not name: through a dependency that an earlier edit of the
batch has added, or in two steps that are harmless one by one. So the batch is carried out on the live plan as ``apply``
does, every change is written down, and all of it is undone, in one synchronous call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from asterism.core.errors import EditRejected, InvalidTask, Violation
from asterism.core.plan.apply import Attempt, carried_out
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    CancelTask,
    Edit,
    EditBatch,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.graph import Graph
from asterism.core.plan.inherited_priority import raised_by
from asterism.core.plan.node import Node, descendants
from asterism.core.plan.status import PENDING
from asterism.core.plan.task import Dependency, Priority, Task
from asterism.core.record import Record

ADDED, REMOVED, REPLACED = "added", "removed", "replaced"
CANCELLED, LINKED, UNLINKED = "cancelled", "linked", "unlinked"


class Change(Record):
    """What an edit, given by its index, does to one task: it is added, removed, replaced or cancelled, or a dependency
    into it is added (``linked``) or removed (``unlinked``). ``before`` and ``after`` are the task; None if there is
    none. ``raises`` are the tasks to which the added dependency lends a higher priority, and that priority."""

    edit: int
    kind: str
    before: Task | None
    after: Task | None
    dependency: Dependency | None = None
    raises: Sequence[tuple[str, Priority]] = ()

    @property
    def task_id(self) -> str:
        task = self.after or self.before
        assert task is not None
        return task.id

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(task for task in (self.before, self.after) if task is not None)


class Trial(Record):
    """The changes of a batch in their order, and the violations."""

    changes: tuple[Change, ...]
    violations: tuple[Violation, ...]
    by_edit: Mapping[int, Sequence[Change]]

    def of(self, index: int) -> Sequence[Change]:
        """The changes of one edit."""
        return self.by_edit.get(index, ())


def trial(graph: Graph, batch: EditBatch, now: float = 0.0) -> Trial:
    """See the module."""
    watched: list[_WatchedAttempt] = []

    def make(graph: Graph, base_version: int | None) -> Attempt:
        watched.append(_WatchedAttempt(graph, base_version))
        return watched[0]

    violations: tuple[Violation, ...] = ()
    try:
        attempt = carried_out(graph, batch, now, make)
        if attempt is not None:
            attempt.roll_back()
    except EditRejected as rejected:
        violations = rejected.violations
    changes = tuple(watched[0].changes) if watched else ()
    return Trial(changes, violations, {index: tuple(group) for index, group in groupby(changes, attrgetter("edit"))})


def removed_tasks(tried: Trial, edits: Sequence[Edit]) -> dict[int, list[str]]:
    """The tasks that are removed because another one is, by the index of the edit."""
    removed: dict[int, list[str]] = {}
    for change in tried.changes:
        edit = edits[change.edit]
        if change.kind == REMOVED and isinstance(edit, RemoveTask) and change.task_id != edit.task_id:
            removed.setdefault(change.edit, []).insert(0, change.task_id)  # the nearest first
    return removed


class _WatchedAttempt(Attempt):
    """An attempt that writes down what it changes."""

    def __init__(self, graph: Graph, base_version: int | None) -> None:
        super().__init__(graph, base_version)
        self.changes: list[Change] = []
        self._index = 0

    def carry_out(self, index: int, edit: Edit) -> None:
        self._index, known = index, len(self.cancelled)
        super().carry_out(index, edit)
        for node, _ in self.cancelled[known:]:
            self._note(CANCELLED, node.task, node.task)

    def _note(
        self,
        kind: str,
        before: Task | None,
        after: Task | None,
        dependency: Dependency | None = None,
        raises: Sequence[tuple[str, Priority]] = (),
    ) -> None:
        self.changes.append(Change(self._index, kind, before, after, dependency, raises))

    def _insert(self, task: Task) -> None:
        super()._insert(task)
        self._note(ADDED, None, task)

    def _delete(self, node: Node) -> None:
        super()._delete(node)
        self._note(REMOVED, node.task, None)

    def _replace(self, node: Node, task: Task) -> None:
        before = node.task
        super()._replace(node, task)
        self._note(REPLACED, before, task)

    def _link(self, dependency: Dependency) -> None:
        raises = raised_by(self.graph, dependency)
        super()._link(dependency)
        target = self.graph.nodes[dependency.target].task
        self._note(LINKED, target, target, dependency, raises)

    def _unlink(self, dependency: Dependency) -> None:
        target = self.graph.nodes[dependency.target].task
        super()._unlink(dependency)
        self._note(UNLINKED, target, target, dependency)


# -- what a batch names ------------------------------------------------------------------------------------------------


def named_tasks(edit: Edit, graph: Graph, added: Mapping[str, Task]) -> Iterator[Task]:
    """The tasks that an edit names or implies, as they are and as they will be; ``added`` are those of its batch."""
    if isinstance(edit, AddTask):
        yield edit.task
        return
    for task_id in (*_subjects(edit), *(node.id for node in _implied(edit, graph))):
        for task in (added.get(task_id), graph.nodes[task_id].task if task_id in graph.nodes else None):
            if task is not None:
                yield task
                if isinstance(edit, UpdateTask):
                    try:
                        yield task.changed(edit.changes)
                    except (InvalidTask, TypeError, ValueError):  # it will be rejected
                        continue


def touched_tasks(batch: EditBatch, graph: Graph, tried: Trial | None = None) -> tuple[str, ...]:
    """The pending tasks that a batch would change or cancel, or whose dependencies it would change."""
    tried = trial(graph, batch) if tried is None else tried
    named = [edit for edit in batch.edits if not isinstance(edit, AddTask)]
    ids = [task_id for edit in named for task_id in (*_subjects(edit), *(node.id for node in _implied(edit, graph)))]
    ids += [change.task_id for change in tried.changes]
    nodes = (graph.nodes.get(task_id) for task_id in dict.fromkeys(ids))
    return tuple(node.id for node in nodes if node is not None and (node.status is PENDING or node.provisional))


def _subjects(edit: Edit) -> tuple[str, ...]:
    if isinstance(edit, AddDependency | UpdateDependency | RemoveDependency):
        return (edit.target,)
    return (edit.task_id,) if isinstance(edit, RemoveTask | UpdateTask | CancelTask) else ()


def _implied(edit: Edit, graph: Graph) -> list[Node]:
    """The tasks that an edit changes without naming them: those below a task that it removes."""
    if not isinstance(edit, RemoveTask) or edit.task_id not in graph.nodes:
        return []
    node = graph.nodes[edit.task_id]
    return list(descendants(node) if edit.dependents == "remove" else node.children.values())
