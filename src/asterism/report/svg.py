"""A picture as one self-contained SVG, drawn from left to right, in light and dark colours.

``measure`` computes the boxes of tasks, the routes of edges and the places of condition tags, in pixels.
"""

from __future__ import annotations

from collections import defaultdict
from importlib.resources import files
from itertools import accumulate

from rich.cells import cell_len

from asterism.base.text import markup, plural, shorten
from asterism.core.record import Record
from asterism.report.layout import Layout, lay_out, spread
from asterism.report.picture import STATUSES, DrawnEdge, DrawnTask, Graph, Picture

KINDS = {
    "success": "on success",
    "failure": "on failure",
    "completion": "on completion",
    "always": "always",
    "teardown": "teardown",
    "condition": "if …",
}
LEGEND_HEIGHT = 30.0
TAG_HEIGHT = 18.0

# The sign inside the disc of a status, so that colour is not the only difference.
SIGNS = {
    "waiting": "M0 -3.4 V0 L2.4 1.6",
    "queued": "M0 -3.4 V0 L2.4 1.6",
    "starting": "M0 -3.4 V0 H3",
    "running": "M-1.6 -3 L3 0 L-1.6 3 Z",
    "completed": "M-3 0.2 L-0.9 2.3 L3.1 -2.2",
    "failed": "M-2.3 -2.3 L2.3 2.3 M2.3 -2.3 L-2.3 2.3",
    "cancelled": "M-3.2 3.2 L3.2 -3.2",
    "removed": "M-3 0 H3",
}


def svg(picture: Picture) -> str:
    """Draw the picture. The result is a whole SVG document that refers to nothing outside itself.

    Raises `ValueError` for a picture that is not a graph without cycles.
    """
    graph = Graph.of(picture)
    sheet = measure(picture, graph, lay_out(graph))
    legend, legend_width = _legend(picture, sheet.height)
    width, height = max(sheet.width, legend_width), sheet.height + LEGEND_HEIGHT
    counts = f"{plural(len(picture.tasks), 'task')}, {plural(len(picture.edges), 'dependency')}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="asterism constellation" role="img"'
        f' style="--natural: {number(width)}px"'
        f' width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}">',
        f"<title>{markup(picture.title)}: {counts}</title>",
        f"<style>{beside('colours.css')}{beside('svg.css')}</style>",
        f"<defs>{''.join(_head(kind) for kind in KINDS)}</defs>",
        '<rect class="paper" width="100%" height="100%"/>',
        *(_line(line, route) for line, route in zip(picture.edges, sheet.routes, strict=True)),
        *(_task(task, box) for task, box in zip(picture.tasks, sheet.boxes, strict=True)),
        *(_tag(picture.edges[tag.edge], tag) for tag in sheet.tags),
        legend,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def number(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _head(kind: str) -> str:
    return (
        f'<marker id="head-{kind}" markerUnits="userSpaceOnUse" markerWidth="10" markerHeight="10"'
        f' refX="9" refY="5" orient="auto">'
        f'<path class="head on-{kind}" d="M0 1 L10 5 L0 9 L2.2 5 Z"/></marker>'
    )


def _line(line: DrawnEdge, route: Route) -> str:
    words = f"{line.source} → {line.target}" + (f" ({line.words})" if line.words else "")
    return (
        f'<path class="line on-{line.kind}" d="{_path(route)}" marker-end="url(#head-{line.kind})">'
        f"<title>{markup(words)}</title></path>"
    )


def _path(route: Route) -> str:
    (x, y), *rest = route
    steps = [f"M{number(x)} {number(y)}"]
    for turn, (next_x, next_y) in enumerate(rest):
        middle = number((x + next_x) / 2)
        if turn % 2 or y == next_y:
            steps.append(f"H{number(next_x)}")
        else:
            steps.append(f"C{middle} {number(y)} {middle} {number(next_y)} {number(next_x)} {number(next_y)}")
        x, y = next_x, next_y
    return " ".join(steps)


def _task(task: DrawnTask, box: Box) -> str:
    first, second = name_lines(task)
    words = [
        task.id,
        task.label if task.label != task.id else "",
        task.status,
        task.note,
    ]
    tooltip = "\n".join(markup(line) for line in words if line)
    text = 35.0
    lines = f'<text class="name" x="{text}" y="{19 if second else 26.5}">{markup(first)}</text>'
    if second:
        lines += f'<text class="more" x="{text}" y="35">{markup(second)}</text>'
    return (
        f'<g class="star is-{markup(task.status)}" data-task="{markup(task.id)}"'
        f' transform="translate({number(box.left)} {number(box.top)})"><title>{tooltip}</title>'
        f'<rect class="box" width="{number(box.width)}" height="{number(BOX)}" rx="9"/>'
        f"{_disc(task.status, 19.0, BOX / 2)}{lines}</g>"
    )


def _disc(status: str, x: float, y: float) -> str:
    sign = f'<path d="{SIGNS[status]}"/>' if status in SIGNS else ""
    return f'<g class="disc" transform="translate({number(x)} {number(y)})"><circle r="7"/>{sign}</g>'


def _tag(line: DrawnEdge, tag: Tag) -> str:
    x, y = tag.centre
    return (
        f'<g class="tag" transform="translate({number(x)} {number(y)})"><title>{markup(line.words)}</title>'
        f'<rect x="{number(-tag.width / 2)}" y="{number(-TAG_HEIGHT / 2)}" width="{number(tag.width)}"'
        f' height="{number(TAG_HEIGHT)}" rx="{number(TAG_HEIGHT / 2)}"/>'
        f'<text y="3.8">{markup(tag.text)}</text></g>'
    )


def _legend(picture: Picture, top: float) -> tuple[str, float]:
    """The statuses and kinds of line that the picture uses, in one row below it, and the width of the row."""
    statuses = {drawn_task.status for drawn_task in picture.tasks}
    kinds = {line.kind for line in picture.edges}
    x = MARGIN
    entries = []
    for status in STATUSES:
        if status in statuses:
            disc = _disc(status, x + 7, 0)
            entries.append(f'<g class="is-{status}">{disc}{_legend_text(x + 20, status)}</g>')
            x += 40 + 7 * len(status)
    for kind, words in KINDS.items():
        if kind in kinds:
            stroke = f'<path class="line on-{kind}" d="M{number(x)} 0 h30" marker-end="url(#head-{kind})"/>'
            entries.append(stroke + _legend_text(x + 37, words))
            x += 57 + 7 * len(words)
    if not picture.tasks:
        entries.append(_legend_text(x, "no tasks"))
        x += 72
    return f'<g class="legend" transform="translate(0 {number(top)})">{"".join(entries)}</g>', x + MARGIN


def _legend_text(x: float, words: str) -> str:
    return f'<text class="more" x="{number(x)}" y="4">{words}</text>'


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


class Box(Record):
    """Where a task is drawn; all boxes are `BOX` high."""

    left: float
    top: float
    width: float


class Tag(Record):
    """Where the condition of a line is written, around its centre."""

    edge: int
    centre: Point
    width: float
    text: str


class Sheet(Record):
    """All measures. A route curves from its first point to its second, runs level to the third, and so on."""

    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]
    tags: tuple[Tag, ...]
    width: float
    height: float


class _Columns(Record):
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


def name_lines(drawn_task: DrawnTask) -> tuple[str, str]:
    """What is written in a task's box: its id, and its label, or its note when the label says no more."""
    second = drawn_task.note if drawn_task.label in ("", drawn_task.id) else drawn_task.label
    return shorten(drawn_task.id, NAME_CELLS), shorten(second, NAME_CELLS + 4)


def tag_text(line: DrawnEdge) -> str:
    """The condition of a line, short enough for a tag."""
    return shorten(line.when or "", TAG_CELLS)


def _box_width(drawn_task: DrawnTask) -> float:
    first, second = name_lines(drawn_task)
    return max(NARROWEST_BOX, 44.0 + max(cell_len(first) * 8.0, cell_len(second) * 6.8))


def _tag_width(text: str) -> float:
    return 16.0 + cell_len(text) * 6.6


def _columns(picture: Picture, graph: Graph, layout: Layout) -> _Columns:
    widths = [NARROWEST_BOX] * layout.layers
    for drawn_task, place in zip(picture.tasks, layout.places, strict=True):
        widths[place.layer] = max(widths[place.layer], _box_width(drawn_task))
    gaps = [GAP] * layout.layers
    for line, (source, _) in zip(picture.edges, graph.edges, strict=True):
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
    for edge, line in enumerate(picture.edges):
        if line.when is not None:
            (_, start), (_, end) = routes[edge][:2]
            wishes[graph.layers[graph.edges[edge][0]]].append(((start + end) / 2, edge))
    tags: list[Tag] = []
    for wished in wishes.values():
        wished.sort()
        heights = spread([y for y, _ in wished], [1.0] * len(wished), [TAG_STEP] * len(wished))
        for (_, edge), y in zip(wished, heights, strict=True):
            text = tag_text(picture.edges[edge])
            centre = ((routes[edge][0][0] + routes[edge][1][0]) / 2, y)
            tags.append(Tag(edge, centre, _tag_width(text), text))
    return tuple(tags)


def beside(name: str) -> str:
    """The text of a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
