"""Watching a run: a view that is drawn over and over in a terminal, or plain lines where there is none.

Nothing here delays the run. Events are taken in as they come, which is quick; whatever is written is written by another
thread, so that a terminal that stands still stops the picture and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import IO

from rich.live import Live

from asterism.base.text import clean
from asterism.cli.live_frame import frame
from asterism.cli.plan_progress import Progress
from asterism.cli.screen import Screen, forget_output
from asterism.core.plan.constellation import Constellation
from asterism.orchestrator.commands import PlanCommands
from asterism.orchestrator.events import Event
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report.event_text import sentence

FASTEST = 1 / 8
"""Seconds between two pictures, at least."""

SLOWEST = 0.5
"""Seconds between two pictures, at most: the clock in them goes on."""


@contextlib.asynccontextmanager
async def watched(
    orchestrator: PlanCommands, plan: Constellation, console: Screen, *, plain: bool = False
) -> AsyncIterator[None]:
    """Show what happens to ``plan`` while the block runs it. ``plain``, or no terminal, gives a line for each event."""
    secrets = PlanMask(plan)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        watch: _Lines | _View = _Lines(plan, console.file, secrets)
    else:
        watch = _View(orchestrator, plan, console, secrets)
    # All events of a plan may come in one step, when nothing limits how much runs at once.
    subscription = orchestrator.events.subscribe(watch.observe, limit=10_000 + 4 * len(plan))
    try:
        async with watch.showing():
            yield
    finally:
        subscription.close()


class _Lines:
    """One line for each event."""

    def __init__(self, plan: Constellation, file: IO[str], secrets: PlanMask) -> None:
        self._plan, self._file, self._secrets = plan, file, secrets
        self._lines: list[str] = []
        self._wake = asyncio.Event()
        self._over = False
        self._reader_is_gone = False

    def observe(self, event: Event) -> None:
        if event.constellation == self._plan.id:
            since = event.at - (self._plan.started_at or event.at)
            text = self._secrets.shown(sentence(event, self._plan))
            self._lines.append(f"{max(0.0, since):8.2f}  {clean(text)}\n")
            self._wake.set()

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        writer = asyncio.create_task(self._write_on())
        try:
            yield
        finally:
            self._over = True
            self._wake.set()
            await writer

    async def _write_on(self) -> None:
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
    """The picture, drawn again when something happened, but not too often."""

    def __init__(self, orchestrator: PlanCommands, plan: Constellation, console: Screen, secrets: PlanMask) -> None:
        self._orchestrator, self._plan, self._console = orchestrator, plan, console
        self._progress = Progress(orchestrator, plan, secrets)
        self._changed, self._over = asyncio.Event(), asyncio.Event()

    def observe(self, event: Event) -> None:
        self._progress.observe(event)
        self._changed.set()

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        with self._console.live() as live:
            painter = asyncio.create_task(self._paint_on(live))
            try:
                yield
            finally:
                self._over.set()
                self._changed.set()
                await painter

    async def _paint_on(self, live: Live) -> None:
        """Again and again, and once more at the end."""
        while not self._over.is_set():
            await self._paint(live)
            self._changed.clear()
            await _moment(self._over, FASTEST)
            await _moment(self._changed, SLOWEST - FASTEST)
        await self._paint(live)

    async def _paint(self, live: Live) -> None:
        size = self._console.size
        now = 0.0 if self._plan.started_at is None else self._orchestrator.now()
        picture = frame(self._progress, now, size.width, size.height - 1)
        await asyncio.to_thread(live.update, picture, refresh=True)


async def _moment(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but no longer than that."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
