"""A graph as lanes of glyphs, one task a row, in the manner of a commit log.

How to read it: every vertical lane belongs to one task and runs from that task down to the last task that
depends on it. Every horizontal stroke belongs to the one task of its row, and joins it to the lanes of its
parents. So each edge can be followed without doubt:

    ○     a
    ├─○   b, after a
    ○ │   c, after a
    ╰─○   d, after b and c

`├ ┤ ┼` join a lane that goes on, `╰ ╯ ┴` one that ends there, and `─│─` passes a lane by. Where a task would
touch its parent above without any stroke between them, a row of bare lanes is put in; that two marks touch
means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asterism.report.drawing_graph import Graph


@dataclass(frozen=True, slots=True)
class Cell:
    """One character of a row. `owner` is the task whose lane or mark it is; None for strokes and blanks."""

    glyph: str
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of cells: the row of a task, or bare lanes when `task` is None."""

    task: int | None
    cells: tuple[Cell, ...]


def lanes(graph: Graph, component: Sequence[int], marks: Sequence[str]) -> list[Row]:
    """Draw one component; `marks` holds the glyph of each task of the graph.

    Branches are told one after the other, or side by side, whichever makes the smaller drawing.
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

    Next comes the task that closes most lanes; among equals, the one that goes on from the latest row if
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
