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
    asking: list[asyncio.Task[None]] = []

    async def ask(hard: bool) -> None:
        with contextlib.suppress(PlanError):  # the plan has just ended
            await orchestrator.cancel(plan.id, hard=hard)

    def interrupt() -> None:
        if not asking:
            _say("Cancelling; press Ctrl-C again to stop without waiting.")
        asking.append(asyncio.ensure_future(ask(hard=bool(asking))))

    with on_signals(interrupt):
        return await orchestrator.run(plan)


STOPPING = "Stopping; press Ctrl-C again to stop at once."


async def work_until_interrupted(
    work: Coroutine[Any, Any, Value], farewell: Callable[[], str], *, asked: str = STOPPING
) -> Value | None:
    """The result of some work; None if a signal stopped it. Waits until the work has cleaned up.

    The first signal prints ``asked``. A second one ends the process at once, after printing ``farewell``."""
    job: asyncio.Task[Value] = asyncio.ensure_future(work)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            _exit(farewell)
        interrupted = True
        if asked:
            _say(asked)
        job.cancel()

    with on_signals(interrupt):
        try:
            return await job
        except asyncio.CancelledError:
            if not interrupted:
                raise
            return None


def _exit(farewell: Callable[[], str]) -> None:
    """End the process: its tasks end with it, and the store stays as it is."""
    with contextlib.suppress(OSError, ValueError):
        show_cursor()
        sys.stdout.flush()
        _say(farewell())
    os._exit(INTERRUPTED)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
