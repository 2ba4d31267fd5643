"""Text tables that fit the width of a terminal: columns are cut or left out by priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from asterism.base.text import clean
from asterism.report.status_style import DIM

GAP = 2

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """``least`` is the narrowest width that the column may be cut to; 0 for never. A column that is not ``needed`` is
    left out if it is empty or there is no room; the last such column goes first."""

    title: str
    right: bool = False
    least: int = 0
    needed: bool = True


def _one_line(cell: Cell) -> Text:
    if isinstance(cell, str):
        return Text(clean(cell))
    cell.plain = clean(cell.plain)
    return cell


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None = None) -> list[Text]:
    """A line with the titles and one for each row; no line is longer than ``width``."""
    cells = [[_one_line(cell) for cell in row] for row in rows]
    widths = [
        max([cell_len(column.title), *(row[place].cell_len for row in cells)]) for place, column in enumerate(columns)
    ]
    kept = [place for place, column in enumerate(columns) if column.needed or any(row[place].cell_len for row in cells)]
    if width is not None:
        kept = _fit(columns, widths, kept, width)
    titles = [Text(column.title, DIM) for column in columns]
    return [_line(row, columns, widths, kept, width) for row in [titles, *cells]]


def _fit(columns: Sequence[Column], widths: list[int], kept: list[int], width: int) -> list[int]:
    """Leave out columns that are not needed until the rest can fit, then cut the widest ones. Returns those kept."""
    while True:
        least = sum(min(widths[place], columns[place].least or widths[place]) + GAP for place in kept) - GAP
        spare = next((place for place in reversed(kept) if not columns[place].needed), None)
        if least <= width or spare is None:
            break
        kept = [place for place in kept if place != spare]
    excess = sum(widths[place] + GAP for place in kept) - GAP - width
    while excess > 0:
        wide = [place for place in kept if columns[place].least and widths[place] > columns[place].least]
        if not wide:
            break
        widest = max(wide, key=lambda place: widths[place])
        widths[widest] -= 1
        excess -= 1
    return kept


def _line(
    row: Sequence[Text], columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], width: int | None
) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for place in kept:
        cell = row[place].copy()
        cell.truncate(widths[place], overflow="ellipsis")
        blank = " " * (widths[place] - cell.cell_len)
        line.append(blank if columns[place].right else "").append_text(cell)
        line.append("" if columns[place].right else blank)
        line.append(" " * GAP)
    line.rstrip()
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def fact_lines(facts: Mapping[str, str]) -> list[Text]:
    """A line for each name and value, with the values aligned."""
    wide = max(map(len, facts))
    return [Text(f"{name:<{wide}}  ", DIM).append(clean(text), "") for name, text in facts.items()]
