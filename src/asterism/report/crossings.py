"""The order of things inside each layer, chosen so that few edges cross.

The classic heuristic: sweep down and up over the layers, each time sorting a layer by the mean position (the
barycentre) of its neighbours in the layer before, and keep the best order seen.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence

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
