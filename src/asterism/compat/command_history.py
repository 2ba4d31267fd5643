"""The commands of the documented editor, by name, with undo and redo.

A command is a batch of edits of the core. Undoing it applies the inverse that the core returned. If others have edited
the plan since, the core refuses an undo that would overwrite their change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from asterism.compat import manual_progress
from asterism.compat.documented_names import Naming
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.task_star import TaskStar
from asterism.compat.task_star_line import TaskStarLine
from asterism.core.plan.edits import AddDependency, Edit, RemoveDependency, RemoveTask, UpdateDependency

if TYPE_CHECKING:
    from asterism.compat.plan_editor import PlanEditor

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


_COMMANDS: dict[str, tuple[str, str, Callable[[PlanEditor], Callable[..., Any]]]] = {
    "add_task": ("task", "Add a task", lambda editor: lambda task_data: editor.add_task(task_data)),
    "remove_task": ("task", "Remove a task and its dependencies", lambda editor: editor.remove_task),
    "update_task": ("task", "Change fields of a task", lambda editor: editor.update_task),
    "add_dependency": (
        "dependency",
        "Add a dependency",
        lambda editor: lambda dependency_data: editor.add_dependency(dependency_data),
    ),
    "remove_dependency": ("dependency", "Remove a dependency", lambda editor: editor.remove_dependency),
    "update_dependency": ("dependency", "Change fields of a dependency", lambda editor: editor.update_dependency),
    "build_{noun}": ("bulk", "Add all tasks and dependencies of a configuration", lambda editor: editor.build),
    "clear_{noun}": ("bulk", "Remove all tasks and dependencies", lambda editor: editor.clear),
    "load_{noun}": ("file", "Read a plan from a JSON file", lambda editor: editor.load),
    "save_{noun}": ("file", "Write the plan to a JSON file", lambda editor: editor.save),
}
"""Name -> category, description, and the method."""


def described_commands(naming: Naming) -> dict[str, dict[str, str]]:
    return {
        name.format(noun=naming.noun): {"category": category, "description": description}
        for name, (category, description, _) in _COMMANDS.items()
    }


def find_command(editor: PlanEditor, name: str) -> Callable[..., Any]:
    """The method of a command. Raises ValueError for an unknown name."""
    for known, (_, _, call) in _COMMANDS.items():
        if known.format(noun=editor.naming.noun) == name:
            return call(editor)
    raise ValueError(f"there is no command {name!r}; the commands are {', '.join(described_commands(editor.naming))}")
