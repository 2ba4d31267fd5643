"""The documented plan (TaskConstellation, TaskOrion), over a Constellation of the core.

The object passed to an orchestrator is the live plan: reading it shows progress, and changing it while it runs is an
edit with all its checks. A copy (``copy.deepcopy``, or through JSON) belongs to its caller and records its original, so
that its changes can be merged.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, ClassVar, Self
from uuid import uuid4

from pydantic import BaseModel

from asterism.compat import manual_progress
from asterism.compat.plan_records import JsonForm, TaskConstellationSchema, as_json, items_of, read_moment
from asterism.compat.task_star import TaskStar, changes_of, moment
from asterism.compat.task_star_line import Conditions, Evaluator, Lines, TaskStarLine
from asterism.compat.vocabulary import (
    GALAXY,
    Alias,
    ConstellationState,
    Naming,
    ReadOnly,
    TaskStatus,
    refuse,
    refusing,
)
from asterism.core.json_values import JsonObject
from asterism.core.plan import status as core
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import Outline
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    Edit,
    EditBatch,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
    addition_of,
)
from asterism.core.plan.node import Node, descendants
from asterism.core.plan.node_records import own_copy
from asterism.core.plan.status import ENDED_STATES
from asterism.core.plan.task import Dependency
from asterism.orchestrator.result import Parallelism, parallelism

KEPT_VERSIONS = 32
"""The number of versions written as JSON whose outlines are stored, to merge copies that come back."""

_WRITTEN = (
    *("name", "state", "lineage", "metadata", "created_at", "updated_at"),
    *("execution_start_time", "execution_end_time", "execution_duration"),
)
"""The attributes of a plan that are written as JSON."""


class DocumentedPlan(JsonForm):
    """The common part of TaskConstellation and TaskOrion."""

    naming: ClassVar[Naming] = GALAXY
    schema: ClassVar[type[BaseModel]] = TaskConstellationSchema

    def __init__(
        self, plan_id: str | None = None, name: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.conditions = Conditions()
        self._source: DocumentedPlan | None = None  # what it becomes a copy of as soon as it is used
        self.plan = Constellation(plan_id or f"{self.naming.noun}_{uuid4().hex[:12]}")
        self.plan.evaluate, self.plan.clock = self.conditions.evaluate, time.time
        self.name = name or self.plan.id
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.created_at = self.updated_at = datetime.now(UTC)
        self.lineage = uuid4().hex  # the same in all copies of copies
        self.stamp: int | None = None  # for a copy read from JSON: the version it was written at
        self.runner: object | None = None  # the orchestrator that runs it
        self._outline: Outline | None = None
        self._written: dict[int, Outline] = {}
        self._stars: dict[str, TaskStar] = {}
        self._created: dict[str, datetime] = {}  # when its tasks were made
        self._lines = Lines(self)

    @property
    def plan_id(self) -> str:
        return self._plan.id

    @property
    def plan(self) -> Constellation:
        self.refresh()
        return self._plan

    @plan.setter
    def plan(self, value: Constellation) -> None:
        self._plan = value

    @property
    def lines(self) -> Lines:
        self.refresh()
        return self._lines

    # -- edits ---------------------------------------------------------------------------------------------------------

    def apply(
        self,
        *edits: Edit,
        lines: Iterable[TaskStarLine] = (),
        stars: Iterable[TaskStar] = (),
        base_version: int | None = None,
    ) -> Applied:
        """Apply edits, all or none, with all the checks of the core. A plan whose run has ended is opened again.

        ``lines`` belong to the added dependencies, ``stars`` are the handles of added tasks."""
        known = {(line.from_task_id, line.to_task_id): line for line in lines}
        for line in known.values():
            self.conditions.register(line.condition, line.condition_evaluator)
        with self.reopened(), refusing():
            applied = self.plan.apply(EditBatch(tuple(edits), base_version=base_version), self.plan.clock())
        for edit in edits:
            if isinstance(edit, AddDependency):
                self.lines.add(known[edit.source, edit.target])
            elif isinstance(edit, RemoveDependency):
                self.lines.drop(edit.source, edit.target)
            elif isinstance(edit, RemoveTask):
                self._forget(edit.task_id)
        for star in stars:
            self._claim(star)
        self._touch()
        return applied

    @contextlib.contextmanager
    def reopened(self) -> Iterator[None]:
        """Open a plan whose run has ended for a change; restore its state if the change is refused. Between the end
        of a run and its return it stays closed."""
        before = self.plan.state
        if before not in ENDED_STATES:
            yield
            return
        if self.runner is not None:
            raise refuse("ended", f"plan {self.plan.id!r} has ended ({before}), and its run has not returned yet")
        manual_progress.reopen(self.plan)
        try:
            yield
        except BaseException:
            self.plan.state = before
            raise

    @property
    def _building(self) -> bool:
        """Whether it has never started. Then a dependency may be added even to a task with copied progress."""
        return self.plan.state is core.ConstellationState.CREATED

    def _claim(self, star: TaskStar) -> None:
        """Make a star that is in no plan the handle of its task here."""
        node = self.plan.nodes[star.task_id]
        self._created[node.id] = star.created_at
        if star.home is None:
            star.bind(self.plan, node, self)
            self._stars[node.id] = star

    def _forget(self, task_id: str) -> None:
        star = self._stars.pop(task_id, None)
        self._created.pop(task_id, None)
        if star is not None:
            star.detach(star.node.task)

    def _touch(self) -> None:
        self.updated_at = datetime.now(UTC)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add entries to its metadata, or replace them."""
        self.metadata.update(metadata)
        self._touch()

    # -- tasks ---------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Mapping[str, TaskStar]:
        """Read-only: use ``add_task`` and ``remove_task`` to change it."""
        return MappingProxyType({task_id: self._star(node) for task_id, node in self.plan.nodes.items()})

    def get_all_tasks(self) -> list[TaskStar]:
        return [self._star(node) for node in self.plan.nodes.values()]

    @property
    def task_count(self) -> int:
        return len(self.plan)

    def get_task(self, task_id: str) -> TaskStar | None:
        node = self.plan.nodes.get(task_id)
        return None if node is None else self._star(node)

    def _star(self, node: Node) -> TaskStar:
        star = self._stars.get(node.id)
        if star is None or star.node is not node:
            created = self._created.setdefault(node.id, datetime.now(UTC))
            star = self._stars[node.id] = TaskStar.of(self.plan, node, self, created)
        return star

    def add_task(self, task: TaskStar) -> None:
        """Add a task. A task of another constellation stays there and is copied."""
        self.check(task)
        if self._building:
            with refusing():
                self.add_with_progress(task)
            return
        source = task.node
        self.apply(AddTask(source.task), stars=[task])
        if self.plan.owner is None:
            manual_progress.carry(source, self.plan, self.plan.nodes[source.id])

    def check(self, task: TaskStar) -> None:
        """Refuse a task with invalid values."""
        if task.invalid:
            values = ", ".join(f"{name}={value!r}" for name, value in task.invalid.items())
            raise refuse("invalid", f"task {task.task_id!r} cannot be added: {values} is not valid")

    def add_with_progress(self, star: TaskStar) -> None:
        """Put a task with its progress into a plan that is being built."""
        source = star.node
        self.plan.add(source.task)
        manual_progress.carry(source, self.plan, self.plan.nodes[source.id])
        self._claim(star)
        self._touch()

    def update_tasks(self, changes: Mapping[str, Mapping[str, Any]]) -> Applied:
        """Change documented fields of several tasks, all or none."""
        with refusing():
            specs = {task_id: changes_of(self.plan.node(task_id).task, fields) for task_id, fields in changes.items()}
        return self.apply(*(UpdateTask(task_id, **spec) for task_id, spec in specs.items()))

    def remove_task(self, task_id: str) -> None:
        """Remove a task that has not started, and all its dependencies."""
        self.apply(*self.removal(task_id))

    def removal(self, task_id: str) -> list[Edit]:
        """The edits that remove a task with its dependencies."""
        node = self.plan.nodes.get(task_id)
        pairs = [] if node is None else [(task_id, child) for child in node.children]
        pairs += [] if node is None else [(source, task_id) for source in node.parents]
        return [*(RemoveDependency(*pair) for pair in pairs), RemoveTask(task_id)]

    # -- dependencies --------------------------------------------------------------------------------------------------

    @property
    def dependencies(self) -> Mapping[str, TaskStarLine]:
        """Read-only: use ``add_dependency`` and ``remove_dependency`` to change it."""
        return MappingProxyType({line.line_id: line for line in self.lines})

    def get_all_dependencies(self) -> list[TaskStarLine]:
        return list(self.lines)

    @property
    def dependency_count(self) -> int:
        return len(self.lines)

    def get_dependency(self, dependency_id: str) -> TaskStarLine | None:
        return self.lines.get(dependency_id)

    def get_task_dependencies(self, task_id: str) -> list[TaskStarLine]:
        """The lines into a task."""
        node = self.plan.nodes.get(task_id)
        return [] if node is None else [self.lines.of(source, task_id) for source in node.parents]

    def add_dependency(self, dependency: TaskStarLine) -> None:
        """Raises ValueError for a cycle, an unknown task, and a second line between the same two tasks."""
        edge = dependency.dependency
        if self.lines.get(dependency.line_id) is not None:
            raise ValueError(f"there is a line {dependency.line_id!r} already")
        if self._building:
            self.conditions.register(dependency.condition, dependency.condition_evaluator)
            with refusing():
                self.plan.connect(edge.source, edge.target, edge.on, edge.when)
            self.lines.add(dependency)
            self._touch()
            return
        self.apply(addition_of(edge), lines=[dependency])

    def remove_dependency(self, dependency_id: str) -> None:
        """Remove a line; do nothing if no line has that id."""
        line = self.lines.get(dependency_id)
        if line is not None:
            self.apply(RemoveDependency(line.from_task_id, line.to_task_id))

    def add_unconditional(self, source: str, target: str) -> None:
        """Make ``target`` wait for the end of ``source``, successful or not."""
        self.add_dependency(TaskStarLine(source, target))

    def remove_line(self, source: str, target: str) -> None:
        self.apply(RemoveDependency(source, target))

    def relink(self, dependency: Dependency, evaluator: Evaluator | None) -> None:
        """Change the dependency of a line of this plan."""
        self.conditions.register(dependency.when, evaluator)
        self.apply(UpdateDependency(dependency.source, dependency.target, dependency.on, dependency.when))

    def verdict(self, source: str, target: str) -> tuple[bool | None, datetime | None]:
        """Whether a line is satisfied, and when that was decided; (None, None) before its source has ended."""
        before, after = self.plan.nodes[source], self.plan.nodes[target]
        if before.status not in core.TERMINAL:
            return None, None
        return before.satisfies(after.parents[source], after), moment(before.ended_at)

    # -- progress ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConstellationState:
        """Set by the orchestrator that runs or ran it; before that, derived from its tasks."""
        if self.plan.state not in (core.ConstellationState.CREATED, core.ConstellationState.READY):
            return ConstellationState(self.plan.state)
        counts, total = self.plan.counts, len(self.plan)
        if not total:
            return ConstellationState.CREATED
        if self.is_complete():
            if not counts[core.FAILED]:
                return ConstellationState.COMPLETED if counts[core.COMPLETED] else ConstellationState.CANCELLED
            return ConstellationState.PARTIALLY_FAILED if counts[core.COMPLETED] else ConstellationState.FAILED
        begun = counts[core.PENDING] < total
        return ConstellationState.EXECUTING if begun else ConstellationState.READY

    def update_state(self) -> None:
        """Do nothing: the state always agrees with the tasks. Documented programs call this."""

    def get_ready_tasks(self) -> list[TaskStar]:
        """The tasks that could start, the highest priority first."""
        ready = [star for star in self.get_modifiable_tasks() if star.is_ready_to_execute]
        return sorted(ready, key=lambda star: -star.priority)

    def get_running_tasks(self) -> list[TaskStar]:
        return self._with_status(core.RUNNING)

    def get_completed_tasks(self) -> list[TaskStar]:
        return self._with_status(core.COMPLETED)

    def get_failed_tasks(self) -> list[TaskStar]:
        return self._with_status(core.FAILED)

    def get_pending_tasks(self) -> list[TaskStar]:
        return self._with_status(core.PENDING)

    def _with_status(self, status: core.TaskStatus) -> list[TaskStar]:
        return [self._star(node) for node in self.plan.nodes.values() if node.status is status]

    get_modifiable_tasks = get_pending_tasks

    def is_task_modifiable(self, task_id: str) -> bool:
        node = self.plan.nodes.get(task_id)
        return node is not None and node.status is core.PENDING

    def get_modifiable_dependencies(self) -> list[TaskStarLine]:
        """The lines into tasks that have not started."""
        return [line for line in self.lines if self.is_task_modifiable(line.to_task_id)]

    def is_dependency_modifiable(self, dependency_id: str) -> bool:
        line = self.lines.get(dependency_id)
        return line is not None and self.is_task_modifiable(line.to_task_id)

    @property
    def execution_start_time(self) -> datetime | None:
        """The start of its last execution."""
        return moment(self.plan.started_at)

    @property
    def execution_end_time(self) -> datetime | None:
        return moment(self.plan.ended_at)

    @property
    def execution_duration(self) -> float | None:
        began, ended = self.plan.started_at, self.plan.ended_at
        return None if began is None or ended is None else ended - began

    # -- progress by hand: without an orchestrator ---------------------------------------------------------------------

    def is_complete(self) -> bool:
        """Whether every task has ended."""
        return not self.plan.counts[core.PENDING] and not self.plan.counts[core.RUNNING]

    def handle(self, task_id: str) -> TaskStar:
        """The handle of a task. Raises ModificationRejected if there is no such task."""
        star = self.get_task(task_id)
        if star is None:
            raise refuse("unknown_task", f"there is no task {task_id!r} in the plan")
        return star

    def start_execution(self) -> None:
        """Start the plan. Refused when it has started already."""
        manual_progress.by_hand(self.plan)
        if self.plan.state in ENDED_STATES:
            manual_progress.reopen(self.plan)
        with refusing():
            self.plan.begin(time.time())
        self.plan.ended_at = None

    def start_task(self, task_id: str) -> None:
        """Record that a task has started. Refused when it is not ready."""
        self.handle(task_id).start_execution()

    def complete_execution(self) -> None:
        """End the plan. Refused while a task has not ended."""
        manual_progress.by_hand(self.plan)
        if not self.is_complete():
            left = ", ".join(node.id for node in self.plan.nodes.values() if node.status not in core.TERMINAL)
            raise refuse("progress", f"{self.plan.id!r} is not complete: {left} have not ended")
        if self.plan.state not in ENDED_STATES:
            self.plan.close(time.time())

    def mark_task_completed(
        self, task_id: str, success: bool, result: Any = None, error: BaseException | None = None
    ) -> list[TaskStar]:
        """Record an end by hand and return the tasks it made ready. Refused while an orchestrator runs the plan."""
        manual_progress.by_hand(self.plan)
        star = self.handle(task_id)
        if star.node.status is core.PENDING:
            star.start_execution()
        if success:
            star.complete_with_success(result)
        else:
            star.complete_with_failure(error)
        return [self.handle(child) for child in manual_progress.newly_ready(star.node)]

    # -- analysis ------------------------------------------------------------------------------------------------------

    def validate_dag(self) -> tuple[bool, list[str]]:
        """Whether it can run, and the problems. Cycles and unknown tasks need no check: adding them is refused."""
        errors = [
            f"the condition {d.when!r} on {d.source!r} -> {d.target!r}: {problem}"
            for d in self.plan.dependencies
            if d.when is not None and (problem := self.conditions.check(d.when)) is not None
        ]
        return not errors, errors

    def has_cycle(self) -> bool:
        """Always False: a dependency that would close a cycle is refused when it is added."""
        return False

    def get_topological_order(self) -> list[str]:
        return self.plan.topological()

    # -- paths and parallelism -----------------------------------------------------------------------------------------

    def get_longest_path(self) -> tuple[int, list[str]]:
        """The number of tasks on the longest chain, and the chain."""
        path = list(_in_tasks(self.plan).path)
        return len(path), path

    def get_critical_path_length_with_time(self) -> tuple[float, list[str]]:
        """The seconds of the longest chain, and the chain; 0 seconds before every task has ended."""
        if not self.is_complete():
            return 0.0, []
        shape = parallelism(self.plan.nodes)
        return shape.critical_path, list(shape.path)

    def get_max_width(self) -> int:
        """The most tasks that could run at once."""
        return _in_tasks(self.plan).width

    def get_total_work(self) -> float:
        """The sum of the tasks' durations in seconds."""
        return sum(node.worked for node in self.plan.nodes.values() if node.ended_at is not None)

    def get_parallelism_metrics(self) -> JsonObject:
        """L, W and W/L: in seconds when every task has ended, in tasks before that."""
        timed = self.is_complete() and len(self.plan) > 0
        shape = parallelism(self.plan.nodes) if timed else _in_tasks(self.plan)
        number, mode = (float, "actual_time") if timed else (int, "node_count")
        return {
            "critical_path_length": number(shape.critical_path),
            "total_work": number(shape.work),
            "parallelism_ratio": shape.ratio,
            "calculation_mode": mode if len(self.plan) else "empty",
            "critical_path_tasks": list(shape.path),
            "max_width": shape.width,
        }

    def get_statistics(self) -> JsonObject:
        plan = self.plan
        shape = _in_tasks(plan)
        metrics = self.get_parallelism_metrics()
        return {
            self.naming.id_key: plan.id,
            "name": self.name,
            "state": self.state.value,
            "total_tasks": len(plan),
            "total_dependencies": sum(len(node.parents) for node in plan.nodes.values()),
            "task_status_counts": {TaskStatus(status).value: count for status, count in plan.counts.items() if count},
            "longest_path_length": len(shape.path),
            "longest_path_tasks": list(shape.path),
            "max_width": shape.width,
            "critical_path_length": metrics["critical_path_length"],
            "total_work": metrics["total_work"],
            "parallelism_ratio": metrics["parallelism_ratio"],
            "parallelism_calculation_mode": metrics["calculation_mode"],
            "critical_path_tasks": metrics["critical_path_tasks"],
            "execution_duration": self.execution_duration,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
        }

    # -- plain text ----------------------------------------------------------------------------------------------------

    def display_dag(self, mode: str = "overview") -> None:
        """Print it: ``overview``, ``topology``, ``details`` or ``execution``. Raises ValueError for another mode."""
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        print("\n".join([_headline(self), *_MODES[mode](self)]))

    # -- copies --------------------------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        """A copy with its own tasks. Sharing them would let a copy change the plan that is running."""
        copy = type(self)(self.plan_id, self.name)
        copy.metadata, copy.created_at = own_copy(self.metadata), self.created_at
        copy.lineage, copy.stamp = self.lineage, self.stamp
        copy.copy_from(self)
        if self.runner is None and self.plan.origin is not None:
            copy.plan.origin = self.plan.origin  # the base of a copy of a copy is that of the first copy
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def copy_from(self, source: DocumentedPlan) -> None:
        """Become a copy of ``source``. Handles of tasks stay valid; those of removed tasks leave the plan."""
        self.conditions.register_all(source.conditions)
        self.plan, self._outline = source.plan.copy(), None
        self.plan.evaluate, self.plan.clock = self.conditions.evaluate, time.time
        self._created = dict(source._created)
        self.lines.copy_from(source.lines)
        for task_id, star in tuple(self._stars.items()):
            if task_id in self.plan.nodes:
                star.bind(self.plan, self.plan.nodes[task_id], self)
            else:
                self._forget(task_id)

    def follow(self, source: DocumentedPlan) -> None:
        """Become a copy of ``source`` when it is used next. An agent that drops its copy after the answer pays for no
        second copy of the plan."""
        self._source = source

    def follows(self, source: DocumentedPlan) -> bool:
        """Whether it has not been used since ``follow``, so that it has no changes of its own."""
        return self._source is source

    def refresh(self) -> None:
        """Do what ``follow`` has promised. Its tasks and lines call this before they tell anything."""
        if self._source is not None:
            source, self._source = self._source, None
            self.copy_from(source)

    def adopt(self, copy: DocumentedPlan, applied: Applied) -> None:
        """Update lines and handles after edits from a copy were applied. Visits only what they have changed."""
        for change in applied.reverse:
            if isinstance(change, AddDependency):  # an updated one is removed and added again, and keeps its line
                target = self.plan.nodes.get(change.target)
                if target is None or change.source not in target.parents:
                    self.lines.drop(change.source, change.target)
            elif isinstance(change, AddTask):
                self._forget(change.task.id)
        for edit in applied.batch.edits:
            if isinstance(edit, AddDependency | UpdateDependency):
                self.lines.take_over(copy.lines.of(edit.source, edit.target))
        self._touch()

    def outline(self) -> Outline:
        """The current structure. For a running plan it is made once per version."""
        if self.runner is None or self._outline is None or self._outline.version != self.plan.version:
            self._outline = Outline.of(self.plan)
        return self._outline

    def written(self, version: int | None) -> Outline | None:
        """The outline written as JSON at a version, if it is still stored."""
        return None if version is None else self._written.get(version)

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def to_dict(self) -> JsonObject:
        """The plan as JSON data. A result that JSON cannot hold is written as text, a condition by its name."""
        self._written[self.plan.version] = Outline.of(self.plan)
        while len(self._written) > KEPT_VERSIONS:
            del self._written[next(iter(self._written))]
        return {
            self.naming.id_key: self.plan_id,
            "version": self.plan.version,
            "tasks": {task_id: star.to_dict() for task_id, star in self.tasks.items()},
            "dependencies": {line.line_id: line.to_dict() for line in self.lines},
            **{name: as_json(getattr(self, name)) for name in _WRITTEN},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read data in the form of ``to_dict``. Raises ValueError with the problem."""
        made = cls(data.get(cls.naming.id_key), data.get("name"))
        with refusing():
            made._fill(data)
        return made

    def _fill(self, data: Mapping[str, Any]) -> None:
        """Put tasks and lines into an empty plan. The lines are linked directly, not by an edit: an edit could not add
        a dependency to a task that has started."""
        self.metadata = dict(data.get("metadata") or {})
        self.lineage, self.stamp = data.get("lineage") or self.lineage, data.get("version")
        if data.get("created_at"):
            self.created_at = read_moment(data["created_at"])
        for item in items_of(data.get("tasks")):
            self.add_with_progress(TaskStar.from_dict(item))
        for item in items_of(data.get("dependencies")):
            line = TaskStarLine.from_dict(item)
            edge = line.dependency
            over = self.plan.node(edge.source).status in core.TERMINAL
            self.plan.link(edge, bool(item.get("is_satisfied")) if edge.when is not None and over else None)
            self.lines.add(line)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.plan_id!r} {self.state}, {len(self.plan)} tasks>"

    # -- private names that the documents show -------------------------------------------------------------------------

    _tasks = ReadOnly("tasks", "use add_task and remove_task")
    _dependencies = ReadOnly("dependencies", "use add_dependency and remove_dependency")
    _name = Alias("name")
    _metadata = Alias("metadata")
    _state = ReadOnly("state", "it follows from the tasks")
    _execution_start_time = ReadOnly("execution_start_time", "use start_execution")
    _execution_end_time = ReadOnly("execution_end_time", "use complete_execution")
    _created_at = ReadOnly("created_at", "it is when the plan was made")
    _updated_at = ReadOnly("updated_at", "it is when the plan last changed")

    def _are_dependencies_satisfied(self, task_id: str) -> bool:
        node = self.plan.nodes.get(task_id)
        return node is not None and not node.open

    def _would_create_cycle(self, from_task_id: str, to_task_id: str) -> bool:
        return _reaches(self.plan, to_task_id, from_task_id)


def _in_tasks(plan: Constellation) -> Parallelism:
    """The parallelism, with every task counted as one."""
    return parallelism(plan.nodes, dict.fromkeys(plan.nodes, 1.0))


def _reaches(plan: Constellation, start: str, goal: str) -> bool:
    """Whether ``goal`` depends on ``start``, directly or indirectly, or is the same task."""
    if start == goal or start not in plan.nodes:
        return start == goal
    return plan.nodes.get(goal) in descendants(plan.nodes[start])


def _headline(documented: DocumentedPlan) -> str:
    counts = f"{documented.task_count} tasks, {documented.dependency_count} dependencies"
    return f"{documented.name} ({documented.state.value}): {counts}"


def _overview(documented: DocumentedPlan) -> Iterator[str]:
    counts = documented.get_statistics()["task_status_counts"]
    yield "  " + (", ".join(f"{count} {status}" for status, count in counts.items()) or "no task")


def _topology(documented: DocumentedPlan) -> Iterator[str]:
    for task_id in documented.get_topological_order():
        lines = documented.get_task_dependencies(task_id)
        after = [f"{line.from_task_id} ({line.dependency_type.value})" for line in lines]
        yield f"  {task_id}" + (f" <- {', '.join(after)}" if after else "")


def _details(documented: DocumentedPlan) -> Iterator[str]:
    for task in _in_order(documented):
        device = task.target_device_id or "any device"
        yield f"  {task.task_id}: {task.name}, {task.status.value}, priority {task.priority.name}, {device}"
        if task.description:
            yield f"    {task.description}"
        if task.error is not None:
            yield f"    error: {task.error}"


def _execution(documented: DocumentedPlan) -> Iterator[str]:
    for task in _in_order(documented):
        took = task.execution_duration
        yield f"  {task.task_id}: {task.status.value}" + ("" if took is None else f" after {took:.2f} s")


def _in_order(documented: DocumentedPlan) -> Iterator[TaskStar]:
    tasks = documented.tasks
    return (tasks[task_id] for task_id in documented.get_topological_order())


_MODES: dict[str, Callable[[DocumentedPlan], Iterator[str]]] = {
    "overview": _overview,
    "topology": _topology,
    "details": _details,
    "execution": _execution,
}
