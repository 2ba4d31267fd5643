"""The documented editor: commands with undo and redo, over batches of edits of the core.

A command is applied whole or refused whole; a refusal is a CommandExecutionError, which is a ValueError. Undoing it
applies the inverse that the core returned. If others have edited the plan since, the core refuses an undo that would
overwrite their change.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel

from asterism.compat import manual_progress, plan_records
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.task_star import TaskStar, changes_of
from asterism.compat.task_star_line import TaskStarLine
from asterism.compat.vocabulary import GALAXY, DependencyType, ModificationRejected, Naming, member, refusing
from asterism.core.errors import Violation
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    Edit,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
    addition_of,
)

_EDGES = (AddDependency, UpdateDependency, RemoveDependency)


class Command(ABC):
    """``name`` identifies the command, ``description`` says what it changes."""

    def __init__(self, name: str, description: str) -> None:
        self.name, self.description = name, description

    @abstractmethod
    def do(self, base: int | None) -> int | None:
        """Execute it for the first time (``base`` is None), or again after ``undo``.

        ``base`` is the plan's version after the editor's last command: later changes of others are not overwritten.
        Returns the new version, or None if it does not matter."""

    @abstractmethod
    def undo(self, base: int | None) -> int | None: ...


class EditCommand(Command):
    """Edits of one plan. ``lines`` are the lines that it adds, or the new state of those that it changes."""

    def __init__(
        self,
        name: str,
        description: str,
        plan: DocumentedPlan,
        edits: Iterable[Edit],
        lines: Iterable[TaskStarLine] = (),
        stars: Iterable[TaskStar] = (),
        about: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name, description)
        self._plan, self._edits = plan, tuple(edits)
        self._after = {(line.from_task_id, line.to_task_id): line for line in lines}
        self._stars = list(stars)
        self._sources = [star.node for star in self._stars]
        self._about_after = about or {}
        pairs = {(edit.source, edit.target) for edit in self._edits if isinstance(edit, _EDGES)} | set(self._after)
        self._before = {pair: line for line in plan.lines if (pair := (line.from_task_id, line.to_task_id)) in pairs}
        self._looks = {pair: line.detached_copy() for pair, line in self._before.items()}
        removed = [edit.task_id for edit in self._edits if isinstance(edit, RemoveTask)]
        self._removed = [star for task_id in removed if (star := plan.get_task(task_id)) is not None]
        self._about_before = {key: getattr(plan, key) for key in self._about_after}
        self._inverse: tuple[Edit, ...] = ()

    def do(self, base: int | None) -> int | None:
        applied = self._plan.apply(*self._edits, lines=self._after.values(), stars=self._stars, base_version=base)
        assert applied.inverse is not None, "an editor cancels no task"
        self._inverse = applied.inverse.edits
        self._look(self._after)
        self._describe(self._about_after)
        if base is None and self._plan.plan.owner is None:
            for node in self._sources:
                manual_progress.carry(node, self._plan.plan, self._plan.plan.nodes[node.id])
        return applied.version

    def undo(self, base: int | None) -> int | None:
        applied = self._plan.apply(*self._inverse, lines=self._before.values(), stars=self._removed, base_version=base)
        self._look(self._looks)
        self._describe(self._about_before)
        return applied.version

    def _look(self, looks: dict[tuple[str, str], TaskStarLine]) -> None:
        for pair, look in looks.items():
            line = self._plan.lines.find(*pair)
            if line is not None and line is not look:
                line.copy_from(look)

    def _describe(self, about: dict[str, Any]) -> None:
        for key, value in about.items():
            setattr(self._plan, key, value)


class SwapCommand(Command):
    """Replace the edited plan by another."""

    def __init__(
        self,
        name: str,
        description: str,
        put: Callable[[DocumentedPlan], None],
        before: DocumentedPlan,
        after: DocumentedPlan,
    ) -> None:
        super().__init__(name, description)
        self._put, self._before, self._after = put, before, after

    def do(self, base: int | None) -> int | None:
        self._put(self._after)
        return self._after.plan.version

    def undo(self, base: int | None) -> int | None:
        self._put(self._before)
        return self._before.plan.version


class CommandInvoker:
    """Executes commands, and stores those that can be undone and redone. A new command clears the redo list."""

    def __init__(self, enable_history: bool, max_history_size: int) -> None:
        self.enabled, self.limit = enable_history, max_history_size
        self.execution_count = 0
        self.done: list[Command] = []
        self.undone: list[Command] = []
        self._version: int | None = None

    def execute(self, command: Command) -> None:
        self._version = command.do(None)
        self.execution_count += 1
        if self.enabled:
            self.done.append(command)
            del self.done[: max(0, len(self.done) - self.limit)]
            self.undone.clear()

    def undo(self) -> Command | None:
        return self._move(self.done, self.undone, lambda command: command.undo(self._version))

    def redo(self) -> Command | None:
        return self._move(self.undone, self.done, lambda command: command.do(self._version))

    def _move(
        self, source: list[Command], target: list[Command], step: Callable[[Command], int | None]
    ) -> Command | None:
        """Move the last command of one list to the other; a refused command stays."""
        if not source:
            return None
        self._version = step(source[-1])
        target.append(source.pop())
        return target[-1]

    def clear(self) -> None:
        self.done.clear()
        self.undone.clear()


_COMMANDS = {
    "add_task": ("task", "Add a task"),
    "remove_task": ("task", "Remove a task and its dependencies"),
    "update_task": ("task", "Change fields of a task"),
    "add_dependency": ("dependency", "Add a dependency"),
    "remove_dependency": ("dependency", "Remove a dependency"),
    "update_dependency": ("dependency", "Change fields of a dependency"),
    "build_{noun}": ("bulk", "Add all tasks and dependencies of a configuration"),
    "clear_{noun}": ("bulk", "Remove all tasks and dependencies"),
    "load_{noun}": ("file", "Read a plan from a JSON file"),
    "save_{noun}": ("file", "Write the plan to a JSON file"),
}
"""Name -> category and description. The method of that name without the noun executes it."""

_DATA = {"task_data": "task", "dependency_data": "dependency"}
"""The documented name of an argument of a command -> its name in the method."""

logger = logging.getLogger("asterism.compat.editor")

Result = TypeVar("Result")
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

    def _execute(self, command: Command, result: Callable[[], Result]) -> Result:
        with _executing():
            self.invoker.execute(command)
        return self._notify(command.name, result())

    def _edit(
        self, name: str, description: str, edits: Iterable[Edit], result: Callable[[], Result], **about: Any
    ) -> Result:
        with _executing():
            command = EditCommand(name, description, self.plan, edits, **about)
        return self._execute(command, result)

    def _notify(self, name: str, result: Result) -> Result:
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
        return self._edit("add_task", f"Add task: {ids}", edits, lambda: self.plan.handle(ids), stars=[star])

    def create_and_add_task(self, task_id: str, description: str, name: str = "", **fields: Any) -> TaskStar:
        with _executing():
            star = TaskStar(task_id=task_id, description=description, name=name, **fields)
        return self.add_task(star)

    def update_task(self, task_id: str, **updates: Any) -> TaskStar:
        """Change documented fields of a task that has not started. ``task_data`` is replaced, not merged."""
        with _executing():
            edit = UpdateTask(task_id, **changes_of(self.plan.plan.node(task_id).task, updates))
        return self._edit("update_task", f"Update task: {task_id}", [edit], lambda: self.plan.handle(task_id))

    def remove_task(self, task_id: str) -> str:
        """Remove a task that has not started, with its dependencies."""
        edits = self.plan.removal(task_id)
        return self._edit("remove_task", f"Remove task: {task_id}", edits, lambda: task_id)

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
        edits = [addition_of(edge)]
        what = f"Add dependency: {edge.source} → {edge.target}"
        return self._edit("add_dependency", what, edits, lambda: line, lines=[line])

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
        return self._edit("update_dependency", what, edits, lambda: line, lines=[look])

    def remove_dependency(self, dependency_id: str) -> str:
        with _executing():
            line = self._line(dependency_id)
        edits = [RemoveDependency(line.from_task_id, line.to_task_id)]
        what = f"Remove dependency: {line.from_task_id} → {line.to_task_id}"
        return self._edit("remove_dependency", what, edits, lambda: dependency_id)

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
            edits = [*(self._clearing() if clear_existing else ()), *_additions(stars, lines)]
        about = {key: data[key] for key in ("name", "metadata") if data.get(key)}
        name = f"build_{self.naming.noun}"
        what = f"Build {self.naming.noun}: {len(stars)} tasks, {len(lines)} dependencies"
        return self._edit(name, what, edits, lambda: self.plan, lines=lines, stars=stars, about=about)

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
        return self._edit(f"clear_{noun}", f"Clear {noun}", self._clearing(), lambda: self.plan)

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
            edits = _additions(stars, lines)
        noun = self.naming.noun
        what = f"Merge {noun}: {len(stars)} tasks, {len(lines)} dependencies"
        return self._edit(f"merge_{noun}", what, edits, lambda: self.plan, lines=lines, stars=stars)

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, file_path: str) -> str:
        """Write the plan to a JSON file. Returns the path."""
        with _executing():
            self.plan.to_json(save_path=file_path)
        self.invoker.execution_count += 1
        return self._notify(f"save_{self.naming.noun}", file_path)

    def load(self, file_path: str) -> DocumentedPlan:
        """Replace the edited plan by that of a JSON file. ``undo`` returns to the previous plan."""
        return self._swap(lambda: self.plan_class.from_json(file_path=file_path), Path(file_path).name)

    def load_from_dict(self, data: Mapping[str, Any]) -> DocumentedPlan:
        return self._swap(lambda: self.plan_class.from_dict(data))

    def load_from_json_string(self, json_string: str) -> DocumentedPlan:
        return self._swap(lambda: self.plan_class.from_json(json_string))

    def _swap(self, read: Callable[[], DocumentedPlan], source: str = "") -> DocumentedPlan:
        with _executing():
            loaded = read()
        noun = self.naming.noun
        command = SwapCommand(f"load_{noun}", f"Load {noun}: {source or loaded.name}", self._put, self.plan, loaded)
        return self._execute(command, lambda: self.plan)

    def _put(self, plan: DocumentedPlan) -> None:
        self.plan = plan

    # -- history -------------------------------------------------------------------------------------------------------

    def undo(self) -> bool:
        """Undo the last command. False if there is none; CommandExecutionError if the plan has changed since."""
        return self._moved("undo", self.invoker.undo)

    def redo(self) -> bool:
        """Redo the last undone command. False if there is none."""
        return self._moved("redo", self.invoker.redo)

    def _moved(self, what: str, move: Callable[[], Command | None]) -> bool:
        with _executing():
            command = move()
        if command is not None:
            self._notify(what, command.description)
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
        return {
            name.format(noun=self.naming.noun): {"category": category, "description": description}
            for name, (category, description) in _COMMANDS.items()
        }

    def get_command_categories(self) -> list[str]:
        return sorted({category for category, _ in _COMMANDS.values()})

    def get_command_metadata(self, name: str) -> dict[str, str] | None:
        return self.list_available_commands().get(name)

    def execute_command_by_name(self, name: str, **arguments: Any) -> Any:
        """Call the command of that name, with its arguments by name. Raises ValueError for an unknown name."""
        with _executing():
            if name not in (known := self.list_available_commands()):
                raise ValueError(f"there is no command {name!r}; the commands are {', '.join(known)}")
        call = getattr(self, name.removesuffix(f"_{self.naming.noun}"))
        try:
            return call(**{_DATA.get(argument, argument): value for argument, value in arguments.items()})
        except TypeError as error:
            raise CommandExecutionError([Violation(None, "malformed", f"{name}: {error}")]) from error


def _additions(stars: Iterable[TaskStar], lines: Iterable[TaskStarLine]) -> list[Edit]:
    return [*(AddTask(star.node.task) for star in stars), *(addition_of(line.dependency) for line in lines)]


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
    return TaskStarLine(
        prefix + line.from_task_id,
        prefix + line.to_task_id,
        line.dependency_type,
        line.condition_description,
        line.condition_evaluator,
        metadata=line.metadata,
    )
