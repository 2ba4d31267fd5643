"""Unwritten runs: work of a plan in the plan's own process, whose run is written once, with its end.

The journal says that the task was started, and on which device, before it begins. So the store need not have its run
yet: a run that is completed within ``WRITE_AFTER`` seconds is inserted by the commit that records the end of its task.
One that lasts longer is written while it executes, and so is one that ends in any other way, is handed back, or whose
task is cancelled; from then on it is a run like any other.

If the process dies, the next owner of the plan finds the run in the journal, by its id and the session that began it,
and writes it as the run of that session (``FleetDevice``). What follows is as for every run: the fleet finds out that
the session is lost, and by the rules for lost runs it is executed again. If the session lives after all, it meets its
own run in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import PROCESSING, Grant, Run
from asterism.durable.journal_store import OwnershipLost
from asterism.durable.journal_writer import JournalWriter
from asterism.fleet.device.completion import HeldRun
from asterism.fleet.fleet import Fleet
from asterism.store.optimistic_update import until_available
from asterism.store.protocol import PutLog, PutRun

WRITE_AFTER = 0.5
"""After how many seconds of work a run is written: others want to see it, and to stop it."""


class UnwrittenRuns:
    """The unwritten runs of one process, by their keys, the oldest first."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._runs: dict[str, UnwrittenRun] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, run: Run, journal: JournalWriter) -> UnwrittenRun:
        assert run.key is not None
        unwritten = self._runs[run.key] = UnwrittenRun(self, run, run.key, journal)
        if self._timer is None:
            self._write_at(unwritten.began_at + WRITE_AFTER)
        return unwritten

    def get(self, key: str) -> UnwrittenRun | None:
        return self._runs.get(key)

    def remove(self, key: str) -> None:
        self._runs.pop(key, None)

    def _write_at(self, when: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(when, self._write_lasting, when)

    def _write_lasting(self, now: float) -> None:
        """Write those that have lasted long enough, in one commit. ``now`` is the time of this call as it was planned:
        the clock of the loop may show a little less."""
        self._timer = None
        for unwritten in self._runs.values():
            if unwritten.writing is None:
                if unwritten.began_at + WRITE_AFTER > now:
                    self._write_at(unwritten.began_at + WRITE_AFTER)
                    return
                unwritten.begin_writing()


async def write_end(fleet: Fleet, after: Run, session: str) -> None:
    """Write a completed run that this session executed, though not what follows from it in the plan: that was refused.
    Nothing happens if the run is not this session's any more."""
    before = after.changed(
        status=PROCESSING,
        session=session,
        output=None,
        ended_at=None,
        story=after.story[:-1],
        revision=after.revision - 1,
    )
    grant, now = Grant(after.id, session, after.epoch), fleet.store.clock()
    added = await fleet.ledger.add(before, lambda offered: offered)
    with contextlib.suppress(RunRefused):  # it is another's
        if added.id == after.id:
            try:
                await fleet.ledger.change(after.id, lambda run, _: transitions.complete(run, grant, after.output, now))
            except ValueError as error:
                why = f"its result cannot be stored: {error}"
                await fleet.ledger.change(
                    after.id, lambda run, flow: transitions.fail(run, grant, why, flow, now, final=True)
                )


class UnwrittenRun:
    """``end`` is the run once it is completed; None once it is written, or was given up (``given_up``)."""

    def __init__(self, runs: UnwrittenRuns, run: Run, key: str, journal: JournalWriter) -> None:
        loop = asyncio.get_running_loop()
        self._runs, self._key, self._journal = runs, key, journal
        self.run = run
        self.began_at = loop.time()
        self.end: asyncio.Future[Run | None] = loop.create_future()
        self.held: HeldRun | None = None
        self.writing: asyncio.Task[bool] | None = None
        self.given_up = False

    def completed(self, after: Run, log: Sequence[PutLog]) -> bool:
        """Write the run with its end, in the commit of what follows from it. Returns False if the run has to be written
        first."""
        if self.writing is not None or self._journal.sealed or self.end.done():
            return False
        self._leave(after)
        self._journal.stage_end(after, log)
        return True

    def give_up(self) -> None:
        """The device has stopped the work, and the store does not know of it."""
        self.given_up = True
        self._leave(None)

    def begin_writing(self) -> asyncio.Task[bool]:
        if self.writing is None:
            self.writing = asyncio.create_task(self._write())
        return self.writing

    async def write(self) -> bool:
        """Write the run as it is now. Returns False if another process has created the run of this execution."""
        return await asyncio.shield(self.begin_writing())

    async def _write(self) -> bool:
        fleet, run = self._runs.fleet, self.run
        try:
            await self._journal.commit(PutRun(run, None))
        except OwnershipLost:  # the plan is read again, by this process or by another: it looks for the run by its key
            run = await until_available(fleet.clock, lambda: fleet.ledger.add(self.run, lambda offered: offered))
            if run.id != self.run.id:
                return False
        if self.held is not None:
            self.held.written(run, fleet.clock.time())
        self._leave(None)
        return True

    def _leave(self, end: Run | None) -> None:
        self._runs.remove(self._key)
        if not self.end.done():
            self.end.set_result(end)
