"""Edits of a plan as data: add, remove, update, cancel, remove the taint; batches of edits, and those that wait.

A batch is applied completely or not at all (apply.py). Each edit has a JSON form ``{"op": "add_task", …}``, so an
editor may be a function, a person or a language model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from asterism.core.errors import AsterismError, InvalidTask
from asterism.core.json_values import JsonObject
from asterism.core.plan.task import (
    Dependency,
    Task,
    dependencies_of,
    handler_dependencies,
    teardown_dependencies,
)
from asterism.core.plan.task_approval import may_decide
from asterism.core.record import InvalidRecord, Record, decode, encode, replace

Key = str | tuple[str, str]
"""What an edit names: a task id, or a dependency as (source, target)."""


class _Edit(Record, forbid_unknown_fields=True):
    op: ClassVar[str]

    def to_json(self) -> JsonObject:
        return {"op": self.op, **encode(self)}


class _TaskEdit(_Edit):
    """An edit of a task."""

    task_id: str

    def names(self) -> tuple[Key, ...]:
        return (self.task_id,)


class AddTask(_Edit):
    """Add a task. AddDependency in the same batch adds its dependencies."""

    op: ClassVar = "add_task"
    task: Task

    def names(self) -> tuple[Key, ...]:
        return (self.task.id,)

    def to_json(self) -> JsonObject:
        return {"op": self.op, "task": self.task.to_json()}

    def __str__(self) -> str:
        return f"add task {self.task.id!r}"


class RemoveTask(_TaskEdit, omit_defaults=True):
    """Remove a task that has not started, or only provisionally.

    If other tasks depend on it, the batch must rewire or remove them, or set ``dependents``: ``"remove"`` removes all
    tasks below it, ``"bridge"`` makes them depend on its parents."""

    op: ClassVar = "remove_task"
    dependents: str | None = None

    def __str__(self) -> str:
        extra = {"remove": " and what depends on it", "bridge": ", bridged"}.get(self.dependents or "", "")
        return f"remove task {self.task_id!r}{extra}"


class UpdateTask:
    """Change some fields of a task that has not started: ``UpdateTask("build", timeout=120)``."""

    op: ClassVar = "update_task"
    __slots__ = ("changes", "task_id")

    def __init__(self, task_id: str, /, **changes: Any) -> None:
        self.task_id = task_id
        self.changes: Mapping[str, Any] = changes

    def names(self) -> tuple[Key, ...]:
        return (self.task_id,)

    def to_json(self) -> JsonObject:
        changed = Task(self.task_id).changed(self.changes)
        changes = {name: changed.field_to_json(name) for name in self.changes}
        return {"op": self.op, "task_id": self.task_id, "changes": changes}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UpdateTask) and (self.task_id, self.changes) == (
            other.task_id,
            other.changes,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"UpdateTask({self.task_id!r}, **{dict(self.changes)!r})"

    def __str__(self) -> str:
        return f"update task {self.task_id!r}: {', '.join(self.changes)}"


class _DependencyTerms(_Edit):
    """A dependency with its terms."""

    source: str
    target: str
    on: str = "success"
    when: str | None = None
    handled: bool = False

    @property
    def dependency(self) -> Dependency:
        """Raises InvalidTask."""
        return Dependency(self.source, self.target, self.on, self.when, self.handled)

    def names(self) -> tuple[Key, ...]:
        return ((self.source, self.target), self.source, self.target)

    def to_json(self) -> JsonObject:
        return {"op": self.op, **self.dependency.to_json()}

    def __str__(self) -> str:
        handled = ", handled" if self.handled else ""
        condition = f" on {self.on}{handled}" + (f" when {self.when}" if self.when else "")
        return f"{self.op.replace('_', ' ')} {self.source!r} -> {self.target!r}{condition}"


class AddDependency(_DependencyTerms):
    """Make ``target`` depend on ``source``."""

    op: ClassVar = "add_dependency"


def addition_of(dependency: Dependency) -> AddDependency:
    """The edit that adds a dependency."""
    edge = dependency
    return AddDependency(edge.source, edge.target, edge.on, edge.when, edge.handled)


class UpdateDependency(_DependencyTerms):
    """Replace the terms of a dependency. A term that is left out gets its default."""

    op: ClassVar = "update_dependency"


class RemoveDependency(_Edit):
    """Remove the dependency of ``target`` on ``source``."""

    op: ClassVar = "remove_dependency"
    source: str
    target: str

    def names(self) -> tuple[Key, ...]:
        return ((self.source, self.target), self.source, self.target)

    def __str__(self) -> str:
        return f"remove dependency {self.source!r} -> {self.target!r}"


class CancelTask(_TaskEdit):
    """Stop a running task, or cancel a pending one. It stays in the plan and satisfies no dependency."""

    op: ClassVar = "cancel_task"
    reason: str = ""

    def __str__(self) -> str:
        return f"cancel task {self.task_id!r}"


class RemoveTaint(_Edit):
    """Say that what the editors have read of untrusted tasks is harmless, and why (taint.py). Only a person may. It
    cannot be undone."""

    op: ClassVar = "remove_taint"
    reason: str

    def names(self) -> tuple[Key, ...]:
        return ()

    def __str__(self) -> str:
        return f"remove the taint: {self.reason}"


Edit = (
    AddTask | RemoveTask | UpdateTask | AddDependency | UpdateDependency | RemoveDependency | CancelTask | RemoveTaint
)
EDITS: dict[str, type[Any]] = {
    kind.op: kind
    for kind in (
        AddTask,
        RemoveTask,
        UpdateTask,
        AddDependency,
        UpdateDependency,
        RemoveDependency,
        CancelTask,
        RemoveTaint,
    )
}


if TYPE_CHECKING:
    AnyEdit = Edit
else:
    AnyEdit = Any  # edits have a JSON form of their own: see edit_from_json

MOST_LISTED = 100
"""How many edits of a batch the story lists: a batch may add thousands of tasks."""


class EditBatch(Record, forbid_unknown_fields=True):
    """Edits that are applied all or none.

    ``base_version`` is the version of the plan that its author has seen; None skips the check for staleness.
    ``triggers`` are the tasks whose ends it answers. ``undoes`` is the version that it undoes. ``editor`` is the name
    of the editor that it comes from, which the process that received it sets; None for a person. Before that it may
    name the model that has written it, by which it is judged, too."""

    edits: tuple[AnyEdit, ...]
    author: str = ""
    reason: str = ""
    base_version: int | None = None
    triggers: tuple[str, ...] = ()
    undoes: int | None = None
    editor: str | None = None

    def to_json(self) -> JsonObject:
        out: JsonObject = {
            "edits": [edit.to_json() for edit in self.edits],
            "author": self.author,
            "reason": self.reason,
            "base_version": self.base_version,
            "triggers": list(self.triggers),
        }
        more = {"undoes": self.undoes, "editor": self.editor}
        return {**out, **{name: value for name, value in more.items() if value is not None}}

    @property
    def description(self) -> str:
        """The edits as text, for the story. Replay of a journal repeats it, so it never changes."""
        more = len(self.edits) - MOST_LISTED
        listed = [*map(str, self.edits[:MOST_LISTED]), *([f"and {more:,} more edits"] if more > 0 else [])]
        return "; ".join(listed) or "nothing"

    @classmethod
    def of(cls, edits: EditBatch | Iterable[Edit]) -> EditBatch:
        """A batch of these edits; a batch itself."""
        return edits if isinstance(edits, EditBatch) else cls(tuple(edits))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EditBatch:
        """The batch that ``to_json`` wrote, or that a person or a model wrote in the same form."""
        if not isinstance(data, Mapping) or not isinstance(data.get("edits"), list | tuple):
            raise InvalidTask("a batch is an object with a list 'edits'")
        known = {name: data[name] for name in cls.__struct_fields__ if name in data and name != "edits"}
        try:
            return replace(decode(cls, {**known, "edits": ()}), edits=edits_from_json(data["edits"]))
        except InvalidRecord as error:
            raise InvalidTask(f"a batch: {error}") from None


EMPTY = EditBatch(())
"""A batch without edits."""


def edits_from_json(items: Iterable[Any]) -> tuple[Edit, ...]:
    """Edits from their JSON form; see ``split_dependencies``. Raises InvalidTask."""
    edits: list[Edit] = []
    edges: list[Edit] = []
    for item in items:
        alone, dependencies = split_dependencies(item)
        edits.append(edit_from_json(alone))
        edges += dependencies
    return (*edits, *edges)


def split_dependencies(data: Any) -> tuple[Any, list[Edit]]:
    """An edit in its JSON form without its dependencies, and these as edits: a task that is added may have ``after``,
    ``handles`` and ``teardown``, as in a plan file. They belong at the end of the batch, so that new tasks can depend
    on each other in any order. Raises InvalidTask."""
    if not isinstance(data, Mapping) or data.get("op") != AddTask.op or not isinstance(data.get("task"), Mapping):
        return data, []
    edit, task = dict(data), dict(data["task"])
    given = {name: part.pop(name) for part in (edit, task) for name in ("after", "handles", "teardown") if name in part}
    target = task.get("id")
    if not given or not isinstance(target, str):
        return data, []
    dependencies = [
        *dependencies_of(target, given.get("after")),
        *handler_dependencies(target, given.get("handles")),
        *teardown_dependencies(target, given.get("teardown")),
    ]
    return {**edit, "task": task}, list(map(addition_of, dependencies))


def edit_from_json(data: Any) -> Edit:
    """One edit from its JSON form. Raises InvalidTask."""
    if not isinstance(data, Mapping) or not isinstance(data.get("op"), str) or data["op"] not in EDITS:
        raise InvalidTask(f"an edit is an object whose 'op' is one of {', '.join(EDITS)}; this is {data!r}")
    fields = {name: value for name, value in data.items() if name != "op"}
    kind = EDITS[data["op"]]
    try:
        if kind is UpdateTask:
            update = decode(_Update, fields)
            return UpdateTask(update.task_id, **update.changes)
        if isinstance(fields.get("task"), Mapping):
            fields["task"] = Task.from_json(fields["task"])
        edit: Edit = decode(kind, fields)
        return edit
    except InvalidRecord as error:
        raise InvalidTask(f"edit {data['op']!r}: {error}") from None


class _Update(Record, forbid_unknown_fields=True):
    """The JSON form of UpdateTask, which takes its changes by name."""

    task_id: str
    changes: dict[str, Any]


# -- edits that wait for a person -------------------------------------------------------------------------------------

WAITING, APPROVED, REFUSED, EXPIRED = "waiting", "approved", "refused", "expired"


class EditWaits(AsterismError):
    """An edit was not applied: it waits until a person approves it. ``approval`` is the WaitingEdit."""

    def __init__(self, approval: WaitingEdit) -> None:
        self.approval = approval
        super().__init__(f"the edit waits for approval {approval.id}: {'; '.join(approval.reasons)}")


class ApprovalGone(AsterismError):
    """No edit waits under this number: it was approved, refused, its time was up, or it never existed."""


class ApprovalForbidden(AsterismError):
    """Somebody else decides whether a task may start (``by`` of its ``approval``)."""


class WaitingEdit(Record, forbid_unknown_fields=True):
    """A batch that waits for a person, or waited. ``reasons`` say which edits match which rules. It holds ``tasks``.
    ``state`` is ``waiting``, ``approved``, ``refused`` or ``expired``. ``decided_by``, ``decided_at`` and ``why`` are
    those of the decision, ``version`` is that of the plan with the edit. At ``escalated_at`` it had waited too long.

    With ``task`` and an empty batch it is a task that needs approval for its start (task_approval.py), about which
    those decide whom ``by`` names."""

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
    escalated_at: float | None = None
    task: str | None = None
    by: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        data = {**encode(replace(self, batch=EMPTY)), "batch": self.batch.to_json()}
        return {name: value for name, value in data.items() if value or name not in ("task", "by")}

    @classmethod
    def from_json(cls, data: Any) -> WaitingEdit:
        batch = data.get("batch") if isinstance(data, Mapping) else None
        return decode(cls, data if batch is None else {**data, "batch": EditBatch.from_json(batch)})

    @property
    def subject(self) -> str:
        """What waits, in words."""
        if self.task is not None:
            return f"the start of task {self.task!r}"
        return f"an edit by {self.batch.author}" if self.batch.author else "an edit"

    def check_approver(self, who: str, groups: Iterable[str] = ()) -> None:
        """Raise ApprovalForbidden if a person with this name and these groups may not decide."""
        if not may_decide(self.by, who, [*groups]):
            by = " or ".join(self.by)
            raise ApprovalForbidden(f"approval {self.id}, {self.subject}, is decided by {by}, and not by {who!r}")

    def decided(self, state: str, by: str, at: float, why: str = "", version: int | None = None) -> WaitingEdit:
        return replace(self, state=state, decided_by=by, decided_at=at, why=why, version=version)
