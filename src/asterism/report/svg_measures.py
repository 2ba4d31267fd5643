"""The measures of an SVG drawing: boxes of tasks, routes of lines and places of condition tags, in pixels."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate

from rich.cells import cell_len

from asterism.base.text import shorten
from asterism.report.drawing_graph import Graph
from asterism.report.layout import Layout
from asterism.report.picture import Line, Picture, Star
from asterism.report.spread import spread

MARGIN = 24.0
ROW = 60.0
BOX = 44.0
NARROWEST_BOX = 104.0
GAP = 56.0
PORTS = 26.0  # the stretch of a box's side over which its lines are spread
PORT_STEP = 9.0
TAG_STEP = 22.0
NAME_CELLS = 26
TAG_CELLS = 24

Point = tuple[float, float]
Route = tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Where a task is drawn; all boxes are `BOX` high."""

    left: float
    top: float
    width: float


@dataclass(frozen=True, slots=True)
class Tag:
    """Where the condition of a line is written, around its centre."""

    edge: int
    centre: Point
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Sheet:
    """All measures. A route curves from its first point to its second, runs level to the third, and so on."""

    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]
    tags: tuple[Tag, ...]
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class _Columns:
    lefts: list[float]
    widths: list[float]


def measure(picture: Picture, graph: Graph, layout: Layout) -> Sheet:
    """Give every part of a laid-out picture its place on the sheet."""
    columns = _columns(picture, graph, layout)
    boxes = tuple(
        Box(columns.lefts[place.layer], MARGIN + place.row * ROW - BOX / 2, columns.widths[place.layer])
        for place in layout.places
    )
    routes = _routes(graph, layout, columns, boxes)
    return Sheet(
        boxes=boxes,
        routes=routes,
        tags=_tags(picture, graph, routes),
        width=2 * MARGIN + (columns.lefts[-1] + columns.widths[-1] - MARGIN if boxes else 0.0),
        height=2 * MARGIN + layout.rows * ROW,
    )


def name_lines(star: Star) -> tuple[str, str]:
    """What is written in a task's box: its id, and its label, or its note when the label says no more."""
    second = star.note if star.label in ("", star.id) else star.label
    return shorten(star.id, NAME_CELLS), shorten(second, NAME_CELLS + 4)


def tag_text(line: Line) -> str:
    """The condition of a line, short enough for a tag."""
    return shorten(line.when or "", TAG_CELLS)


def _box_width(star: Star) -> float:
    first, second = name_lines(star)
    return max(NARROWEST_BOX, 44.0 + max(cell_len(first) * 8.0, cell_len(second) * 6.8))


def _tag_width(text: str) -> float:
    return 16.0 + cell_len(text) * 6.6


def _columns(picture: Picture, graph: Graph, layout: Layout) -> _Columns:
    widths = [NARROWEST_BOX] * layout.layers
    for star, place in zip(picture.stars, layout.places, strict=True):
        widths[place.layer] = max(widths[place.layer], _box_width(star))
    gaps = [GAP] * layout.layers
    for line, (source, _) in zip(picture.lines, graph.edges, strict=True):
        if line.when is not None:
            layer = graph.layers[source]
            gaps[layer] = max(gaps[layer], _tag_width(tag_text(line)) + 44.0)
    steps = [width + gap for width, gap in zip(widths, gaps, strict=True)]
    return _Columns(lefts=list(accumulate(steps[:-1], initial=MARGIN)), widths=widths)


def _routes(graph: Graph, layout: Layout, columns: _Columns, boxes: tuple[Box, ...]) -> tuple[Route, ...]:
    bends = [[(place.layer, MARGIN + place.row * ROW) for place in chain] for chain in layout.bends]
    leaving: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    arriving: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for edge, (source, target) in enumerate(graph.edges):
        heights = [boxes[source].top + BOX / 2, *(y for _, y in bends[edge]), boxes[target].top + BOX / 2]
        leaving[source].append((heights[1], edge))
        arriving[target].append((heights[-2], edge))
    starts, ends = _ports(leaving), _ports(arriving)
    routes: list[Route] = []
    for edge, (source, target) in enumerate(graph.edges):
        passing: list[Point] = []
        for layer, y in bends[edge]:
            left = columns.lefts[layer]
            passing += ((left, y), (left + columns.widths[layer], y))
        start = (boxes[source].left + boxes[source].width, boxes[source].top + BOX / 2 + starts[edge])
        end = (boxes[target].left - 1.0, boxes[target].top + BOX / 2 + ends[edge])
        routes.append((start, *passing, end))
    return tuple(routes)


def _ports(sides: dict[int, list[tuple[float, int]]]) -> dict[int, float]:
    """How far below the middle of its box each line touches it, in the order of where the lines come from."""
    offsets: dict[int, float] = {}
    for lines in sides.values():
        step = min(PORT_STEP, PORTS / max(1, len(lines) - 1))
        for turn, (_, edge) in enumerate(sorted(lines)):
            offsets[edge] = (turn - (len(lines) - 1) / 2) * step
    return offsets


def _tags(picture: Picture, graph: Graph, routes: tuple[Route, ...]) -> tuple[Tag, ...]:
    """Tags stand half-way over the first gap of their line, moved apart where they would cover each other."""
    wishes: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for edge, line in enumerate(picture.lines):
        if line.when is not None:
            (_, start), (_, end) = routes[edge][:2]
            wishes[graph.layers[graph.edges[edge][0]]].append(((start + end) / 2, edge))
    tags: list[Tag] = []
    for wished in wishes.values():
        wished.sort()
        heights = spread([y for y, _ in wished], [1.0] * len(wished), [TAG_STEP] * len(wished))
        for (_, edge), y in zip(wished, heights, strict=True):
            text = tag_text(picture.lines[edge])
            centre = ((routes[edge][0][0] + routes[edge][1][0]) / 2, y)
            tags.append(Tag(edge, centre, _tag_width(text), text))
    return tuple(tags)
