"""Files between tasks: the outputs of a task, and inputs that are files of another task.

``outputs={"frames": "out/*.png", "log": "render.log"}`` names files that a task leaves in its working folder, and
``{"files_from": "render.frames"}`` as an input takes those of another. A task with either has a working folder of its
own, in which its input files lie at the paths where they were made. A task depends on the tasks whose files it takes.
The files of a group (``foreach``) are those of its elements.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

from asterism.core.record import Meta, Name, Record

if TYPE_CHECKING:
    from asterism.core.plan.node import Node

FILES_FROM = "files_from"

FILE_ACTIONS = ("argv", "shell", "call", "plugin")
"""The actions that have a working folder."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTENT = re.compile(r"[0-9a-f]{64}")


class FilesFrom(NamedTuple):
    """An output of a task, as ``files_from`` names it."""

    task: str
    output: str


def is_files_reference(value: Any) -> bool:
    """Whether an input is ``{"files_from": …}``."""
    return isinstance(value, Mapping) and set(value) == {FILES_FROM}


def read_reference(value: Any) -> FilesFrom | None:
    """The output that ``{"files_from": "render.frames"}`` names; None if it names none."""
    text = value[FILES_FROM]
    task, _, output = text.rpartition(".") if isinstance(text, str) else ("", "", "")
    return FilesFrom(task, output) if task and _NAME.fullmatch(output) else None


def is_content_name(text: str) -> bool:
    """Whether a text is the SHA-256 by which content is named."""
    return _CONTENT.fullmatch(text) is not None


def files_of_inputs(inputs: Mapping[str, Any]) -> dict[str, FilesFrom]:
    """The inputs of a task that are files of others, by name."""
    references = {name: read_reference(value) for name, value in inputs.items() if is_files_reference(value)}
    return {name: reference for name, reference in references.items() if reference is not None}


def outputs_of(task: Any) -> Collection[str]:
    """The names of the outputs of a task. A group has those of its elements."""
    if task.foreach is None:
        return cast("Collection[str]", task.outputs)
    level = task.foreach
    while isinstance(level, Mapping):
        work = level.get("template", level)
        outputs = work.get("outputs") if isinstance(work, Mapping) else ()
        if outputs is not None:
            return [name for name in outputs if isinstance(name, str)] if isinstance(outputs, Mapping | list) else ()
        level = work.get("foreach")
    return ()


def makers_of(nodes: Mapping[str, Node], task_id: str) -> Iterator[Node]:
    """The nodes that make the files of a task: its own, or those of the elements of a group that are in the plan."""
    node = nodes.get(task_id)
    if node is None:
        return
    if node.task.foreach is None:
        yield node
        return
    for element in node.task.foreach.get("of", ()):
        if element in node.parents:
            yield from makers_of(nodes, element)


def handles_files(task: Any) -> bool:
    """Whether a task, or one in a plan file, has a working folder of its own."""
    return bool(task.outputs) or (bool(task.inputs) and any(map(is_files_reference, task.inputs.values())))


def path_problem(path: Any) -> str | None:
    """Why a path or pattern cannot be an output; None if it can."""
    if not isinstance(path, str) or not path.strip() or not path.isprintable():
        return f"must be a path or pattern, not {path!r}"
    if path.startswith("/"):
        return f"is {path!r}, an absolute path; name a path inside the working folder of the task"
    if ".." in path.split("/"):
        return f"is {path!r}, which leaves the working folder of the task; write a path without '..'"
    if set(path.split("/")) <= {"", "."}:
        return f"is {path!r}, the working folder itself; write '**/*' for all files in it"
    if any("**" in part and part != "**" for part in path.split("/")):
        return f"is {path!r}, but '**' must stand alone between slashes"
    return None


def field_problems(task: Any) -> Iterator[tuple[str, str]]:
    """The problems of the files of a task, or of one in a plan file: each with its field."""
    outputs, inputs = task.outputs or {}, task.inputs or {}
    for name, path in outputs.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield "outputs", f"the name of an output has letters, digits and '_' only, unlike {name!r}"
        problem = path_problem(path)
        if problem is not None:
            yield "outputs", f"the output {name!r} {problem}"
    references = {name: value for name, value in inputs.items() if is_files_reference(value)}
    for name, value in references.items():
        if read_reference(value) is None:
            yield "inputs", f"the input {name!r}: files_from names a task and its output, such as 'render.frames'"
    key = "outputs" if outputs else "inputs"
    what = "outputs" if outputs else FILES_FROM
    if not outputs and not references:
        return
    if task.cwd is not None:
        yield "cwd", f"cwd cannot be combined with {what}: such a task has a working folder of its own"
    if task.http is not None or task.agent is not None:
        yield key, f"{what} needs one of {', '.join(FILE_ACTIONS)}"


class Unchanged(Record, forbid_unknown_fields=True, omit_defaults=True):
    """The files of a task, which is skipped if their content has not changed since its last execution."""

    inputs: Annotated[list[Name] | None, Meta(description="files that it reads; `*`, `?`, `**` as in a shell")] = None
    outputs: Annotated[
        Annotated[list[Name], Meta(min_length=1)] | None,
        Meta(description="files that it writes; none if it has a working folder"),
    ] = None
    shared: Annotated[Name | None, Meta(description="plans that give the same name may use each other's records")] = (
        None
    )


def unchanged_problem(task: Any, fields: Collection[str]) -> str | None:
    """Why ``skip_if_unchanged`` cannot have these fields for a task, or one in a plan file; None if it can."""
    if not handles_files(task):
        named = "skip_if_unchanged has 'outputs', a list of files, and may have 'inputs', and 'shared', a name"
        return None if "outputs" in fields else named
    if set(fields) <= {"shared"}:
        return None
    return "skip_if_unchanged of a task with outputs or files_from is {} or has 'shared', a name: its files are known"


def source_problem(name: str, reference: FilesFrom, outputs: Collection[str] | None) -> str | None:
    """Why the input ``name`` cannot be what ``reference`` names; None if it can. ``outputs`` are the names of the
    outputs of that task; None if there is no such task."""
    takes = f"the input {name!r} takes files of {reference.task!r}"
    if outputs is None:
        return f"{takes}, but there is no such task"
    if reference.output in outputs:
        return None
    has = f"its outputs are {', '.join(outputs)}" if outputs else "it has no outputs"
    return f"{takes}, which has no output {reference.output!r}; {has}"
