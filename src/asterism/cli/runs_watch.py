"""``asterism runs watch``: a live view of a fleet in a terminal, or a line for each event without one.

A snapshot is taken when the store reports a change, or after a moment, and never so often that it burdens the store.
If the store cannot be reached, the view says so and tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from asterism.api import documents
from asterism.api.local.run_handlers import run_documents
from asterism.base.durations import format_age
from asterism.base.status_colours import DIM, tone
from asterism.base.text import clean, json_text, plural, short, shorten, shorten_middle
from asterism.cli.cli_context import format_clock, note
from asterism.cli.run_views import runs_table
from asterism.cli.screen import Screen
from asterism.core.history import Entry
from asterism.core.run.run import COMPLETED, FAILED, PROCESSING, Run, RunStatus
from asterism.core.run.session import REACHABLE_STATES, Session
from asterism.fleet.fleet import Fleet
from asterism.fleet.fleet_json import state_of
from asterism.fleet.run_queries import CancelledCount, FleetSnapshot, take_snapshot
from asterism.store.protocol import ENDED, OFFERED
from asterism.store.store_errors import StoreUnavailable

FASTEST = 1 / 8
"""The shortest time between two snapshots, in seconds."""

SLOWEST = 0.5
"""The longest time between two snapshots, in seconds: the ages in the view keep counting."""

REST_FACTOR = 4
"""The rest after a snapshot, as a multiple of the time that it took."""

MOST_LINES = 500
"""How many runs of each kind are followed without a terminal."""

_OMITTED = ("assigning to self", "assigning to other")
"""Entries of a story that the next entry repeats."""


async def watch(fleet: Fleet, screen: Screen, *, until_done: bool, as_json: bool = False) -> None:
    """Watch until cancelled, or with ``until_done`` until every run has ended. ``as_json`` prints JSON lines."""
    if screen.is_terminal and not screen.is_dumb_terminal and not as_json:
        with screen.live() as live:
            writer = _FrameWriter(fleet, screen, live)
            await _Watch(fleet, writer.show, lambda: screen.size.height, CancelledCount()).run(until_done)
    else:
        printer = _EventPrinter(screen, _object if as_json else _line)
        await _Watch(fleet, printer.show, lambda: MOST_LINES).run(until_done)


class _Watch:
    """Passes each snapshot, or the error of the store, to ``show``. ``counter`` counts cancelled runs, if shown."""

    def __init__(
        self,
        fleet: Fleet,
        show: Callable[[FleetSnapshot | StoreUnavailable], Awaitable[None]],
        limit: Callable[[], int],
        counter: CancelledCount | None = None,
    ) -> None:
        self._fleet, self._show, self._limit = fleet, show, limit
        self._before: set[str] = set()
        self._counter = counter

    async def run(self, until_done: bool) -> None:
        watch = self._fleet.store.watch(frozenset({OFFERED, ENDED}))
        try:
            while True:
                began = time.monotonic()
                found = await self._take_snapshot()
                await self._show(found)
                if until_done and isinstance(found, FleetSnapshot) and not found.open:
                    return
                rest = max(FASTEST, REST_FACTOR * (time.monotonic() - began))
                await asyncio.sleep(rest)
                await watch.wait(max(0.0, SLOWEST - rest))
        finally:
            watch.close()

    async def _take_snapshot(self) -> FleetSnapshot | StoreUnavailable:
        try:
            found = await take_snapshot(self._fleet, self._limit(), self._before, self._counter)
        except StoreUnavailable as error:
            return error
        self._before = {run.id for run in (*found.owned, *found.waiting)}
        return found


class _FrameWriter:
    """Draws the view. A thread writes it, so that a stalled terminal stops nothing else."""

    def __init__(self, fleet: Fleet, screen: Screen, live: Live) -> None:
        self._fleet, self._screen, self._live = fleet, screen, live

    async def show(self, found: FleetSnapshot | StoreUnavailable) -> None:
        size = self._screen.size
        if isinstance(found, FleetSnapshot):
            shown = {run.id: run for run in await run_documents(self._fleet, found.runs)}
            frame = fleet_frame(found, shown, size.width, size.height - 1)
            await asyncio.to_thread(self._live.update, frame, refresh=True)
        else:
            line = Text(shorten(f"The store cannot be reached: {found}", size.width), tone("failed"), no_wrap=True)
            await asyncio.to_thread(self._live.update, line, refresh=True)


class _EventPrinter:
    """A line for everything that happened to a run since the last snapshot."""

    def __init__(self, screen: Screen, word: Callable[[Run, Entry], str]) -> None:
        self._screen, self._word = screen, word
        self._printed: dict[str, tuple[Entry, ...]] = {}  # each story, as far as it was printed
        self._began = False
        self._trouble = ""

    async def show(self, found: FleetSnapshot | StoreUnavailable) -> None:
        if isinstance(found, FleetSnapshot):
            self._trouble = ""
            lines = [line for _, line in sorted(self._lines(found))]
        else:
            lines = []
            if str(found) != self._trouble:
                note(f"The store cannot be reached: {found}")
            self._trouble = str(found)
        await asyncio.to_thread(self._say, lines)

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self._screen.say(Text(line))  # rich would replace :word: in plain text by an emoji
        self._screen.file.flush()

    def _lines(self, found: FleetSnapshot) -> Iterator[tuple[float, str]]:
        """The new entries. At first these are the last entries of the open runs."""
        stories = {run.id: run.story for run in found.runs}
        for run in found.runs:
            if not self._began:
                entries = () if run.ended else run.story[-1:]
            else:
                entries = _new_entries(self._printed.get(run.id, ()), run.story)
            for entry in entries:
                if entry.what not in _OMITTED:
                    yield entry.at, self._word(run, entry)
        self._printed, self._began = stories, True


def _new_entries(printed: tuple[Entry, ...], story: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The entries that were not printed. A story grows at its end, unless it was merged with that of a peer."""
    if story[: len(printed)] == printed:
        return story[len(printed) :]
    known = set(printed)
    return tuple(entry for entry in story if entry not in known)


def _line(run: Run, entry: Entry) -> str:
    name = run.workflow if run.label is None else f"{run.label}  {run.workflow}"
    return clean(f"{format_clock(entry.at)}  {short(run.id)}  {name}  {entry.what}  {entry.why}".rstrip())


def _object(run: Run, entry: Entry) -> str:
    event = {"at": entry.at, "run": run.id, "workflow": run.workflow, "what": entry.what, "why": entry.why}
    event |= {} if run.label is None else {"label": run.label}
    return json_text(event | {"status": run.reported_status, "epoch": run.epoch, "device": run.device})


MOST_DEVICES = 6
WIDEST_DEVICE = 20
MOST_BOXES = 12

_ORDER = (PROCESSING, RunStatus.CLAIMED, RunStatus.ASSIGNED, RunStatus.REASSIGNING, RunStatus.CREATED)


def fleet_frame(
    snapshot: FleetSnapshot, shown_runs: Mapping[str, documents.Run], width: int, height: int
) -> RenderableType:
    """At most ``height`` lines of at most ``width`` cells. ``shown_runs`` has their documents, by id."""
    above = [_heading(snapshot, width)]
    below = _devices(snapshot, width)
    room = height - len(above) - len(below) - 3  # two empty lines and the titles
    middle: list[Text] = []
    if room > 0:
        shown = _chosen(snapshot, room)
        middle = [
            Text(),
            *runs_table([shown_runs[run.id] for run in shown], snapshot.now, width),
            Text(),
        ]
        if not shown:
            middle = [Text(), Text("No runs yet.", DIM), Text()]
    return Group(*[*above, *middle, *below][:height])


def _heading(snapshot: FleetSnapshot, width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    words = [
        (f"{snapshot.counts[status]:,} {status}", tone("running") if status is PROCESSING else tone("pending"))
        for status in _ORDER
        if snapshot.counts.get(status)
    ]
    words += [(f"{number:,} {name}", tone(name.split()[0])) for name, number in _ends(snapshot) if number]
    line.append_text(Text(", ").join(Text(*word) for word in words) if words else Text("no runs", DIM))
    room = width - line.cell_len - 2
    return line.append(f"  {shorten(snapshot.url, room)}", DIM) if room > 10 else line


def _ends(snapshot: FleetSnapshot) -> list[tuple[str, int]]:
    """How many runs ended in each way; a cancelled run has not failed."""
    completed, failed = snapshot.counts.get(COMPLETED, 0), snapshot.counts.get(FAILED, 0)
    if snapshot.cancelled is None:
        return [("completed", completed), ("failed or cancelled", failed)]
    return [("completed", completed), ("failed", failed - snapshot.cancelled), ("cancelled", snapshot.cancelled)]


def _chosen(snapshot: FleetSnapshot, room: int) -> list[Run]:
    """Owned runs first, then waiting ones, then the latest ends. Each kind has a share of the room."""
    share = max(1, room // 4)
    owned = snapshot.owned[: max(share, room - min(share, len(snapshot.waiting)) - min(share, len(snapshot.ended)))]
    waiting = snapshot.waiting[: max(share, room - len(owned) - min(share, len(snapshot.ended)))]
    ended = snapshot.ended[: max(0, room - len(owned) - len(waiting))]
    return [*owned, *waiting, *ended][:room]


def _devices(snapshot: FleetSnapshot, width: int) -> list[Text]:
    """One line for each device: its slots, and the age of its last heartbeat."""
    there = sorted((one for one in snapshot.sessions.values() if one.state in REACHABLE_STATES), key=_order)
    if not there:
        return [Text("No device is joined. Start one with: asterism device join NAME", tone("waiting"), no_wrap=True)]
    wide = max(len(shorten_middle(one.device, WIDEST_DEVICE)) for one in there[:MOST_DEVICES])
    most = min(MOST_BOXES, max(one.slots for one in there[:MOST_DEVICES]))
    lines = [_device(snapshot, one, wide, most) for one in there[:MOST_DEVICES]]
    more = len(there) - MOST_DEVICES
    return [*lines, *([Text(f"and {plural(more, 'more device')}", DIM)] if more > 0 else [])]


def _order(session: Session) -> tuple[bool, str]:
    return (session.used == 0, session.device)


def _device(snapshot: FleetSnapshot, session: Session, wide: int, most: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{shorten_middle(session.device, WIDEST_DEVICE):<{wide}}  ")
    taken = min(session.used, session.slots)
    if session.slots <= MOST_BOXES:
        line.append("■" * taken, tone("running")).append("□" * (session.slots - taken), DIM)
        line.append(" " * (most - session.slots))
    else:
        line.append(" " * most)
    line.append(f"  {session.used}/{session.slots}", DIM)
    state = state_of(session, snapshot.now)
    words = [] if state in ("ready", "busy") else [state]
    words += ["coordinator"] if session.device == snapshot.coordinator else []
    age = format_age(snapshot.now - session.beat_at)
    line.append(f"  heartbeat {age} ago", tone("failed") if state == "silent" else DIM)
    return line.append(clean("".join(f"  {word}" for word in words)), tone("waiting"))
