"""Joins: when a task with several dependencies starts.

::

    all  when every dependency holds
    any  when one dependency holds and every other is decided

A dependency is *decided* when it holds, or when it can no longer hold: its source has ended otherwise, and that end is
settled; or its source is *doomed*, which means that its own dependencies keep it from ever starting. So the task after
an if/else starts as soon as one branch has completed, and does not wait for the branch that was not taken. Only an edit
revives a doomed task, so the decision waits for the reviews of the ends that it follows from.

``open`` of a node stays 0 exactly when the task may start. Two more counters lead to it:

    met   dependencies that hold
    lost  dependencies that can no longer hold

They are kept only while the plan has a task with ``join="any"`` (``Graph.any_joins``); other plans pay nothing.
A change visits the edges of the nodes that it decides, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from asterism.core.plan.node import Node, outcome_fits
from asterism.core.plan.status import PENDING, TERMINAL
from asterism.core.plan.task import Dependency, Task

if TYPE_CHECKING:
    from asterism.core.plan.graph import Graph


def counters(node: Node) -> tuple[int, bool]:
    """``open`` and ``doomed`` of a node, by its other counters."""
    edges = len(node.parents)
    if node.task.join == "any" and edges:
        return edges - node.met - node.lost + (not node.met), node.status is PENDING and node.lost == edges
    return edges - node.met, node.status is PENDING and node.lost > 0


def is_lost(source: Node, dependency: Dependency, target: Node) -> bool:
    """Whether a dependency can no longer hold."""
    decided = source.doomed or (source.status in TERMINAL and not source.unsettled)
    return decided and not source.satisfies(dependency, target)


def count_task(graph: Graph, task: Task) -> None:
    """A task was added to the plan. The first with ``join="any"`` makes the plan count."""
    if task.join == "any":
        graph.any_joins += 1
        if graph.any_joins == 1:
            recount(graph)


def discount_task(graph: Graph, task: Task) -> None:
    """A task, without edges by now, was removed from the plan."""
    graph.any_joins -= task.join == "any"


def replaced(graph: Graph, node: Node, before: Task) -> None:
    """The task of a node was replaced by one that may join otherwise."""
    if node.task.join == before.join:
        return
    if node.task.join == "any":
        graph.any_joins += 1
        if graph.any_joins == 1:
            recount(graph)
            return
    else:
        graph.any_joins -= 1
    refresh(graph, [node])


def recount(graph: Graph) -> None:
    """Compute all counters anew, sources first."""
    for node in sorted(graph.nodes.values(), key=attrgetter("label")):
        edges = [(graph.nodes[source], dependency) for source, dependency in node.parents.items()]
        node.met = sum(source.satisfies(dependency, node) for source, dependency in edges)
        node.lost = sum(is_lost(source, dependency, node) for source, dependency in edges)
        node.open, node.doomed = counters(node)
        graph.rejoined[node] = None


def refresh(graph: Graph, nodes: Iterable[Node]) -> None:
    """Compute ``open`` of nodes whose counters changed, and of all nodes below that this decides."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        was = node.doomed
        node.open, node.doomed = counters(node)
        graph.rejoined[node] = None
        if node.doomed is not was:
            for child in node.children.values():
                child.lost += 1 if node.doomed else -1
                stack.append(child)


def ended(graph: Graph, node: Node) -> None:
    """A task has ended: its dependents learn which dependencies hold, and, if nothing reviews the end, which are
    lost."""
    status = node.tentative or node.status
    for child in node.children.values():
        dependency = child.parents[node.id]
        if outcome_fits(dependency.on, status) and (
            dependency.when is None or graph.verdict(node, dependency, child) is True
        ):
            child.met += 1
        elif not node.unsettled:
            child.lost += 1
        child.held += node.unsettled
    refresh(graph, node.children.values())
    requeue(graph)


def settled(graph: Graph, node: Node) -> None:
    """The end of a task is settled: what does not hold by now is lost."""
    for child in node.children.values():
        child.lost += not node.satisfies(child.parents[node.id], child)
    refresh(graph, node.children.values())


def cancelled(graph: Graph, node: Node) -> None:
    """A task was cancelled: its dependents lose it, unless it was doomed already."""
    if node.doomed:
        node.doomed = False
    else:
        for child in node.children.values():
            child.lost += 1
        refresh(graph, node.children.values())
    requeue(graph)


def requeue(graph: Graph) -> None:
    """Queue or dequeue the nodes whose ``open`` changed."""
    rejoined, graph.rejoined = graph.rejoined, {}
    for node in rejoined:
        if graph.nodes.get(node.id) is node:
            graph.requeue(node)
