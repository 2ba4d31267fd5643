"""A picture in the terminal: lanes of glyphs on the left, one task per row, captions on the right.

Three forms, chosen by what fits: lanes, in the manner of a commit log; a plain list of tasks and their parents if the
terminal is too narrow for lanes; an overview by layers if there are too many tasks to read one by one.

How to read lanes: every vertical lane belongs to one task and runs from that task down to the last task that depends on
it. Every horizontal stroke belongs to the one task of its row, and joins it to the lanes of its parents. So each edge
can be followed without doubt::

    ○     a
    ├─○   b, after a
    ○ │   c, after a
    ╰─○   d, after b and c

``├ ┤ ┼`` join a lane that continues, ``╰ ╯ ┴`` one that ends there, and ``─│─`` passes a lane by. Where a task would
touch its parent above without any stroke between them, a row of bare lanes is inserted; two marks that touch mean
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import ceil

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from asterism.base.status_colours import BOLD, COLOURS, DIM, mark, tone
from asterism.base.text import clean, plural, shorten
from asterism.core.record import Record
from asterism.report.picture import DrawnEdge, DrawnTask, Graph, Picture, count_by_status

MOST_TASKS = 200
KEY = "─┼─ joins a lane, ─│─ passes it by"


def terminal(picture: Picture, width: int) -> Text:
    """Draw the picture in at most `width` cells a line; legible without colour too.

    Raises `ValueError` for a picture that is not a graph without cycles.
    """
    graph = Graph.of(picture)
    lines = _heading(picture)
    if len(picture.tasks) > MOST_TASKS:
        lines += overview(picture, graph, width)
    elif picture.tasks:
        words = captions(picture, graph)
        lines += _lanes_form(picture, graph, words, width) or _list_form(picture, graph, words)
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(lines)


def _heading(picture: Picture) -> list[Text]:
    title = Text().append(clean(picture.title), BOLD)
    behind = sum(sum(drawn_task.behind.values()) for drawn_task in picture.tasks)
    edges = "" if behind else f", {plural(len(picture.edges), 'dependency')}"
    title.append(f"  {plural(len(picture.tasks) + behind, 'task')}{edges}", DIM)
    return [title, *([shares(picture.tasks), Text()] if picture.tasks else [])]


def _lanes_form(picture: Picture, graph: Graph, words: list[Caption], width: int) -> list[Text] | None:
    """The lanes and the words, or None when the words would be crowded out."""
    marks = [mark(drawn_task.status) for drawn_task in picture.tasks]
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
            status = picture.tasks[cell.owner].status
            line.append(cell.glyph, tone(status) if cell.owner == row.task else lane_tone(status))
    line.pad_right(width - line.cell_len)
    return line


def _passes_by(row: Row) -> bool:
    return "─│─" in "".join(cell.glyph for cell in row.cells)


def _list_form(picture: Picture, graph: Graph, words: list[Caption]) -> list[Text]:
    lines: list[Text] = []
    for task in graph.order:
        caption, status = words[task], picture.tasks[task].status
        lines.append(Text(" ").join([Text(mark(status), tone(status)), Text(caption.id, BOLD)]))
        lines[-1].append(f"  {caption.status}", tone(status))
        lines += [Text(f"  {words}") for words in (caption.label, caption.note) if words]
        lines += [Text("  ← ", DIM).append_text(parent) for parent in caption.parents]
    return lines


WIDEST_ID = 28
WIDEST_CONDITION = 40
NARROWEST_LABEL = 8
NARROWEST_REST = 24
USUAL_REST = 40  # labels give way to the rest of the line up to this width
GAP = "  "


class Caption(Record):
    """The words of one task. `label` is empty when it would only repeat the id; `note` may be empty."""

    id: str
    label: str
    status: str
    parents: tuple[Text, ...]
    note: str

    @property
    def rest(self) -> Text:
        """The parents, those with a condition first so that cutting the line spares them, then the note."""
        rest = Text()
        for turn, parent in enumerate(self.parents):
            rest.append(", " if turn else "← ", DIM).append_text(parent)
        if self.note:
            rest.append(f"{GAP if rest else ''}[{self.note}]")
        return rest


class Columns(Record):
    """Widths in cells; a column of width 0 is left out."""

    id: int
    label: int
    status: int
    rest: int


def captions(picture: Picture, graph: Graph) -> list[Caption]:
    """The captions of all tasks, by their number in the graph."""
    incoming: list[list[DrawnEdge]] = [[] for _ in picture.tasks]
    for line, (_, target) in zip(picture.edges, graph.edges, strict=True):
        incoming[target].append(line)
    return [_caption(drawn_task, lines) for drawn_task, lines in zip(picture.tasks, incoming, strict=True)]


def _caption(drawn_task: DrawnTask, incoming: Sequence[DrawnEdge]) -> Caption:
    conditions_first = sorted(incoming, key=lambda line: line.kind == "success")
    return Caption(
        id=clean(drawn_task.id),
        label="" if drawn_task.label == drawn_task.id else clean(drawn_task.label),
        status=clean(drawn_task.status),
        parents=tuple(_parent(line) for line in conditions_first),
        note=clean(drawn_task.note),
    )


def _parent(line: DrawnEdge) -> Text:
    parent = Text().append(clean(line.source), DIM)
    if line.words:
        parent.append(f" ({shorten(line.words, WIDEST_CONDITION)})", line_tone(line.kind))
    return parent


def fit(words: Sequence[Caption], room: int) -> Columns | None:
    """Columns that use at most `room` cells, or None when there is too little to be legible."""
    name = min(WIDEST_ID, _widest([caption.id for caption in words]))
    label = _widest([caption.label for caption in words])
    status = _widest([caption.status for caption in words])
    rest = max(caption.rest.cell_len for caption in words)
    gap = len(GAP)
    room -= name + gap + status
    if room < (min(rest, NARROWEST_REST) + gap if rest else 0):
        return None
    spare = room - (min(rest, USUAL_REST) + gap if rest else 0) - gap
    label = min(label, spare) if spare >= NARROWEST_LABEL else 0
    room -= label + gap if label else 0
    return Columns(name, label, status, max(0, min(rest, room - gap)))


def _widest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts))


def write(caption: Caption, columns: Columns) -> Text:
    """One line of words, in columns."""
    cells = [_cell(Text(caption.id, BOLD), columns.id)]
    if columns.label:
        cells.append(_cell(Text(caption.label), columns.label))
    cells.append(_cell(Text(caption.status, tone(caption.status)), columns.status))
    if columns.rest:
        cells.append(_cell(caption.rest, columns.rest))
    line = Text(GAP).join(cells)
    line.rstrip()
    return line


def _cell(text: Text, width: int) -> Text:
    text = text.copy()
    text.truncate(width, overflow="ellipsis", pad=True)
    return text


MOST_BANDS = 40
WIDEST_BAR = 24


def overview(picture: Picture, graph: Graph, width: int) -> list[Text]:
    """One line for each layer, or for each run of layers when there are many."""
    bands = _bands(picture, graph)
    names = [name for name, _ in bands]
    name_width = max(map(len, ("layer", *names)))
    most = max(len(drawn_tasks) for _, drawn_tasks in bands)
    count_width = len(f"{most:,}")
    bar_width = max(0, min(WIDEST_BAR, width - name_width - count_width - 40))
    lines = [Text(f"{'layer':>{name_width}}  tasks", DIM)]
    for name, drawn_tasks in bands:
        line = Text(f"{name:>{name_width}}  {len(drawn_tasks):>{max(count_width, 5)},}  ")
        line.append_text(_bar(drawn_tasks, most, bar_width))
        line.append_text(shares(drawn_tasks))
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _bands(picture: Picture, graph: Graph) -> list[tuple[str, list[DrawnTask]]]:
    deep = max(graph.layers) + 1
    size = ceil(deep / MOST_BANDS)
    bands: list[list[DrawnTask]] = [[] for _ in range(ceil(deep / size))]
    for drawn_task, layer in zip(picture.tasks, graph.layers, strict=True):
        bands[layer // size].append(drawn_task)
    lasts = [min(deep, (number + 1) * size) for number in range(len(bands))]
    return [(_name(number * size + 1, lasts[number]), drawn_tasks) for number, drawn_tasks in enumerate(bands)]


def _name(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def _bar(drawn_tasks: list[DrawnTask], most: int, width: int) -> Text:
    """A bar as long as the band is large, in one stretch for each status."""
    bar = Text()
    length = ceil(width * len(drawn_tasks) / most)
    drawn = counted = 0
    for status, count in count_by_status(drawn_tasks):
        counted += count
        end = round(length * counted / len(drawn_tasks))
        bar.append(mark(status) * (end - drawn), tone(status))
        drawn = end
    bar.append(" " * (width - drawn + 2))
    return bar


class Cell(Record):
    """One character of a row. `owner` is the task whose lane or mark it is; None for strokes and blanks."""

    glyph: str
    owner: int | None = None


class Row(Record):
    """One row of cells: the row of a task, or bare lanes when `task` is None."""

    task: int | None
    cells: tuple[Cell, ...]


def lanes(graph: Graph, component: Sequence[int], marks: Sequence[str]) -> list[Row]:
    """Draw one component; `marks` holds the glyph of each task of the graph.

    Branches are drawn one after the other or side by side: the smaller drawing wins.
    """
    orders = [reading_order(graph, component, depth_first) for depth_first in (True, False)]
    return min(
        (_drawn(graph, order, marks) for order in orders),
        key=lambda rows: sum(len(row.cells) for row in rows),
    )


def _drawn(graph: Graph, order: Sequence[int], marks: Sequence[str]) -> list[Row]:
    drawing = _Drawing(graph, marks)
    for task in order:
        drawing.draw(task)
    return drawing.rows


def reading_order(graph: Graph, component: Sequence[int], depth_first: bool) -> list[int]:
    """A topological order that keeps few lanes open.

    Next comes the task that closes most lanes; among equals, the one that continues from the latest row if
    `depth_first`, else from the earliest.
    """
    left = {task: len(graph.children[task]) for task in component}
    open_parents = {task: len(graph.parents[task]) for task in component}
    ready = [task for task in component if not graph.parents[task]]
    row: dict[int, int] = {}

    def cost(task: int) -> tuple[int, int, int]:
        opened = 1 if graph.children[task] else 0
        closed = sum(left[parent] == 1 for parent in graph.parents[task])
        latest = max((row[parent] for parent in graph.parents[task]), default=-1)
        return opened - closed, -latest if depth_first else latest, task

    while ready:
        task = min(ready, key=cost)
        ready.remove(task)
        row[task] = len(row)
        for parent in graph.parents[task]:
            left[parent] -= 1
        for child in graph.children[task]:
            open_parents[child] -= 1
            if open_parents[child] == 0:
                ready.append(child)
    return list(row)


class _Drawing:
    """The rows so far, and whose each lane is below the last of them."""

    def __init__(self, graph: Graph, marks: Sequence[str]) -> None:
        self.rows: list[Row] = []
        self._graph = graph
        self._marks = marks
        self._owners: list[int | None] = []
        self._left = [len(children) for children in graph.children]
        self._last_column: int | None = None

    def draw(self, task: int) -> None:
        """Add the row of a task whose parents have theirs, and bare lanes before it where they are needed."""
        parents = self._graph.parents[task]
        for parent in parents:
            self._left[parent] -= 1
        taps = {lane for lane, owner in enumerate(self._owners) if owner is not None and owner in parents}
        ending = {lane for lane in taps if self._is_done(lane)}
        column = min(ending) if ending else self._free_column(taps)
        if column in ending and column == self._last_column:
            self.rows.append(Row(None, self._bare()))
        self._owners += [None] * (column + 1 - len(self._owners))
        self.rows.append(Row(task, self._strokes(task, column, taps - {column})))
        for lane in ending:
            self._owners[lane] = None
        self._owners[column] = task if self._graph.children[task] else None
        self._last_column = column

    def _is_done(self, lane: int) -> bool:
        owner = self._owners[lane]
        return owner is not None and self._left[owner] == 0

    def _free_column(self, taps: set[int]) -> int:
        """The free lane that needs the shortest stroke to the parents, else a new one on the right."""
        free = [lane for lane, owner in enumerate(self._owners) if owner is None]

        def cost(lane: int) -> tuple[int, int]:
            return max({lane, *taps}) - min({lane, *taps}), lane

        return min((*free, len(self._owners)), key=cost)

    def _bare(self) -> tuple[Cell, ...]:
        cells: list[Cell] = []
        for owner in self._owners:
            cells += (Cell(" ") if owner is None else Cell("│", owner), Cell(" "))
        return tuple(cells)

    def _strokes(self, task: int, column: int, taps: set[int]) -> tuple[Cell, ...]:
        first, last = min({column, *taps}), max({column, *taps})
        cells: list[Cell] = []
        for lane, owner in enumerate(self._owners):
            across = first <= lane <= last
            if lane == column:
                cells.append(Cell(self._marks[task], task))
            elif lane in taps:
                ends = "left" if lane == first else "right" if lane == last else "middle"
                cells.append(Cell(_JOINS[ends, self._is_done(lane)], owner))
            elif owner is not None:
                cells.append(Cell("│", owner))
            else:
                cells.append(Cell("─" if across else " "))
            cells.append(Cell("─" if across and lane != last else " "))
        return tuple(cells)


# (where on the stroke the lane is, whether it ends there)
_JOINS = {
    ("left", False): "├",
    ("middle", False): "┼",
    ("right", False): "┤",
    ("left", True): "╰",
    ("middle", True): "┴",
    ("right", True): "╯",
}


# -- styles and counts -------------------------------------------------------------------------------------------------


def line_tone(kind: str) -> Style:
    """The style of the words of a dependency that asks for more than success."""
    return Style(color={"failure": "red", "condition": "magenta"}.get(kind))


def lane_tone(status: str) -> Style:
    """The style of the lane below a task: coloured once the task has run, so that open edges stand back."""
    return Style(color=COLOURS[status]) if status in ("completed", "failed", "running") else DIM


def shares(drawn_tasks: Sequence[DrawnTask]) -> Text:
    """The counts in words: `1 failed, 3 running`."""
    counts = count_by_status(drawn_tasks)
    return Text(", ").join(Text(f"{count:,} {clean(status)}", tone(status)) for status, count in counts)
