"""Watching a fleet: a picture that is drawn over and over in a terminal, or plain lines where there is none.

A look is taken when the store says that something happened, or after a moment in any case, and never so often that
watching is a burden for the store. A store that is out of reach for a while is said to be, and watched again.

One picture of a fleet, for a terminal of a given size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from asterism.base.durations import format_age
from asterism.base.safe_text import json_text
from asterism.base.text import clean, plural, shorten
from asterism.cli.cli_context import note, short
from asterism.cli.fleet_json import state_of
from asterism.cli.fleet_snapshot import CancelledCount, Look, look
from asterism.cli.fleet_tables import runs_table
from asterism.cli.formats import format_clock
from asterism.cli.screen import Screen
from asterism.core.history import Entry
from asterism.core.run.run import COMPLETED, FAILED, PROCESSING, Run, RunStatus
from asterism.core.run.session import REACHABLE_STATES, Session
from asterism.fleet.fleet import Fleet
from asterism.report.status_style import DIM, tone
from asterism.store.protocol import ENDED, OFFERED
from asterism.store.store_errors import StoreUnavailable

FASTEST = 1 / 8
"""Seconds between two looks, at least."""

SLOWEST = 0.5
"""Seconds between two looks, at most: ages in them go on."""

SHARE = 4
"""How many times as long as a look takes is waited before the next."""

MOST_LINES = 500
"""How many runs of a sort are followed where there is no picture to limit them."""

_DULL = ("assigning to self", "assigning to other")
"""Entries of a story that the next one says again."""


async def watch(fleet: Fleet, screen: Screen, *, until_done: bool, as_json: bool = False) -> None:
    """Until it is cancelled; with ``until_done`` until every run has ended. ``as_json`` gives an object a line."""
    if screen.is_terminal and not screen.is_dumb_terminal and not as_json:
        with screen.live() as live:
            painter = _Painter(screen, live)
            await _Watch(fleet, painter.show, lambda: screen.size.height, CancelledCount()).go_on(until_done)
    else:
        teller = _Teller(screen, _object if as_json else _line)
        await _Watch(fleet, teller.show, lambda: MOST_LINES).go_on(until_done)


class _Watch:
    """``show`` is given each look, or what is wrong with the store; ``tally`` is for who says how many there are."""

    def __init__(
        self,
        fleet: Fleet,
        show: Callable[[Look | StoreUnavailable], Awaitable[None]],
        limit: Callable[[], int],
        tally: CancelledCount | None = None,
    ) -> None:
        self._fleet, self._show, self._limit = fleet, show, limit
        self._before: set[str] = set()
        self._tally = tally

    async def go_on(self, until_done: bool) -> None:
        watch = self._fleet.store.watch(frozenset({OFFERED, ENDED}))
        try:
            while True:
                began = time.monotonic()
                found = await self._look()
                await self._show(found)
                if until_done and isinstance(found, Look) and not found.open:
                    return
                rest = max(FASTEST, SHARE * (time.monotonic() - began))
                await asyncio.sleep(rest)
                await watch.wait(max(0.0, SLOWEST - rest))
        finally:
            watch.close()

    async def _look(self) -> Look | StoreUnavailable:
        try:
            found = await look(self._fleet, self._limit(), self._before, self._tally)
        except StoreUnavailable as error:
            return error
        self._before = {run.id for run in (*found.owned, *found.waiting)}
        return found


class _Painter:
    """The picture. It is written by another thread, so that a terminal that stands still stops nothing else."""

    def __init__(self, screen: Screen, live: Live) -> None:
        self._screen, self._live = screen, live

    async def show(self, found: Look | StoreUnavailable) -> None:
        size = self._screen.size
        if isinstance(found, Look):
            await asyncio.to_thread(self._live.update, picture(found, size.width, size.height - 1), refresh=True)
        else:
            line = Text(shorten(f"The store is out of reach: {found}", size.width), tone("failed"), no_wrap=True)
            await asyncio.to_thread(self._live.update, line, refresh=True)


class _Teller:
    """A line for everything that happened to a run since the last look."""

    def __init__(self, screen: Screen, word: Callable[[Run, Entry], str]) -> None:
        self._screen, self._word = screen, word
        self._told: dict[str, tuple[Entry, ...]] = {}  # each story, as far as it was told
        self._began = False
        self._trouble = ""

    async def show(self, found: Look | StoreUnavailable) -> None:
        if isinstance(found, Look):
            self._trouble = ""
            lines = [line for _, line in sorted(self._lines(found))]
        else:
            lines = []
            if str(found) != self._trouble:
                note(f"the store is out of reach: {found}")
            self._trouble = str(found)
        await asyncio.to_thread(self._say, lines)

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self._screen.say(Text(line))  # rich would take :word: in a plain text for a picture
        self._screen.file.flush()

    def _lines(self, found: Look) -> Iterator[tuple[float, str]]:
        """What is new. At first that is where each run stands that has not ended."""
        told = {run.id: run.story for run in found.runs}
        for run in found.runs:
            if not self._began:
                entries = () if run.ended else run.story[-1:]
            else:
                entries = _news(self._told.get(run.id, ()), run.story)
            for entry in entries:
                if entry.what not in _DULL:
                    yield entry.at, self._word(run, entry)
        self._told, self._began = told, True


def _news(told: tuple[Entry, ...], story: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """What was not told yet. A story grows at its end, but one that was united with a peer's has become another."""
    if story[: len(told)] == told:
        return story[len(told) :]
    known = set(told)
    return tuple(entry for entry in story if entry not in known)


def _line(run: Run, entry: Entry) -> str:
    return clean(f"{format_clock(entry.at)}  {short(run.id)}  {run.workflow}  {entry.what}  {entry.why}".rstrip())


def _object(run: Run, entry: Entry) -> str:
    told = {"at": entry.at, "run": run.id, "workflow": run.workflow, "what": entry.what, "why": entry.why}
    return json_text(told | {"status": run.reported_status, "epoch": run.epoch, "device": run.device})


MOST_DEVICES = 6
WIDEST_DEVICE = 20
MOST_BOXES = 12

_ORDER = (PROCESSING, RunStatus.CLAIMED, RunStatus.ASSIGNED, RunStatus.REASSIGNING, RunStatus.CREATED)


def picture(look: Look, width: int, height: int) -> RenderableType:
    """At most ``height`` lines of at most ``width`` cells."""
    above = [_heading(look, width)]
    below = _devices(look, width)
    room = height - len(above) - len(below) - 3  # two empty lines and the titles
    middle: list[Text] = []
    if room > 0:
        shown = _chosen(look, room)
        middle = [Text(), *runs_table(shown, look.now, look.sessions, look.reports, width), Text()]
        if not shown:
            middle = [Text(), Text("No runs yet.", DIM), Text()]
    return Group(*[*above, *middle, *below][:height])


def _heading(look: Look, width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    words = [
        (f"{look.counts[status]:,} {status}", tone("running") if status is PROCESSING else tone("pending"))
        for status in _ORDER
        if look.counts.get(status)
    ]
    words += [(f"{number:,} {name}", tone(name.split()[0])) for name, number in _ends(look) if number]
    line.append_text(Text(", ").join(Text(*word) for word in words) if words else Text("nothing to do", DIM))
    room = width - line.cell_len - 2
    return line.append(f"  {shorten(look.url, room)}", DIM) if room > 10 else line


def _ends(look: Look) -> list[tuple[str, int]]:
    """How many ended in which way; what was cancelled did not fail."""
    completed, failed = look.counts.get(COMPLETED, 0), look.counts.get(FAILED, 0)
    if look.cancelled is None:
        return [("completed", completed), ("failed or cancelled", failed)]
    return [("completed", completed), ("failed", failed - look.cancelled), ("cancelled", look.cancelled)]


def _chosen(look: Look, room: int) -> list[Run]:
    """What is owned first, then what waits, then the latest ends; each has a share if there is too much of another."""
    share = max(1, room // 4)
    owned = look.owned[: max(share, room - min(share, len(look.waiting)) - min(share, len(look.ended)))]
    waiting = look.waiting[: max(share, room - len(owned) - min(share, len(look.ended)))]
    ended = look.ended[: max(0, room - len(owned) - len(waiting))]
    return [*owned, *waiting, *ended][:room]


def _devices(look: Look, width: int) -> list[Text]:
    """One line for each device: how many of its slots are taken, and how long ago it was heard of."""
    there = sorted((one for one in look.sessions.values() if one.state in REACHABLE_STATES), key=_order)
    if not there:
        return [Text("No device is joined: asterism device join NAME", tone("waiting"), no_wrap=True)]
    wide = max(len(shorten(one.device, WIDEST_DEVICE)) for one in there[:MOST_DEVICES])
    most = min(MOST_BOXES, max(one.slots for one in there[:MOST_DEVICES]))
    lines = [_device(look, one, wide, most) for one in there[:MOST_DEVICES]]
    more = len(there) - MOST_DEVICES
    return [*lines, *([Text(f"and {plural(more, 'more device')}", DIM)] if more > 0 else [])]


def _order(session: Session) -> tuple[bool, str]:
    return (session.used == 0, session.device)


def _device(look: Look, session: Session, wide: int, most: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{shorten(session.device, WIDEST_DEVICE):<{wide}}  ")
    taken = min(session.used, session.slots)
    if session.slots <= MOST_BOXES:
        line.append("■" * taken, tone("running")).append("□" * (session.slots - taken), DIM)
        line.append(" " * (most - session.slots))
    else:
        line.append(" " * most)
    line.append(f"  {session.used}/{session.slots}", DIM)
    state = state_of(session, look.now)
    words = [] if state in ("ready", "busy") else [state]
    words += ["coordinator"] if session.device == look.coordinator else []
    age = format_age(look.now - session.beat_at)
    line.append(f"  heard of {age} ago", tone("failed") if state == "silent" else DIM)
    return line.append(clean("".join(f"  {word}" for word in words)), tone("waiting"))
