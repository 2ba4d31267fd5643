"""A topological order that is updated edge by edge and finds cycles (Pearce and Kelly); the critical path.

Each node has a unique integer label, and every edge points from a smaller label to a greater one. An added edge that
agrees with the labels costs nothing. Otherwise only the nodes between its two ends are visited, and exchange their
labels. So the cost of an edge does not depend on the size of the graph.

A node without neighbours gets a label next to that of its new neighbour. Otherwise a task inserted in the middle of a
large plan would move all tasks behind it.

``parallelism`` walks the order once and computes the critical path, the total work, and the width of a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from asterism.core.errors import CycleFound
from asterism.core.plan.node import Node

_BITS = 40  # the low bits keep labels with the same position apart


class TopologicalOrder:
    """Assigns labels and repairs them."""

    __slots__ = ("_labels", "_nodes")

    def __init__(self, nodes: dict[str, Node]) -> None:
        self._nodes = nodes
        self._labels = 0

    def fresh(self) -> int:
        """A label greater than all others."""
        self._labels += 1
        return self._labels << _BITS | self._labels

    def _near(self, label: int, step: int) -> int:
        self._labels += 1
        return (label >> _BITS) + step << _BITS | self._labels

    def connect(self, source: Node, target: Node) -> None:
        """Adjust the labels for an edge that is about to be added. Raises CycleFound, with nothing changed."""
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
                self._repair(source, target)

    def _repair(self, source: Node, target: Node) -> None:
        forward = _reach_forward(target, source)
        backward = self._reach_backward(source, target.label)
        moved = sorted(backward, key=_label) + sorted(forward, key=_label)
        for label, node in zip(sorted(node.label for node in moved), moved, strict=True):
            node.label = label

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


# -- parallelism -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parallelism:
    """``critical_path`` is L: the seconds along the longest path, whose tasks are in ``path``. ``work`` is W: the
    seconds of all tasks. ``width`` is the largest number of tasks in one layer."""

    critical_path: float
    path: tuple[str, ...]
    work: float
    width: int

    @property
    def ratio(self) -> float:
        """W / L: how many devices the plan could keep busy on average."""
        return self.work / self.critical_path if self.critical_path else 0.0

    def lower_bound(self, slots: int | None) -> float:
        """The shortest possible makespan on that many slots."""
        return max(self.critical_path, self.work / slots if slots else 0.0)


def durations(nodes: Mapping[str, Node]) -> dict[str, float]:
    """Seconds per task: measured if it has ended (all attempts, without the waits between them), else its estimate,
    or 1. A task that ended without running has 0."""
    return {node.id: _duration(node) for node in nodes.values()}


def _duration(node: Node) -> float:
    if node.ended_at is not None:
        return node.worked
    return node.task.estimate if node.task.estimate is not None else 1.0


def parallelism(nodes: Mapping[str, Node], seconds: Mapping[str, float] | None = None) -> Parallelism:
    """The parallelism of a plan, by the ``seconds`` of each task. Visits every task and dependency once."""
    seconds = durations(nodes) if seconds is None else seconds
    reach: dict[str, float] = {}
    layer: dict[str, int] = {}
    before: dict[str, str | None] = {}
    for node in sorted(nodes.values(), key=_label):
        last = max(node.parents, key=lambda source: reach[source], default=None)
        before[node.id] = last
        reach[node.id] = seconds[node.id] + (reach[last] if last is not None else 0.0)
        layer[node.id] = 1 + max((layer[source] for source in node.parents), default=-1)
    width: dict[int, int] = {}
    for depth in layer.values():
        width[depth] = width.get(depth, 0) + 1
    end = max(reach, key=lambda task_id: reach[task_id], default=None)
    longest = reach[end] if end is not None else 0.0
    return Parallelism(longest, _walk_back(before, end), sum(seconds.values()), max(width.values(), default=0))


def _walk_back(before: Mapping[str, str | None], end: str | None) -> tuple[str, ...]:
    path: list[str] = []
    while end is not None:
        path.append(end)
        end = before[end]
    return tuple(reversed(path))
