"""Ctrl-C: the first time everything is asked to stop, the second time nobody is waited for.

A plan that lives in this process is cancelled. A constellation that is kept in a store is left: it goes on when
somebody resumes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from asterism.cli.screen import show_cursor
from asterism.core.errors import PlanError
from asterism.core.plan.constellation import Constellation
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.orchestrator.result import Result

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130

Value = TypeVar("Value")


async def run_until_interrupted(orchestrator: Orchestrator, plan: Constellation) -> Result:
    """Run a plan. When interrupted it is cancelled, and the result says so."""
    with _heard(_Interrupts(orchestrator, plan).interrupt):
        return await orchestrator.run(plan)


async def work_until_interrupted(work: Coroutine[Any, Any, Value], farewell: Callable[[], str]) -> Value | None:
    """Do some work; None when it was interrupted. It is waited for until it has cleaned up; with a second signal
    nobody is: ``farewell`` is the last that is said then, and the process ends."""
    job: asyncio.Task[Value] = asyncio.ensure_future(work)
    leaving = _Leaving(job, farewell)
    with _heard(leaving.interrupt):
        try:
            return await job
        except asyncio.CancelledError:
            if not leaving.asked:
                raise
            return None


@contextlib.contextmanager
def _heard(interrupt: Callable[[], None]) -> Iterator[None]:
    """Signals come here while the block runs."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


class _Interrupts:
    def __init__(self, orchestrator: Orchestrator, plan: Constellation) -> None:
        self._orchestrator, self._plan = orchestrator, plan
        self._asking: list[asyncio.Task[None]] = []

    def interrupt(self) -> None:
        again = bool(self._asking)
        if not again:
            print("Stopping; Ctrl-C again stops without waiting.", file=sys.stderr, flush=True)
        self._asking.append(asyncio.ensure_future(self._ask(hard=again)))

    async def _ask(self, hard: bool) -> None:
        with contextlib.suppress(PlanError):  # it has just ended
            await self._orchestrator.cancel(self._plan.id, hard=hard)


class _Leaving:
    def __init__(self, job: asyncio.Task[Any], farewell: Callable[[], str]) -> None:
        self._job, self._farewell = job, farewell
        self.asked = False

    def interrupt(self) -> None:
        if self.asked:
            self._go()
        self.asked = True
        print("Leaving; Ctrl-C again leaves at once.", file=sys.stderr, flush=True)
        self._job.cancel()

    def _go(self) -> None:
        """What runs here ends with this process, and the store is left as it is."""
        with contextlib.suppress(OSError, ValueError):
            show_cursor()
            sys.stdout.flush()
            print(self._farewell(), file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)
