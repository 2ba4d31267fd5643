"""A living plan with the documented names, over a Constellation of the core.

The object that is handed to an orchestrator is the live one: reading it shows progress, and changing it in place while
it runs is an edit, with all the checks of one. A copy (``copy.deepcopy``, or by way of JSON) belongs to whoever made
it, and knows what it was copied from, so that what was changed in it can be told apart when it comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Self
from uuid import uuid4

from asterism.compat import figures, records
from asterism.compat.changes import by_hand, change, refusing
from asterism.compat.lines import Conditions, Evaluator, Lines, TaskStarLine
from asterism.compat.naming import GALAXY, Naming
from asterism.compat.stars import TaskStar, carry
from asterism.compat.vocabulary import ConstellationState
from asterism.core import status as core
from asterism.core.constellation import Constellation
from asterism.core.diff import Outline
from asterism.core.edits import AddDependency, Edit, RemoveDependency, RemoveTask, UpdateDependency
from asterism.core.node import Node
from asterism.core.task import Dependency

KEPT_VERSIONS = 32
"""Of how many versions that were written as JSON the outline is kept, to recognise copies that come back."""


class LivingPlan:
    """What TaskConstellation and TaskOrion are, but for their names."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(self, plan_id: str | None = None, name: str | None = None) -> None:
        self.conditions = Conditions()
        self.plan = Constellation(plan_id or f"{self.naming.noun}_{uuid4().hex[:12]}")
        self.plan.evaluate = self.conditions.evaluate
        self.name = name or self.plan.id
        self.metadata: dict[str, Any] = {}
        self.created_at = self.updated_at = datetime.now(UTC)
        self.lineage = uuid4().hex  # the same in all copies of copies
        self.stamp: int | None = None  # of a copy read from JSON: the version it was written at
        self.runner: object | None = None  # the orchestrator that runs it
        self._outline: Outline | None = None
        self._written: dict[int, Outline] = {}
        self._stars: dict[str, TaskStar] = {}
        self.lines = Lines()

    @property
    def plan_id(self) -> str:
        return self.plan.id

    # -- tasks ---------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> dict[str, TaskStar]:
        return {task_id: self._star(node) for task_id, node in self.plan.nodes.items()}

    def get_task(self, task_id: str) -> TaskStar | None:
        node = self.plan.nodes.get(task_id)
        return None if node is None else self._star(node)

    def _star(self, node: Node) -> TaskStar:
        star = self._stars.get(node.id)
        if star is None or star.node is not node:
            star = self._stars[node.id] = TaskStar.of(self.plan, node)
        return star

    def add_task(self, task: TaskStar) -> None:
        """Take a task in. One that belongs to another constellation stays there, and a copy of it is taken."""
        with refusing():
            self.plan.add(task.node.task)
        self._touch()
        node = self.plan.nodes[task.task_id]
        if self.plan.owner is None:
            carry(task.node, self.plan, node)
        if task.alone:
            task.bind(self.plan, node)
            self._stars[node.id] = task

    def remove_task(self, task_id: str) -> None:
        """Take out a task that has not started, and every dependency into it and out of it."""
        node = self.plan.nodes.get(task_id)
        pairs = [] if node is None else [(task_id, child) for child in node.children]
        above = [] if node is None else [(source, task_id) for source in node.parents]
        self._change(*(RemoveDependency(*pair) for pair in pairs), RemoveTask(task_id))
        self._forget(task_id)
        for pair in (*pairs, *above):
            self.lines.drop(*pair)

    def _forget(self, task_id: str) -> None:
        star = self._stars.pop(task_id, None)
        if star is not None:
            star.stand_alone(star.node.task)

    # -- dependencies --------------------------------------------------------------------------------------------------

    @property
    def dependencies(self) -> dict[str, TaskStarLine]:
        return {line.line_id: line for line in self.lines}

    def get_dependency(self, dependency_id: str) -> TaskStarLine | None:
        return self.lines.get(dependency_id)

    def add_dependency(self, dependency: TaskStarLine) -> None:
        """Raises ValueError for a cycle, an unknown task, and a second line between the same two tasks."""
        line, edge = dependency, dependency.dependency
        if self.lines.get(line.line_id) is not None:
            raise ValueError(f"there is a line {line.line_id!r} already")
        self.conditions.learn(line.condition, line.condition_evaluator)
        with refusing():
            self.plan.connect(edge.source, edge.target, edge.on, edge.when)
        self._touch()
        self.lines.add(line, self)

    def remove_dependency(self, dependency_id: str) -> None:
        """Take out a line; nothing happens when there is none of that id."""
        line = self.lines.get(dependency_id)
        if line is not None:
            self._change(RemoveDependency(line.from_task_id, line.to_task_id))
            self.lines.drop(line.from_task_id, line.to_task_id)

    def relink(self, dependency: Dependency, evaluator: Evaluator | None) -> None:
        """A line of this plan is about to mean something else."""
        self.conditions.learn(dependency.when, evaluator)
        self._change(UpdateDependency(dependency.source, dependency.target, dependency.on, dependency.when))

    def _change(self, *edits: Edit) -> None:
        change(self.plan, *edits)
        self._touch()

    def _touch(self) -> None:
        self.updated_at = datetime.now(UTC)

    # -- progress ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConstellationState:
        """Told by the orchestrator that runs or ran it; before that, by its tasks."""
        if self.plan.state is not core.ConstellationState.CREATED:
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
        """There is nothing to do: the state always agrees with the tasks. Documented programs call this."""

    def is_complete(self) -> bool:
        """Whether every task has ended."""
        return not self.plan.counts[core.PENDING] and not self.plan.counts[core.RUNNING]

    def get_ready_tasks(self) -> list[TaskStar]:
        """What could start, the most urgent first."""
        ready = [star for star in self.get_modifiable_tasks() if star.is_ready_to_execute]
        return sorted(ready, key=lambda star: -star.priority)

    def get_modifiable_tasks(self) -> list[TaskStar]:
        """What has not started."""
        return [self._star(node) for node in self.plan.nodes.values() if node.status is core.PENDING]

    def mark_task_completed(
        self, task_id: str, success: bool, result: Any = None, error: BaseException | None = None
    ) -> list[TaskStar]:
        """Record an end by hand and return what that made ready. Refused while an orchestrator runs the plan."""
        by_hand(self.plan)
        with refusing():
            node = self.plan.node(task_id)
        star = self._star(node)
        if node.status is core.PENDING:
            star.start_execution()
        if success:
            star.complete_with_success(result)
        else:
            star.complete_with_failure(error)
        return [self._star(self.plan.nodes[child]) for child in newly_ready(node)]

    # -- the graph -----------------------------------------------------------------------------------------------------

    def validate_dag(self) -> tuple[bool, list[str]]:
        """Whether it can run, and what stands in the way. A cycle or a loose end cannot: they are refused at once."""
        errors = [
            f"the condition {d.when!r} on {d.source!r} -> {d.target!r}: {problem}"
            for d in self.plan.dependencies
            if d.when is not None and (problem := self.conditions.check(d.when)) is not None
        ]
        return not errors, errors

    def get_topological_order(self) -> list[str]:
        return self.plan.topological()

    def get_parallelism_metrics(self) -> dict[str, Any]:
        return figures.parallelism_metrics(self)

    def get_statistics(self) -> dict[str, Any]:
        return figures.statistics(self)

    # -- copies --------------------------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        """A copy with its own tasks. Sharing them would let a copy change the plan that is running."""
        twin = type(self)(self.plan_id, self.name)
        twin.metadata, twin.created_at = dict(self.metadata), self.created_at
        twin.lineage, twin.stamp = self.lineage, self.stamp
        twin.follow(self)
        if self.runner is None and self.plan.origin is not None:
            twin.plan.origin = self.plan.origin  # the copy of a copy still differs from the first by what was changed
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def follow(self, source: LivingPlan) -> None:
        """Become what ``source`` is now. Handles on tasks stay valid; those of tasks that are gone stand alone."""
        self.conditions.learn_from(source.conditions)
        self.plan, self._outline = source.plan.copy(), None
        self.plan.evaluate = self.conditions.evaluate
        self.lines.keep(self.plan)
        for line in source.lines:
            self.lines.take_over(line, self)
        for task_id, star in tuple(self._stars.items()):
            if task_id in self.plan.nodes:
                star.bind(self.plan, self.plan.nodes[task_id])
            else:
                self._forget(task_id)

    def adopt(self, copy: LivingPlan, edits: tuple[Edit, ...]) -> None:
        """Edits that came from a copy have been applied: let lines and handles agree with them."""
        self.lines.keep(self.plan)
        for edit in edits:
            if isinstance(edit, AddDependency | UpdateDependency):
                self.lines.take_over(copy.lines.of(edit.source, edit.target), self)
            elif isinstance(edit, RemoveTask):
                self._forget(edit.task_id)
        self._touch()

    def outline(self) -> Outline:
        """The structure as it is now. Of a plan that runs it is made once per version."""
        if self.runner is None or self._outline is None or self._outline.version != self.plan.version:
            self._outline = Outline.of(self.plan)
        return self._outline

    def written(self, version: int | None) -> Outline | None:
        """What was written as JSON at a version, if that is not too long ago."""
        return None if version is None else self._written.get(version)

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON data. A result that JSON cannot hold is written as text, a condition by its name."""
        self._written[self.plan.version] = Outline.of(self.plan)
        while len(self._written) > KEPT_VERSIONS:
            del self._written[next(iter(self._written))]
        return records.plan_to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What ``to_dict`` wrote, or somebody else in the same form. Raises ValueError, and says what is wrong."""
        made = cls(data.get(cls.naming.id_key), data.get("name"))
        with refusing():
            records.fill_plan(made, data)
        return made

    def to_json(self, save_path: str | None = None) -> str:
        return records.write(self.to_dict(), save_path)

    @classmethod
    def from_json(cls, json_data: str | None = None, file_path: str | None = None) -> Self:
        return cls.from_dict(records.read(json_data, file_path))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.plan_id!r} {self.state}, {len(self.plan)} tasks>"


def newly_ready(node: Node) -> list[str]:
    """The tasks that the end of this one has made ready: before it, its own edge was open."""
    return [child.id for child in node.children.values() if child.status is core.PENDING and not child.open]
