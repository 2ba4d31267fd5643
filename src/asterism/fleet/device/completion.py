"""The ends of runs on their way to the store: those that come up together leave together, in one commit.

One commit is all or nothing, so nothing is known of any of them when it fails: then each is told again alone, by
whoever knows how to find out whether it was written after all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from asterism.core.errors import RunRefused
from asterism.core.run.run import COMPLETED, Run
from asterism.fleet.device.held_run import Holding
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import Step
from asterism.store.protocol import PutRun
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.device")

MOST = 100
"""So many ends leave together."""


class End(NamedTuple):
    """``after`` is what ``step`` made of the run that is held."""

    holding: Holding
    step: Step
    after: Run


class Outbox:
    """``told`` is called for each end that was written, ``again`` for each that has to be told alone, ``gone`` for
    those of which nobody was told because we were cancelled."""

    def __init__(
        self, fleet: Fleet, told: Callable[[End], None], again: Callable[[End], None], gone: Callable[[End], None]
    ) -> None:
        self._fleet, self._told, self._again, self._gone = fleet, told, again, gone
        self._open: list[End] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, holding: Holding, step: Step) -> bool:
        """Let it leave with everything that comes up before the loop is free again; from now on its task is the one
        that tells them all. Whether it does: it is told alone if anything else follows from its end."""
        run = holding.run
        if run.series is not None or run.id in self._fleet.consumers:
            return False
        try:
            after = step(run, holding.workflow)
        except RunRefused:
            return False
        if after.status is not COMPLETED:
            return False
        holding.telling = True
        if self._task is None or len(self._open) >= MOST:
            self._task = self._begin()
        holding.task = self._task
        self._open.append(End(holding, step, after))
        return True

    def _begin(self) -> asyncio.Task[None]:
        ends: list[End] = []
        self._open = ends
        task = asyncio.create_task(self._send(ends))
        task.add_done_callback(lambda task: self._sent(task, ends))
        return task

    async def _send(self, ends: list[End]) -> None:
        if ends is self._open:  # nothing comes to them any more, and what has left is kept nowhere
            self._open, self._task = [], None
        try:
            await self._fleet.store.commit([PutRun(end.after, end.holding.run.revision) for end in ends])
        except (StoreError, ValueError) as error:
            log.info("%d ends were not written together, and are told one by one: %s", len(ends), error)
            for end in ends:
                self._again(end)
        else:
            for end in ends:
                self._told(end)

    def _sent(self, task: asyncio.Task[None], ends: list[End]) -> None:
        if task is self._task:  # it was cancelled before its first step
            self._task = None
        if not task.cancelled():
            error = task.exception()
            if error is None:
                return
            log.error("a mistake in Asterism itself", exc_info=error)
        for end in ends:
            if end.holding.task is task:
                self._gone(end)
