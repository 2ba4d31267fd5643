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
    with _Interrupts(orchestrator, plan).heard():
        return await orchestrator.run(plan)


class _Interrupts:
    def __init__(self, orchestrator: Orchestrator, plan: Constellation) -> None:
        self._orchestrator, self._plan = orchestrator, plan
        self._asking: list[asyncio.Task[None]] = []

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
        again = bool(self._asking)
        if not again:
            print("Stopping; Ctrl-C again stops without waiting.", file=sys.stderr, flush=True)
        self._asking.append(asyncio.ensure_future(self._ask(hard=again)))

    async def _ask(self, hard: bool) -> None:
        with contextlib.suppress(PlanError):  # it has just ended
            await self._orchestrator.cancel(self._plan.id, hard=hard)
