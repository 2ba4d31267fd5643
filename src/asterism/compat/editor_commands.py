"""The commands of an editor by their documented names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asterism.compat.name_sets import Naming

if TYPE_CHECKING:
    from asterism.compat.plan_editor import PlanEditor

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
"""Name -> category, description, and what it calls."""


def described(naming: Naming) -> dict[str, dict[str, str]]:
    return {
        name.format(noun=naming.noun): {"category": category, "description": description}
        for name, (category, description, _) in _COMMANDS.items()
    }


def find(editor: PlanEditor, name: str) -> Callable[..., Any]:
    """What a command calls. Raises ValueError for a name that is not known."""
    for known, (_, _, call) in _COMMANDS.items():
        if known.format(noun=editor.naming.noun) == name:
            return call(editor)
    raise ValueError(f"there is no command {name!r}; the commands are {', '.join(described(editor.naming))}")
