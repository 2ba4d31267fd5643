"""A picture in the terminal: lanes of glyphs on the left, one task a row, in words on the right.

Three forms, chosen by what fits: lanes (see `lanes.py` for how to read them); a plain list of tasks and their
parents when the terminal is too narrow for lanes; an overview by layers when there are too many tasks to read
one by one.
"""

from __future__ import annotations

from itertools import chain

from rich.text import Text

from asterism.base.text import clean, plural
from asterism.report.drawing_graph import Graph
from asterism.report.picture import Picture
from asterism.report.status_style import BOLD, DIM, lane_tone, mark, shares, tone
from asterism.report.terminal_captions import Caption, captions, fit, write
from asterism.report.terminal_lanes import Row, lanes
from asterism.report.terminal_overview import overview

MOST_TASKS = 200
KEY = "─┼─ joins a lane, ─│─ passes it by"


def terminal(picture: Picture, width: int) -> Text:
    """Draw the picture in at most `width` cells a line; legible without colour too.

    Raises `ValueError` for a picture that is not a graph without cycles.
    """
    graph = Graph.of(picture)
    lines = _heading(picture)
    if len(picture.stars) > MOST_TASKS:
        lines += overview(picture, graph, width)
    elif picture.stars:
        words = captions(picture, graph)
        lines += _lanes_form(picture, graph, words, width) or _list_form(picture, graph, words)
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(lines)


def _heading(picture: Picture) -> list[Text]:
    title = Text().append(clean(picture.title), BOLD)
    title.append(f"  {plural(len(picture.stars), 'task')}, {plural(len(picture.lines), 'dependency')}", DIM)
    return [title, *([shares(picture.stars), Text()] if picture.stars else [])]


def _lanes_form(picture: Picture, graph: Graph, words: list[Caption], width: int) -> list[Text] | None:
    """The lanes and the words, or None when the words would be crowded out."""
    marks = [mark(star.status) for star in picture.stars]
    blocks = [lanes(graph, component, marks) for component in _blocks(graph)]
    lane_width = max(len(row.cells) for row in chain(*blocks)) + 1
    columns = fit(words, width - lane_width)
    if columns is None:
        return None
    lines: list[Text] = []
    for block in blocks:
        lines += [Text()] if lines else []
        for row in block:
            line = _lane_cells(picture, row, lane_width)
            lines.append(line if row.task is None else line.append_text(write(words[row.task], columns)))
    if any(_passes_by(row) for row in chain(*blocks)):
        lines += [Text(), Text(KEY, DIM)]
    return lines


def _blocks(graph: Graph) -> list[list[int]]:
    """The components, each a block of its own; the tasks that nothing is connected to share the last."""
    components = graph.components()
    connected = [component for component in components if len(component) > 1]
    single = [component[0] for component in components if len(component) == 1]
    return [*connected, *([single] if single else [])]


def _lane_cells(picture: Picture, row: Row, width: int) -> Text:
    line = Text()
    for cell in row.cells:
        if cell.owner is None:
            line.append(cell.glyph, DIM)
        else:
            status = picture.stars[cell.owner].status
            line.append(cell.glyph, tone(status) if cell.owner == row.task else lane_tone(status))
    line.pad_right(width - line.cell_len)
    return line


def _passes_by(row: Row) -> bool:
    return "─│─" in "".join(cell.glyph for cell in row.cells)


def _list_form(picture: Picture, graph: Graph, words: list[Caption]) -> list[Text]:
    lines: list[Text] = []
    for task in graph.order:
        caption, status = words[task], picture.stars[task].status
        lines.append(Text(" ").join([Text(mark(status), tone(status)), Text(caption.id, BOLD)]))
        lines[-1].append(f"  {caption.status}", tone(status))
        lines += [Text(f"  {words}") for words in (caption.label, caption.note) if words]
        lines += [Text("  ← ", DIM).append_text(parent) for parent in caption.parents]
    return lines
