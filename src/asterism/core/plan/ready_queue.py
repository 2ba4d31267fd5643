"""The tasks that may start now, best first.

One heap per *lane*: the tasks of a lane ask for the same kind of device, so one look at the best of each lane is
enough to know what can be placed, and a task that waits for a busy device never stands in the way of the others.

Entries are never searched for. A node knows its current entry; an entry that is no longer its node's is dropped when it
comes to the top.
"""

from __future__ import annotations

from heapq import heappop, heappush

from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING
from asterism.core.plan.task import Task

Lane = tuple[str | None, frozenset[str]] | None
"""The device and the capabilities that a task asks for; None if any device will do."""

ANY_DEVICE: Lane = None

Entry = tuple[int, float, int, int, Node]
"""Priority and rank (both negative, for the least comes first), who was ready first, a serial number, the node."""


def lane_of(task: Task) -> Lane:
    """What kind of device the task asks for."""
    if task.device is None and not task.needs:
        return ANY_DEVICE
    return (task.device, task.needs)


class ReadyQueue:
    __slots__ = ("_pushed", "active_lanes", "lanes")

    def __init__(self) -> None:
        self.lanes: dict[Lane, list[Entry]] = {}
        self.active_lanes: dict[Lane, None] = {}  # lanes that have work and are not known to wait for a busy device
        self._pushed = 0

    def push(self, node: Node) -> None:
        """Queue a node, or move one that is queued already to where it now belongs."""
        task = node.task
        self._pushed += 1
        since = self._pushed if node.entry is None else node.entry[2]  # moved, it keeps its place among equals
        entry = (-task.priority, -node.rank, since, self._pushed, node)
        node.entry = entry
        lane = lane_of(task)
        heap = self.lanes.get(lane)
        if heap is None:
            heap = self.lanes[lane] = []
            self.active_lanes[lane] = None
        heappush(heap, entry)

    def peek(self, lane: Lane) -> Entry | None:
        """The first entry of a lane that still stands, left in its place."""
        heap = self.lanes.get(lane)
        while heap:
            entry = heap[0]
            if entry[4].entry is entry:
                return entry
            heappop(heap)
        self._drop(lane)
        return None

    def pop(self, lane: Lane) -> Node:
        """Remove and return what ``best`` has just shown."""
        heap = self.lanes[lane]
        node = heappop(heap)[4]
        node.entry = None
        if not heap:
            self._drop(lane)
        return node

    def _drop(self, lane: Lane) -> None:
        self.lanes.pop(lane, None)
        self.active_lanes.pop(lane, None)

    def deactivate(self, lane: Lane) -> None:
        """Every device that could serve the lane is busy: no need to look at it again until one is free."""
        self.active_lanes.pop(lane, None)

    def activate(self, lane: Lane) -> None:
        if lane in self.lanes:
            self.active_lanes[lane] = None

    def activate_all(self) -> None:
        self.active_lanes = dict.fromkeys(self.lanes)

    def has_ready(self) -> bool:
        """Whether any task is queued."""
        return any(self.peek(lane) is not None for lane in tuple(self.lanes))

    def __len__(self) -> int:
        """How many tasks are queued. Counts; for people, not for the loop."""
        return sum(entry[4].entry is entry for heap in self.lanes.values() for entry in heap)


class CriticalPathRanks:
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
