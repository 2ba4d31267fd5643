"""Lines and tables of text, as wide as the terminal. A table cuts columns, or leaves them out, by priority."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import click
from rich.cells import cell_len
from rich.text import Text

from asterism.base.text import clean, shorten_middle
from asterism.core.record import Record


def print_lines(lines: Callable[[int | None], Iterable[Text]]) -> None:
    """Print the lines that ``lines`` returns for the width of the terminal; the width is None without a terminal."""
    if sys.stdout is not None and not (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        _echo_lines(lines(None))
        return
    from asterism.cli.screen import Screen  # a console takes long to import

    screen = Screen()
    for line in lines(screen.width if screen.is_terminal else None):
        line.plain = clean(line.plain)
        screen.say(line)


def _echo_lines(lines: Iterable[Text]) -> None:
    try:
        for line in lines:
            click.echo(clean(line.plain))  # text from outside may contain line breaks
    except BrokenPipeError:
        from asterism.cli.screen import forget_output

        forget_output(sys.stdout)


def wrapped(sentence: str, width: int | None, indent: str = "") -> Iterator[Text]:
    """A sentence on as many lines as it needs, broken between words."""
    if width is None:
        yield Text(indent + clean(sentence))
        return
    lines = textwrap.wrap(clean(sentence), max(20, width - len(indent)), break_on_hyphens=False)
    yield from (Text(indent + line) for line in lines)


# -- tables ------------------------------------------------------------------------------------------------------------


GAP = 2

Cell = str | Text
Item = TypeVar("Item")


class Column(Record):
    """``least`` is the narrowest width that the column may be cut to; 0 for never. A column that is not ``needed`` is
    left out if it is empty or there is no room; the last such column goes first. A ``name`` is cut in the middle."""

    title: str
    right: bool = False
    least: int = 0
    needed: bool = True
    name: bool = False


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
    shown = [
        place for place, column in enumerate(columns) if column.needed or any(row[place].cell_len for row in cells)
    ]
    if width is not None:
        shown = _fit(columns, widths, shown, width)
    titles = [Text(column.title, "dim") for column in columns]
    return [_line(row, columns, widths, shown, width) for row in [titles, *cells]]


def table_of(
    items: Sequence[Item], columns: Mapping[Column, Callable[[Item], Cell]], width: int | None = None
) -> list[Text]:
    """A table with a row for each item: each column with what it shows of one."""
    return table(tuple(columns), [[cell(item) for cell in columns.values()] for item in items], width)


class TimedTable(Record, Generic[Item]):
    """A table of items at a time: each column with what it shows of one."""

    cells: Mapping[Column, Callable[[Item, float], Cell]]

    @property
    def columns(self) -> Sequence[Column]:
        return tuple(self.cells)

    def row(self, item: Item, now: float) -> list[Cell]:
        return [cell(item, now) for cell in self.cells.values()]

    def lines(self, items: Sequence[Item], now: float, width: int | None) -> list[Text]:
        return table(self.columns, [self.row(item, now) for item in items], width)


def _fit(columns: Sequence[Column], widths: list[int], shown: list[int], width: int) -> list[int]:
    """Leave out columns that are not needed until the rest can fit, then cut the widest ones. Returns the rest."""
    while True:
        least = sum(min(widths[place], columns[place].least or widths[place]) + GAP for place in shown) - GAP
        spare = next((place for place in reversed(shown) if not columns[place].needed), None)
        if least <= width or spare is None:
            break
        shown = [place for place in shown if place != spare]
    excess = sum(widths[place] + GAP for place in shown) - GAP - width
    while excess > 0:
        wide = [place for place in shown if columns[place].least and widths[place] > columns[place].least]
        if not wide:
            break
        widest = max(wide, key=lambda place: widths[place])
        widths[widest] -= 1
        excess -= 1
    return shown


def _line(
    row: Sequence[Text], columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int], width: int | None
) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for place in shown:
        cell = row[place].copy()
        if columns[place].name and cell.cell_len > widths[place]:
            cell = Text(shorten_middle(cell.plain, widths[place]), cell.style)
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
    return [Text(f"{name:<{wide}}  ", "dim").append(clean(text), "") for name, text in facts.items()]
