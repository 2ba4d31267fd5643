"""The live view of a running plan in a terminal, or a line for each event without one.

The view never delays the plan: handling an event is quick, and a thread writes the output, so that a stalled terminal
stops only the view.
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
from asterism.orchestrator.events import Event
from asterism.orchestrator.orchestrator import PlanCommands
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report.event_text import sentence

FASTEST = 1 / 8
"""The shortest time between two frames, in seconds."""

SLOWEST = 0.5
"""The longest time between two frames, in seconds: the times in them keep counting."""


@contextlib.asynccontextmanager
async def watched(
    orchestrator: PlanCommands, plan: Constellation, console: Screen, *, plain: bool = False
) -> AsyncIterator[None]:
    """Show ``plan`` while the block runs it. With ``plain``, or without a terminal, print a line for each event."""
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
    """Prints a line for each event."""

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
            drawing = asyncio.create_task(self._draw_until_done(live))
            try:
                yield
            finally:
                self._over.set()
                self._changed.set()
                await drawing

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
