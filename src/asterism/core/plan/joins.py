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

They are kept only while the plan has a task with ``join="any"`` or a teardown (``Graph.deciders``); other plans pay
nothing. A change visits the edges of the nodes that it decides, and no others. Only the few edges of a teardown are
counted anew each time: they depend on the tasks between it and its set-up (teardowns.py).

A doomed task does not doom what needs only its end (``always``): the end of the plan cancels it, and that is an end.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from asterism.core.plan.node import Node, outcome_fits
from asterism.core.plan.status import PENDING, TERMINAL
from asterism.core.plan.task import Dependency, Task
from asterism.core.plan.teardowns import teardowns_of

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
    if dependency.on == "teardown":
        return is_over(source) and not source.has_begun
    if source.doomed:
        return dependency.on != "always"
    return is_over(source) and not source.satisfies(dependency, target)


def is_over(node: Node) -> bool:
    """Whether a task has ended, and nothing reviews its end, or can never run."""
    return node.doomed or (node.status in TERMINAL and not node.unsettled)


def count_task(graph: Graph, task: Task) -> None:
    """A task was added to the plan. The first with ``join="any"`` makes the plan count."""
    if task.join == "any":
        count_decider(graph)


def count_decider(graph: Graph) -> bool:
    """A task with ``join="any"`` or a teardown was added. Returns whether the plan counts from now on."""
    graph.deciders += 1
    if graph.deciders == 1:
        recount(graph)
    return graph.deciders == 1


def discount_task(graph: Graph, task: Task) -> None:
    """A task, without edges by now, was removed from the plan."""
    graph.deciders -= task.join == "any"


def replaced(graph: Graph, node: Node, before: Task) -> None:
    """The task of a node was replaced by one that may join otherwise."""
    if node.task.join == before.join:
        return
    if node.task.join == "any":
        if count_decider(graph):
            return
    else:
        graph.deciders -= 1
    refresh(graph, [node])


def recount(graph: Graph) -> None:
    """Compute all counters anew, sources first."""
    nodes = sorted(graph.nodes.values(), key=attrgetter("label"))
    for node in nodes:
        _count_edges(graph, node)
        node.open, node.doomed = counters(node)
        node.over, node.below = is_over(node), 0
        graph.rejoined[node] = None
    for node in nodes:
        if not node.over:
            for setup in node.scope.inside:
                setup.below += 1
    for setup in graph.setups:  # what is between decides when a teardown starts, not whether it can
        for teardown in teardowns_of(setup):
            _count_edges(graph, teardown)
            teardown.open, _ = counters(teardown)


def _count_edges(graph: Graph, node: Node) -> None:
    edges = [(graph.nodes[source], dependency) for source, dependency in node.parents.items()]
    node.met = sum(source.satisfies(dependency, node) for source, dependency in edges)
    node.lost = sum(is_lost(source, dependency, node) for source, dependency in edges)


def refresh(graph: Graph, nodes: Iterable[Node]) -> None:
    """Compute ``open`` of nodes whose counters changed, and of all nodes below that this decides."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        was = node.doomed
        if node.setup is not None:
            _count_edges(graph, node)
        node.open, node.doomed = counters(node)
        graph.rejoined[node] = None
        if node.doomed is not was:
            for child in node.children.values():
                if child.parents[node.id].on != "always":
                    child.lost += 1 if node.doomed else -1
                stack.append(child)
        stack += _renew_over(node)


def _renew_over(node: Node) -> list[Node]:
    """Tell the set-ups around a node whether it is over. Returns the teardowns whose start depends on that."""
    over = is_over(node)
    if over is node.over:
        return []
    node.over = over
    teardowns: list[Node] = []
    for setup in node.scope.inside:
        setup.below += -1 if over else 1
        if setup.below == (not over):
            teardowns += teardowns_of(setup)
    return teardowns


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
    refresh(graph, [*_renew_over(node), *node.children.values()])
    requeue(graph)


def settled(graph: Graph, node: Node) -> None:
    """The end of a task is settled: what does not hold by now is lost."""
    for child in node.children.values():
        child.lost += not node.satisfies(child.parents[node.id], child)
    refresh(graph, [*_renew_over(node), *node.children.values()])


def cancelled(graph: Graph, node: Node) -> None:
    """A task was cancelled: its dependents lose it, unless it was doomed already; those that need only its end have
    it."""
    doomed, node.doomed = node.doomed, False
    for child in node.children.values():
        dependency = child.parents[node.id]
        if dependency.on == "always":
            holds = graph.end_counts(node, dependency, child)
            child.met += holds
            child.lost += not holds
        else:
            child.lost += not doomed
    refresh(graph, [*_renew_over(node), *node.children.values()])
    requeue(graph)


def requeue(graph: Graph) -> None:
    """Queue or dequeue the nodes whose ``open`` changed."""
    rejoined, graph.rejoined = graph.rejoined, {}
    for node in rejoined:
        if graph.nodes.get(node.id) is node:
            graph.requeue(node)
