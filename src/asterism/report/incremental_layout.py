"""The layout of a plan that changes: an edit moves only the tasks whose layer changes.

``fresh`` lays a graph out as a whole, as in the report. ``updated`` takes the layout before an edit and the graph after
it:

- A task keeps its layer while all its dependencies are in earlier layers. It never moves back towards the beginning
  only because there would be room, so removing a task or a dependency moves nothing.
- A task that keeps its layer keeps its place. A task that a dependency pushes to a later layer stays in its row, or in
  the nearest free one. A new task goes to the free row nearest to its neighbours. So nothing moves to make room.
- The bends of a dependency stay where they are while both its ends do.

Free rows and columns remain where tasks were removed, and are used again. If they became more than half of the columns,
the next layout is a fresh one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, starmap
from math import ceil, sqrt

from asterism.report.layout import BEND_ROOM, COMPONENT_GAP, MOST_BENDS, Place, lay_out
from asterism.report.picture import DrawnEdge, DrawnTask, Graph, Picture

TASK_ROOM = 0.5
"""Rows on each side of a task."""

LOOSEST = 2
SPARE_LAYERS = 4
"""A layout with more than LOOSEST times as many layers as the graph needs, and SPARE_LAYERS more, is made anew."""

_TOUCH = 1e-9

Dependency = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PlanLayout:
    """Places of tasks by id, and for each dependency that passes layers, a bend in each of them."""

    places: Mapping[str, Place]
    bends: Mapping[Dependency, tuple[Place, ...]]

    @property
    def layers(self) -> int:
        return max((place.layer for place in self.places.values()), default=-1) + 1

    @property
    def rows(self) -> tuple[float, float]:
        """The first and the last row that a task or a bend needs."""
        rows = [place.row for place in self.places.values()]
        bends = [bend.row for chain in self.bends.values() for bend in chain]
        if not rows:
            return 0.0, 0.0
        return (
            min(min(rows) - TASK_ROOM, min(bends, default=rows[0]) - BEND_ROOM),
            max(max(rows) + TASK_ROOM, max(bends, default=rows[0]) + BEND_ROOM),
        )


def fresh(tasks: Sequence[str], dependencies: Sequence[Dependency]) -> PlanLayout:
    """Lay a graph out as a whole. Raises ValueError for a graph with a cycle."""
    layout = lay_out(Graph.of(_picture(tasks, dependencies)))
    chains = zip(dependencies, layout.bends, strict=True)
    return PlanLayout(
        dict(zip(tasks, layout.places, strict=True)), {dependency: chain for dependency, chain in chains if chain}
    )


def _picture(tasks: Sequence[str], dependencies: Sequence[Dependency]) -> Picture:
    return Picture("", tuple(DrawnTask(task, "") for task in tasks), tuple(starmap(DrawnEdge, dependencies)))


def updated(before: PlanLayout, tasks: Sequence[str], dependencies: Sequence[Dependency]) -> PlanLayout:
    """The layout of a graph near the layout of an earlier one. Pure and deterministic.

    Raises ValueError for a graph with a cycle."""
    graph = _Graph(tasks, dependencies)
    layers = graph.layers(before.places)
    if not before.places or max(layers.values(), default=-1) >= LOOSEST * graph.depth + SPARE_LAYERS:
        return fresh(tasks, dependencies)
    return _Update(before, graph, layers).layout()


class _Graph:
    """Tasks with their neighbours, by id and in topological order."""

    def __init__(self, tasks: Sequence[str], dependencies: Sequence[Dependency]) -> None:
        self.dependencies, graph = dependencies, Graph.of(_picture(tasks, dependencies))
        self.above = {task: [tasks[number] for number in graph.parents[place]] for place, task in enumerate(tasks)}
        self.below = {task: [tasks[number] for number in graph.children[place]] for place, task in enumerate(tasks)}
        self.order = [tasks[number] for number in graph.order]
        singles = sum(map(self.is_single, tasks))
        self.depth = max(max(graph.layers, default=-1) + 1, ceil(sqrt(singles)))
        """The number of layers that the connected tasks need, or the columns of a grid of the others."""

    def is_single(self, task: str) -> bool:
        return not self.above[task] and not self.below[task]

    def layers(self, before: Mapping[str, Place]) -> dict[str, int]:
        """The layer of each task: its old one, unless a dependency pushes it further. A new task without dependencies
        stands just before the first task that depends on it."""
        layers: dict[str, int] = {}
        for task in self.order:
            pushed = max((layers[above] + 1 for above in self.above[task]), default=0)
            old = before.get(task)
            if old is not None:
                layers[task] = max(old.layer, pushed)
            elif pushed:
                layers[task] = pushed
            else:
                known = (before[below].layer for below in self.below[task] if below in before)
                layers[task] = max(0, min(known, default=0) - 1)
        return layers


class _Update:
    """One update: takes over what stays, then finds free rows for the rest."""

    def __init__(self, before: PlanLayout, graph: _Graph, layers: dict[str, int]) -> None:
        self._before, self._graph, self._layers = before, graph, layers
        self._columns: defaultdict[int, _Column] = defaultdict(_Column)
        self._places: dict[str, Place] = {}
        self._bends: dict[Dependency, tuple[Place, ...]] = {}

    def layout(self) -> PlanLayout:
        self._keep()
        self._shift()
        self._add()
        self._bend()
        return PlanLayout(
            {task: self._places[task] for task in self._graph.above},
            {pair: self._bends[pair] for pair in self._graph.dependencies if pair in self._bends},
        )

    def _keep(self) -> None:
        """Tasks that keep their layer, and bends between two of those."""
        for task, layer in self._layers.items():
            old = self._before.places.get(task)
            if old is not None and old.layer == layer:
                self._put(task, old)
        for pair in self._graph.dependencies:
            chain = self._before.bends.get(pair)
            if chain and pair[0] in self._places and pair[1] in self._places:
                for bend in chain:
                    self._columns[bend.layer].take(bend.row, BEND_ROOM)
                self._bends[pair] = chain

    def _shift(self) -> None:
        """Tasks that a dependency has pushed to a later layer."""
        for task in self._graph.order:
            if task in self._before.places and task not in self._places:
                self._put_near(task, self._before.places[task].row)

    def _add(self) -> None:
        """New tasks, each after its dependencies; those without neighbours fill a grid below the rest."""
        singles = []
        for task in self._graph.order:
            if task in self._places:
                continue
            if self._graph.is_single(task):
                singles.append(task)
            else:
                self._put_near(task, self._wanted_row(task))
        if singles:
            cells = self._cells()
            for task in singles:
                place = next(cell for cell in cells if self._columns[cell.layer].is_free(cell.row, TASK_ROOM))
                self._put(task, place)

    def _cells(self) -> Iterator[Place]:
        connected = [place.row for task, place in self._places.items() if not self._graph.is_single(task)]
        top = max(connected) + TASK_ROOM + COMPONENT_GAP if connected else min(0.0, self._before.rows[0])
        columns = self._graph.depth
        return (Place(cell % columns, top + cell // columns + TASK_ROOM) for cell in count())

    def _wanted_row(self, task: str) -> float:
        neighbours = [*self._graph.above[task], *self._graph.below[task]]
        rows = [self._places[other].row for other in neighbours if other in self._places]
        return sum(rows) / len(rows) if rows else self._before.rows[0] + TASK_ROOM

    def _put_near(self, task: str, row: float) -> None:
        layer = self._layers[task]
        self._put(task, Place(layer, self._columns[layer].nearest(row, TASK_ROOM)))

    def _put(self, task: str, place: Place) -> None:
        self._columns[place.layer].take(place.row, TASK_ROOM)
        self._places[task] = place

    def _bend(self) -> None:
        """Bends of dependencies that are new, or whose ends have moved."""
        left = MOST_BENDS - sum(map(len, self._bends.values()))
        for pair in self._graph.dependencies:
            first, last = self._places[pair[0]], self._places[pair[1]]
            passed = range(first.layer + 1, last.layer)
            if pair in self._bends or not 0 < len(passed) <= left:
                continue
            rows = self._bend_rows(pair, first.row, last.row, len(passed))
            self._bends[pair] = tuple(self._bend_near(*bend) for bend in zip(passed, rows, strict=True))
            left -= len(passed)

    def _bend_rows(self, pair: Dependency, first: float, last: float, number: int) -> Iterable[float]:
        chain = self._before.bends.get(pair, ())
        if len(chain) == number:
            return [bend.row for bend in chain]
        return [first + (last - first) * step / (number + 1) for step in range(1, number + 1)]

    def _bend_near(self, layer: int, wanted: float) -> Place:
        row = self._columns[layer].nearest(wanted, BEND_ROOM)
        self._columns[layer].take(row, BEND_ROOM)
        return Place(layer, row)


class _Column:
    """The rows of one layer that are taken, as sorted intervals that do not touch."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def is_free(self, row: float, room: float) -> bool:
        place = bisect_right(self._ends, row - room + _TOUCH)
        return place == len(self._starts) or self._starts[place] >= row + room - _TOUCH

    def nearest(self, wanted: float, room: float) -> float:
        """The free row nearest to the wanted one; the later of two that are equally near."""
        place = bisect_right(self._ends, wanted - room + _TOUCH)
        if place == len(self._starts) or self._starts[place] >= wanted + room - _TOUCH:
            return wanted
        after = place
        while after + 1 < len(self._starts) and self._starts[after + 1] - self._ends[after] < 2 * room - _TOUCH:
            after += 1
        first = place
        while first > 0 and self._starts[first] - self._ends[first - 1] < 2 * room - _TOUCH:
            first -= 1
        later, earlier = self._ends[after] + room, self._starts[first] - room
        return earlier if wanted - earlier < later - wanted - _TOUCH else later

    def take(self, row: float, room: float) -> None:
        start, end = row - room, row + room
        first = bisect_right(self._ends, start - _TOUCH)
        last = bisect_right(self._starts, end + _TOUCH)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
