"""Provisional tasks: started before the ends above them are reviewed; later confirmed or revoked.

A node is *settled* when it has ended, its editor has reviewed that end, and it is not provisional. Until then each of
its children counts it in ``held``. Under the lock policy ``speculative``, a revocable task starts although ``held`` is
not 0, and is then provisional:

* it is **confirmed** when ``held`` becomes 0. If it has ended by then, its end counts from that moment, which may
  settle it and confirm its children;
* an edit that changes it **revokes** it and every provisional task below it: they are pending again, their epochs are
  void and their results are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from asterism.core.errors import error_text
from asterism.core.plan.node import Node
from asterism.core.plan.status import EVENTS

if TYPE_CHECKING:
    from asterism.core.plan.graph import Graph


def provisional_below(node: Node) -> list[Node]:
    """A node and all provisional nodes below it, which started because it did."""
    below = {node: None}
    stack = [node]
    while stack:
        for child in stack.pop().children.values():
            if child.provisional and child not in below:
                below[child] = None
                stack.append(child)
    return sorted(below, key=lambda node: node.number)


def revoke(graph: Graph, nodes: Iterable[Node], now: float, why: str) -> list[tuple[str, int]]:
    """Make provisional nodes pending again. Returns the executions (task, epoch) that must stop."""
    stopped = []
    revoked = [node for node in nodes if node.provisional]
    for node in revoked:
        if node.tentative is None and node.device is not None:
            stopped.append((node.id, node.epoch))
        reset(graph, node)
        graph.add_entry(now, "revoked", node.id, why)
    for node in revoked:
        graph.requeue(node)
    return stopped


def reset(graph: Graph, node: Node) -> None:
    """Make a running node pending, as if it had never run. Its children drop what they knew of its provisional end."""
    if node.tentative is not None:
        for child in node.children.values():
            if node.satisfies(child.parents[node.id], child):
                child.open += 1
            if child.verdicts:
                child.verdicts.pop(node.id, None)
            child.held -= 1
            graph.requeue(child)
    if node.provisional:
        graph.provisionals -= 1
    graph.change_status(node, "release")
    node.provisional, node.tentative, node.unsettled, node.reviewed = False, None, False, True
    node.value = node.error = node.device = node.started_at = node.ended_at = node.entry = None
    node.epoch = node.attempts = node.losses = 0
    node.worked = 0.0


def settle(graph: Graph, reviewed: Iterable[Node], now: float) -> list[Node]:
    """Settle reviewed ends. Returns the nodes that this confirms, in order."""
    confirmed = []
    stack = [node for node in reviewed if node.unsettled and not node.provisional]
    while stack:
        node = stack.pop()
        node.unsettled = False
        for child in sorted(node.children.values(), key=lambda child: child.number):
            child.held -= 1
            if child.held:
                continue
            if not child.provisional:
                graph.requeue(child)
                continue
            confirmed.append(child)
            if _confirm(graph, child, now):
                stack.append(child)
    return confirmed


def _confirm(graph: Graph, node: Node, now: float) -> bool:
    """Confirm a node. Returns whether that settles it."""
    node.provisional = False
    graph.provisionals -= 1
    graph.add_entry(now, "confirmed", node.id)
    if node.tentative is None:
        return False
    status, node.tentative = node.tentative, None
    graph.change_status(node, EVENTS[status])
    graph.add_entry(now, status, node.id, error_text(node.error))
    return node.reviewed
