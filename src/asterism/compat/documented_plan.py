"""The documented plan (TaskConstellation, TaskOrion), over a Constellation of the core.

The object passed to an orchestrator is the live plan: reading it shows progress, and changing it while it runs is an
edit with all its checks. A copy (``copy.deepcopy``) belongs to its caller and records its original, so
that its changes can be merged.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self
from uuid import uuid4

from asterism.compat.task_star import TaskStar, check_idle, newly_ready, reopen
from asterism.compat.task_star_line import Conditions, Lines, TaskStarLine
from asterism.compat.vocabulary import (
    GALAXY,
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
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    addition_of,
)
from asterism.core.plan.node import Node
from asterism.core.plan.node_records import own_copy
from asterism.core.plan.status import ENDED_STATES


class DocumentedPlan:
    """The common part of TaskConstellation and TaskOrion."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(
        self, plan_id: str | None = None, name: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.conditions = Conditions()
        self._source: DocumentedPlan | None = None  # what it becomes a copy of as soon as it is used
        self.plan = Constellation(plan_id or f"{self.naming.noun}_{uuid4().hex[:12]}")
        self.plan.evaluate, self.plan.clock = self.conditions.evaluate, time.time
        self.name = name or self.plan.id
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.lineage = uuid4().hex  # the same in all copies of copies
        self.runner: object | None = None  # the orchestrator that runs it
        self._outline: Outline | None = None
        self._stars: dict[str, TaskStar] = {}
        self._lines = Lines()

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
        line: TaskStarLine | None = None,
    ) -> None:
        """Apply edits, all or none, with all the checks of the core. A plan whose run has ended is opened again.

        ``line`` is that of an added dependency."""
        if line is not None:
            self.conditions.register(line)
        with self.reopened(), refusing():
            self.plan.edit(edits)
        if line is not None:
            self.lines.put(line)
        for edit in edits:
            if isinstance(edit, RemoveDependency):
                self.lines.drop(edit.source, edit.target)
            elif isinstance(edit, RemoveTask):
                self._forget(edit.task_id)

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
        reopen(self.plan)
        try:
            yield
        except BaseException:
            self.plan.state = before
            raise

    def _forget(self, task_id: str) -> None:
        star = self._stars.pop(task_id, None)
        if star is not None:
            star.detach(star.node.task)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Mapping[str, TaskStar]:
        """Read-only: use ``add_task`` and ``remove_task`` to change it."""
        return MappingProxyType({task_id: self._star(node) for task_id, node in self.plan.nodes.items()})

    @property
    def task_count(self) -> int:
        return len(self.plan)

    def get_task(self, task_id: str) -> TaskStar | None:
        node = self.plan.nodes.get(task_id)
        return None if node is None else self._star(node)

    def _star(self, node: Node) -> TaskStar:
        star = self._stars.get(node.id)
        if star is None or star.node is not node:
            star = self._stars[node.id] = TaskStar.of(self.plan, node, self)
        return star

    def add_task(self, task: TaskStar) -> None:
        """Add a task. A task of another constellation stays there and is copied."""
        self.apply(AddTask(task.node.task))
        if task.home is None:
            task.bind(self.plan, self.plan.nodes[task.task_id], self)
            self._stars[task.task_id] = task

    def remove_task(self, task_id: str) -> None:
        """Remove a task that has not started, and all its dependencies."""
        node = self.plan.nodes.get(task_id)
        pairs = [] if node is None else [(task_id, child) for child in node.children]
        pairs += [] if node is None else [(source, task_id) for source in node.parents]
        self.apply(*(RemoveDependency(*pair) for pair in pairs), RemoveTask(task_id))

    # -- dependencies --------------------------------------------------------------------------------------------------

    @property
    def dependencies(self) -> Mapping[str, TaskStarLine]:
        """The lines by id. Read-only: use ``add_dependency`` and ``remove_dependency`` to change it."""
        return MappingProxyType(self.lines.by_id)

    @property
    def dependency_count(self) -> int:
        return len(self.lines.by_id)

    def add_dependency(self, dependency: TaskStarLine) -> None:
        """Raises ValueError for a cycle, an unknown task, and a second line between the same two tasks."""
        if dependency.line_id in self.lines.by_id:
            raise ValueError(f"there is a line {dependency.line_id!r} already")
        self.apply(addition_of(dependency.dependency), line=dependency)

    def remove_dependency(self, dependency_id: str) -> None:
        """Remove a line; do nothing if no line has that id."""
        line = self.lines.by_id.get(dependency_id)
        if line is not None:
            self.apply(RemoveDependency(line.from_task_id, line.to_task_id))

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
        ready = [star for star in self.get_pending_tasks() if star.is_ready_to_execute]
        return sorted(ready, key=lambda star: -star.priority)

    def get_running_tasks(self) -> list[TaskStar]:
        return self._with_status(core.RUNNING)

    def get_pending_tasks(self) -> list[TaskStar]:
        return self._with_status(core.PENDING)

    def _with_status(self, status: core.TaskStatus) -> list[TaskStar]:
        return [self._star(node) for node in self.plan.nodes.values() if node.status is status]

    @property
    def execution_duration(self) -> float | None:
        began, ended = self.plan.started_at, self.plan.ended_at
        return None if began is None or ended is None else ended - began

    # -- progress by hand: without an orchestrator ---------------------------------------------------------------------

    def is_complete(self) -> bool:
        """Whether every task has ended."""
        return not self.plan.counts[core.PENDING] and not self.plan.counts[core.RUNNING]

    def mark_task_completed(
        self, task_id: str, success: bool, result: Any = None, error: BaseException | None = None
    ) -> list[TaskStar]:
        """Record an end by hand and return the tasks it made ready. Refused while an orchestrator runs the plan."""
        star = self.get_task(task_id)
        if star is None:
            raise refuse("unknown_task", f"there is no task {task_id!r} in the plan")
        if star.node.status is core.PENDING:
            star.start_execution()
        check_idle(self.plan)
        with refusing():
            self.plan.finish(star.node, core.COMPLETED if success else core.FAILED, time.time(), result, error)
        return [self._star(self.plan.nodes[child]) for child in newly_ready(star.node)]

    # -- analysis ------------------------------------------------------------------------------------------------------

    def validate_dag(self) -> tuple[bool, list[str]]:
        """Whether it can run, and the problems. Cycles and unknown tasks need no check: adding them is refused."""
        errors = [
            f"the condition {d.when!r} on {d.source!r} -> {d.target!r}: {problem}"
            for d in self.plan.dependencies
            if d.when is not None and (problem := self.conditions.check(d.when)) is not None
        ]
        return not errors, errors

    def get_statistics(self) -> JsonObject:
        return {
            self.naming.id_key: self.plan_id,
            "name": self.name,
            "state": self.state.value,
            "total_tasks": self.task_count,
            "total_dependencies": self.dependency_count,
            "task_status_counts": {
                TaskStatus(status).value: count for status, count in self.plan.counts.items() if count
            },
            "execution_duration": self.execution_duration,
        }

    # -- copies --------------------------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        """A copy with its own tasks. Sharing them would let a copy change the plan that is running."""
        copy = type(self)(self.plan_id, self.name)
        copy.metadata = own_copy(self.metadata)
        copy.lineage = self.lineage
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
        self._lines = source.lines.copy()
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
                self.lines.put(copy.lines.by_pair[edit.source, edit.target])

    def outline(self) -> Outline:
        """The current structure. For a running plan it is made once per version."""
        if self.runner is None or self._outline is None or self._outline.version != self.plan.version:
            self._outline = Outline.of(self.plan)
        return self._outline

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.plan_id!r} {self.state}, {len(self.plan)} tasks>"

    # -- private names that the documents show -------------------------------------------------------------------------

    _tasks = ReadOnly("tasks", "use add_task and remove_task")

    def _are_dependencies_satisfied(self, task_id: str) -> bool:
        node = self.plan.nodes.get(task_id)
        return node is not None and not node.open
