"""Variables in shell lines: those that a line reads and nobody sets, although a task, input or parameter has the name.

A shell gives such a variable an empty value, and the task completes. A line that sets the variable before it reads it,
or gives a default (``${name:-none}``), means it. So does a name that the environment has, or that shells and programs
know.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches

from asterism.execution.command_inputs import FILE_PREFIX
from asterism.execution.task_inputs import VARIABLE_PREFIX, is_reserved
from asterism.planfile import models
from asterism.planfile.shell_reader import read_variables

SHORTEST = 4
"""The length from which on a name that is only close to another is taken for a slip."""

CLOSE = 0.75
"""How similar such a name has to be: one letter of four may differ."""


def unset_variables(
    task: models.Task, tasks: Collection[str], sources: Collection[str], names: Collection[str]
) -> Iterator[str]:
    """A sentence for each variable in the shell line of a task that nobody sets, and that has, or almost has, the name
    of a task, an input or a parameter; and for each input that is written ``{name}``. ``sources`` are the tasks that it
    comes after, ``names`` the parameters and the names of its element, which are variables, too."""
    line = task.shell or ""
    for name in task.inputs or ():
        if re.search(rf"(?<!\$)\{{{re.escape(name)}\}}", line):
            yield f'a shell line takes inputs as variables: write "${name}" instead of {{{name}}}'
    if "$" not in line:
        return
    given = {*(task.inputs or ()), *(task.env or ()), *names}
    for variable in read_variables(line):
        name, prefix = _input_name(variable)
        if name in given or variable.removeprefix(VARIABLE_PREFIX) in given:
            continue
        if not prefix and (variable in os.environ or is_reserved(variable)):
            continue
        known = next((one for one in (name, name.replace("_", "-")) if one in tasks), None)
        if known is not None:
            yield _unpassed(variable, name, known, known in sources)
            continue
        near = get_close_matches(name, [*given, *sources], 1, CLOSE) if len(name) >= SHORTEST else []
        if near and near[0] in given:
            yield f"the line uses ${variable}, which nothing sets; did you mean ${prefix}{near[0]}?"
        elif near:
            name = near[0].replace("-", "_")
            yield (
                f"the line uses ${variable}, which nothing sets; did you mean the task {near[0]!r}? "
                f"To pass its result, add inputs: {{{name}: {{from: {near[0]}}}}} and write ${name}"
            )
        elif prefix:
            yield f"the line uses ${variable}, but the task has no input {name!r}"


def _input_name(variable: str) -> tuple[str, str]:
    """The input that a variable holds, and the prefix of the variable."""
    for prefix in (FILE_PREFIX, VARIABLE_PREFIX):
        if variable.startswith(prefix) and variable != prefix:
            return variable.removeprefix(prefix), prefix
    return variable, ""


def _unpassed(variable: str, name: str, task: str, follows: bool) -> str:
    after = "" if follows else f", and after: {task}"
    return (
        f"the line uses ${variable}, but the result of task {task!r} is not passed to it, so the variable is empty; "
        f"add inputs: {{{name}: {{from: {task}}}}}{after}"
    )
