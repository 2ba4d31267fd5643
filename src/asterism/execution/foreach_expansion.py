"""A group of a plan as tasks: one for each element of a list, and the group itself, which gathers their results.

A plan file writes one task with ``foreach`` or ``matrix``. In the plan it is a *group*: ``convert`` becomes the tasks
``convert[a.png]``, ``convert[b.png]`` …, and ``convert`` itself depends on the end of all of them. When they have
completed, it completes with their results, in the order of the elements, so a task after ``convert`` needs no special
form. If one of them fails, it fails.

A list that is known when the file is loaded is expanded then. A group over the result of another task keeps its
*template* in ``Task.foreach``; when that task has ended, the orchestrator applies ``expansion`` as an ordinary edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from asterism.base import expressions
from asterism.core.errors import AsterismError, describe_value
from asterism.core.plan.edits import AddDependency, AddTask, Edit, EditBatch, UpdateTask
from asterism.core.plan.group_elements import most_elements
from asterism.core.plan.task import Dependency, Join, Task
from asterism.core.plan.task_approval import approvers
from asterism.execution.placeholders import Scope, fill_task, placeholders

MAX_ELEMENTS = 10_000
"""How many elements a group may have."""

LONGEST_LABEL = 40
"""The longest element, in characters, that names its task."""

AUTHOR = "foreach"
"""The author of the edit that expands a group."""


class NotExpandable(AsterismError):
    """A group that cannot become tasks."""


def list_scopes(items: Any, what: str, most: int = MAX_ELEMENTS) -> list[Scope]:
    """What placeholders stand for in each element of a list. ``what`` names the list. Raises NotExpandable."""
    if not isinstance(items, list | tuple | range):
        hint = "write a list, or use a parameter or a result that is one; 'select' finds a list in a result"
        description = describe_value(items)
        actual = f"not {description}" if repr(what) == description else f"but {what} is {description}"
        raise NotExpandable(f"foreach needs a list, {actual}; {hint}")
    if len(items) > most:
        hint = "set 'max'" if most < MAX_ELEMENTS else "let a task work on several elements"
        raise NotExpandable(f"{what} has {len(items):,} elements, and {most:,} are allowed; {hint}")
    return [{"item": item, "index": index} for index, item in enumerate(items)]


def matrix_scopes(axes: Mapping[str, Sequence[Any]]) -> list[Scope]:
    """What placeholders stand for in each combination of a matrix. The last axis varies fastest."""
    size = 1
    for values in axes.values():
        size *= len(values)
    if size > MAX_ELEMENTS:
        raise NotExpandable(
            f"the matrix has {size:,} combinations, and {MAX_ELEMENTS:,} are allowed; remove some values"
        )
    return [
        {"matrix": dict(zip(axes, values, strict=True)), "index": index}
        for index, values in enumerate(product(*axes.values()))
    ]


def element_ids(group: str, scopes: Sequence[Scope]) -> list[str]:
    """The ids of the elements: ``load[eu]`` if all elements are short and different texts or numbers, else
    ``load[0]``."""
    labels = [_label(scope["matrix"].values() if "matrix" in scope else [scope["item"]]) for scope in scopes]
    if None in labels or len(set(labels)) != len(labels):
        labels = [str(index) for index in range(len(scopes))]
    return [f"{group}[{label}]" for label in labels]


def _label(values: Iterable[Any]) -> str | None:
    words = []
    for value in values:
        if not isinstance(value, str | int | float):
            return None
        word = value if isinstance(value, str) else describe_value(value)
        if not word or not word.isprintable() or set(word) & set("[],") or word != word.strip() or "{tick" in word:
            return None
        words.append(word)
    label = ",".join(words)
    return label if len(label) <= LONGEST_LABEL else None


def element_tasks(template: Task, scopes: Sequence[Scope], params: Mapping[str, Any]) -> list[Task]:
    """The tasks of the elements. The id of the template is that of the group. Raises what ``fill_task`` raises."""
    ids = element_ids(template.id, scopes)
    return [
        fill_task(template, {**scope, "params": params}, task_id) for task_id, scope in zip(ids, scopes, strict=True)
    ]


def group_task(template: Task, foreach: Mapping[str, Any], join: Join = "all") -> Task:
    """The group: it has nothing to execute, so only its priority and its description stay."""
    described = not any(True for _ in placeholders(template.description))
    return Task(
        template.id,
        priority=template.priority,
        description=template.description if described else "",
        foreach=foreach,
        join=join,
    )


def deferred_group(template: Task, over: Mapping[str, Any], params: Mapping[str, Any]) -> Task:
    """The group over the result of a task. ``over`` has ``from``, ``select``, ``max``, and ``at``, the place in the
    file."""
    fields = template.to_json()
    del fields["id"]
    spec = {**over, "template": fields, **({"params": dict(params)} if params else {})}
    return group_task(template, {name: value for name, value in spec.items() if value is not None}, template.join)


def template_of(group: Task) -> Task | None:
    """What the elements of a group will be; None if the task is no group, or its elements are there."""
    if group.foreach is None or "template" not in group.foreach or "of" in group.foreach:
        return None
    return Task.from_json({**group.foreach["template"], "id": group.id})


def expansion(group: Task, sources: Iterable[Dependency], result: Any) -> EditBatch:
    """The edit that turns a deferred group into tasks, given the result of the task that it waits for. Each element
    depends on what the group depends on. Raises NotExpandable with the place in the file."""
    foreach, template = group.foreach or {}, template_of(group)
    assert template is not None
    try:
        refuse_data_as_instructions(template)
        scopes = list_scopes(*_selected(foreach, result), most_elements(foreach))
        tasks = element_tasks(template, scopes, foreach.get("params", {}))
    except (AsterismError, ValueError) as error:
        raise NotExpandable(f"{foreach['at']}: {error}" if "at" in foreach else str(error)) from None
    edits: list[Edit] = []
    for task in tasks:
        edits.append(AddTask(task))
        edits += [AddDependency(edge.source, task.id, edge.on, edge.when) for edge in sources]
    # the last first: the group moves behind all of them in the topological order, once
    edits += [AddDependency(task.id, group.id, "completion") for task in reversed(tasks)]
    edits.append(UpdateTask(group.id, foreach={**foreach, "of": [task.id for task in tasks]}))
    reason = f"{group.id!r} has {len(tasks)} elements"
    return EditBatch(tuple(edits), AUTHOR, reason, triggers=(foreach["from"],))


def refuse_data_as_instructions(template: Task) -> None:
    """Raise NotExpandable if elements of a result would become instructions for an agent, or name who approves."""
    if any(_uses_item(name) for name in approvers(template.approval or {})):
        raise NotExpandable(
            "by of approval cannot use {item} of a result, which would decide who approves: write the names"
        )
    agent = template.agent or {}
    for text in (agent.get("description", ""), *agent.get("tips", ())):
        if _uses_item(text):
            raise NotExpandable(
                "the description and the tips of an agent cannot use {item} of a result, which is data: "
                "write it in 'inputs'"
            )


def _uses_item(text: str) -> bool:
    return any(path.partition(".")[0] == "item" for path in placeholders(text))


def _selected(foreach: Mapping[str, Any], result: Any) -> tuple[Any, str]:
    """The list of a deferred group, and how messages name it."""
    source, select = foreach["from"], foreach.get("select")
    if select is None:
        return result, f"the result of {source!r}"
    return expressions.select(select, {"result": result}), f"{select!r} of the result of {source!r}"
