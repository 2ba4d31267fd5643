"""The living plan: a directed acyclic graph of tasks that may be edited while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from asterism.core.errors import DuplicateTask, InvalidTask, PlanError
from asterism.core.plan import plan_codec
from asterism.core.plan.apply import Applied, apply
from asterism.core.plan.diff import Outline
from asterism.core.plan.edits import AddDependency, AddTask, Edit, EditBatch
from asterism.core.plan.graph import Graph, is_modifiable
from asterism.core.plan.node import Node
from asterism.core.plan.status import ConstellationState
from asterism.core.plan.task import After, Dependency, Task, dependencies_of
from asterism.core.plan.view import TaskView


class Constellation(Graph):
    """A plan. Build it with ``add`` and ``connect``, hand it to an orchestrator, edit it with ``apply``.

    Before it starts, building changes it directly and its version stays 0. From then on every change is an edit,
    checked and applied all or nothing, and the version grows by one with each."""

    def __init__(self, id: str = "constellation") -> None:
        super().__init__(id)
        self.origin: Outline | None = None  # of a copy: the plan it was made from, so that changes can be told apart
        self.owner: object | None = None  # the orchestrator that runs it: one at a time
        self.clock: Callable[[], float] = lambda: 0.0  # set by the owner, for edits made straight on the plan
        self.on_applied: Callable[[Applied], None] | None = None  # tells the owner of such an edit

    def add(self, task: Task, after: After = None) -> Task:
        """Add a task. ``after`` is an id, several ids, or a mapping of ids to ``"success"``, ``"failure"``,
        ``"completion"`` or ``{"on": …, "when": "result.ok"}``."""
        if not isinstance(task, Task):
            raise InvalidTask(f"add takes a Task, not {task!r}")
        dependencies = dependencies_of(task.id, after)
        if self.state is not ConstellationState.CREATED:
            self.edit([AddTask(task), *map(_add, dependencies)])
            return task
        if task.id in self.nodes:
            raise DuplicateTask(task.id)
        for dependency in dependencies:
            self.node(dependency.source)
        self.insert(Node(task, self.order.fresh()))
        for dependency in dependencies:
            self.link(dependency)
        return task

    def connect(self, source: str, target: str, on: str = "success", when: str | None = None) -> Dependency:
        """Make ``target`` depend on ``source``. Raises CycleFound with the path."""
        dependency = Dependency(source, target, on, when)
        if self.state is not ConstellationState.CREATED:
            self.edit([_add(dependency)])
            return dependency
        self.node(source)
        if source in self.node(target).parents:
            raise PlanError(f"{target!r} depends on {source!r} already")
        self.link(dependency)
        return dependency

    def edit(self, edits: Iterable[Edit], author: str = "", reason: str = "") -> Applied:
        """Apply edits now, all or nothing, with no base version: the caller has just looked."""
        return self.apply(EditBatch(tuple(edits), author=author, reason=reason), self.clock())

    def apply(self, batch: EditBatch, now: float) -> Applied:
        """Apply a batch whole, or raise EditRejected with every violation and leave the plan as it was."""
        applied = apply(self, batch, now)
        if self.on_applied is not None:
            self.on_applied(applied)
        return applied

    def __getitem__(self, task_id: str) -> TaskView:
        return TaskView(self.node(task_id))

    def __contains__(self, task_id: object) -> bool:
        return task_id in self.nodes

    def __iter__(self) -> Iterator[TaskView]:
        return map(TaskView, self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<Constellation {self.id!r} version {self.version}, {len(self)} tasks, {self.state}>"

    @property
    def dependencies(self) -> Iterator[Dependency]:
        return (dependency for node in self.nodes.values() for dependency in node.parents.values())

    def topological(self) -> list[str]:
        """All ids, every task after the ones it depends on."""
        return [node.id for node in sorted(self.nodes.values(), key=lambda node: node.label)]

    def modifiable(self) -> list[str]:
        """The tasks that an edit may change now: pending ones, and provisional ones (which it would revoke)."""
        return [node.id for node in self.nodes.values() if is_modifiable(node)]

    def modifiable_dependencies(self) -> list[Dependency]:
        """The dependencies that an edit may change now: those into modifiable tasks."""
        return [d for node in self.nodes.values() if is_modifiable(node) for d in node.parents.values()]

    def copy(self) -> Constellation:
        """The tasks, dependencies, version and progress as they are now, in a plan of its own that nobody runs."""
        twin = plan_codec.copy(self, Constellation(self.id))
        twin.origin = Outline.of(self)
        return twin

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON data with a schema version. Raises NotJson and says which task is in the way."""
        return plan_codec.encode(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The plan that ``to_json`` wrote."""
        return plan_codec.decode(data, cls)


def _add(dependency: Dependency) -> AddDependency:
    return AddDependency(dependency.source, dependency.target, dependency.on, dependency.when)
