"""Unwritten runs: work of a plan in the plan's own process, whose run is written once, after its end.

The journal says that the task was started, and on which device, before it begins. So the store need not have its run
yet: a run that is completed within ``WRITE_AFTER`` seconds is written after that, with others (``journal_writer.py``).
One that lasts longer is written while it executes, and so is one that ends in any other way, is handed back, or whose
task is cancelled; from then on it is a run like any other.

If the process dies after the end, the next owner of the plan makes the run from what the journal says of it. If it dies
before, the next owner finds the run in the journal, by its id and the session that began it, and writes it as the run
of that session (``FleetDevice``). What follows is as for every run: the fleet finds out that the session is lost, and
by the rules for lost runs it is executed again. If the session lives after all, it meets its own run in the store.

Only the owner of a plan writes such a run, with its journal. A process that has lost the plan stops the work and writes
nothing: it cannot know whether the plan still wants it. One that reads its plan again continues with the new journal,
also with ends whose commit was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import PROCESSING, Grant, Run
from asterism.durable.journal_store import OwnershipLost
from asterism.durable.journal_writer import JournalWriter, UnwrittenEnd
from asterism.fleet.device.completion import HeldRun
from asterism.fleet.device.worker import LOST
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.devices import Work
from asterism.store.protocol import PutLog, PutRun

WRITE_AFTER = 0.5
"""After how many seconds of work a run is written: others want to see it, and to stop it."""


class UnwrittenRuns:
    """The unwritten runs of one process, by their keys, the oldest first."""

    def __init__(self) -> None:
        self._runs: dict[str, UnwrittenRun] = {}
        self._ends: dict[str, UnwrittenEnd] = {}  # whose commit was refused
        self._timer: asyncio.TimerHandle | None = None

    def add(self, run: Run, work: Work, journal: JournalWriter, fleet: Fleet) -> UnwrittenRun:
        assert run.key is not None
        unwritten = self._runs[run.key] = UnwrittenRun(self, run, work, journal, fleet)
        if self._timer is None:
            self._write_at(unwritten.began_at + WRITE_AFTER)
        return unwritten

    def get(self, key: str) -> UnwrittenRun | None:
        return self._runs.get(key)

    def remove(self, key: str | None) -> None:
        self._runs.pop(key or "", None)

    def _of(self, plan: str) -> list[UnwrittenRun]:
        return [unwritten for unwritten in self._runs.values() if unwritten.work.constellation == plan]

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

    # -- a plan is read again, or left ---------------------------------------------------------------------------------

    def write_all(self, plan: str) -> None:
        """The process leaves a plan: write what executes, in the next commit."""
        for unwritten in self._of(plan):
            if unwritten.wanted:
                unwritten.begin_writing()

    def keep_ends(self, ends: Sequence[UnwrittenEnd]) -> None:
        """Keep the ends of a commit that was refused."""
        self._ends |= {end.run.key: end for end in ends if end.run.key is not None}

    def take_end(self, key: str) -> UnwrittenEnd | None:
        return self._ends.pop(key, None)

    def attach(self, journal: JournalWriter, resumed: Collection[tuple[str, int]]) -> None:
        """This process has read a plan (again): go on with what it still wants."""
        for unwritten in self._of(journal.head.name):
            if (unwritten.work.task.id, unwritten.work.epoch) in resumed:
                unwritten.attach(journal)
            else:
                unwritten.abandon()

    def abandon(self, plan: str) -> list[UnwrittenEnd]:
        """This process has nothing to do with a plan any more. Returns the ends that were not written."""
        for unwritten in self._of(plan):
            unwritten.abandon()
        ends = [end for end in self._ends.values() if end.run.created_by == plan]
        for end in ends:
            self.take_end(end.run.key or "")
        return ends


class UnwrittenRun:
    """``end`` is the run once it is completed; None once it is written, or was given up (``given_up``)."""

    def __init__(self, runs: UnwrittenRuns, run: Run, work: Work, journal: JournalWriter, fleet: Fleet) -> None:
        loop = asyncio.get_running_loop()
        self._runs, self.work, self._journal, self._fleet = runs, work, journal, fleet
        self.run = run
        self.began_at = loop.time()
        self.end: asyncio.Future[Run | None] = loop.create_future()
        self.held: HeldRun | None = None
        self.writing: asyncio.Task[bool] | None = None
        self.given_up = False
        self._abandoned = False
        self._attached: asyncio.Future[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether the plan waits for this execution."""
        return self._journal.plan.is_running(self.work.task.id, self.work.epoch)

    def completed(self, after: Run, log: Sequence[PutLog]) -> bool:
        """Write the run with its end, in the commit of what follows from it. Returns False if the run has to be written
        first."""
        if self.writing is not None or self._journal.sealed or self.end.done():
            return False
        self._leave(after)
        self._journal.stage_end(after, log, (self.work.task.id, self.work.epoch))
        return True

    def give_up(self) -> None:
        """The device has stopped the work, and the store does not know of it."""
        self.given_up = True
        self._leave(None)

    def attach(self, journal: JournalWriter) -> None:
        """Continue with this journal."""
        self._journal = journal
        self._wake()

    def abandon(self) -> None:
        """Stop the work, and write nothing."""
        self._abandoned = True
        self._wake()
        held = self.held
        if held is not None and not held.ending and held.task is not None:
            held.stopping = held.stopping or LOST
            held.task.cancel()

    def _wake(self) -> None:
        if self._attached is not None and not self._attached.done():
            self._attached.set_result(None)

    def begin_writing(self) -> asyncio.Task[bool]:
        if self.writing is None:
            self.writing = asyncio.create_task(self._write())
        return self.writing

    async def write(self) -> bool:
        """Write the run as it is now. Returns False if this process has lost its plan, or the plan does not want the
        run any more."""
        return await asyncio.shield(self.begin_writing())

    async def _write(self) -> bool:
        while True:
            journal, node = self._journal, self._journal.plan.nodes.get(self.work.task.id)
            priority = self.run.priority if node is None else int(node.urgency)
            run = self.run if priority == self.run.priority else self.run.changed(priority=priority)
            try:
                await journal.commit(PutRun(run, None))
                break
            except OwnershipLost:
                while self._journal is journal and not self._abandoned:
                    self._attached = asyncio.get_running_loop().create_future()
                    await self._attached
            if self._abandoned:
                self._leave(None)
                return False
        if self.held is not None:
            self.held.written(run, self._fleet.clock.time())
        self._leave(None)
        return True

    def _leave(self, end: Run | None) -> None:
        self._runs.remove(self.run.key)
        if not self.end.done():
            self.end.set_result(end)


# -- ends whose commit was refused -------------------------------------------------------------------------------------


def before_end(end: UnwrittenEnd) -> Run:
    """The run as it was before its work was done."""
    run = end.run
    story, revision = run.story[:-1], run.revision - 1
    return run.changed(
        status=PROCESSING, session=end.session, output=None, ended_at=None, story=story, revision=revision
    )


async def complete(fleet: Fleet, end: UnwrittenEnd) -> None:
    """Complete a run that is in the store. Nothing happens if it is not this session's any more."""
    run, now = end.run, fleet.store.clock()
    grant = Grant(run.id, end.session, run.epoch)
    try:
        try:
            await fleet.ledger.change(
                run.id, lambda stored: transitions.complete(stored, grant, run.output, now), also=end.log
            )
        except ValueError as error:
            why = f"its result cannot be stored: {error}"
            await fleet.ledger.change(run.id, lambda stored: transitions.fail(stored, grant, why, now, final=True))
    except RunRefused:
        return
