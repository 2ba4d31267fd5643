"""The layout of a drawing: the place of each task, and the route of each edge.

A small layered layout after Sugiyama: layers by longest path; edges that skip layers get a bend in each layer they
pass; layers are ordered so that few edges cross (``untangle``: sweep down and up, sort each layer by the mean position
of its neighbours, keep the best order); then every task moves as near to its neighbours as the order allows
(``spread``: least squares under order constraints, solved exactly in linear time by pooling neighbours into blocks).
Components are laid out one by one and stacked. Tasks without edges come last, as a grid.

The layout of a plan that changes keeps what has not changed where it is.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise, starmap
from math import ceil, sqrt

from asterism.core.record import Record
from asterism.report.picture import DrawnEdge, DrawnTask, Graph, Picture

# A graph with many long edges would need far more bends than it has tasks. Past this many, the longest edges
# run straight.
MOST_BENDS = 10_000
ALIGNMENTS = 8
BEND_ROOM = 0.2  # rows on each side of a bend; a task takes half a row on each side
COMPONENT_GAP = 0.35


class Place(Record):
    """A layer, counted from 0, and a row, where tasks of one layer are at least 1.0 apart."""

    layer: int
    row: float


class Layout(Record):
    """Places of tasks, by number; for each edge, in the order of the graph's edges, the bends on its way.

    Rows run from 0 to `rows`, and every task is at least half a row away from both.
    """

    places: tuple[Place, ...]
    bends: tuple[tuple[Place, ...], ...]
    layers: int
    rows: float


class _Net(Record):
    """One component with its bends as nodes: every link joins neighbouring layers."""

    layers: list[list[int]]
    above: defaultdict[int, list[int]]
    below: defaultdict[int, list[int]]
    first_bend: int  # nodes from this number on are bends

    def is_bend(self, node: int) -> bool:
        return node >= self.first_bend


def lay_out(graph: Graph) -> Layout:
    """Lay a graph out. Pure, deterministic and iterative; no two tasks overlap."""
    chains = _bend_chains(graph)
    leaving = _edges_by_source(graph)
    rows: dict[int, float] = {}
    height = 0.0
    components = graph.components()
    for component in components:
        if len(component) > 1:
            height += COMPONENT_GAP if height else 0.0
            placed = _align(_net(graph, component, chains, leaving))
            rows.update((node, row + height) for node, row in placed.items())
            height += max(placed.values()) + 0.5
    singles = [component[0] for component in components if len(component) == 1]
    depth = max(graph.layers, default=-1) + 1
    grid = _grid(singles, depth, height + COMPONENT_GAP if height else 0.0)
    connected = {task: Place(layer, rows[task]) for task, layer in enumerate(graph.layers) if task in rows}
    places = {**connected, **grid}
    return Layout(
        places=tuple(places[task] for task in range(len(graph.layers))),
        bends=tuple(_bends(graph, edge, chains, rows) for edge in range(len(graph.edges))),
        layers=max(depth, *(place.layer + 1 for place in grid.values()), 0),
        rows=max(height, *(place.row + 0.5 for place in grid.values()), 0.0),
    )


def _grid(singles: list[int], depth: int, top: float) -> dict[int, Place]:
    columns = max(depth, ceil(sqrt(len(singles))))
    return {task: Place(turn % columns, top + turn // columns + 0.5) for turn, task in enumerate(singles)}


def _bends(graph: Graph, edge: int, chains: dict[int, range], rows: dict[int, float]) -> tuple[Place, ...]:
    first = graph.layers[graph.edges[edge][0]] + 1
    return tuple(Place(layer, rows[bend]) for layer, bend in enumerate(chains.get(edge, ()), first))


def _bend_chains(graph: Graph) -> dict[int, range]:
    """The nodes that stand for the bends of each edge that skips layers; the longest edges may go without."""
    layers = graph.layers
    spans = [layers[target] - layers[source] - 1 for source, target in graph.edges]
    chains: dict[int, range] = {}
    next_node = len(graph.parents)
    left = MOST_BENDS
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        if 0 < spans[number] <= left:
            chains[number] = range(next_node, next_node + spans[number])
            next_node += spans[number]
            left -= spans[number]
    return chains


def _edges_by_source(graph: Graph) -> list[list[int]]:
    leaving: list[list[int]] = [[] for _ in graph.parents]
    for number, (source, _) in enumerate(graph.edges):
        leaving[source].append(number)
    return leaving


def _net(graph: Graph, component: list[int], chains: dict[int, range], leaving: list[list[int]]) -> _Net:
    layers: list[list[int]] = []
    net = _Net(layers, defaultdict(list), defaultdict(list), first_bend=len(graph.parents))
    for task in sorted(component, key=lambda task: graph.layers[task]):
        _stand(layers, graph.layers[task], task)
        for edge in leaving[task]:
            target = graph.edges[edge][1]
            chain = chains.get(edge, ())
            for step, bend in enumerate(chain, graph.layers[task] + 1):
                _stand(layers, step, bend)
            if chain or graph.layers[target] == graph.layers[task] + 1:
                for upper, lower in pairwise((task, *chain, target)):
                    net.below[upper].append(lower)
                    net.above[lower].append(upper)
    return net


def _stand(layers: list[list[int]], layer: int, node: int) -> None:
    while len(layers) <= layer:
        layers.append([])
    layers[layer].append(node)


def _align(net: _Net) -> dict[int, float]:
    """A row for every node: in untangled order, each drawn towards its neighbours, none too close."""
    layers = untangle(net.layers, net.above, net.below)
    rows: dict[int, float] = {}
    for layer in layers:
        packed = spread([0.0] * len(layer), [1.0] * len(layer), _gaps(net, layer))
        rows.update(zip(layer, packed, strict=True))
    for turn in range(ALIGNMENTS):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            _settle(net, layer, net.above if turn % 2 == 0 else net.below, rows)
    top = min(rows.values()) - 0.5
    return {node: row - top for node, row in rows.items()}


def _settle(net: _Net, layer: list[int], towards: Neighbours, rows: dict[int, float]) -> None:
    targets, weights = [], []
    for node in layer:
        pulls = [_pull(net, node, other) for other in towards[node]]
        total = sum(pulls)
        target = sum(pull * rows[other] for pull, other in zip(pulls, towards[node], strict=True))
        targets.append(target / total if total else rows[node])
        weights.append(total or 1.0)
    rows.update(zip(layer, spread(targets, weights, _gaps(net, layer)), strict=True))


def _pull(net: _Net, node: int, other: int) -> float:
    # Long edges look best straight, so bends hold on to each other more than tasks do.
    return (1.0, 2.0, 8.0)[net.is_bend(node) + net.is_bend(other)]


def _gaps(net: _Net, layer: list[int]) -> list[float]:
    rooms = [BEND_ROOM if net.is_bend(node) else 0.5 for node in layer]
    return [0.0, *(first + second for first, second in pairwise(rooms))]


SWEEPS = 8

Neighbours = Mapping[int, Sequence[int]]


def untangle(layers: list[list[int]], above: Neighbours, below: Neighbours) -> list[list[int]]:
    """Reorder each layer; `above` and `below` hold each node's neighbours in the layer before and after."""
    best, fewest = layers, count_crossings(layers, below)
    current = layers
    for sweep in range(SWEEPS):
        if fewest == 0:
            break
        current = _sweep(current, above) if sweep % 2 == 0 else _sweep(current[::-1], below)[::-1]
        crossings = count_crossings(current, below)
        if crossings < fewest:
            best, fewest = current, crossings
    return best


def _sweep(layers: list[list[int]], towards: Neighbours) -> list[list[int]]:
    swept: list[list[int]] = []
    position: dict[int, int] = {}
    for layer in layers:
        centre = {node: _centre(towards[node], position, place) for place, node in enumerate(layer)}
        ordered = sorted(layer, key=centre.__getitem__)
        position.update((node, place) for place, node in enumerate(ordered))
        swept.append(ordered)
    return swept


def _centre(neighbours: Sequence[int], position: Mapping[int, int], place: int) -> float:
    # A node without neighbours there stays about where it is, instead of jumping to one end.
    return sum(position[other] for other in neighbours) / len(neighbours) if neighbours else place


def count_crossings(layers: list[list[int]], below: Neighbours) -> int:
    """How many pairs of edges between neighbouring layers cross."""
    position = {node: place for layer in layers for place, node in enumerate(layer)}
    crossings = 0
    for layer in layers:
        passed: list[int] = []
        for node in layer:
            ends = sorted(position[other] for other in below[node])
            crossings += sum(len(passed) - bisect_right(passed, end) for end in ends)
            for end in ends:
                insort(passed, end)
    return crossings


def spread(targets: Sequence[float], weights: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Positions nearest to the targets such that each is at least `gaps[i]` after the one before it.

    `gaps[0]` is not used. A heavier weight gives way less.
    """
    offsets: list[float] = []
    offset = 0.0
    for number, gap in enumerate(gaps):
        offset += gap if number else 0.0
        offsets.append(offset)
    blocks: list[tuple[float, float, int]] = []  # (weighted mean, weight, members)
    for target, weight, offset in zip(targets, weights, offsets, strict=True):
        mean, total, members = target - offset, weight, 1
        while blocks and blocks[-1][0] > mean:
            other_mean, other_total, other_members = blocks.pop()
            mean = (mean * total + other_mean * other_total) / (total + other_total)
            total += other_total
            members += other_members
        blocks.append((mean, total, members))
    means = (mean for mean, _, members in blocks for _ in range(members))
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


TASK_ROOM = 0.5
"""Rows on each side of a task."""

LOOSEST = 2
SPARE_LAYERS = 4
"""A layout with more than LOOSEST times as many layers as the graph needs, and SPARE_LAYERS more, is made anew."""

_TOUCH = 1e-9

Dependency = tuple[str, str]


class PlanLayout(Record):
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
