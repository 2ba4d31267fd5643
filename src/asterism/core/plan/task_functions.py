"""Functions as tasks: the dependencies of a task that ``@plan.task`` makes of a function.

A parameter that has the name of a task takes its result, so the task comes after that one. A parameter may also be an
input, have a default, or be one of those that every function may have.
"""

from __future__ import annotations

import inspect
from collections.abc import Container
from typing import Any

from asterism.core.errors import InvalidTask
from asterism.core.plan.task import After, Task, dependencies_of

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
