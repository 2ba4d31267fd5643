"""``asterism top``: plans, runs, devices, series and notices of a system, live in a terminal (extra ``top``: Textual).

Everything is read in a thread of the system, with an event loop of its own: reading a large plan there does not delay
the terminal. The view is read again after a moment, and rests the longer the longer a reading took, so that it does not
burden the system. However large a store is, a listing has a bounded number of rows.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Input, Label, OptionList, Static, Tab, Tabs
from textual.widgets.option_list import Option

from asterism.api.client_errors import OUT_OF_REACH, NotFound
from asterism.api.system import System
from asterism.base.clock import Looks
from asterism.base.loop_thread import LastingLoop
from asterism.base.status_colours import DIM
from asterism.base.text import clean, plural
from asterism.cli.cli_context import format_time, open_system, out_of_reach
from asterism.cli.fleet.fleet_views import DEVICE_TABLE, device_lines
from asterism.cli.log_output import line_text, run_lines
from asterism.cli.plan import plan_views
from asterism.cli.run import run_views
from asterism.cli.series.series_context import SeriesView
from asterism.cli.series.series_views import SERIES_TABLE, changes_table, status_lines
from asterism.cli.tables import Cell, Column, table, wrapped
from asterism.core.errors import AsterismError
from asterism.fleet.fleet import UnknownDevice

PLANS, RUNS, DEVICES, SERIES, NOTICES = TABS = ("plans", "runs", "devices", "series", "notices")
ABOUT, WHY, LOG = "about", "why", "log"
"""What a page tells of a row."""
EMPTY = {
    PLANS: "The store has no plans. Start one with: asterism run PLAN.YAML --store URL",
    RUNS: "There are no runs. Create one with: asterism runs create WORKFLOW",
    DEVICES: "No device is joined. Start one with: asterism device join NAME",
    SERIES: "There is no series. Create one with: asterism series claim SERIES --issue N",
    NOTICES: "There are no notices.",
}
MOST = 200
"""How many plans, notices, and runs of each kind (owned, waiting, ended) a listing has."""
MOST_CHANGES = 50
MOST_LINES = 2_000
INTERVAL, REST_FACTOR = 1.0, 4
"""The shortest time between two readings, and the rest after one as a multiple of the time that it took."""
_NOTICE_COLUMNS = (Column("WHEN"), Column("KIND"), Column("DEVICE", least=8, needed=False), Column("MESSAGE", least=20))

Value = TypeVar("Value")


class Subject(NamedTuple):
    """What a row is about; that of a notice is its run."""

    kind: str
    name: str


class Listing(NamedTuple):
    columns: Sequence[Column]
    rows: Sequence[tuple[Subject, Sequence[Cell]]]
    note: str = ""


# -- what it reads -----------------------------------------------------------------------------------------------------


async def read_listing(system: System, kind: str) -> Listing:
    if kind == RUNS:
        fleet = await system.show_fleet(MOST)
        runs, number = [*fleet.owned, *fleet.waiting, *fleet.ended], sum(fleet.counts.values())
        note = f"{len(runs):,} of {plural(number, 'run')}" if number > len(runs) else ""
        cells = [(Subject(RUNS, run.id), run_views.RUN_TABLE.row(run, fleet.now)) for run in runs]
        return Listing(run_views.RUN_TABLE.columns, cells, note)
    if kind == PLANS:
        pages = [await system.list_plans(state="open", limit=MOST)]
        if room := MOST - len(pages[0].items):
            pages.append(await system.list_plans(state="ended", limit=room))
        plans, now = [plan for page in pages for plan in page.items], pages[0].now or 0.0
        rows = [(Subject(PLANS, plan.name), plan_views.PLAN_TABLE.row(plan, now)) for plan in plans]
        return Listing(plan_views.PLAN_TABLE.columns, rows, f"the newest {len(plans)}" if pages[-1].next else "")
    if kind == DEVICES:
        devices = await system.list_devices()
        found = [(Subject(DEVICES, one.name), DEVICE_TABLE.row(one, devices.now or 0.0)) for one in devices.items]
        return Listing(DEVICE_TABLE.columns, found)
    if kind == SERIES:
        series = await system.list_series()
        views = map(SeriesView.of, series.items)
        return Listing(
            SERIES_TABLE.columns,
            [(Subject(SERIES, view.name), SERIES_TABLE.row(view, series.now or 0.0)) for view in views],
        )
    notices = (await system.list_notices(limit=MOST, latest=True)).items[::-1]
    return Listing(
        _NOTICE_COLUMNS,
        [
            (
                Subject(NOTICES, one.run or ""),
                [Text(format_time(one.at), DIM), one.kind, one.device or "", one.message],
            )
            for one in notices
        ],
    )


async def page(system: System, subject: Subject, width: int, why: bool = False) -> list[Text]:
    """Everything about a subject, or why it does not run, as lines for a terminal of this width."""
    kind, name = subject
    if kind == PLANS:
        return _clean(await _plan_page(system, name, width, why))
    if kind in (RUNS, NOTICES):
        if why:
            return _clean(run_views.explanation_lines(await system.explain_run(name), width))
        return _clean(run_views.details_lines(await system.show_run(name), width))
    if kind == SERIES:
        series = await system.show_series(name)
        changes = (await system.list_series_changes(name, MOST_CHANGES)).items
        return _clean([*status_lines(SeriesView.of(series), series.now), Text(), *changes_table(changes, width)])
    try:
        return _clean(device_lines(await system.show_device(name), width))
    except (UnknownDevice, NotFound):
        return [Text(clean(f"The store knows no device {name!r} any more."))]


async def _plan_page(system: System, name: str, width: int, why: bool) -> list[Text]:
    """The tasks of a plan and its state, or what holds it."""
    if why:
        return list(plan_views.plan_explanation_lines(await system.explain_plan(name), width))
    drawing = plan_views.drawing_text(await system.draw_plan(name, "text", width))
    plan = await system.show_plan(name, tasks=False)
    sentences = plan_views.status_lines(plan, plan_views.command_at(system.url, "resume", name))
    sentences += plan_views.review_lines(plan, f" --store {shlex.quote(system.url)}")
    state = [line for sentence in sentences for line in wrapped(sentence, width)]
    return [*drawing.split("\n"), Text(), *state]


def _clean(lines: Iterable[Text]) -> list[Text]:
    shown = list(lines)
    for line in shown:
        line.plain = clean(line.plain)  # text from outside may contain line breaks and control characters
    return shown


async def read_log(system: System, subject: Subject, after: str | None) -> tuple[list[Text], str | None]:
    """The lines of a run or a plan after a position, and the next one."""
    kind, name = subject
    lines: list[Text] = []
    while True:
        if kind == PLANS:
            plan = await system.read_plan_logs(name, None, after)
            lines += [Text(clean(f"{one.task} | "), DIM).append_text(line_text(one)) for one in plan.items]
            after, more = plan.next, plan.more
        else:
            run = await system.read_run_logs(name, after)
            lines += map(line_text, run_lines(run))
            after, more = run.next, bool(run.items)
        if not more:
            return lines, after


# -- screens -----------------------------------------------------------------------------------------------------------


class ReadingScreen(Screen[None]):
    """A screen that reads the system again and again, as long as it is on top."""

    async def read(self) -> None:
        """Read the system once and show what it says."""
        raise NotImplementedError

    def framed(self, heading: str, *body: Widget) -> ComposeResult:
        yield Label(Text(clean(heading), no_wrap=True), id="heading")
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
        thread = cast("Top", self.app).thread
        return await thread.call(question(thread.system))

    def say(self, text: str, *, wrong: bool = False) -> None:
        line = Text(clean(text), "red" if wrong else "", no_wrap=True, overflow="ellipsis")
        self.query_one("#status", Static).update(line)


class ListingScreen(ReadingScreen):
    """The tabs: a table with a filter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", f"open('{WHY}')", "Why"),
        Binding("l", f"open('{LOG}')", "Logs"),
        Binding("slash", "filter", "Filter", key_display="/"),
        *(Binding(str(number), f"tab('{name}')", show=False) for number, name in enumerate(TABS, 1)),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self._listing, self._shown = kind, Listing((), ()), list[Subject]()

    def compose(self) -> ComposeResult:
        yield Label(Text(clean(cast("Top", self.app).thread.system.url), no_wrap=True), id="heading")
        yield Tabs(*(Tab(f"{number} {name.capitalize()}", id=name) for number, name in enumerate(TABS, 1)))
        yield Static(id="titles")
        yield OptionList()
        yield Static(id="status")
        yield Input(placeholder="words that a row has to have; Escape removes the filter", id="filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.query_one(OptionList).focus()
        self.query_one(Tabs).can_focus = False
        self.query_one(Tabs).active = self.kind

    @property
    def subject(self) -> Subject | None:
        """What the row under the cursor is about."""
        place = self.query_one(OptionList).highlighted
        return None if place is None or place >= len(self._shown) else self._shown[place]

    async def read(self) -> None:
        kind = self.kind
        listing = await self.ask(lambda system: read_listing(system, kind))
        if kind == self.kind:  # else another tab was opened meanwhile
            self._listing = listing
            self._show()

    def _show(self) -> None:
        """The cursor stays on its row, or where it was if that row is gone."""
        words = self.query_one("#filter", Input).value.casefold().split()
        rows = [row for row in self._listing.rows if all(word in _text(row) for word in words)]
        options, before = self.query_one(OptionList), self.subject
        titles, *lines = table(self._listing.columns, [cells for _, cells in rows], self.size.width - 4)
        self._shown, place = [subject for subject, _ in rows], options.highlighted or 0
        if len(lines) == options.option_count:
            for number, line in enumerate(lines):
                if options.get_option_at_index(number).prompt != line:
                    options.replace_option_prompt_at_index(number, line)
        else:
            options.clear_options()
            options.add_options([Option(line) for line in lines])
        found = self._shown.index(before) if before in self._shown else min(place, len(rows) - 1)
        options.highlighted = found if rows else None
        self.query_one("#titles", Static).update(titles)
        filtered = f"{len(rows):,} of {len(self._listing.rows):,} match the filter" if words else ""
        parts = (filtered, self._listing.note) if self._listing.rows else (EMPTY[self.kind],)
        self.say("; ".join(filter(None, parts)))

    @on(Tabs.TabActivated)
    def _tab_activated(self, event: Tabs.TabActivated) -> None:
        if event.tab.id is not None and event.tab.id != self.kind:
            self.kind, self._listing = event.tab.id, Listing((), ())
            self.refresh_bindings()
            self.follow()

    def action_tab(self, name: str) -> None:
        self.query_one(Tabs).active = name

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.kind in (PLANS, RUNS) if parameters == (LOG,) else True

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        self.action_open(ABOUT)

    def action_open(self, what: str) -> None:
        if self.subject is not None and self.subject.name:
            self.app.push_screen(TextScreen(self.subject, what))

    def action_filter(self) -> None:
        self.query_one("#filter").display = True
        self.query_one("#filter").focus()

    @on(Input.Changed, "#filter")
    def _filter_changed(self) -> None:
        self._show()

    @on(Input.Submitted, "#filter")
    def _filter_submitted(self) -> None:
        self.query_one(OptionList).focus()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            self.query_one("#filter", Input).value = ""
            self.query_one("#filter").display = False
            self.query_one(OptionList).focus()


def _text(row: tuple[Subject, Sequence[Cell]]) -> str:
    return " ".join(str(cell) for cell in (*row[1], row[0].name)).casefold()


class TextScreen(ReadingScreen):
    """Everything about a subject, why it does not run, or what it prints; read again while it is shown. A log follows
    its end until one scrolls up."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Back")]

    def __init__(self, subject: Subject, what: str) -> None:
        super().__init__()
        self.subject, self._what = subject, what
        self._log: list[Text] = []
        self._after: str | None = None

    def compose(self) -> ComposeResult:
        return self.framed(" ".join((self._what, *self.subject)), VerticalScroll(Static(id="text")))

    async def read(self) -> None:
        box = self.query_one(VerticalScroll)
        follow = self._what == LOG and box.is_vertical_scroll_end
        if self._what == LOG:
            lines, self._after = await self.ask(lambda system: read_log(system, self.subject, self._after))
            self._log = [*self._log, *lines][-MOST_LINES:]
        else:
            width, why = max(20, box.size.width - 2), self._what == WHY
            self._log = await self.ask(lambda system: page(system, self.subject, width, why))
        self.say("" if self._log else "It has printed nothing.")
        self.query_one("#text", Static).update(Text("\n").join(self._log))
        if follow:
            box.scroll_end(animate=False)


# -- the application ---------------------------------------------------------------------------------------------------


class Top(App[None]):
    """``thread`` is entered by the caller."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "Quit", show=False)]
    CSS = """
    #heading { width: 100%; height: 1; background: $primary; color: $text; padding: 0 1; }
    #titles { height: 1; padding: 0 1; color: $text-muted; }
    #status { height: 1; padding: 0 1; color: $text-muted; }
    #filter { height: 1; border: none; padding: 0 1; }
    OptionList { height: 1fr; border: none; padding: 0 1; overflow-x: hidden; scrollbar-size-vertical: 1; }
    OptionList:focus { border: none; }
    VerticalScroll { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; background: $background; }
    """

    def __init__(self, thread: SystemThread, tab: str) -> None:
        super().__init__()
        self.animation_level = "none"
        self.thread, self._tab = thread, tab

    async def on_mount(self) -> None:
        await self.push_screen(ListingScreen(self._tab))


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
