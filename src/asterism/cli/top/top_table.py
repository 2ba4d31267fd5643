"""The table of ``asterism top``: a line for each row, a cursor, and columns that fit the width of the terminal.

Only lines that have changed are drawn again, and the cursor stays on its row when rows come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from asterism.cli.screen import Column, table
from asterism.cli.top.top_listings import Row, Subject


class RowTable(ScrollView, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "move(-1000000)", "First", show=False),
        Binding("end,G", "move(1000000)", "Last", show=False),
        Binding("enter", "open", "Open"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"row-table--cursor"}

    class Opened(Message):
        """A row was chosen with Enter or a click."""

        def __init__(self, subject: Subject) -> None:
            super().__init__()
            self.subject = subject

    def __init__(self) -> None:
        super().__init__()
        self._columns: Sequence[Column] = ()
        self._rows: Sequence[Row] = ()
        self._lines: list[Text] = []
        self._cursor = 0
        self.titles = Text()

    @property
    def subject(self) -> Subject | None:
        """What the row under the cursor is about."""
        return self._rows[self._cursor].subject if self._rows else None

    @property
    def lines(self) -> list[str]:
        """The text of all rows as they are shown."""
        return [line.plain for line in self._lines]

    def show(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Show these rows. The cursor stays on its row, or where it was if that row is gone."""
        before = self.subject
        places = {row.subject: place for place, row in enumerate(rows)}
        self._columns, self._rows = columns, rows
        place = places.get(before, self._cursor) if before is not None else 0
        moved = place != self._cursor
        self._cursor = max(0, min(place, len(rows) - 1))
        self._draw()
        if moved:
            self._show_cursor()

    def _draw(self) -> None:
        width = self.size.width
        before, titles = self._lines, self.titles
        if self._columns:
            self.titles, *self._lines = table(self._columns, [row.cells for row in self._rows], width)
        self.virtual_size = Size(width, len(self._lines))
        if self.titles != titles or len(before) != len(self._lines):
            self.refresh()
            return
        top = self.scroll_offset.y
        for place, (old, new) in enumerate(zip(before, self._lines, strict=True)):
            if old != new or old.spans != new.spans:
                self.refresh(Region(0, place - top, width, 1))

    def on_resize(self, event: events.Resize) -> None:
        self._draw()
        self._show_cursor()

    def render_line(self, y: int) -> Strip:
        place, width = y + self.scroll_offset.y, self.size.width
        if place >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        chosen = place == self._cursor
        style = self.get_component_rich_style("row-table--cursor") if chosen else self.rich_style
        return Strip(self._lines[place].render(self.app.console)).adjust_cell_length(width).apply_style(style)

    def _show_cursor(self) -> None:
        self.scroll_to_region(Region(0, self._cursor, 1, 1), animate=False, force=True)

    def action_move(self, rows: int) -> None:
        self._cursor = max(0, min(self._cursor + rows, len(self._rows) - 1))
        self._show_cursor()
        self.refresh()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.size.height - 1))

    def action_open(self) -> None:
        if self.subject is not None:
            self.post_message(self.Opened(self.subject))

    def on_click(self, event: events.Click) -> None:
        place = event.y + self.scroll_offset.y
        if place >= len(self._rows):
            return
        if place == self._cursor:
            self.action_open()
        else:
            self.action_move(place - self._cursor)
