"""The documented editor: commands with undo and redo, over batches of edits of the core.

Every command is applied whole or refused whole. A refusal is a CommandExecutionError, which is a ValueError.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel

from asterism.compat import command_history, plan_records
from asterism.compat.command_history import Command, CommandInvoker, EditCommand, SwapCommand
from asterism.compat.documented_names import GALAXY, Naming
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.task_star import TaskStar, changes_of
from asterism.compat.task_star_line import TaskStarLine
from asterism.compat.vocabulary import DependencyType, ModificationRejected, member, refusing
from asterism.core.errors import Violation
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    Edit,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)

logger = logging.getLogger("asterism.compat.editor")

Observer = Callable[[Any, str, Any], Any]
"""(editor, name of the command, its result)"""


class CommandExecutionError(ModificationRejected):
    """A refused command; it changed nothing."""


@contextlib.contextmanager
def _executing() -> Iterator[None]:
    try:
        with refusing():
            yield
    except CommandExecutionError:
        raise
    except ModificationRejected as rejected:
        raise CommandExecutionError(rejected.violations) from rejected
    except (ValueError, TypeError, OSError) as error:
        raise CommandExecutionError([Violation(None, "invalid", str(error))]) from error


class PlanEditor:
    """The common part of ConstellationEditor and OrionEditor."""

    naming: ClassVar[Naming] = GALAXY
    plan_class: ClassVar[type[DocumentedPlan]] = DocumentedPlan

    def __init__(
        self, plan: DocumentedPlan | None = None, enable_history: bool = True, max_history_size: int = 100
    ) -> None:
        self.plan = self.plan_class() if plan is None else plan
        self.invoker = CommandInvoker(enable_history, max_history_size)
        self._observers: list[Observer] = []

    def _execute(self, command: Command, result: Callable[[], Any]) -> Any:
        with _executing():
            self.invoker.execute(command)
        return self._notify(command.name, result())

    def _edit(self, name: str, description: str, edits: Iterable[Edit], result: Callable[[], Any], **about: Any) -> Any:
        with _executing():
            command = EditCommand(name, description, self.plan, edits, **about)
        return self._execute(command, result)

    def _notify(self, name: str, result: Any) -> Any:
        for observer in tuple(self._observers):
            try:
                observer(self, name, result)
            except Exception:
                logger.exception("%r failed on %s; the change stands", observer, name)
        return result

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def add_task(self, task: TaskStar | Mapping[str, Any]) -> TaskStar:
        """Add a task, or one made from its fields."""
        with _executing():
            star = task if isinstance(task, TaskStar) else TaskStar.from_dict(task)
            self.plan.check(star)
        edits, ids = [AddTask(star.node.task)], star.task_id
        added: TaskStar = self._edit("add_task", f"Add task: {ids}", edits, lambda: self.get_task(ids), stars=[star])
        return added

    def create_and_add_task(self, task_id: str, description: str, name: str = "", **fields: Any) -> TaskStar:
        with _executing():
            star = TaskStar(task_id=task_id, description=description, name=name, **fields)
        return self.add_task(star)

    def update_task(self, task_id: str, **updates: Any) -> TaskStar:
        """Change documented fields of a task that has not started. ``task_data`` is replaced, not merged."""
        with _executing():
            edit = UpdateTask(task_id, **changes_of(self.plan.plan.node(task_id).task, updates))
        updated: TaskStar = self._edit("update_task", f"Update task: {task_id}", [edit], lambda: self.get_task(task_id))
        return updated

    def remove_task(self, task_id: str) -> str:
        """Remove a task that has not started, with its dependencies."""
        edits = self.plan.removal(task_id)
        removed: str = self._edit("remove_task", f"Remove task: {task_id}", edits, lambda: task_id)
        return removed

    def get_task(self, task_id: str) -> TaskStar | None:
        return self.plan.get_task(task_id)

    def list_tasks(self) -> list[TaskStar]:
        return self.plan.get_all_tasks()

    # -- dependencies --------------------------------------------------------------------------------------------------

    def add_dependency(self, dependency: TaskStarLine | Mapping[str, Any]) -> TaskStarLine:
        """Add a line, or one made from its fields."""
        with _executing():
            line = dependency if isinstance(dependency, TaskStarLine) else TaskStarLine.from_dict(dependency)
            line = line if line.home is None else line.detached_copy()
            edge = line.dependency
            if self.plan.get_dependency(line.line_id) is not None:
                raise ValueError(f"there is a line {line.line_id!r} already")
        edits = [AddDependency(edge.source, edge.target, edge.on, edge.when)]
        what = f"Add dependency: {edge.source} → {edge.target}"
        added: TaskStarLine = self._edit("add_dependency", what, edits, lambda: line, lines=[line])
        return added

    def create_and_add_dependency(
        self,
        from_task_id: str,
        to_task_id: str,
        dependency_type: DependencyType | str = DependencyType.UNCONDITIONAL,
        **fields: Any,
    ) -> TaskStarLine:
        with _executing():
            line = TaskStarLine(from_task_id, to_task_id, dependency_type, **fields)
        return self.add_dependency(line)

    def update_dependency(self, dependency_id: str, **updates: Any) -> TaskStarLine:
        """Change ``dependency_type``, ``condition_description``, ``condition_evaluator`` or ``metadata`` of a line."""
        with _executing():
            line = self._line(dependency_id)
            look = _updated(line.detached_copy(), updates)
            edge, before = look.dependency, line.dependency
        edits = [] if edge == before else [UpdateDependency(edge.source, edge.target, edge.on, edge.when)]
        what = f"Update dependency: {edge.source} → {edge.target}"
        updated: TaskStarLine = self._edit("update_dependency", what, edits, lambda: line, lines=[look])
        return updated

    def remove_dependency(self, dependency_id: str) -> str:
        with _executing():
            line = self._line(dependency_id)
        edits = [RemoveDependency(line.from_task_id, line.to_task_id)]
        what = f"Remove dependency: {line.from_task_id} → {line.to_task_id}"
        removed: str = self._edit("remove_dependency", what, edits, lambda: dependency_id)
        return removed

    def _line(self, dependency_id: str) -> TaskStarLine:
        line = self.plan.get_dependency(dependency_id)
        if line is None:
            raise ValueError(f"there is no dependency {dependency_id!r}")
        return line

    def get_dependency(self, dependency_id: str) -> TaskStarLine | None:
        return self.plan.get_dependency(dependency_id)

    def list_dependencies(self) -> list[TaskStarLine]:
        return self.plan.get_all_dependencies()

    def get_task_dependencies(self, task_id: str) -> list[TaskStarLine]:
        return self.plan.get_task_dependencies(task_id)

    # -- many at once --------------------------------------------------------------------------------------------------

    def build(self, config: BaseModel | Mapping[str, Any], clear_existing: bool = True) -> DocumentedPlan:
        """Add all tasks and dependencies of a configuration, in one edit. With ``clear_existing``, remove all others in
        the same edit."""
        with _executing():
            data = config.model_dump() if isinstance(config, BaseModel) else config
            stars = [TaskStar.from_dict(item) for item in plan_records.items_of(data.get("tasks"))]
            lines = [TaskStarLine.from_dict(item) for item in plan_records.items_of(data.get("dependencies"))]
            for star in stars:
                self.plan.check(star)
            edges = [line.dependency for line in lines]
        edits = self._clearing() if clear_existing else []
        edits += [AddTask(star.node.task) for star in stars]
        edits += [AddDependency(edge.source, edge.target, edge.on, edge.when) for edge in edges]
        about = {key: data[key] for key in ("name", "metadata") if data.get(key)}
        name = f"build_{self.naming.noun}"
        what = f"Build {self.naming.noun}: {len(stars)} tasks, {len(lines)} dependencies"
        built: DocumentedPlan = self._edit(name, what, edits, lambda: self.plan, lines=lines, stars=stars, about=about)
        return built

    def build_from_tasks_and_dependencies(
        self,
        tasks: Sequence[Mapping[str, Any]],
        dependencies: Sequence[Mapping[str, Any]],
        clear_existing: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> DocumentedPlan:
        config = {"tasks": tasks, "dependencies": dependencies, "metadata": dict(metadata or {})}
        return self.build(config, clear_existing)

    def clear(self) -> DocumentedPlan:
        """Remove all tasks and dependencies. Refused when a task has started or ended."""
        noun = self.naming.noun
        cleared: DocumentedPlan = self._edit(f"clear_{noun}", f"Clear {noun}", self._clearing(), lambda: self.plan)
        return cleared

    def _clearing(self) -> list[Edit]:
        lines = [RemoveDependency(line.from_task_id, line.to_task_id) for line in self.plan.lines]
        return [*lines, *(RemoveTask(task_id) for task_id in self.plan.plan.nodes)]

    def batch_operations(self, operations: Iterable[Callable[[Self], Any]]) -> list[Any]:
        """Call each operation with the editor, in order, and return the results. If an operation raises, its result is
        the exception, and the next one is called."""
        results: list[Any] = []
        for operation in operations:
            try:
                results.append(operation(self))
            except Exception as error:
                results.append(error)
        return results

    def create_subgraph(self, task_ids: Iterable[str]) -> Self:
        """An editor of a new plan with copies of these tasks and of the dependencies between them."""
        with _executing():
            chosen = {task_id: self.plan.get_task(task_id) for task_id in task_ids}
            missing = [task_id for task_id, star in chosen.items() if star is None]
            if missing:
                raise ValueError(f"there is no task {', '.join(map(repr, missing))}")
            part = self.plan_class()
            for star in chosen.values():
                part.add_task(copy.deepcopy(star))  # type: ignore[arg-type]
            for line in self.plan.lines:
                if line.from_task_id in chosen and line.to_task_id in chosen:
                    part.add_dependency(line.detached_copy())
        return type(self)(part)

    def merge(self, other_editor: PlanEditor, prefix: str = "") -> DocumentedPlan:
        """Add copies of all tasks and dependencies of another editor, with ``prefix`` before their ids, in one edit."""
        with _executing():
            stars = [_renamed(star, prefix + star.task_id) for star in other_editor.list_tasks()]
            lines = [_redrawn(line, prefix) for line in other_editor.list_dependencies()]
            edges = [line.dependency for line in lines]
        edits: list[Edit] = [AddTask(star.node.task) for star in stars]
        edits += [AddDependency(edge.source, edge.target, edge.on, edge.when) for edge in edges]
        noun = self.naming.noun
        what = f"Merge {noun}: {len(stars)} tasks, {len(lines)} dependencies"
        merged: DocumentedPlan = self._edit(f"merge_{noun}", what, edits, lambda: self.plan, lines=lines, stars=stars)
        return merged

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, file_path: str) -> str:
        """Write the plan to a JSON file. Returns the path."""
        with _executing():
            self.plan.to_json(save_path=file_path)
        self.invoker.execution_count += 1
        saved: str = self._notify(f"save_{self.naming.noun}", file_path)
        return saved

    def load(self, file_path: str) -> DocumentedPlan:
        """Replace the edited plan by that of a JSON file. ``undo`` returns to the previous plan."""
        with _executing():
            loaded = self.plan_class.from_json(file_path=file_path)
        return self._swap(loaded, f"Load {self.naming.noun}: {Path(file_path).name}")

    def load_from_dict(self, data: Mapping[str, Any]) -> DocumentedPlan:
        with _executing():
            loaded = self.plan_class.from_dict(data)
        return self._swap(loaded, f"Load {self.naming.noun}: {loaded.name}")

    def load_from_json_string(self, json_string: str) -> DocumentedPlan:
        with _executing():
            loaded = self.plan_class.from_json(json_string)
        return self._swap(loaded, f"Load {self.naming.noun}: {loaded.name}")

    def _swap(self, loaded: DocumentedPlan, description: str) -> DocumentedPlan:
        command = SwapCommand(f"load_{self.naming.noun}", description, self._put, self.plan, loaded)
        result: DocumentedPlan = self._execute(command, lambda: self.plan)
        return result

    def _put(self, plan: DocumentedPlan) -> None:
        self.plan = plan

    # -- history -------------------------------------------------------------------------------------------------------

    def undo(self) -> bool:
        """Undo the last command. False if there is none; CommandExecutionError if the plan has changed since."""
        with _executing():
            command = self.invoker.undo()
        if command is not None:
            self._notify("undo", command.description)
        return command is not None

    def redo(self) -> bool:
        """Redo the last undone command. False if there is none."""
        with _executing():
            command = self.invoker.redo()
        if command is not None:
            self._notify("redo", command.description)
        return command is not None

    def can_undo(self) -> bool:
        return bool(self.invoker.done)

    def can_redo(self) -> bool:
        return bool(self.invoker.undone)

    def get_undo_description(self) -> str | None:
        return self.invoker.done[-1].description if self.invoker.done else None

    def get_redo_description(self) -> str | None:
        return self.invoker.undone[-1].description if self.invoker.undone else None

    def get_history(self) -> list[str]:
        return [command.description for command in self.invoker.done]

    def clear_history(self) -> None:
        self.invoker.clear()

    # -- queries -------------------------------------------------------------------------------------------------------

    def validate(self) -> tuple[bool, list[str]]:
        return self.plan.validate_dag()

    def has_cycles(self) -> bool:
        return self.plan.has_cycle()

    def get_topological_order(self) -> list[str]:
        return self.plan.get_topological_order()

    def get_ready_tasks(self) -> list[TaskStar]:
        return self.plan.get_ready_tasks()

    def get_statistics(self) -> dict[str, Any]:
        """The statistics of the plan and of the editor."""
        return {
            **self.plan.get_statistics(),
            "editor_execution_count": self.invoker.execution_count,
            "editor_history_size": len(self.invoker.done),
            "editor_can_undo": self.can_undo(),
            "editor_can_redo": self.can_redo(),
        }

    def display(self, mode: str = "overview") -> None:
        self.plan.display_dag(mode)

    def add_observer(self, observer: Observer) -> None:
        """Call it with (editor, name of the command, result) after each command."""
        if observer not in self._observers:
            self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        if observer in self._observers:
            self._observers.remove(observer)

    # -- commands by name ----------------------------------------------------------------------------------------------

    def list_available_commands(self) -> dict[str, dict[str, str]]:
        return command_history.described_commands(self.naming)

    def get_command_categories(self) -> list[str]:
        return sorted({about["category"] for about in command_history.described_commands(self.naming).values()})

    def get_command_metadata(self, name: str) -> dict[str, str] | None:
        return command_history.described_commands(self.naming).get(name)

    def execute_command_by_name(self, name: str, **arguments: Any) -> Any:
        """Call the command of that name, with its arguments by name. Raises ValueError for an unknown name."""
        with _executing():
            call = command_history.find_command(self, name)
        try:
            return call(**arguments)
        except TypeError as error:
            raise CommandExecutionError([Violation(None, "malformed", f"{name}: {error}")]) from error


def _updated(line: TaskStarLine, updates: Mapping[str, Any]) -> TaskStarLine:
    known = {"dependency_type", "condition_description", "condition_evaluator", "metadata"}
    if not updates.keys() <= known:
        unknown = ", ".join(sorted(updates.keys() - known))
        raise ValueError(f"a dependency has no field {unknown}; its fields are {', '.join(sorted(known))}")
    if "condition_description" in updates:
        line.condition_description = updates["condition_description"]
    if "condition_evaluator" in updates:
        line.set_condition_evaluator(updates["condition_evaluator"])
    if "dependency_type" in updates:
        line.dependency_type = member(DependencyType, updates["dependency_type"])
    line.update_metadata(updates.get("metadata") or {})
    return line


def _renamed(star: TaskStar, task_id: str) -> TaskStar:
    """A copy of a task under another id, not started."""
    return TaskStar.from_dict({**star.to_dict(), "task_id": task_id, "status": None, "task_data": star.task_data})


def _redrawn(line: TaskStarLine, prefix: str) -> TaskStarLine:
    """A copy of a line, between the renamed tasks."""
    twin = TaskStarLine(
        prefix + line.from_task_id,
        prefix + line.to_task_id,
        line.dependency_type,
        line.condition_description,
        line.condition_evaluator,
        metadata=line.metadata,
    )
    return twin
