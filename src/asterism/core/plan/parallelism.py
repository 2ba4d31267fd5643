"""Parallelism of a plan: critical path, total work, width, and the lower bound of the makespan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asterism.core.plan.node import Node


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
    for node in sorted(nodes.values(), key=lambda node: node.label):
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
