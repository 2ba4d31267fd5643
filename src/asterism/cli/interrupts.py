"""Ctrl-C and SIGTERM: the first signal asks the work to stop, the second stops it at once.

A plan without a store is cancelled. A plan in a store is only stopped here: another process can resume it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from asterism.base.operating_system import on_signals
from asterism.cli.screen import show_cursor
from asterism.core.errors import PlanError
from asterism.core.plan.constellation import Constellation
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.orchestrator.result import Result

INTERRUPTED = 130

Value = TypeVar("Value")


async def run_until_interrupted(orchestrator: Orchestrator, plan: Constellation) -> Result:
    """Run a plan. A signal cancels it, and the result says so."""
    with on_signals(_PlanCanceller(orchestrator, plan).interrupt):
        return await orchestrator.run(plan)


STOPPING = "Stopping; press Ctrl-C again to stop at once."


async def work_until_interrupted(
    work: Coroutine[Any, Any, Value], farewell: Callable[[], str], *, asked: str = STOPPING
) -> Value | None:
    """The result of some work; None if a signal stopped it. Waits until the work has cleaned up.

    The first signal prints ``asked``. A second one ends the process at once, after printing ``farewell``."""
    job: asyncio.Task[Value] = asyncio.ensure_future(work)
    stopper = _WorkStopper(job, farewell, asked)
    with on_signals(stopper.interrupt):
        try:
            return await job
        except asyncio.CancelledError:
            if not stopper.asked:
                raise
            return None


class _PlanCanceller:
    def __init__(self, orchestrator: Orchestrator, plan: Constellation) -> None:
        self._orchestrator, self._plan = orchestrator, plan
        self._asking: list[asyncio.Task[None]] = []

    def interrupt(self) -> None:
        again = bool(self._asking)
        if not again:
            print("Cancelling; press Ctrl-C again to stop without waiting.", file=sys.stderr, flush=True)
        self._asking.append(asyncio.ensure_future(self._ask(hard=again)))

    async def _ask(self, hard: bool) -> None:
        with contextlib.suppress(PlanError):  # the plan has just ended
            await self._orchestrator.cancel(self._plan.id, hard=hard)


class _WorkStopper:
    def __init__(self, job: asyncio.Task[Any], farewell: Callable[[], str], asked: str) -> None:
        self._job, self._farewell, self._text = job, farewell, asked
        self.asked = False

    def interrupt(self) -> None:
        if self.asked:
            self._exit()
        self.asked = True
        if self._text:
            print(self._text, file=sys.stderr, flush=True)
        self._job.cancel()

    def _exit(self) -> None:
        """End the process: its tasks end with it, and the store stays as it is."""
        with contextlib.suppress(OSError, ValueError):
            show_cursor()
            sys.stdout.flush()
            print(self._farewell(), file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)
