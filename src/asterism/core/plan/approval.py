"""Approvals: rules that say which edits wait for a person, and the edits that wait.

A batch waits as a whole if one of its edits matches one of the rules of the plan. A waiting batch changes nothing. It
*holds* the tasks that it would change (``touched_tasks``): they do not start before a person has approved or refused
it, or its time is up. All other tasks go on. An approved batch is applied like any other, with all checks, completely
or not at all.

A rule is data, so that a plan keeps its rules wherever it is stored. Patterns are those of file names: ``deploy-*``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from asterism.core.errors import AsterismError, InvalidTask, PlanError
from asterism.core.plan.edits import (
    EDITS,
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
from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING
from asterism.core.plan.task import ACTIONS, Task

DESTRUCTIVE = ("remove_task", "cancel_task", "remove_dependency")
"""The edits that ``destructive`` stands for: they take work or an order away."""

WAITING, APPROVED, REFUSED, EXPIRED = "waiting", "approved", "refused", "expired"


class EditWaits(AsterismError):
    """An edit was not applied: it waits until a person approves it. ``approval`` is the WaitingEdit."""

    def __init__(self, approval: WaitingEdit) -> None:
        self.approval = approval
        super().__init__(f"the edit waits for approval {approval.id}: {'; '.join(approval.reasons)}")


class ApprovalGone(AsterismError):
    """No edit waits under this number: it was approved, refused, its time was up, or it never existed."""


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """An edit matches a rule if it matches each of the fields that are given, one of the values each.

    ``edits`` are kinds of edits, ``tasks`` patterns of the ids of the tasks that it changes, ``executors`` what these
    tasks execute (``call``, ``argv``, ``shell``, ``http``, ``agent``), ``devices`` patterns of the devices that they
    name, ``authors`` patterns of the author of the batch. A rule without fields matches every edit."""

    edits: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    executors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            values = getattr(self, field.name)
            if isinstance(values, str) or not all(isinstance(value, str) and value for value in values):
                raise PlanError(f"{field.name} of an approval rule is a list of words, not {values!r}")
            object.__setattr__(self, field.name, tuple(values))
        for name, known in (("edits", tuple(EDITS)), ("executors", ACTIONS)):
            unknown = sorted(set(getattr(self, name)) - set(known))
            if unknown:
                raise PlanError(f"{name} of an approval rule are among {', '.join(known)}, not {', '.join(unknown)}")

    def matches(self, edit: Edit, author: str, tasks: Sequence[Task]) -> bool:
        """``tasks`` are the tasks that the edit changes, as they are and as they will be."""
        if self.edits and edit.op not in self.edits:
            return False
        if self.authors and not _any_fits([author], self.authors):
            return False
        return any(self._matches_task(task) for task in tasks) or not (self.tasks or self.executors or self.devices)

    def _matches_task(self, task: Task) -> bool:
        return (
            (not self.tasks or _any_fits([task.id], self.tasks))
            and (not self.executors or any(getattr(task, name) is not None for name in self.executors))
            and (not self.devices or (task.device is not None and _any_fits([task.device], self.devices)))
        )

    def to_json(self) -> dict[str, Any]:
        return {field.name: list(value) for field in fields(self) if (value := getattr(self, field.name))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ApprovalRule:
        """Raises PlanError."""
        unknown = sorted(set(data) - {field.name for field in fields(cls)})
        if unknown:
            allowed = ", ".join(field.name for field in fields(cls))
            raise PlanError(f"an approval rule has no {', '.join(unknown)}; its fields are {allowed}")
        return cls(**data)

    @classmethod
    def parse(cls, text: str) -> ApprovalRule:
        """A rule as a person writes it: ``all``, ``destructive``, or ``edits=remove_task,cancel_task tasks=deploy-*``.
        Raises PlanError."""
        if text == "all":
            return cls()
        if text == "destructive":
            return cls(DESTRUCTIVE)
        given = [part.partition("=") for part in text.split()]
        if not given or not all(equals and values for _, equals, values in given):
            raise PlanError(
                f"{text!r} is not an approval rule (examples: all, destructive, edits=add_task tasks=deploy-*)"
            )
        return cls.from_json({name: tuple(filter(None, values.split(","))) for name, _, values in given})

    def __str__(self) -> str:
        return " ".join(f"{name}={','.join(values)}" for name, values in self.to_json().items()) or "all"


def _any_fits(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


@dataclass(frozen=True, slots=True)
class WaitingEdit:
    """A batch that waits for a person, or waited. ``reasons`` say which edits match which rules. It holds ``tasks``.
    ``state`` is ``waiting``, ``approved``, ``refused`` or ``expired``. ``decided_by``, ``decided_at`` and ``why`` are
    those of the decision, ``version`` is that of the plan with the edit."""

    id: int
    batch: EditBatch
    at: float
    expires_at: float
    reasons: tuple[str, ...]
    tasks: tuple[str, ...]
    cycle: int | None = None
    state: str = WAITING
    decided_by: str = ""
    decided_at: float | None = None
    why: str = ""
    version: int | None = None

    def decided(self, state: str, by: str, at: float, why: str = "", version: int | None = None) -> WaitingEdit:
        return replace(self, state=state, decided_by=by, decided_at=at, why=why, version=version)

    def to_json(self) -> dict[str, Any]:
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**data, "batch": self.batch.to_json(), "reasons": list(self.reasons), "tasks": list(self.tasks)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WaitingEdit:
        lists = {"reasons": tuple(data["reasons"]), "tasks": tuple(data["tasks"])}
        return cls(**{**data, "batch": EditBatch.from_json(data["batch"]), **lists})


def approval_reasons(rules: Sequence[ApprovalRule], batch: EditBatch, graph: Graph) -> tuple[str, ...]:
    """Which edits of a batch match which rules; empty if none waits for a person."""
    added = {edit.task.id: edit.task for edit in batch.edits if isinstance(edit, AddTask)}
    reasons = []
    for edit in batch.edits:
        if type(edit) not in EDITS.values():
            continue  # apply rejects it
        tasks = list(_changed_tasks(edit, graph, added))
        reasons += [f"{edit} ({rule})" for rule in rules if rule.matches(edit, batch.author, tasks)][:1]
    return tuple(reasons)


def _changed_tasks(edit: Edit, graph: Graph, added: Mapping[str, Task]) -> Iterator[Task]:
    if isinstance(edit, AddTask):
        yield edit.task
        return
    for task_id in (_subject(edit), *(node.id for node in _implied(edit, graph))):
        for task in (added.get(task_id), graph.nodes[task_id].task if task_id in graph.nodes else None):
            if task is not None:
                yield task
                if isinstance(edit, UpdateTask):
                    try:
                        yield task.changed(edit.changes)
                    except (InvalidTask, TypeError, ValueError):  # it will be rejected
                        continue


def touched_tasks(batch: EditBatch, graph: Graph) -> tuple[str, ...]:
    """The pending tasks that a batch would change or cancel, or whose dependencies it would change."""
    touched: dict[str, None] = {}
    for edit in batch.edits:
        if isinstance(edit, AddTask):
            continue
        for task_id in (_subject(edit), *(node.id for node in _implied(edit, graph))):
            node = graph.nodes.get(task_id)
            if node is not None and (node.status is PENDING or node.provisional):
                touched[task_id] = None
    return tuple(touched)


def _subject(edit: Edit) -> str:
    if isinstance(edit, AddDependency | UpdateDependency | RemoveDependency):
        return edit.target
    assert isinstance(edit, RemoveTask | UpdateTask | CancelTask)
    return edit.task_id


def _implied(edit: Edit, graph: Graph) -> list[Node]:
    """The tasks that an edit changes without naming them: those below a task that it removes."""
    node = graph.nodes.get(edit.task_id) if isinstance(edit, RemoveTask) else None
    if node is None:
        return []
    found: dict[Node, None] = dict.fromkeys(node.children.values())
    if isinstance(edit, RemoveTask) and edit.dependents == "remove":
        stack = list(found)
        while stack:
            new = [child for child in stack.pop().children.values() if child not in found]
            found.update(dict.fromkeys(new))
            stack += new
    return list(found)
