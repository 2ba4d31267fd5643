"""``foreach`` and ``matrix`` in a plan file: their checks, and the tasks that they become when the file is loaded.

See ``base/foreach_expansion`` for what a group is. A group over the result of a task stays one task with a template.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from asterism.base import expressions
from asterism.base.expressions import names_used, with_constants
from asterism.base.file_patterns import matching_paths
from asterism.base.yaml_lines import read_text
from asterism.core.errors import describe_value, suggestion
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.record import Place
from asterism.execution.foreach_expansion import (
    NotExpandable,
    deferred_group,
    element_tasks,
    group_task,
    list_scopes,
    matrix_scopes,
    refuse_data_as_instructions,
)
from asterism.execution.placeholders import TICK_FOLLOWS, Scope, fill_value
from asterism.planfile import models
from asterism.planfile.include import MAX_BYTES

MOST_ENTRIES = 100_000
"""How many files and folders the search for the files of a group looks at."""

SOURCES = ("source", "files", "lines", "range")
_KEYS = {"source": "from"}

ELEMENT_NAMES = ("item", "index", "matrix")


def element_names(task: models.Task) -> Scope:
    """The names that the placeholders of a group can use, beside the parameters, without their values."""
    if task.matrix is not None:
        return {"matrix": dict.fromkeys(task.matrix), "index": None}
    return {} if task.foreach is None else {"item": None, "index": None}


def foreach_findings(
    task: models.Task, tasks: Collection[str], sources: dict[str, tuple[str, str | None]]
) -> Iterator[tuple[Place, str, bool]]:
    """The mistakes in ``foreach`` and ``matrix``. Adds the task that a group waits for to ``sources``."""
    if task.foreach is not None and task.matrix is not None:
        yield ("matrix",), "has foreach and matrix; a task has one of them", False
    for source, _, when, path in task.dependencies():
        if when is not None and (names := names_used(when, ELEMENT_NAMES)):
            text = f"the condition on {source!r} cannot use {', '.join(sorted(names))}: it decides about all elements"
            yield (*path, "when"), text, False
    over = task.foreach
    if not isinstance(over, models.Over):
        return
    chosen = [key for key in SOURCES if getattr(over, key) is not None]
    if len(chosen) != 1:
        found = f"has {' and '.join(_KEYS.get(key, key) for key in chosen)}" if chosen else "has none of them"
        yield ("foreach",), f"foreach {found}; it needs one of from, files, lines and range", False
        return
    if over.range is not None and len(over.range) not in (2, 3):
        yield ("foreach", "range"), "a range is its first and its last number, and a step if need be: [1, 100]", False
    elif over.range is not None and 0 in over.range[2:]:
        yield ("foreach", "range"), "the step of a range is 0; give another number, such as 1", False
    if over.source is None:
        if over.select is not None:
            yield ("foreach", "select"), "select belongs to from; remove it", False
        return
    if over.source not in tasks:
        hint = suggestion(over.source, list(tasks)) if len(tasks) <= 1000 else ""
        yield ("foreach", "from"), f"foreach refers to {over.source!r}, but there is no such task{hint}", False
    else:
        sources.setdefault(over.source, ("success", None))
    problem = None if over.select is None else expressions.check(over.select)
    if problem is not None:
        yield ("foreach", "select"), f"the expression {over.select!r} is not valid: {problem}", False


def add_group(
    plan: Constellation,
    template: Task,
    task: models.Task,
    after: Mapping[str, Any],
    scope: Scope,
    at: str,
    folder: str | None,
    only: Collection[str],
) -> None:
    """Add a group to the plan, with its elements if they are known, or those of them that ``only`` names. ``at`` is its
    place in the file, ``folder`` that of the file, None if the plan is only a text: then no file is read. Raises
    NotExpandable, and what ``fill_task`` raises."""
    params = scope["params"]
    if isinstance(task.foreach, models.Over) and task.foreach.source is not None:
        over = task.foreach
        select = None if over.select is None else with_constants(over.select, scope)
        spec = {"from": over.source, "select": select, "max": over.max, "at": at}
        refuse_data_as_instructions(template)
        if only:
            raise NotExpandable(
                f"the elements of {template.id!r} are known when {over.source!r} has ended; choose the whole group"
            )
        plan.add(deferred_group(template, spec, params), after)
        return
    if task.matrix is not None:
        scopes = matrix_scopes({name: _axis(name, values, scope) for name, values in task.matrix.items()})
    elif isinstance(task.foreach, models.Over):
        scopes = _read_scopes(task.foreach, scope, folder)
    else:
        items = fill_value(task.foreach, scope)
        scopes = list_scopes(items, task.foreach if isinstance(task.foreach, str) else "the list")
    follows = {name: True for name in scope if name == TICK_FOLLOWS}
    elements = element_tasks(template, [{**element, **follows} for element in scopes], params)
    if only:
        elements = _chosen(elements, only)
    for element in elements:
        plan.add(element, after or None)
    # without elements there is nothing to wait for but what the elements would have waited for
    expanded: dict[str, Any] = {"of": [element.id for element in elements]}
    if template.outputs:
        expanded["outputs"] = list(template.outputs)
    above = dict.fromkeys((element.id for element in elements), "completion") if elements else after
    plan.add(group_task(template, expanded), above or None)


def _chosen(elements: Sequence[Task], only: Collection[str]) -> list[Task]:
    """The elements with these names, in their order: ``load[eu]``, or ``load[0]`` by the index."""
    places = {element.id: place for place, element in enumerate(elements)}
    group = next(iter(only)).partition("[")[0]
    by_index = {f"{group}[{place}]": place for place in range(len(elements))} | places
    unknown = next((name for name in only if name not in by_index), None)
    if unknown is not None:
        known = f"from {elements[0].id!r} to {elements[-1].id!r}" if elements else "none"
        raise NotExpandable(f"there is no element {unknown!r} to run; there are {len(elements):,}, {known}")
    return [elements[place] for place in sorted({by_index[name] for name in only})]


def _read_scopes(over: models.Over, scope: Scope, folder: str | None) -> list[Scope]:
    """What placeholders stand for in each element of a range, or of what is read beside the plan file."""
    if over.range is not None:
        return list_scopes(_numbers(*over.range), "the range", over.max)
    if folder is None:
        key = "files" if over.files is not None else "lines"
        raise NotExpandable(
            f"foreach cannot use {key} here, because the plan came as a text without its folder; "
            "write a list, or run the plan file itself"
        )
    if over.files is not None:
        pattern = str(fill_value(over.files, scope))
        return list_scopes(_files(pattern, folder), pattern, over.max)
    name = str(fill_value(over.lines, scope))
    return list_scopes(_lines(name, folder), name, over.max)


def _numbers(first: int, last: int, step: int = 1) -> Sequence[int]:
    return range(first, last + (1 if step > 0 else -1), step)


def _files(pattern: str, folder: str) -> list[str]:
    """The files that match, by name, as a command finds them that starts where the plan file was named."""
    _check_place(pattern)
    left = iter(range(MOST_ENTRIES))

    def check() -> None:
        if next(left, None) is None:
            raise NotExpandable(f"to find {pattern!r} takes a look at more than {MOST_ENTRIES:,} files; name a folder")

    paths = (os.path.join(folder, name) for name in matching_paths(pattern, folder, check))
    files = sorted(path for path in paths if os.path.isfile(path) and _is_below(path, folder))
    if not files:
        raise NotExpandable(f"no file matches {pattern!r} in {folder or 'the folder of the plan file'}; correct it")
    return files


def _lines(name: str, folder: str) -> list[str]:
    _check_place(name)
    path = os.path.join(folder, name)
    if not _is_below(path, folder):
        raise NotExpandable(f"{path} is a link to a file outside the folder of the plan file; copy it there")
    try:
        text, mistakes = read_text(path, max_bytes=MAX_BYTES, regular=True)
    except OSError as error:
        raise NotExpandable(f"{path} cannot be read: {error.strerror}; correct the name") from None
    for mistake in mistakes:
        raise NotExpandable(f"{path}: {mistake.text}; use another file")
    return [line for line in re.split(r"\r\n|\r|\n", text) if line.strip()]


def _check_place(path: str) -> None:
    """Raise NotExpandable for a path or a pattern that may name files elsewhere than below the plan file, or hidden
    ones: a plan may come from a stranger."""
    if os.path.isabs(path) or any(part.startswith(".") for part in path.removeprefix("./").split("/")):
        raise NotExpandable(
            f"{path!r} names files outside the folder of the plan file, or hidden ones, and foreach reads neither; "
            "move them below that folder, or give their names as a parameter that is a list"
        )


def _is_below(path: str, folder: str) -> bool:
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) == root


def _axis(name: str, values: Any, scope: Scope) -> list[Any]:
    filled = fill_value(values, scope)
    if not isinstance(filled, list):
        hint = "use a parameter whose type is list"
        raise NotExpandable(f"matrix.{name} needs a list, but {values} is {describe_value(filled)}; {hint}")
    return filled
