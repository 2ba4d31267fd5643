"""``Constellation``, the plan that users build and edit, and read-only views of plans and tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol, Self, TypeVar, overload

from asterism.core.errors import DuplicateTask, EditRejected, InvalidTask, PlanError, Violation, error_text
from asterism.core.history import PlanEntry
from asterism.core.json_values import JsonObject
from asterism.core.plan import plan_codec, plan_end
from asterism.core.plan.apply import Applied, apply
from asterism.core.plan.diff import Outline
from asterism.core.plan.edits import AddTask, Edit, EditBatch, RemoveDependency, RemoveTask, UpdateTask, addition_of
from asterism.core.plan.graph import Graph, is_modifiable
from asterism.core.plan.node import Node, handler_of
from asterism.core.plan.node_records import NodeRecords
from asterism.core.plan.status import FAILED, PENDING, TERMINAL, ConstellationState, TaskStatus
from asterism.core.plan.task import (
    After,
    Dependency,
    Task,
    dependencies_of,
    handler_dependencies,
    teardown_dependencies,
)
from asterism.core.plan.task_files import files_of_inputs, outputs_of, source_problem
from asterism.core.plan.teardowns import pair_problems
from asterism.core.record import replace

Value = TypeVar("Value")


class TaskView:
    """A read-only view of one task. It is live: it shows the current state at each access."""

    __slots__ = ("_node", "_records")

    def __init__(self, node: Node, records: NodeRecords) -> None:
        self._node, self._records = node, records

    @property
    def id(self) -> str:
        return self._node.id

    @property
    def task(self) -> Task:
        return self._node.task

    @property
    def status(self) -> TaskStatus:
        return self._node.status

    @property
    def waiting(self) -> bool:
        """Whether it is pending and has open dependencies, or waits for the world."""
        return self._node.status is PENDING and (self._node.open > 0 or self._node.awaits)

    @property
    def value(self) -> Any:
        """The result; None until the end of the task is final. A provisional result is not shown. Who changes a mutable
        result in place changes it in this plan, and in no copy that was made before."""
        if self._node.status not in TERMINAL:
            return None
        self._records.expose(self._node)
        return self._node.value

    @property
    def error(self) -> BaseException | None:
        return self._node.error if self._node.status in TERMINAL else None

    @property
    def reason(self) -> str:
        """Why it failed or was cancelled."""
        return error_text(self.error) or self._node.reason

    @property
    def handled_by(self) -> str | None:
        """The task that handled its failure; None if it did not fail, or if no handler has completed."""
        handler = handler_of(self._node) if self._node.status is FAILED else None
        return None if handler is None else handler.id

    @property
    def tears_down(self) -> str | None:
        """The set-up that this task tears down; None if it is not a teardown."""
        return None if self._node.setup is None else self._node.setup.id

    @property
    def provisional(self) -> bool:
        return self._node.provisional

    @property
    def device(self) -> str | None:
        return self._node.device

    @property
    def attempts(self) -> int:
        return self._node.attempts

    @property
    def losses(self) -> int:
        """How many of the attempts were lost with their process or device."""
        return self._node.losses

    @property
    def started_at(self) -> float | None:
        return self._node.started_at

    @property
    def ended_at(self) -> float | None:
        return self._node.ended_at

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """The dependencies of this task."""
        return tuple(self._node.parents.values())

    @property
    def dependents(self) -> tuple[str, ...]:
        """The ids of the tasks that depend on this one."""
        return tuple(self._node.children)

    def __repr__(self) -> str:
        return f"<task {self.id!r} {'waiting' if self.waiting else self.status}>"


class EndView(TaskView):
    """A task at its end, before the end is recorded: the argument of an ``edit_on`` predicate."""

    __slots__ = ("_error", "_status", "_value")

    def __init__(self, node: Node, status: TaskStatus, value: Any, error: BaseException | None) -> None:
        super().__init__(node, NodeRecords())
        self._status, self._value, self._error = status, value, error

    @property
    def status(self) -> TaskStatus:
        return self._status

    @property
    def value(self) -> Any:
        return self._value

    @property
    def error(self) -> BaseException | None:
        return self._error


class Upstream(Mapping[str, Any]):
    """The results of the dependencies of a task, by id, read lazily. None for a dependency that failed."""

    __slots__ = ("nodes", "sources")
    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, nodes: Mapping[str, Node], sources: Mapping[str, Dependency]) -> None:
        self.nodes, self.sources = nodes, sources

    def __getitem__(self, task_id: str) -> Any:
        if task_id not in self.sources:
            raise KeyError(task_id)
        return self.nodes[task_id].value

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        return f"Upstream({dict(self)!r})"


class TaskOfFunction(Protocol):
    """What ``plan.task(…)`` returns: a decorator that makes a task of a function."""

    @overload
    def __call__(self, call: Callable[..., Coroutine[Any, Any, Value]], /) -> Task[Value]: ...

    @overload
    def __call__(self, call: Callable[..., Value], /) -> Task[Value]: ...


class Constellation(Graph):
    """A plan: a directed acyclic graph of tasks. Build it with ``add`` and ``connect``, run it with an orchestrator,
    and change it while it runs with ``apply``.

    Before the plan starts, ``add`` and ``connect`` change it directly, and its version stays 0. From then on every
    change is an edit, which is applied completely or not at all and increments the version."""

    def __init__(self, id: str = "constellation") -> None:
        super().__init__(id)
        self.origin: Outline | None = None  # of a copy: the plan it was copied from, for diff
        self.clock: Callable[[], float] = lambda: 0.0  # set by the owner, for edits on the plan itself
        self.on_applied: Callable[[Applied], None] | None = None  # called with each applied edit

    def add(
        self,
        task: Task[Value],
        after: After = None,
        *,
        handles: str | Iterable[str] | None = None,
        teardown: str | None = None,
    ) -> Task[Value]:
        """Add a task. ``after`` is an id, several ids, or a mapping of ids to ``"success"``, ``"failure"``,
        ``"completion"``, ``"always"`` or ``{"on": …, "when": "result.ok"}``. ``handles`` is an id, or several: the task
        runs if one of them fails, and its completion repairs that failure. ``teardown`` is the id of a set-up: the task
        runs once that has started and everything between the two is over, whatever happens to the plan. A task also
        comes after those whose files it takes (``files_from``)."""
        if not isinstance(task, Task):
            raise InvalidTask(f"add takes a Task, not {task!r}")
        files = files_of_inputs(task.inputs) if task.inputs else {}
        dependencies = [
            *teardown_dependencies(task.id, teardown),
            *dependencies_of(task.id, after),
            *handler_dependencies(task.id, handles),
        ]
        if self.state is not ConstellationState.CREATED:
            self.edit([AddTask(task), *map(addition_of, dependencies)])
            return task
        if task.id in self.nodes:
            raise DuplicateTask(task.id)
        sources = {dependency.source for dependency in dependencies}
        if len(sources) < len(dependencies):
            raise PlanError(f"task {task.id!r} names a task twice: in after=, handles= or teardown=")
        for name, reference in files.items():
            source = self.nodes.get(reference.task)
            if problem := source_problem(name, reference, None if source is None else outputs_of(source.task)):
                raise PlanError(f"task {task.id!r}: {problem}")
        implied = dict.fromkeys(reference.task for reference in files.values() if reference.task not in sources)
        dependencies += [Dependency(source_id, task.id) for source_id in implied]
        for dependency in dependencies:
            self.node(dependency.source)
        node = Node(task, self.order.fresh())
        self.insert(node)
        for dependency in dependencies:
            self.link(dependency)
        if problem := self._pair_problem(node):
            for dependency in dependencies:
                self.unlink(dependency)
            self.discard(node)
            raise PlanError(problem)
        return task

    @overload
    def task(self, call: Callable[..., Coroutine[Any, Any, Value]], /) -> Task[Value]: ...

    @overload
    def task(self, call: Callable[..., Value], /) -> Task[Value]: ...

    @overload
    def task(
        self,
        *,
        id: str | None = None,
        after: After = None,
        handles: str | Iterable[str] | None = None,
        teardown: str | None = None,
        **fields: Any,
    ) -> TaskOfFunction: ...

    def task(self, *call: Callable[..., Any], **options: Any) -> Any:
        """A decorator that adds a function as a task: ``@plan.task``, or ``@plan.task(retries=2)`` with what ``add``
        and ``Task`` take. The task has the name of the function. A parameter with the name of a task takes its result,
        and makes the task come after that one; ``after`` names others, or another outcome. The function becomes the
        task: ``result[build]`` is what it returned. Raises InvalidTask for a parameter that nothing fills."""
        return self._add_function(*call) if call else partial(self._add_function, **options)

    def _add_function(
        self,
        call: Callable[..., Any],
        /,
        *,
        id: str | None = None,
        after: After = None,
        handles: str | Iterable[str] | None = None,
        teardown: str | None = None,
        **fields: Any,
    ) -> Task[Any]:
        task: Task[Any] = Task(getattr(call, "__name__", "") if id is None else id, call=call, **fields)
        edges = [*handler_dependencies(task.id, handles), *teardown_dependencies(task.id, teardown)]
        sources = with_parameters(task, after, {edge.source for edge in edges}, self.nodes)
        return self.add(task, sources, handles=handles, teardown=teardown)

    def _pair_problem(self, node: Node) -> str | None:
        """Why a task, or the one that it tears down, cannot be what it is."""
        pair = [node] if node.setup is None else [node, node.setup]
        return next((problem for member in pair for problem in pair_problems(member)), None)

    def connect(
        self, source: str, target: str, on: str = "success", when: str | None = None, *, handled: bool = False
    ) -> Dependency:
        """Make ``target`` depend on ``source``. Raises CycleFound, with the path."""
        dependency = Dependency(source, target, on, when, handled)
        if self.state is not ConstellationState.CREATED:
            self.edit([addition_of(dependency)])
            return dependency
        self.node(source)
        if source in self.node(target).parents:
            raise PlanError(f"{target!r} already depends on {source!r}")
        self.link(dependency)
        if problem := self._pair_problem(self.node(target)):
            self.unlink(dependency)
            raise PlanError(problem)
        return dependency

    def edit(self, edits: Iterable[Edit], author: str = "", reason: str = "") -> Applied:
        """Apply edits, all or none, without a base version: no check for staleness."""
        return self.apply(EditBatch(tuple(edits), author=author, reason=reason), self.clock())

    def apply(self, batch: EditBatch, now: float) -> Applied:
        """Apply a batch, all or none. Raises EditRejected with every violation, with the plan unchanged."""
        applied = apply(self, batch, now)
        if self.on_applied is not None:
            self.on_applied(applied)
        return applied

    def reject(self, batch: EditBatch, violations: Sequence[Violation]) -> NoReturn:
        """Reject a batch for reasons outside the plan, such as the scope of its editor. Raises EditRejected."""
        raise EditRejected(violations)

    def run_again(
        self,
        now: float,
        from_tasks: Collection[str] = (),
        batch: EditBatch | None = None,
        why: str = "",
        check: Callable[[EditBatch], None] | None = None,
    ) -> list[str]:
        """Reopen a plan that has ended, to run again what failed and what was cancelled because of it; or
        ``from_tasks`` and what lies below them. ``batch`` is applied in the same step; ``check`` is called with it
        before that, and may raise. Returns the tasks that run again. Raises PlanError and EditRejected, with the plan
        unchanged."""
        chosen = plan_end.retry_choice(self, from_tasks)
        if not chosen and (batch is None or not batch.edits):
            none = "every failure was handled" if self.counts[FAILED] else "no task failed"
            raise PlanError(f"in plan {self.id!r} {none}; to run it again, name the task to begin with (--from TASK)")
        undo = self.reopen(chosen, now, why)
        try:
            if batch is not None and check is not None:
                check(batch)
            collapsed = collapse(self, chosen)
            if collapsed:  # after the edits of the caller, whose violations name them by their position
                base_batch = batch or EditBatch((), "retry", "the list of a group is made again")
                batch = replace(base_batch, edits=(*base_batch.edits, *collapsed))
            if batch is not None:
                self.apply(batch, now)
        except BaseException:
            undo()
            raise
        return [task_id for task_id in chosen if task_id in self.nodes]

    def __getitem__(self, task_id: str) -> TaskView:
        return TaskView(self.node(task_id), self.records)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self.nodes

    def __iter__(self) -> Iterator[TaskView]:
        return (TaskView(node, self.records) for node in self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<Constellation {self.id!r} version {self.version}, {len(self)} tasks, {self.state}>"

    @property
    def repaired(self) -> bool:
        """Whether the plan completed although tasks failed: other tasks handled each failure."""
        return self.state is ConstellationState.COMPLETED and self.counts[FAILED] > 0

    @property
    def state_text(self) -> str:
        """The state in words: ``partially failed``, ``repaired``."""
        return "repaired" if self.repaired else self.state.replace("_", " ")

    @property
    def dependencies(self) -> Iterator[Dependency]:
        return (dependency for node in self.nodes.values() for dependency in node.parents.values())

    def topological(self) -> list[str]:
        """All task ids, each after its dependencies."""
        return [node.id for node in sorted(self.nodes.values(), key=lambda node: node.label)]

    def modifiable(self) -> list[str]:
        """The tasks that an edit may change now: pending ones, and provisional ones, which the edit revokes."""
        return [node.id for node in self.nodes.values() if is_modifiable(node)]

    def modifiable_dependencies(self) -> list[Dependency]:
        """The dependencies that an edit may change now: those into modifiable tasks."""
        return [d for node in self.nodes.values() if is_modifiable(node) for d in node.parents.values()]

    def copy(self) -> Constellation:
        """A copy of tasks, dependencies, version and progress, which no orchestrator runs."""
        copied = plan_codec.copy(self, Constellation(self.id))
        copied.origin = Outline.of(self)
        return copied

    def to_json(self) -> JsonObject:
        """The plan with its progress, as JSON data with a schema version. Raises NotJson, with the task."""
        return plan_codec.encode(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The plan that ``to_json`` wrote."""
        return plan_codec.decode(data, cls)


class ConstellationView:
    """A read-only view of a plan for an editor, with the version at which its cycle opened.

    The view is live and costs nothing. ``frozen()`` returns a copy, which the editor may change and return as its
    answer."""

    __slots__ = ("_plan", "base_version")

    def __init__(self, plan: Constellation) -> None:
        self._plan = plan
        self.base_version = plan.version

    @property
    def id(self) -> str:
        return self._plan.id

    @property
    def version(self) -> int:
        return self._plan.version

    @property
    def dependencies(self) -> Iterator[Dependency]:
        return self._plan.dependencies

    def __getitem__(self, task_id: str) -> TaskView:
        return self._plan[task_id]

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._plan

    def __iter__(self) -> Iterator[TaskView]:
        return iter(self._plan)

    def __len__(self) -> int:
        return len(self._plan)

    def modifiable(self) -> list[str]:
        """The tasks that an edit may change now."""
        return self._plan.modifiable()

    def story(self, task_id: str | None = None) -> list[PlanEntry]:
        return self._plan.story(task_id)

    def story_after(self, count: int) -> list[PlanEntry]:
        """The story without its first ``count`` entries."""
        return self._plan.story_after(count)

    def status_counts(self) -> Mapping[TaskStatus, int]:
        """How many tasks have each status."""
        return self._plan.counts

    def frozen(self) -> Constellation:
        """A copy of the plan as it is now. The editor may change it."""
        return self._plan.copy()


def collapse(graph: Graph, again: Collection[str]) -> list[Edit]:
    """The edits that make groups as they were before they were expanded. ``again`` are the tasks that run again.

    A group (``Task.foreach``) that was expanded while the plan ran keeps its template. If the task whose result it was
    made of runs again, its elements are removed, and the next result decides which elements it has. A group stays as it
    is if another task depends on one of its elements."""
    edits: list[Edit] = []
    chosen = set(again)
    for task_id in again:
        foreach = graph.nodes[task_id].task.foreach
        if foreach is None or "of" not in foreach or foreach.get("from") not in chosen:
            continue
        elements = [graph.nodes[element_id] for element_id in foreach["of"] if element_id in graph.nodes]
        if all(_belongs_to(element, task_id) for element in elements):
            for element in elements:
                edits += [RemoveDependency(element.id, task_id), RemoveTask(element.id)]
            template = {name: value for name, value in foreach.items() if name != "of"}
            edits.append(UpdateTask(task_id, foreach=template))
    return edits


def _belongs_to(element: Node, group: str) -> bool:
    return list(element.children) == [group]


# -- functions as tasks ------------------------------------------------------------------------------------------------


SUPPLIED = frozenset({"results", "logger", "folder", "tick"})
"""The parameters that a function gets without a task or an input of that name."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def with_parameters(task: Task, after: After, others: Container[str], tasks: Container[str]) -> dict[str, Any]:
    """``after`` of a task with the tasks that its function names as parameters. ``others`` are those on which it
    depends in another way, and ``tasks`` the ids of all. Raises InvalidTask for a parameter that nothing fills."""
    sources: dict[str, Any] = {
        dependency.source: {"on": dependency.on, "when": dependency.when, "handled": dependency.handled}
        for dependency in dependencies_of(task.id, after)
    }
    assert callable(task.call)
    for name, parameter in inspect.signature(task.call).parameters.items():
        if parameter.kind not in _NAMED or name in task.inputs or name in sources or name in others:
            continue
        if name in tasks:
            sources[name] = "success"
        elif parameter.default is parameter.empty and name not in SUPPLIED:
            raise InvalidTask(
                f"task {task.id!r}: the parameter {name!r} has no value: it is neither a task of the plan nor an "
                "input; define that task first, or give the parameter a default"
            )
    return sources
