"""The end of a plan: why tasks are given up, and whether failures were handled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.core.plan.node import Node, handler_of
from asterism.core.plan.status import CANCELLED, COMPLETED, FAILED
from asterism.core.plan.task import Dependency

if TYPE_CHECKING:
    from asterism.core.plan.graph import Graph

NOT_NEEDED, UNREACHABLE = "not needed: ", "unreachable: "
"""How the reason begins for which the end of a plan cancelled a task. Replay of a journal repeats these words, so they
never change."""


def all_handled(graph: Graph) -> bool:
    """Whether each failure was handled."""
    return all(handler_of(node) is not None for node in graph.nodes.values() if node.status is FAILED)


def unreachable_reason(graph: Graph, node: Node) -> tuple[bool, str]:
    """Whether a blocked task was not needed, and the reason. Called for parents before their children.

    If one of several dependencies makes a task unnecessary, it was not needed; with ``join="any"``, only if each of
    them does."""
    needless, blocked = "", ""
    for dependency in node.parents.values():
        if graph.nodes[dependency.source].satisfies(dependency, node):
            continue
        why, needed = _edge_reason(graph, node, dependency)
        if needed:
            blocked = why
        elif node.task.join == "any":
            needless = why
        else:
            return True, f"{NOT_NEEDED}{why}"
    if needless and not blocked:
        return True, f"{NOT_NEEDED}{needless}"
    return False, f"{UNREACHABLE}{blocked or 'no task could start it'}"


def _edge_reason(graph: Graph, node: Node, dependency: Dependency) -> tuple[str, bool]:
    """Why a dependency does not hold, and whether the task was needed all the same."""
    source, parent = dependency.source, graph.nodes[dependency.source]
    verdict = node.verdicts.get(source) if node.verdicts else None
    if isinstance(verdict, str):
        return f"the condition on {source!r} could not be evaluated: {verdict}", True
    if verdict is False:
        return f"{dependency.when!r} does not hold for {source!r}", False
    if dependency.on == "failure" and parent.status is COMPLETED:
        return f"it runs only if {source!r} fails, and {source!r} completed", False
    if parent.needless:
        return f"{source!r} was not needed", False
    if parent.status is FAILED and (handler := handler_of(parent)) is not None:
        return f"{source!r} failed, and {handler.id!r} handled that", False
    ended = f"was {parent.status}" if parent.status is CANCELLED else parent.status
    return f"{dependency.requirement}, but {source!r} {ended}", True
