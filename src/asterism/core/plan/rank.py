"""The critical-path rank: how much estimated work hangs on a task, its own included.

Of two tasks of equal priority the one with the longer tail goes first. Ranks are kept up to date edit by edit: a
change is passed on to the parents only as far as it matters, and never past tasks that have started (their rank is of
no use to anyone).
"""

from __future__ import annotations

from heapq import heappop, heappush

from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING


class Ranks:
    """Computes ranks with ``default`` seconds for tasks that carry no estimate."""

    __slots__ = ("default",)

    def __init__(self, default: float = 1.0) -> None:
        self.default = default

    def all(self, nodes: dict[str, Node]) -> None:
        """Rank every node once, children first."""
        for node in sorted(nodes.values(), key=lambda node: node.label, reverse=True):
            node.rank = self._rank(node)

    def refresh(self, nodes: dict[str, Node], node: Node) -> list[Node]:
        """A node or its outgoing edges changed: correct it and those above it. Returns those whose rank changed."""
        changed = []
        heap = [(-node.label, node.id)]
        while heap:
            _, node_id = heappop(heap)
            node = nodes[node_id]
            rank = self._rank(node)
            if rank == node.rank or node.status is not PENDING:
                continue
            node.rank = rank
            changed.append(node)
            for parent_id in node.parents:
                heappush(heap, (-nodes[parent_id].label, parent_id))
        return changed

    def _rank(self, node: Node) -> float:
        tail = max((child.rank for child in node.children.values()), default=0.0)
        own = node.task.estimate
        return tail + (self.default if own is None else own)
