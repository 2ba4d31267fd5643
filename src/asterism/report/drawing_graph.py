"""The graph of a picture: parents, children, topological order, layers and components, by task number.

Tasks are numbered by their position in the picture, so that later steps work on small integers. All walks are loops
over explicit lists: a chain of many thousand tasks is as safe as a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asterism.report.picture import Picture


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed acyclic graph.

    `edges` keeps the picture's lines in their order, doubles included; `parents` and `children` name each
    neighbour once. `order` is topological. `layers` holds for each task the length of the longest path that
    leads to it.
    """

    edges: tuple[tuple[int, int], ...]
    parents: tuple[tuple[int, ...], ...]
    children: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    layers: tuple[int, ...]

    @staticmethod
    def of(picture: Picture) -> Graph:
        """Read the shape of a picture; raises `ValueError` on a repeated id, an unknown end or a cycle."""
        edges = _edges(picture)
        parents: list[dict[int, None]] = [{} for _ in picture.tasks]
        children: list[dict[int, None]] = [{} for _ in picture.tasks]
        for source, target in edges:
            parents[target][source] = None
            children[source][target] = None
        order = _topological(parents, children)
        if len(order) < len(picture.tasks):
            on_cycle = sorted(set(range(len(picture.tasks))) - set(order))
            names = ", ".join(picture.tasks[task].id for task in on_cycle[:5])
            raise ValueError(f"the lines form a cycle that these tasks are on or below: {names}")
        return Graph(
            edges=edges,
            parents=tuple(map(tuple, parents)),
            children=tuple(map(tuple, children)),
            order=tuple(order),
            layers=tuple(_layers(parents, order)),
        )

    def components(self) -> list[list[int]]:
        """The connected components, each in the order of declaration, the first declared first."""
        seen = [False] * len(self.parents)
        found = []
        for start in range(len(self.parents)):
            if seen[start]:
                continue
            seen[start] = True
            component = [start]
            for task in component:  # grows while it is walked
                for other in (*self.parents[task], *self.children[task]):
                    if not seen[other]:
                        seen[other] = True
                        component.append(other)
            found.append(sorted(component))
        return found


def _edges(picture: Picture) -> tuple[tuple[int, int], ...]:
    position = {drawn_task.id: number for number, drawn_task in enumerate(picture.tasks)}
    if len(position) < len(picture.tasks):
        raise ValueError("two tasks of the picture have the same id")
    edges = []
    for line in picture.edges:
        for end in (line.source, line.target):
            if end not in position:
                raise ValueError(f"a line names the task {end!r}, which is not in the picture")
        edges.append((position[line.source], position[line.target]))
    return tuple(edges)


def _topological(parents: Sequence[dict[int, None]], children: Sequence[dict[int, None]]) -> list[int]:
    """Parents before children; tasks on a cycle, or below one, are left out."""
    open_parents = [len(above) for above in parents]
    order = [task for task, count in enumerate(open_parents) if count == 0]
    for task in order:  # grows while it is walked
        for child in children[task]:
            open_parents[child] -= 1
            if open_parents[child] == 0:
                order.append(child)
    return order


def _layers(parents: Sequence[dict[int, None]], order: Sequence[int]) -> list[int]:
    layers = [0] * len(parents)
    for task in order:
        layers[task] = max((layers[parent] + 1 for parent in parents[task]), default=0)
    return layers
