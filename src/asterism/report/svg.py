"""A picture as one self-contained SVG, left to right, in light and dark."""

from __future__ import annotations

from asterism.base.text import markup, plural
from asterism.report.assets import beside
from asterism.report.drawing_graph import Graph
from asterism.report.layout import lay_out
from asterism.report.picture import STATUSES, Line, Picture, Star
from asterism.report.svg_measures import BOX, MARGIN, Box, Route, Tag, measure, name_lines

KINDS = {"success": "on success", "failure": "on failure", "completion": "on completion", "condition": "if …"}
LEGEND_HEIGHT = 30.0
TAG_HEIGHT = 18.0

# The sign inside the disc of a status, so that no status is told by colour alone.
SIGNS = {
    "waiting": "M0 -3.4 V0 L2.4 1.6",
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
    counts = f"{plural(len(picture.stars), 'task')}, {plural(len(picture.lines), 'dependency')}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="asterism constellation" role="img"'
        f' style="--natural: {number(width)}px"'
        f' width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}">',
        f"<title>{markup(picture.title)}: {counts}</title>",
        f"<style>{beside('colours.css')}{beside('svg.css')}</style>",
        f"<defs>{''.join(_head(kind) for kind in KINDS)}</defs>",
        '<rect class="paper" width="100%" height="100%"/>',
        *(_line(line, route) for line, route in zip(picture.lines, sheet.routes, strict=True)),
        *(_star(star, box) for star, box in zip(picture.stars, sheet.boxes, strict=True)),
        *(_tag(picture.lines[tag.edge], tag) for tag in sheet.tags),
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


def _line(line: Line, route: Route) -> str:
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


def _star(star: Star, box: Box) -> str:
    first, second = name_lines(star)
    words = [star.id, star.label if star.label != star.id else "", star.status, star.note]
    tooltip = "\n".join(markup(line) for line in words if line)
    text = 35.0
    lines = f'<text class="name" x="{text}" y="{19 if second else 26.5}">{markup(first)}</text>'
    if second:
        lines += f'<text class="more" x="{text}" y="35">{markup(second)}</text>'
    return (
        f'<g class="star is-{markup(star.status)}" data-task="{markup(star.id)}"'
        f' transform="translate({number(box.left)} {number(box.top)})"><title>{tooltip}</title>'
        f'<rect class="box" width="{number(box.width)}" height="{number(BOX)}" rx="9"/>'
        f"{_disc(star.status, 19.0, BOX / 2)}{lines}</g>"
    )


def _disc(status: str, x: float, y: float) -> str:
    sign = f'<path d="{SIGNS[status]}"/>' if status in SIGNS else ""
    return f'<g class="disc" transform="translate({number(x)} {number(y)})"><circle r="7"/>{sign}</g>'


def _tag(line: Line, tag: Tag) -> str:
    x, y = tag.centre
    return (
        f'<g class="tag" transform="translate({number(x)} {number(y)})"><title>{markup(line.words)}</title>'
        f'<rect x="{number(-tag.width / 2)}" y="{number(-TAG_HEIGHT / 2)}" width="{number(tag.width)}"'
        f' height="{number(TAG_HEIGHT)}" rx="{number(TAG_HEIGHT / 2)}"/>'
        f'<text y="3.8">{markup(tag.text)}</text></g>'
    )


def _legend(picture: Picture, top: float) -> tuple[str, float]:
    """The statuses and kinds of line that the picture uses, in one row below it, and the width of the row."""
    statuses = {star.status for star in picture.stars}
    kinds = {line.kind for line in picture.lines}
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
    if not picture.stars:
        entries.append(_legend_text(x, "no tasks"))
        x += 72
    return f'<g class="legend" transform="translate(0 {number(top)})">{"".join(entries)}</g>', x + MARGIN


def _legend_text(x: float, words: str) -> str:
    return f'<text class="more" x="{number(x)}" y="4">{words}</text>'
