"""Groups of a plan that is run again: a group over a result forgets its elements if that result is made again.

A group (``Task.foreach``) that was expanded while the plan ran keeps its template. If the task whose result it was made
of runs again, its elements are removed, and the next result decides which elements it has.
"""

from __future__ import annotations

from collections.abc import Collection

from asterism.core.plan.edits import Edit, RemoveDependency, RemoveTask, UpdateTask
from asterism.core.plan.graph import Graph
from asterism.core.plan.node import Node


def collapse(graph: Graph, again: Collection[str]) -> list[Edit]:
    """The edits that make groups as they were before they were expanded. ``again`` are the tasks that run again.

    A group stays as it is if another task depends on one of its elements."""
    edits: list[Edit] = []
    chosen = set(again)
    for task_id in again:
        foreach = graph.nodes[task_id].task.foreach
        if foreach is None or "of" not in foreach or foreach.get("from") not in chosen:
            continue
        elements = [graph.nodes[one] for one in foreach["of"] if one in graph.nodes]
        if all(_belongs_to(element, task_id) for element in elements):
            for element in elements:
                edits += [RemoveDependency(element.id, task_id), RemoveTask(element.id)]
            template = {name: value for name, value in foreach.items() if name != "of"}
            edits.append(UpdateTask(task_id, foreach=template))
    return edits


def _belongs_to(element: Node, group: str) -> bool:
    return list(element.children) == [group]
