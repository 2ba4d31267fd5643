"""Inherited priority: a task counts with the highest priority among itself and everything that waits for it.

Otherwise critical work below a low task runs last. ``urgency`` of a node is that priority. A dependency on the failure
of a task lends nothing: it is satisfied only if something goes wrong. A task that has ended waits for nothing.

The counter is kept step by step. A task that is added, linked or raised raises the tasks above it, and stops where
nothing changes. If one is removed, unlinked, lowered or cancelled, only those tasks above it are computed again that
had their priority from it. In a plan without priorities all urgencies are equal, so each of these steps is one
comparison.

``Graph.urged`` collects the running tasks whose urgency has changed: in a stored plan their runs may still be queued.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING

from asterism.core.plan.node import Node
from asterism.core.plan.status import RUNNING, TERMINAL
from asterism.core.plan.task import Dependency, Priority

if TYPE_CHECKING:
    from asterism.core.plan.graph import Graph


def linked(graph: Graph, source: Node, target: Node, dependency: Dependency) -> None:
    """A task waits for another one: it lends its urgency."""
    if target.urgency > source.urgency and dependency.on != "failure" and target.status not in TERMINAL:
        _raise(graph, source, target.urgency)


def raised_by(graph: Graph, dependency: Dependency) -> list[tuple[str, Priority]]:
    """The tasks that a dependency would raise if it were added, and how far."""
    source, target = graph.nodes.get(dependency.source), graph.nodes.get(dependency.target)
    if source is None or target is None or dependency.on == "failure" or target.status in TERMINAL:
        return []
    raised: dict[str, None] = {}
    stack = [source]
    while stack:
        node = stack.pop()
        if node.urgency < target.urgency and node.status not in TERMINAL and node.id not in raised:
            raised[node.id] = None
            stack += [graph.nodes[name] for name, edge in node.parents.items() if edge.on != "failure"]
    return [(name, target.urgency) for name in raised]


def unlinked(graph: Graph, source: Node, target: Node, dependency: Dependency) -> None:
    """A task no longer waits for another one, which may have had its urgency from it."""
    if source.urgency == target.urgency > source.task.priority and dependency.on != "failure":
        refresh(graph, source)


def ended(graph: Graph, node: Node) -> None:
    """A task has ended or was cancelled while tasks above it have not: it no longer waits for them."""
    for source, dependency in node.parents.items():
        unlinked(graph, graph.nodes[source], node, dependency)


def refresh(graph: Graph, node: Node) -> None:
    """Compute the urgency of a node, and of those above that it changes."""
    heap = [(-node.label, node.id)]
    while heap:
        node = graph.nodes[heappop(heap)[1]]
        urgency = own_urgency(node)
        if urgency == node.urgency or node.status in TERMINAL:
            continue
        _set(graph, node, urgency)
        for source, dependency in node.parents.items():
            if dependency.on != "failure":
                heappush(heap, (-graph.nodes[source].label, source))


def recompute(graph: Graph) -> None:
    """Compute all urgencies anew: tasks that had ended wait again."""
    for node in sorted(graph.nodes.values(), key=attrgetter("label"), reverse=True):
        node.urgency = own_urgency(node)


def own_urgency(node: Node) -> Priority:
    """The urgency of a node by its own priority and the urgencies of the tasks that wait for it."""
    return max([node.task.priority, *(child.urgency for child in _waiting(node))])


def lender(node: Node) -> Node | None:
    """The task from which a node has its urgency; None if it is its own."""
    source = node
    while source.urgency > source.task.priority:
        source = min((child for child in _waiting(source) if child.urgency == node.urgency), key=attrgetter("number"))
    return None if source is node else source


def _waiting(node: Node) -> Iterator[Node]:
    children = (child for child in node.children.values() if child.status not in TERMINAL)
    return (child for child in children if child.parents[node.id].on != "failure")


def _raise(graph: Graph, node: Node, urgency: Priority) -> None:
    stack = [node]
    while stack:
        node = stack.pop()
        if node.urgency >= urgency or node.status in TERMINAL:
            continue
        _set(graph, node, urgency)
        stack += [graph.nodes[source] for source, edge in node.parents.items() if edge.on != "failure"]


def _set(graph: Graph, node: Node, urgency: Priority) -> None:
    node.urgency = urgency
    graph.records.mark(node)
    if node.entry is not None:
        graph.queue.push(node)
    if node.status is RUNNING:
        graph.urged[node] = None
