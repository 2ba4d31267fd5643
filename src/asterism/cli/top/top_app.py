"""The application of ``asterism top``, with Textual (the extra ``top``): its table, its screens, and its system.

Everything is read in a thread of the system, with an event loop of its own: reading a large plan there does not delay
the terminal. A screen reads again after a moment, and rests the longer the longer a reading took, so that it does not
burden the system. Of the table, only lines that have changed are drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast

from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Region, Size
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Footer, Input, Label, RichLog, Static, Tab, Tabs

from asterism.api.client_errors import OUT_OF_REACH
from asterism.api.system import System
from asterism.base.clock import Looks
from asterism.base.loop_thread import LastingLoop
from asterism.base.text import clean
from asterism.cli.cli_context import open_system, out_of_reach
from asterism.cli.tables import Column, table
from asterism.cli.top.top_views import (
    EMPTY,
    NOTICES,
    PLANS,
    RUNS,
    TABS,
    TASKS,
    Filter,
    Listing,
    LogFeed,
    Row,
    Subject,
    act,
    has_log,
    page,
    question,
    read_listing,
    why_page,
)
from asterism.core.errors import AsterismError

# -- the table ---------------------------------------------------------------------------------------------------------


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


# -- screens -----------------------------------------------------------------------------------------------------------


Value = TypeVar("Value")

INTERVAL = 1.0
"""The shortest time between two readings, in seconds."""

REST_FACTOR = 4
"""The rest after a reading, as a multiple of the time that it took."""

MOST_LINES = 10_000
"""How many lines of a log are kept."""


class ReadingScreen(Screen[None]):
    """A screen that reads the system again and again, as long as it is on top."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn: dict[str, Text] = {}

    @property
    def top(self) -> Top:
        return cast("Top", self.app)

    async def read(self) -> None:
        """Read the system once and show what it says."""
        raise NotImplementedError

    def framed(self, heading: str, *body: Widget) -> ComposeResult:
        """What a screen shows between its heading and its status."""
        yield Label(Text(heading, no_wrap=True), id="heading")
        yield from body
        yield Static(id="status")
        yield Footer(show_command_palette=False)

    def on_screen_resume(self) -> None:
        self.follow()

    def on_screen_suspend(self) -> None:
        self.workers.cancel_group(self, "follow")

    @work(exclusive=True, group="follow")
    async def follow(self) -> None:
        async for _ in Looks(interval=INTERVAL, rest=REST_FACTOR):
            try:
                await self.read()
            except OUT_OF_REACH as error:
                self.say(f"{out_of_reach(error)}. Trying again.", wrong=True)
            except AsterismError as error:
                self.say(str(error), wrong=True)

    async def ask(self, question: Callable[[System], Coroutine[Any, Any, Value]]) -> Value:
        """Ask the system, in its thread."""
        thread = self.top.thread
        return await thread.call(question(thread.system))

    def say(self, text: str, *, wrong: bool = False) -> None:
        self._update("status", Text(clean(text), "red" if wrong else "", no_wrap=True, overflow="ellipsis"))

    def _update(self, name: str, text: Text) -> None:
        """Change a line of the screen, which is drawn again only if its text is another one."""
        if self._drawn.get(name) != text:
            self._drawn[name] = text
            self.query_one(f"#{name}", Static).update(text)


class ListingScreen(ReadingScreen):
    """A table with a filter, an order, and actions on the row under the cursor. ``plan``: its tasks, without tabs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "why", "Why"),
        Binding("l", "log", "Logs"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort(1)", "Sort", show=False),
        Binding("S", "sort(-1)", "Sort back", show=False),
        Binding("R", "reverse", "Reverse", show=False),
        Binding("p", "act('pause')", "Pause"),
        Binding("c", "act('cancel')", "Cancel"),
        Binding("r", "act('retry')", "Retry"),
        *(Binding(str(number), f"tab('{name}')", name, show=False) for number, name in enumerate(TABS, 1)),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("escape", "back", "Back", show=False),
        Binding("q", "leave", "Quit"),
        Binding("q", "close", "Back"),
    ]

    def __init__(self, kind: str, plan: str = "") -> None:
        super().__init__()
        self.kind, self.plan = kind, plan
        self.filter = Filter()
        self._listing = Listing((), ())
        self._sorted: dict[str, tuple[int, bool]] = {}  # the column by which a listing is sorted, and whether backwards
        self._told = ""

    def compose(self) -> ComposeResult:
        yield Label(id="heading")
        if self.kind != TASKS:
            yield Tabs(*(Tab(f"{number} {name.capitalize()}", id=name) for number, name in enumerate(TABS, 1)))
        yield Static(id="titles")
        yield RowTable()
        yield Static(id="status")
        yield Input(placeholder="words, or status:failed workflow:NAME device:NAME series:NAME", id="filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.query_one(RowTable).focus()
        if self.kind != TASKS:
            self.query_one(Tabs).can_focus = False
            self.query_one(Tabs).active = self.kind

    async def read(self) -> None:
        kind = self.kind
        listing = await self.ask(lambda system: read_listing(system, kind, self.filter, self.plan))
        if kind == self.kind:  # else another tab was opened meanwhile
            self._update("heading", Text(clean(listing.heading), no_wrap=True, overflow="ellipsis"))
            self._listing = listing
            self._show()

    def _show(self) -> None:
        columns, rows = self._listing.columns, [row for row in self._listing.rows if self.filter.matches(row)]
        chosen = self._sorted.get(self.kind)
        if chosen is not None and chosen[0] < len(columns):
            title, backwards = columns[chosen[0]].title, chosen[1]
            rows.sort(key=lambda row: _sort_value(row, chosen[0], title), reverse=backwards)
        titles = list(columns)
        if chosen is not None and chosen[0] < len(columns):
            column = columns[chosen[0]]
            arrow = "▲" if chosen[1] else "▼"
            titles[chosen[0]] = Column(f"{column.title}{arrow}", column.right, column.least, column.needed, column.name)
        table = self.query_one(RowTable)
        table.show(titles, rows)
        self._update("titles", table.titles)
        self._say_state(len(rows))

    def _say_state(self, shown: int) -> None:
        if self._told:
            self.say(self._told)
        elif not self._listing.rows and not self.filter.fields:
            self.say(EMPTY[self.kind])
        elif not shown:
            self.say("Nothing matches the filter. Press / to change it, Escape to remove it.")
        else:
            filtered = f"{shown:,} of {len(self._listing.rows):,} match the filter" if self._has_filter else ""
            self.say("; ".join(part for part in (filtered, self._listing.note) if part))

    @property
    def _has_filter(self) -> bool:
        return bool(self.filter.fields or self.filter.words)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def on_key(self) -> None:
        self._told = ""

    @on(Tabs.TabActivated)
    def _tab_activated(self, event: Tabs.TabActivated) -> None:
        name = event.tab.id
        if name is not None and name != self.kind:
            self.kind, self._listing, self._told = name, Listing((), ()), ""
            self.say("")
            self.refresh_bindings()
            self.follow()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("leave", "close"):
            return (self.kind == TASKS) == (action == "close")
        if action == "log":
            return self.kind in (PLANS, TASKS, RUNS)
        return self.kind in (PLANS, RUNS) if action == "act" else True

    def action_tab(self, name: str) -> None:
        if self.kind == TASKS:  # back to the tabs, and to this one
            below = self.app.screen_stack[-2]
            self.dismiss()
            below.query_one(Tabs).active = name
        else:
            self.query_one(Tabs).active = name

    def action_leave(self) -> None:
        self.app.exit()

    def action_close(self) -> None:
        self.dismiss()

    def action_keys(self) -> None:
        self.app.push_screen(KeysScreen())

    def action_back(self) -> None:
        if self._has_filter or self.query_one("#filter").display:
            self.query_one("#filter", Input).value = ""
            self._set_filter("")
        elif self.kind == TASKS:
            self.dismiss()

    def action_filter(self) -> None:
        entry = self.query_one("#filter", Input)
        entry.display = True
        entry.focus()

    @on(Input.Submitted, "#filter")
    def _filter_submitted(self, event: Input.Submitted) -> None:
        self._set_filter(event.value)

    def _set_filter(self, text: str) -> None:
        try:
            self.filter = Filter.parse(text)
        except ValueError as error:
            self._told = str(error)
            self.say(self._told, wrong=True)
            return
        self.query_one("#filter").display = bool(text.strip())
        self.query_one(RowTable).focus()
        self._show()
        self.follow()

    def action_sort(self, step: int) -> None:
        """Sort by the next column that has a title; after the last one, by none."""
        named = [place for place, column in enumerate(self._listing.columns) if column.title]
        places: list[int | None] = [None, *named]
        before = self._sorted.get(self.kind, (None, False))[0]
        place = places[(places.index(before) + step) % len(places)] if before in places else None
        self._sorted.pop(self.kind, None)
        if place is not None:
            self._sorted[self.kind] = (place, False)
        self._show()

    def action_reverse(self) -> None:
        if self.kind in self._sorted:
            place, backwards = self._sorted[self.kind]
            self._sorted[self.kind] = (place, not backwards)
            self._show()

    # -- the row under the cursor --------------------------------------------------------------------------------------

    @on(RowTable.Opened)
    def _opened(self, event: RowTable.Opened) -> None:
        subject = event.subject
        if subject.kind == PLANS:
            self.app.push_screen(ListingScreen(TASKS, subject.name))
        elif subject.kind == NOTICES and not subject.plan:
            self.say("This notice is not about a run.")
        else:
            self.app.push_screen(TextScreen(subject))

    def action_why(self) -> None:
        subject = self.query_one(RowTable).subject
        if subject is not None and (subject.kind != NOTICES or subject.plan):
            self.app.push_screen(TextScreen(subject, why=True))

    def action_log(self) -> None:
        subject = self.query_one(RowTable).subject
        if subject is not None and has_log(subject):
            self.app.push_screen(LogScreen(subject))

    @work(group="act")
    async def action_act(self, action: str) -> None:
        subject = self.query_one(RowTable).subject
        if subject is None:
            return
        try:
            asked = await self.ask(lambda system: question(system, action, subject))
            if await self.app.push_screen_wait(QuestionScreen(asked.text)):
                self._told = await self.ask(lambda system: act(system, asked.action, subject))
        except AsterismError as error:
            self._told = str(error)
        self._say_state(len(self.query_one(RowTable).lines))


def _sort_value(row: Row, place: int, title: str) -> tuple[float, str]:
    return row.order.get(title, 0.0), "" if title in row.order else str(row.cells[place]).casefold()


class TextScreen(ReadingScreen):
    """Everything about a subject, or why it does not run; read again while it is shown, without moving the text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "Logs"),
        Binding("escape,q", "dismiss", "Back"),
    ]

    def __init__(self, subject: Subject, *, why: bool = False) -> None:
        super().__init__()
        self.subject, self._why = subject, why
        self._shown: Sequence[Text] = ()

    def compose(self) -> ComposeResult:
        return self.framed(_title(self.subject), VerticalScroll(Static(id="text")))

    async def read(self) -> None:
        width = max(20, self.query_one(VerticalScroll).size.width - 2)
        of = why_page if self._why else page
        lines = await self.ask(lambda system: of(system, self.subject, width))
        self.say("")
        if lines != self._shown:
            self._shown = lines
            self.query_one("#text", Static).update(Text("\n").join(lines))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return has_log(self.subject) if action == "log" else True

    def action_log(self) -> None:
        self.app.push_screen(LogScreen(self.subject))


class LogScreen(ReadingScreen):
    """What a run, a task or a plan prints, live. It follows the end until one scrolls up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("end,G", "end", "Follow the end"),
        Binding("escape,q", "dismiss", "Back"),
    ]

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self._feed = LogFeed(subject)

    def compose(self) -> ComposeResult:
        return self.framed(f"Log of {_title(self.subject)}", RichLog(max_lines=MOST_LINES, wrap=True))

    async def read(self) -> None:
        lines = await self.ask(self._feed.read)
        log = self.query_one(RichLog)
        follow = log.is_vertical_scroll_end
        for line in lines:
            log.write(line, scroll_end=follow)
        self.say("" if log.lines or lines else "It has printed nothing.")

    def action_end(self) -> None:
        self.query_one(RichLog).scroll_end(animate=False)


def _title(subject: Subject) -> str:
    if subject.kind == TASKS:
        return clean(f"task {subject.name} of plan {subject.plan}")
    name = subject.plan if subject.kind == NOTICES else subject.name
    kind = {"series": "series", "notices": "run"}.get(subject.kind, subject.kind.removesuffix("s"))
    return clean(f"{kind} {name}")


KEYS = (
    ("1 to 5", "plans, runs, devices, series, notices"),
    ("Enter", "the tasks of a plan; everything about any other row"),
    ("w", "why a run or a task is not running"),
    ("l", "the log, live"),
    ("/", "filter the rows; Escape removes the filter"),
    ("s, S, R", "sort by the next column, the previous one; reverse"),
    ("p, c, r", "pause or resume, cancel, retry"),
    ("q, Escape", "back; q in a tab quits"),
)


class KeysScreen(ModalScreen[None]):
    """The list of keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Back")]

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            for key, does in KEYS:
                yield Label(Text(f"{key:<10} {does}"))


class QuestionScreen(ModalScreen[bool]):
    """A question that y answers with yes; n and Escape answer with no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Label(Text(self._text))
            yield Label(Text("y: yes   n: no", "dim"))

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


# -- the application ---------------------------------------------------------------------------------------------------


class Top(App[None]):
    """Plans, runs, devices, series and notices of a system. ``thread`` is entered by the caller."""

    TITLE = "asterism top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "Quit", show=False)]
    CSS = """
    #heading { width: 100%; height: 1; background: $primary; color: $text; padding: 0 1; }
    #titles { height: 1; padding: 0 1; color: $text-muted; }
    #status { height: 1; padding: 0 1; color: $text-muted; }
    #filter { height: 1; border: none; padding: 0 1; }
    RowTable { height: 1fr; padding: 0 1; overflow-x: hidden; scrollbar-size-vertical: 1; }
    RowTable > .row-table--cursor { background: $primary-muted; text-style: bold; }
    VerticalScroll, RichLog { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; background: $background; }
    QuestionScreen, KeysScreen { align: center middle; }
    #question { width: auto; max-width: 90%; height: auto; padding: 1 2; border: round $primary; background: $surface; }
    #question Label { width: auto; }
    """

    def __init__(self, thread: SystemThread, tab: str) -> None:
        super().__init__()
        self.animation_level = "none"
        self.thread, self._tab = thread, tab

    async def on_mount(self) -> None:
        await self.push_screen(ListingScreen(self._tab))


# -- the system --------------------------------------------------------------------------------------------------------


class SystemThread(LastingLoop):
    """Opens a store or a server on entry, and closes it on exit. Entry raises what ``open_system`` raises."""

    system: System

    def __init__(self, url: str | None) -> None:
        super().__init__("system")
        self._url = url

    def __enter__(self) -> Self:
        try:
            self.system = self.wait_for(open_system(self._url))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait_for(self.system.__aexit__())
        finally:
            self.stop()
