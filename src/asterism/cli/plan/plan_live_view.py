"""The live view of a running plan in a terminal, or a line for each event without one.

``Progress`` (``plan_progress.py``) is the state of the view; ``frame`` draws it for a terminal of a given size. The
view never delays the plan: handling an event is quick, and a thread writes the output, so that a stalled terminal stops
only the view.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import IO

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.live import Live
from rich.style import Style
from rich.table import Table
from rich.text import Text

from asterism.base.durations import format_duration
from asterism.base.status_colours import BOLD, DIM, mark, tone
from asterism.base.text import clean, plural, shorten, shorten_middle
from asterism.cli.plan.plan_progress import (
    OUTPUT_LINES,
    NewestOutput,
    OutputSource,
    OutputTail,
    PendingGroup,
    PlanSource,
    Progress,
)
from asterism.cli.screen import Screen, forget_output
from asterism.core.errors import truncate
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.plan_end import opened_at
from asterism.core.plan.status import PENDING, RUNNING, TaskStatus
from asterism.orchestrator.events import Event, TaskEvent
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report.event_text import names, reason, sentence
from asterism.report.log_text import LONGEST_LINE
from asterism.report.result_summary import state_tone

FASTEST = 1 / 8
"""The shortest time between two frames, in seconds."""

SLOWEST = 0.5
"""The longest time between two frames, in seconds: the times in them keep counting."""


@contextlib.asynccontextmanager
async def watched(
    orchestrator: PlanSource,
    plan: Constellation,
    console: Screen,
    *,
    plain: bool = False,
    output: Callable[[Progress], OutputSource] = NewestOutput,
) -> AsyncIterator[None]:
    """Show ``plan`` while the block runs it, with the newest ``output``. With ``plain``, or without a terminal, print a
    line for each event."""
    secrets = PlanMask(plan)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        watch: _Lines | _View = _Lines(plan, console.file, secrets)
    else:
        watch = _View(orchestrator, plan, console, secrets, output)
    # All events of a plan may come in one step, when nothing limits how much runs at once.
    subscription = orchestrator.events.subscribe(watch.observe, limit=10_000 + 4 * len(plan))
    try:
        async with watch.showing():
            yield
    finally:
        subscription.close()


class _Lines:
    """Prints a line for each event."""

    def __init__(self, plan: Constellation, file: IO[str], secrets: PlanMask) -> None:
        self._plan, self._file, self._secrets = plan, file, secrets
        self._lines: list[str] = []
        self._wake = asyncio.Event()
        self._over = False
        self._reader_is_gone = False
        self._since: float | None = None  # when the plan began, or was reopened

    def observe(self, event: Event) -> None:
        if event.constellation == self._plan.id:
            self._since = self._since or opened_at(self._plan) or event.at
            since = event.at - self._since
            text = self._secrets.shown(sentence(event, self._plan))
            text = truncate(text, LONGEST_LINE) if isinstance(event, TaskEvent) else text  # the last line of a command
            self._lines.append(f"{max(0.0, since):8.2f}  {clean(text)}\n")
            self._wake.set()

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        writer = asyncio.create_task(self._write_until_done())
        try:
            yield
        finally:
            self._over = True
            self._wake.set()
            await writer

    async def _write_until_done(self) -> None:
        while self._lines or not self._over:
            await self._wake.wait()
            self._wake.clear()
            lines, self._lines = self._lines, []
            await asyncio.to_thread(self._write, lines)

    def _write(self, lines: list[str]) -> None:
        """A reader that has gone away (``| head``) does not end the run."""
        if lines and not self._reader_is_gone:
            try:
                self._file.write("".join(lines))
                self._file.flush()
            except BrokenPipeError:
                self._reader_is_gone = True
                forget_output(self._file)


class _View:
    """Draws a frame when something has happened, but not too often."""

    def __init__(
        self,
        orchestrator: PlanSource,
        plan: Constellation,
        console: Screen,
        secrets: PlanMask,
        output: Callable[[Progress], OutputSource],
    ) -> None:
        self._orchestrator, self._plan, self._console = orchestrator, plan, console
        self._progress = Progress(orchestrator, plan, secrets)
        self._progress.newest_output = output(self._progress)
        self._changed, self._over = asyncio.Event(), asyncio.Event()

    def observe(self, event: Event) -> None:
        self._progress.observe(event)
        self._changed.set()

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        with self._console.live() as live:
            drawing = asyncio.create_task(self._draw_until_done(live))
            try:
                yield
            finally:
                self._over.set()
                self._changed.set()
                await drawing
                await self._progress.newest_output.close()

    async def _draw_until_done(self, live: Live) -> None:
        """Draw until the plan has ended, and once more at the end."""
        while not self._over.is_set():
            await self._draw(live)
            self._changed.clear()
            await _wait_at_most(self._over, FASTEST)
            await _wait_at_most(self._changed, SLOWEST - FASTEST)
        await self._draw(live)

    async def _draw(self, live: Live) -> None:
        size = self._console.size
        now = 0.0 if self._plan.started_at is None else self._orchestrator.now()
        picture = frame(self._progress, now, size.width, size.height - 1)
        await asyncio.to_thread(live.update, picture, refresh=True)


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most this long."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


# -- one frame ---------------------------------------------------------------------------------------------------------

MOST_DEVICES = 6
MOST_CYCLES = 3
HEIGHT_FOR_OUTPUT = 10
"""The fewest lines for tasks that leave room for output."""

WIDEST_NAME = 28
WIDEST_DEVICE = 16
UNCOUNTED = 1000
"""A place with this many slots stands for a whole fleet: its free slots are not shown."""

_DONE = (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.RUNNING)


def frame(progress: Progress, now: float, width: int, height: int) -> RenderableType:
    """At most ``height`` lines of at most ``width`` cells."""
    tail = progress.newest_output()
    above = [_heading(progress, now), _bar(progress, width)]
    below = [*_devices(progress, width), *_cycles(progress, now, width), *_latest(progress, width)]
    if height - len(above) - len(below) >= HEIGHT_FOR_OUTPUT:
        below += _output(tail, width)
    room = height - len(above) - len(below) - 2
    middle: list[RenderableType] = [Text(), _tasks(progress, now, width, room)] if room > 0 else []
    return Group(*[*above, *middle, *([Text()] if room > 0 and below else []), *below][:height])


def _heading(progress: Progress, now: float) -> Text:
    plan = progress.plan
    line = Text(no_wrap=True, overflow="ellipsis").append(shorten(plan.id, WIDEST_NAME), BOLD)
    line.append(f"  {progress.doing or plan.state_text}", state_tone(plan.state))
    took = 0.0 if progress.opened_at is None else (plan.ended_at or now) - progress.opened_at
    return line.append(f"  version {plan.version}  {_seconds(took)}", DIM)


def _bar(progress: Progress, width: int) -> Text:
    """A progress bar, and the counts in words."""
    total = len(progress.plan)
    counts = {**progress.plan.counts, RUNNING: progress.running_count}
    numbers = {**{str(status): counts[status] for status in _DONE}, "queued": progress.queued_count}
    numbers[str(PENDING)] = counts[PENDING]
    words = ", ".join(f"{number:,} {word}" for word, number in numbers.items() if number)
    length = max(0, min(32, width - len(words) - 2))
    line, drawn, counted = Text(no_wrap=True, overflow="ellipsis"), 0, 0
    for status in _DONE:
        counted += counts[status]
        end = round(length * counted / total) if total else 0
        line.append("━" * (end - drawn), tone(status))
        drawn = end
    return line.append("─" * (length - drawn), DIM).append(f"  {words}")


def _tasks(progress: Progress, now: float, width: int, room: int) -> Table:
    """Running tasks first, then pending ones with their holders, then the latest ends. If there is no room for all
    pending tasks, there is a line for each holder."""
    running, ended = progress.running_nodes(room + 1), progress.ended_nodes(room)
    share = max(1, room // 4)
    pending, groups = _pending(progress, max(share, room - len(running) - min(share, len(ended))))
    waiting = len(pending) + len(groups)
    some_running = running[: max(share, room - min(share, waiting) - min(share, len(ended)))]
    left = 0
    if len(some_running) < len(running):
        some_running = some_running[:-1]
        left = progress.running_count - len(some_running)
    lines = len(some_running) + (left > 0)
    pending, groups = pending[: max(share, room - lines - min(share, len(ended)))], groups[: max(0, room - lines)]
    some_ended = ended[: max(0, room - lines - len(pending) - len(groups))]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=1)
    grid.add_column(no_wrap=True, max_width=WIDEST_NAME, overflow="ellipsis")
    for _ in ("status", "device", "time"):
        grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1, style=DIM)
    for node in some_running:
        device, since = progress.place_of(node)
        _row(grid, node, "running", _run_word(node), _seconds(now - since), "", device)
    if left > 0:
        _line(grid, "running", f"{left:,} more", "running", "")
    for group in groups:
        first = f": {names(group.first, group.count)}" if group.first else ""
        look = "waiting" if group.word == "waiting" else "pending"
        _line(grid, look, plural(group.count, "task"), group.word, f"{group.holder}{first}")
    for node in pending:
        word, why = progress.holder(node)
        _row(grid, node, "waiting" if word == "waiting" else "pending", word, "", why)
    for node in some_ended:
        why = progress.secrets.shown(reason(node.error))
        _row(grid, node, str(node.status), str(node.status), _took(node), why)
    grid.expand = True
    return grid


def _pending(progress: Progress, room: int) -> tuple[list[Node], list[PendingGroup]]:
    """The pending tasks, if there is room for all of them; otherwise groups. Queued tasks are always a group."""
    group = progress.queued_group()
    queued = [] if group is None else [group]
    if progress.plan.counts[PENDING] <= room - len(queued):
        return progress.pending_nodes(room - len(queued)), queued
    return [], [*queued, *progress.pending_groups()]


def _line(grid: Table, look: str, name: str, word: str, why: str) -> None:
    """A line for several tasks."""
    style = tone(look)
    grid.add_row(Text(mark(look), style), Text(name), Text(word, style), Text(), Text(), Text(clean(why)))


def _row(grid: Table, node: Node, look: str, word: str, time: str, why: str, device: str | None = None) -> None:
    style: Style = tone(look)
    grid.add_row(
        Text(mark(look), style),
        Text(shorten_middle(node.id, WIDEST_NAME)),
        Text(word, style),
        Text(clean(node.device or "" if device is None else device), DIM),
        Text(time, justify="right"),
        Text(clean(why)),
    )


def _run_word(node: Node) -> str:
    if node.tentative is not None:
        return "unconfirmed"
    if node.device is None:
        return "retrying"
    return "provisional" if node.provisional else "running"


def _took(node: Node) -> str:
    span = node.span
    return "" if span is None or span[1] is None else _seconds(span[1] - span[0])


def _seconds(seconds: float) -> str:
    """A duration whose unit stays the same while it counts up."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 59.95 else format_duration(seconds)


def _devices(progress: Progress, width: int) -> list[Text]:
    """One line for each device: its slots, and its running tasks."""
    places = progress.orchestrator.places()
    wide = max((len(shorten(place.id, WIDEST_DEVICE)) for place in places[:MOST_DEVICES]), default=0)
    most = max((place.slots or 0 for place in places[:MOST_DEVICES]), default=0)
    lines = []
    for place in places[:MOST_DEVICES]:
        line = Text(f"{shorten(place.id, WIDEST_DEVICE):<{wide}}  ", no_wrap=True, overflow="ellipsis")
        if most <= WIDEST_DEVICE:
            taken = min(place.running, place.slots or 0)  # one without a limit has no boxes
            line.append("■" * taken, tone("running")).append("□" * ((place.slots or 0) - taken), DIM)
            line.append(" " * (most - (place.slots or 0) + 2 if most else 0))
        running, tasks = place.running, progress.on_device.get(place.id, {})
        if progress.fleet is not None:  # it is the only place, and not all of its tasks are executed
            running, tasks = progress.running_count, {node.id: None for node in progress.running_nodes(running)}
        counted = (place.slots or 0) < UNCOUNTED
        line.append(f"{running}/{place.slots or '∞'}" if counted else f"{running} running", DIM)
        lines.append(line.append(f"  {clean(names(tasks, len(tasks)))}" if tasks else ""))
    more = len(places) - MOST_DEVICES
    return [*lines, *([Text(f"and {plural(more, 'more device')}", DIM)] if more > 0 else [])]


def _cycles(progress: Progress, now: float, width: int) -> list[Text]:
    """The open edit cycles: the age of each, and the ends that it reviews."""
    cycles = progress.orchestrator.cycles(progress.plan.id) if progress.executing else []
    lines = []
    for cycle in cycles[:MOST_CYCLES]:
        line = Text(f"cycle {cycle.id}", tone("waiting"), no_wrap=True, overflow="ellipsis")
        by = f" by {cycle.claimed_by}" if cycle.claimed_by else ""
        about = names((task for task, _ in cycle.ends), len(cycle.ends)) or "no task can start"
        lines.append(line.append(clean(f"  open for {_seconds(now - cycle.opened_at)}{by}: {about}"), ""))
    more = len(cycles) - MOST_CYCLES
    return [*lines, *([Text(f"and {plural(more, 'more cycle')}", DIM)] if more > 0 else [])]


def _output(tail: OutputTail | None, width: int) -> list[Text]:
    """The end of the newest output, and whose it is."""
    if tail is None:
        return []
    name = shorten(tail.task, WIDEST_NAME)
    return [
        Text(f"{name} │ ", DIM, no_wrap=True).append(shorten(line, max(0, width - cell_len(name) - 3)), "")
        for line in tail.lines[-OUTPUT_LINES:]
    ]


def _latest(progress: Progress, width: int) -> list[Text]:
    return [Text(shorten(progress.latest, width), DIM, no_wrap=True)] if progress.latest else []
