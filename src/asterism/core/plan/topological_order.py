"""A topological order that is updated edge by edge and finds cycles (Pearce and Kelly).

Each node has a unique integer label, and every edge points from a smaller label to a greater one. An added edge that
agrees with the labels costs nothing. Otherwise only the nodes between its two ends are visited, and exchange their
labels. So the cost of an edge does not depend on the size of the graph.

A node without neighbours gets a label next to that of its new neighbour. Otherwise a task inserted in the middle of a
large plan would move all tasks behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from asterism.core.errors import CycleFound
from asterism.core.plan.node import Node

_BITS = 40  # the low bits keep labels with the same position apart


class TopologicalOrder:
    """Assigns labels and repairs them."""

    __slots__ = ("_labels", "_nodes")

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._labels = 0

    def of_copy(self, nodes: Mapping[str, Node]) -> TopologicalOrder:
        """The order of the same nodes in a copy of the plan, with the same labels."""
        order = TopologicalOrder(nodes)
        order._labels = self._labels
        return order

    def fresh(self) -> int:
        """A label greater than all others."""
        self._labels += 1
        return self._labels << _BITS | self._labels

    def _near(self, label: int, step: int) -> int:
        self._labels += 1
        return (label >> _BITS) + step << _BITS | self._labels

    def connect(self, source: Node, target: Node) -> Iterable[Node]:
        """Adjust the labels for an edge that is about to be added. Returns the nodes between its ends whose labels have
        changed. Raises CycleFound, with nothing changed."""
        if not target.parents and not target.children:
            target.label = self._near(source.label, +1)
        elif not source.parents and not source.children:
            source.label = self._near(target.label, -1)
        elif source.label > target.label:
            if not target.children:  # no node is below it: only its own label has to change
                target.label = self._near(source.label, +1)
            elif not source.parents:
                source.label = self._near(target.label, -1)
            else:
                return self._repair(source, target)
        return ()

    def _repair(self, source: Node, target: Node) -> list[Node]:
        forward = _reach_forward(target, source)
        backward = self._reach_backward(source, target.label)
        moved = sorted(backward, key=_label) + sorted(forward, key=_label)
        for label, node in zip(sorted(node.label for node in moved), moved, strict=True):
            node.label = label
        return moved

    def _reach_backward(self, start: Node, floor: int) -> list[Node]:
        """The nodes above ``start`` with a label greater than ``floor``."""
        seen = {start}
        stack = [start]
        while stack:
            for parent_id in stack.pop().parents:
                parent = self._nodes[parent_id]
                if parent.label > floor and parent not in seen:
                    seen.add(parent)
                    stack.append(parent)
        return list(seen)


def _label(node: Node) -> int:
    return node.label


def _reach_forward(start: Node, goal: Node) -> list[Node]:
    """The nodes below ``start`` with a smaller label than ``goal``. Raises CycleFound if ``goal`` is among them."""
    came_from: dict[Node, Node | None] = {start: None}
    stack = [start]
    while stack:
        node = stack.pop()
        for child in node.children.values():
            if child is goal:
                raise CycleFound(_path(came_from, node, goal))
            if child.label < goal.label and child not in came_from:
                came_from[child] = node
                stack.append(child)
    return list(came_from)


def _path(came_from: dict[Node, Node | None], last: Node, goal: Node) -> list[str]:
    """The cycle that the new edge ``goal -> start`` would close, from ``goal`` to ``goal``."""
    path = [goal.id]
    node: Node | None = last
    while node is not None:
        path.append(node.id)
        node = came_from[node]
    path.append(goal.id)
    return path[::-1]


def parents_first(nodes: Iterable[Node]) -> list[Node]:
    """The nodes, parents before children, in an order that depends only on the plan. Labels would not do: they depend
    on rejected edits, and differ after the plan is read from a record."""
    chosen = {node.id: node for node in nodes}
    left = {id: sum(source in chosen for source in node.parents) for id, node in chosen.items()}
    heap = [(chosen[id].number, id) for id, count in left.items() if not count]
    heapify(heap)
    ordered = []
    while heap:
        node = chosen[heappop(heap)[1]]
        ordered.append(node)
        for id, child in node.children.items():
            if id in left:
                left[id] -= 1
                if not left[id]:
                    heappush(heap, (child.number, id))
    return ordered
