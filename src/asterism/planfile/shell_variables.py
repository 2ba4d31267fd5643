"""Variables in shell lines: those that a line reads and nobody sets, although a task, input or parameter has the name.

A shell gives such a variable an empty value, and the task completes. A line is read as ``sh`` reads it, as far as that
is needed to tell what it expands: not in single quotes, comments and quoted here-documents, and not after a backslash.
A line that sets the variable itself, or gives a default (``${name:-none}``), means it. So does a name that the
environment has, or that shells and programs know.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches

from asterism.base.command_inputs import FILE_PREFIX
from asterism.base.task_inputs import VARIABLE_PREFIX, is_reserved
from asterism.planfile import models

SHORTEST = 4
"""The length from which on a name that is only close to another is taken for a slip."""

CLOSE = 0.75
"""How similar such a name has to be: one letter of four may differ."""

_EXPANSION = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{[#!]?([A-Za-z_][A-Za-z0-9_]*)([^}]?))")
_ASSIGNED = re.compile(r"(?<![A-Za-z0-9_$])([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?\+?=")
_NAMED = re.compile(
    r"(?<![\w$])(?:for|select|read|export|readonly|local|declare|typeset|unset|mapfile|readarray|getopts|printf\s+-v|let)"
    r"((?:\s+[^\s;&|<>()]+)+)"
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SETS_ANYTHING = re.compile(r"(?:^|[;&|({]|\b(?:then|do|else)\s)\s*(?:eval|source|\.)\s", re.MULTILINE)
_LITERAL_DOCUMENT = re.compile(r"<<-?\s*(?:'(\w+)'|\"(\w+)\"|\\(\w+)).*?^\s*(?:\1|\2|\3)\s*$", re.DOTALL | re.MULTILINE)


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
    if "$" not in line or _SETS_ANYTHING.search(line):
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


def read_variables(line: str) -> list[str]:
    """The variables that a shell line reads without setting them, in the order of their first use."""
    line = _LITERAL_DOCUMENT.sub("", line)
    set_here = set(_ASSIGNED.findall(line))
    for words in _NAMED.findall(line):
        set_here.update(_WORD.findall(words))
    found: dict[str, None] = {}
    for match in _expansions(line):
        name, modifier = match[1] or match[2], match[3] or ""
        if name not in set_here and modifier not in tuple(":-=+?"):
            found[name] = None
    return list(found)


def _expansions(line: str) -> Iterator[re.Match[str]]:
    """What a shell expands in a line: nothing in single quotes, comments, or after a backslash."""
    within: list[str] = []  # open double quotes and brackets, the innermost last
    at = 0
    while at < len(line):
        letter, quoted = line[at], bool(within) and within[-1] == '"'
        if letter == "\\":
            at += 1
        elif letter == '"':
            within.pop() if quoted else within.append('"')
        elif letter == "'" and not quoted:
            at = _end(line, "'", at + 1)
        elif letter == "#" and not quoted and (at == 0 or line[at - 1] in " \t\n;&|("):
            at = _end(line, "\n", at)
        elif line.startswith("$(", at) or (letter == "(" and not quoted):
            within.append("(")
            at += letter == "$"
        elif letter == ")" and within and within[-1] == "(":
            within.pop()
        elif line.startswith("$$", at):
            at += 1
        elif (match := _EXPANSION.match(line, at)) is not None:
            yield match
        at += 1


def _end(line: str, letter: str, start: int) -> int:
    found = line.find(letter, start)
    return len(line) if found < 0 else found
