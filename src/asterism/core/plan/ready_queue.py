"""The ready queue: tasks that may start now, best first, and their critical-path ranks.

There is one queue per *lane*. The tasks of a lane require the same device or capabilities, so the best entry of each
lane shows what can be assigned, and a task that waits for a busy device never blocks the others.

Almost all tasks become ready in the order in which they start: equal priority, equal rank. Such entries form a *run*,
to which a task is appended and from which it is taken in constant time. An entry that has to overtake others goes to a
heap beside it.

The queue never searches for an entry. A node keeps its current entry; an entry that is no longer that of its node is
dropped when it reaches the top.

The order within a lane is: priority (``Node.urgency``, inherited_priority.py), then rank, then who was ready first. The
rank of a task is the estimated work on the longest path from it to the end of the plan. Ranks are updated edit by edit,
only as far as they change, and never for tasks that have started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import chain

from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING
from asterism.core.plan.task import ANY_DEVICE, GROUP_LANE, Lane, lane_of

Entry = tuple[int, float, int, int, Node]
"""Priority and rank (negated: the least comes first), position among equals, a serial number, the node."""


class ReadyQueue:
    """See the module."""

    __slots__ = ("_heaps", "_pushed", "active_lanes", "lanes")

    def __init__(self) -> None:
        self.lanes: dict[Lane, deque[Entry]] = {}  # the run of each lane with entries; empty if all are in its heap
        self._heaps: dict[Lane, list[Entry]] = {}
        self.active_lanes: dict[Lane, None] = {}  # lanes with tasks, without those that wait for a busy device
        self._pushed = 0

    def push(self, node: Node) -> None:
        """Add a node, or move a queued node to its new position."""
        task, before = node.task, node.entry
        self._pushed = serial = self._pushed + 1
        since = serial if before is None else before[2]  # a moved node keeps its position among equals
        entry = node.entry = (-node.urgency, -node.rank, since, serial, node)
        own_lane = task.foreach is not None or task.agent is not None or task.wait_for is not None
        plain = task.device is None and not task.needs and not own_lane and task.plugin is None
        if task.approval is not None and node.needs_approval:
            lane = GROUP_LANE
        else:
            lane = ANY_DEVICE if plain else lane_of(task)
        run = self.lanes.get(lane)
        if run is None:
            self.lanes[lane] = deque((entry,))
            self.active_lanes[lane] = None
        elif not run or run[-1] < entry:
            run.append(entry)
        else:
            heappush(self._heaps.setdefault(lane, []), entry)

    def peek(self, lane: Lane) -> Entry | None:
        """The best entry of a lane, which stays in the queue; None if the lane is empty."""
        while (run := self.lanes.get(lane)) is not None:
            entry = self._first(lane, run) if self._heaps else run[0]
            if entry[4].entry is entry:
                return entry
            self._remove(lane, run, entry)
        self.active_lanes.pop(lane, None)
        return None

    def pop(self, lane: Lane) -> Node:
        """Remove and return the node that ``peek`` has just returned."""
        run = self.lanes[lane]
        if self._heaps:
            entry = self._first(lane, run)
            self._remove(lane, run, entry)
        else:
            entry = run.popleft()
            if not run:
                del self.lanes[lane]
                self.active_lanes.pop(lane, None)
        node = entry[4]
        node.entry = None
        return node

    def _first(self, lane: Lane, run: deque[Entry]) -> Entry:
        heap = self._heaps.get(lane)
        if heap is None:
            return run[0]
        return min(run[0], heap[0]) if run else heap[0]

    def _remove(self, lane: Lane, run: deque[Entry], first: Entry) -> None:
        if run and run[0] is first:
            run.popleft()
        else:
            heappop(self._heaps[lane])
            if not self._heaps[lane]:
                del self._heaps[lane]
        if not run and lane not in self._heaps:
            del self.lanes[lane]
            self.active_lanes.pop(lane, None)

    def deactivate(self, lane: Lane) -> None:
        """Skip a lane until ``activate``, because all its devices are busy."""
        self.active_lanes.pop(lane, None)

    def activate(self, lane: Lane) -> None:
        if lane in self.lanes:
            self.active_lanes[lane] = None

    def activate_all(self) -> None:
        self.active_lanes = dict.fromkeys(self.lanes)

    def has_ready(self) -> bool:
        """Whether any task is ready."""
        return any(self.peek(lane) is not None for lane in tuple(self.lanes))

    def entries(self, lane: Lane) -> Iterator[Entry]:
        """The entries of a lane, nearly in their order, also those that are no longer that of their node."""
        return chain(self.lanes[lane], self._heaps.get(lane, ()))

    def length(self, lane: Lane) -> int:
        """How many entries a lane has."""
        return len(self.lanes[lane]) + len(self._heaps.get(lane, ()))

    def __len__(self) -> int:
        """How many tasks are ready. Visits all entries: for views, not for dispatch."""
        return sum(entry[4].entry is entry for lane in self.lanes for entry in self.entries(lane))


class CriticalPathRanks:
    """Computes critical-path ranks. ``default`` is the estimate of a task without one, in seconds."""

    __slots__ = ("default",)

    def __init__(self, default: float = 1.0) -> None:
        self.default = default

    def all(self, nodes: Mapping[str, Node]) -> None:
        """Compute the rank of every node, children first."""
        for node in sorted(nodes.values(), key=lambda node: node.label, reverse=True):
            node.rank = self._rank(node)

    def refresh(self, nodes: Mapping[str, Node], node: Node) -> list[Node]:
        """Update the rank of a changed node and of those above it. Returns the nodes whose rank changed."""
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
