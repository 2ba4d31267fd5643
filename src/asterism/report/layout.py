"""The layout of a drawing: the place of each task, and the route of each edge.

A small layered layout after Sugiyama: layers by longest path; edges that skip layers get a bend in each layer they
pass; layers are ordered so that few edges cross (``untangle``: sweep down and up, sort each layer by the mean position
of its neighbours, keep the best order); then every task moves as near to its neighbours as the order allows
(``spread``: least squares under order constraints, solved exactly in linear time by pooling neighbours into blocks).
Components are laid out one by one and stacked. Tasks without edges come last, as a grid.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, sqrt

from asterism.report.picture import Graph

# A graph with many long edges would need far more bends than it has tasks. Past this many, the longest edges
# run straight.
MOST_BENDS = 10_000
ALIGNMENTS = 8
BEND_ROOM = 0.2  # rows on each side of a bend; a task takes half a row on each side
COMPONENT_GAP = 0.35


@dataclass(frozen=True, slots=True)
class Place:
    """A layer, counted from 0, and a row, where tasks of one layer are at least 1.0 apart."""

    layer: int
    row: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of tasks, by number; for each edge, in the order of the graph's edges, the bends on its way.

    Rows run from 0 to `rows`, and every task is at least half a row away from both.
    """

    places: tuple[Place, ...]
    bends: tuple[tuple[Place, ...], ...]
    layers: int
    rows: float


@dataclass(frozen=True, slots=True)
class _Net:
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
