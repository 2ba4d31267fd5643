"""``asterism runs watch``: a live view of a fleet in a terminal, or a line for each event without one.

The view is read every moment, and never so often that it burdens the system. If the store or the server cannot be
reached, the view says so and tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from asterism.api.client_errors import OUT_OF_REACH, ServerUnreachable
from asterism.api.documents import Device, FleetView, Run, StoryEntry
from asterism.api.run_operations import MOST_AT_ONCE
from asterism.api.system import System
from asterism.base.clock import Looks
from asterism.base.durations import format_age
from asterism.base.status_colours import DIM, tone
from asterism.base.text import clean, json_text, plural, short, shorten, shorten_middle
from asterism.cli.cli_context import format_clock, note, out_of_reach
from asterism.cli.run.run_views import RUN_TABLE
from asterism.cli.screen import Screen
from asterism.core.errors import AsterismError

INTERVAL = 0.25
"""The shortest time between two views, in seconds."""

REST_FACTOR = 4
"""The rest after a view was read, as a multiple of the time that it took."""

_OMITTED = ("assigning to self", "assigning to other")
"""Entries of a story that the next entry repeats."""


Show = Callable[["FleetView | Exception"], Awaitable[None]]


async def watch(system: System, screen: Screen, *, until_done: bool, as_json: bool = False) -> None:
    """Watch until cancelled, or with ``until_done`` until every run has ended. ``as_json`` prints JSON lines."""
    if screen.is_terminal and not screen.is_dumb_terminal and not as_json:
        with screen.live() as live:
            await _watch(system, _FrameWriter(system.url, screen, live).show, lambda: screen.size.height, until_done)
    else:
        printer = _EventPrinter(screen, _object if as_json else _line)
        await _watch(system, printer.show, lambda: MOST_AT_ONCE, until_done)


async def _watch(system: System, show: Show, limit: Callable[[], int], until_done: bool) -> None:
    """Pass each view, or the error of a system that is out of reach, to ``show``. Raises ServerUnreachable if the
    server was never reached."""
    view: FleetView | None = None
    async for _ in Looks(interval=INTERVAL, rest=REST_FACTOR):
        try:
            view = await _read_view(system, limit(), view)
        except OUT_OF_REACH as error:
            if view is None and isinstance(error, ServerUnreachable):
                raise
            await show(error)
        else:
            await show(view)
            if until_done and not open_runs(view):
                return


async def _read_view(system: System, limit: int, before: FleetView | None) -> FleetView:
    """The fleet now. Runs that were open in the view before and have ended are among the ended ones, however old they
    are."""
    view = await system.show_fleet(min(limit, MOST_AT_ONCE))
    shown = {run.id for run in shown_runs(view)}
    gone = [run.id for run in shown_runs(before) if not run.ended and run.id not in shown] if before is not None else []
    for run_id in gone[:limit]:
        try:
            run = await system.wait_run(run_id, timeout=0)
        except OUT_OF_REACH:
            raise
        except AsterismError:  # it was deleted
            continue
        if run.ended:
            view.ended.append(run)
    view.ended.sort(key=lambda run: (-(run.ended_at or 0.0), run.id))
    return view


def shown_runs(view: FleetView) -> list[Run]:
    return [*view.owned, *view.waiting, *view.ended]


def open_runs(view: FleetView) -> int:
    """How many runs have not ended."""
    return sum(number for status, number in view.counts.items() if status not in ("completed", "failed"))


class _FrameWriter:
    """Draws the view. A thread writes it, so that a stalled terminal stops nothing else."""

    def __init__(self, url: str, screen: Screen, live: Live) -> None:
        self._url, self._screen, self._live = url, screen, live

    async def show(self, view: FleetView | Exception) -> None:
        size = self._screen.size
        frame: RenderableType
        if isinstance(view, FleetView):
            frame = fleet_frame(view, self._url, size.width, size.height - 1)
        else:
            frame = Text(shorten(out_of_reach(view), size.width), tone("failed"), no_wrap=True)
        await asyncio.to_thread(self._live.update, frame, refresh=True)


class _EventPrinter:
    """A line for everything that happened to a run since the last view."""

    def __init__(self, screen: Screen, word: Callable[[Run, StoryEntry], str]) -> None:
        self._screen, self._word = screen, word
        self._printed: dict[str, list[StoryEntry]] = {}  # each story, as far as it was printed
        self._began = False
        self._trouble = ""

    async def show(self, view: FleetView | Exception) -> None:
        if isinstance(view, FleetView):
            self._trouble = ""
            lines = [line for _, line in sorted(self._lines(view))]
        else:
            lines = []
            if str(view) != self._trouble:
                note(out_of_reach(view))
            self._trouble = str(view)
        await asyncio.to_thread(self._say, lines)

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self._screen.say(Text(line))  # rich would replace :word: in plain text by an emoji
        self._screen.file.flush()

    def _lines(self, view: FleetView) -> Iterator[tuple[float, str]]:
        """The new entries. At first these are the last entries of the open runs."""
        runs = shown_runs(view)
        for run in runs:
            entries: Sequence[StoryEntry]
            if not self._began:
                entries = [] if run.ended else run.story[-1:]
            else:
                entries = _new_entries(self._printed.get(run.id, []), run.story)
            for entry in entries:
                if entry.what not in _OMITTED:
                    yield entry.at, self._word(run, entry)
        self._printed, self._began = {run.id: run.story for run in runs}, True


def _new_entries(printed: Sequence[StoryEntry], story: Sequence[StoryEntry]) -> Sequence[StoryEntry]:
    """The entries that were not printed. A story grows at its end, unless it was merged with that of a peer."""
    if story[: len(printed)] == printed:
        return story[len(printed) :]
    known = set(printed)
    return [entry for entry in story if entry not in known]


def _line(run: Run, entry: StoryEntry) -> str:
    name = run.workflow if run.label is None else f"{run.label}  {run.workflow}"
    return clean(f"{format_clock(entry.at)}  {short(run.id)}  {name}  {entry.what}  {entry.why}".rstrip())


def _object(run: Run, entry: StoryEntry) -> str:
    event = {"at": entry.at, "run": run.id, "workflow": run.workflow, "what": entry.what, "why": entry.why}
    event |= {} if run.label is None else {"label": run.label}
    return json_text(event | {"status": run.status, "epoch": run.epoch, "device": run.device})


MOST_DEVICES = 6
WIDEST_DEVICE = 20
MOST_BOXES = 12

_ORDER = ("processing", "claimed", "assigned", "reassigning", "created")


def fleet_frame(view: FleetView, url: str, width: int, height: int) -> RenderableType:
    """At most ``height`` lines of at most ``width`` cells. ``url`` is where the fleet is."""
    above = [_heading(view, url, width)]
    below = _devices(view, width)
    room = height - len(above) - len(below) - 3  # two empty lines and the titles
    middle: list[Text] = []
    if room > 0:
        shown = _chosen(view, room)
        middle = [Text(), *RUN_TABLE.lines(shown, view.now, width), Text()]
        if not shown:
            middle = [Text(), Text("No runs yet.", DIM), Text()]
    return Group(*[*above, *middle, *below][:height])


def _heading(view: FleetView, url: str, width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    words = [
        (f"{view.counts[status]:,} {status}", tone("running") if status == "processing" else tone("pending"))
        for status in _ORDER
        if view.counts.get(status)
    ]
    words += [(f"{number:,} {name}", tone(name.split()[0])) for name, number in _ends(view) if number]
    line.append_text(Text(", ").join(Text(*word) for word in words) if words else Text("no runs", DIM))
    room = width - line.cell_len - 2
    return line.append(f"  {shorten(url, room)}", DIM) if room > 10 else line


def _ends(view: FleetView) -> list[tuple[str, int]]:
    """How many runs ended in each way; a cancelled run has not failed."""
    completed, failed = view.counts.get("completed", 0), view.counts.get("failed", 0)
    if view.cancelled is None:
        return [("completed", completed), ("failed or cancelled", failed)]
    return [("completed", completed), ("failed", failed - view.cancelled), ("cancelled", view.cancelled)]


def _chosen(view: FleetView, room: int) -> list[Run]:
    """Owned runs first, then waiting ones, then the latest ends. Each kind has a share of the room."""
    share = max(1, room // 4)
    owned = view.owned[: max(share, room - min(share, len(view.waiting)) - min(share, len(view.ended)))]
    waiting = view.waiting[: max(share, room - len(owned) - min(share, len(view.ended)))]
    ended = view.ended[: max(0, room - len(owned) - len(waiting))]
    return [*owned, *waiting, *ended][:room]


def _devices(view: FleetView, width: int) -> list[Text]:
    """One line for each device: its slots, and the age of its last heartbeat."""
    there = sorted(view.devices, key=lambda device: (device.used == 0, device.name))
    if not there:
        return [Text("No device is joined. Start one with: asterism device join NAME", tone("waiting"), no_wrap=True)]
    wide = max(len(shorten_middle(device.name, WIDEST_DEVICE)) for device in there[:MOST_DEVICES])
    most = min(MOST_BOXES, max(device.slots for device in there[:MOST_DEVICES]))
    lines = [_device(device, view, wide, most) for device in there[:MOST_DEVICES]]
    more = len(there) - MOST_DEVICES
    return [*lines, *([Text(f"and {plural(more, 'more device')}", DIM)] if more > 0 else [])]


def _device(device: Device, view: FleetView, wide: int, most: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{shorten_middle(device.name, WIDEST_DEVICE):<{wide}}  ")
    taken = min(device.used, device.slots)
    if device.slots <= MOST_BOXES:
        line.append("■" * taken, tone("running")).append("□" * (device.slots - taken), DIM)
        line.append(" " * (most - device.slots))
    else:
        line.append(" " * most)
    line.append(f"  {device.used}/{device.slots}", DIM)
    words = [] if device.state in ("ready", "busy") else [device.state]
    words += ["coordinator"] if device.name == view.coordinator else []
    age = format_age(view.now - device.last_heartbeat_at)
    line.append(f"  heartbeat {age} ago", tone("failed") if device.state == "silent" else DIM)
    return line.append(clean("".join(f"  {word}" for word in words)), tone("waiting"))
