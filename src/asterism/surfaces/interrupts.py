"""Ctrl-C: the first time everything is asked to stop, the second time nobody is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator

from asterism.core.constellation import Constellation
from asterism.core.errors import PlanError
from asterism.runtime.orchestrator import Orchestrator
from asterism.runtime.result import Result

SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_until_interrupted(orchestrator: Orchestrator, plan: Constellation) -> Result:
    """Run a plan. When interrupted it is cancelled, and the result says so."""
    running = asyncio.ensure_future(orchestrator.run(plan))
    with _Interrupts(orchestrator, plan, running).heard():
        try:
            return await running
        except asyncio.CancelledError:
            return Result(plan, [], orchestrator.roster.slots, "scoped")


class _Interrupts:
    def __init__(self, orchestrator: Orchestrator, plan: Constellation, running: asyncio.Future[Result]) -> None:
        self._orchestrator, self._plan, self._running = orchestrator, plan, running
        self._asked: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Signals come here while the block runs."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._interrupt)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _interrupt(self) -> None:
        if self._asked is None:
            print("Stopping; Ctrl-C again stops without waiting.", file=sys.stderr, flush=True)
            self._asked = asyncio.ensure_future(self._ask())
        else:
            # A first cancellation asks, which has been done; the second stops the waiting.
            self._running.cancel()
            asyncio.get_running_loop().call_later(0.05, self._running.cancel)

    async def _ask(self) -> None:
        with contextlib.suppress(PlanError):  # it has just ended
            await self._orchestrator.cancel(self._plan.id)
