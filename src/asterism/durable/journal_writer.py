"""Journal writer of a running plan: commits each step together with the runs that follow from it.

The steps recorded until a commit begins are one record of the journal; the runs that they start are in the same commit.
Commits follow one another, each with the next record number. If another process has written that number, nothing of
the commit happened, and nothing more is written: the plan is loaded again, and its head says who owns it.

The summary of the plan, which lists show, is written at most ``LIST_INTERVAL`` after a step: many steps cost one write
of it.

A step may change the priority with which running tasks count (``core/plan/inherited_priority.py``). Those of their runs
that are still queued change in the commit of that step. A device that claims such a run in this moment only makes the
commit look again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable

from asterism.base.clock import Clock, new_id
from asterism.core.backoff import retry_delay
from asterism.core.errors import AsterismError
from asterism.core.plan.journal import RecordedConstellation, Step
from asterism.core.plan.node import Node
from asterism.core.record import replace
from asterism.core.run.transitions import prioritise
from asterism.durable.compaction import Compaction
from asterism.durable.journal_store import (
    Head,
    OwnershipLost,
    ReloadRequired,
    StoredConstellation,
    record_key,
    stage_write,
    store_results,
)
from asterism.fleet.ledger import without_control
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.events import Event
from asterism.store.protocol import (
    Notice,
    PutPriority,
    PutRegister,
    PutRun,
    Query,
    Store,
    Write,
)
from asterism.store.store_errors import Conflict, StoreError, StoreUnavailable

log = logging.getLogger("asterism.journal")

COMMIT_RETRY_PAUSES = (0.05, 5.0)
"""Seconds between two attempts while the store is unavailable: the first pause, and the longest."""


LIST_INTERVAL = 0.25
"""Seconds after a step until lists show what has come of it, at the latest."""


class JournalWriter:
    """``lost`` is called once, when this process no longer owns the plan, has to reload it, or the store cannot be used
    any more, such as after the promotion of a standby that lagged behind. ``deliver`` receives each event when its
    cause is durable."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: random.Random,
        stored: StoredConstellation,
        lost: Callable[[AsterismError], None],
        deliver: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._store, self._clock, self._chance, self._stored = store, clock, chance, stored
        self._lost, self._deliver = lost, deliver
        self._mark = new_id(store.clock(), chance)  # in each record of this writer; it writes each number once
        self._steps: list[Step] = []
        self._writes: list[Write] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._events: list[Event] = []  # of the steps that are recorded
        self._events_in_flight: list[Event] | None = None  # of the steps that are being written
        self.head = stored.head  # as the next commit leaves it
        self._head_due = False
        self._list_due = False
        self._listed_state = stored.plan.state
        self._list_timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._writing: asyncio.Task[None] | None = None
        self.sealed = False
        self._reason: OwnershipLost | None = None
        self.compaction = Compaction(store, stored, self)
        stored.plan.record = self.record

    @property
    def head_revision(self) -> int:
        """The revision of the register of the head."""
        return self._stored.revision

    @property
    def plan(self) -> RecordedConstellation:
        return self._stored.plan

    @property
    def reload_required(self) -> bool:
        """Whether the plan has to be read again, by this process."""
        return isinstance(self._reason, ReloadRequired)

    def record(self, step: Step) -> None:
        if not self.sealed:
            self._steps.append(step)
            if not self._scheduled:
                self._schedule()

    def publish(self, event: Event) -> None:
        """Deliver an event as soon as everything recorded up to now is durable."""
        if self._steps or self._head_due:
            self._events.append(event)
        elif self._events_in_flight is not None:
            self._events_in_flight.append(event)
        elif not self.sealed:
            self._deliver(event)

    async def commit(self, *writes: Write) -> None:
        """Commit these writes together with everything recorded up to now. Durable on return. Raises OwnershipLost."""
        if self.sealed:
            raise self._reason or self._closed()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes += writes
        self._waiting.append(done)
        if not self._scheduled:
            self._schedule()
        await done

    async def settled(self) -> bool:
        """Wait until everything recorded up to now is durable; False if it never will be."""
        with contextlib.suppress(OwnershipLost):
            await self.commit()
            return True
        return False

    async def change_head(self, **changes: object) -> None:
        """Commit a changed head, together with everything recorded up to now."""
        self.stage_head(**changes)
        await self.commit()

    def stage_head(self, **changes: object) -> None:
        """Change the head with the next commit."""
        self.head, self._head_due = self.head.changed(**changes), True

    def list_soon(self) -> None:
        """Write the summary with the next commit, which is now."""
        if not self.sealed:
            self._list_due = True
            if not self._scheduled:
                self._schedule()

    def stage(self, write: PutRegister | Notice) -> bool:
        """Write this in the commit of the step that is recorded just now. Returns whether it replaces an earlier write
        of that commit."""
        return not self.sealed and stage_write(self._writes, write)

    def tell_failure(self, node: Node, why: str) -> None:
        at = node.ended_at or self._store.clock()
        text = f"task {node.task.id!r} of plan {self.head.name!r} failed: {without_control(why)}"
        self.stage(Notice(at, "failed", text, device=node.device))

    def seal(self) -> None:
        """Discard what is recorded and write nothing more: the plan stays as the store has it."""
        self.sealed = True
        self._discard()
        self._fail(self._closed())

    async def close(self) -> None:
        """Seal, and wait for the commit that is under way."""
        self.seal()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self.compaction.close(lost=self._reason is not None)

    def _closed(self) -> OwnershipLost:
        return OwnershipLost(f"the journal of plan {self.head.name!r} is closed")

    # -- one commit after the other ------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Begin a commit two turns of the loop from now: what the tasks created in this turn want to write belongs to
        the same commit. The writer task is created in the next turn, and begins in the one after that."""
        if self._writing is None or self._writing.done():
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        if self._is_due() and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write())

    def _is_due(self) -> bool:
        return bool(self._steps or self._waiting or self._list_due)

    async def _write(self) -> None:
        try:
            while self._is_due() and not self.sealed:
                steps, self._steps = self._steps, []
                writes, self._writes = self._writes, []
                waiting, self._waiting = self._waiting, []
                self._events_in_flight, self._events = self._events, []
                try:
                    self.compaction.cut(len(steps))
                    await self._append(steps, writes, self._take_urged(writes))
                except BaseException:
                    self._waiting = [*waiting, *self._waiting]
                    raise
                for done in waiting:
                    if not done.done():
                        done.set_result(None)
                events, self._events_in_flight = self._events_in_flight, None
                for event in events:
                    self._deliver(event)
                self.compaction.written()
        except OwnershipLost as error:
            self.sealed, self._reason = True, error
            self._discard()
            self._fail(error)
            self._lost(error)
        except StoreError as error:
            self.seal()
            self._lost(error)
        except Exception as error:  # a bug here must not leave callers waiting
            log.exception("the journal of plan %s cannot be written", self.head.name)
            self.seal()
            self._lost(OwnershipLost(f"the journal of plan {self.head.name!r} cannot be written: {error}"))

    def _discard(self) -> None:
        """Nothing more is written."""
        self._steps.clear()
        self._writes.clear()
        if self._list_timer is not None:
            self._list_timer.cancel()

    def _fail(self, error: OwnershipLost) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            if not done.done():
                done.set_exception(error)
                done.exception()  # retrieved, so that asyncio does not complain if the waiter is gone

    def _take_urged(self, writes: list[Write]) -> dict[str, int]:
        """The keys of the runs whose priority has changed with the steps of this commit. Those that it creates get
        theirs."""
        if not self.plan.urged:
            return {}
        urged, self.plan.urged = self.plan.urged, {}
        keys = {f"{PREFIX}{self.plan.id}/{node.id}/{node.epoch}": int(node.urgency) for node in urged if node.epoch}
        for index, write in enumerate(writes):
            if isinstance(write, PutRun) and write.expected is None and write.run.key in keys:
                writes[index] = replace(write, run=write.run.changed(priority=keys.pop(write.run.key)))
        return keys

    async def _prioritised(self, urged: dict[str, int], writes: list[Write]) -> list[PutRun | PutPriority]:
        """The writes that give queued runs their priorities."""
        priority_writes: list[PutRun | PutPriority] = []
        written = {write.run.id for write in writes if isinstance(write, PutRun)}
        for key, priority in urged.items():
            for run in await self._store.find(Query(key=key)):
                changed = prioritise(run, priority, self._store.clock(), "by the tasks that wait for it")
                if changed is not run and run.id not in written:
                    priority_writes += [PutRun(changed, run.revision), PutPriority(run.id, priority)]
        return priority_writes

    async def _append(self, steps: list[Step], writes: list[Write], urged: dict[str, int]) -> None:
        """Commit the next record, with the changed head and these writes, until it is known to have happened. Runs
        that are ``urged`` get their priorities. Raises OwnershipLost if another process wrote its number."""
        stored, number = self._stored, self._stored.number + 1
        new, self._head_due = self.head, False
        views = self._views(new, at_once=new is not stored.head)
        tried, failures = False, 0
        refused: Conflict | None = None
        prioritised: list[PutRun | PutPriority] = []
        while True:
            try:
                if tried and await self._is_written(number):
                    break  # by an earlier attempt whose answer was lost
                if refused is not None and not any(refused.concerns("run", run_id) for run_id in _runs_of(prioritised)):
                    raise self._refusal(refused)
                results = await store_results(self._store, self.plan, number, steps)
                tried, refused = True, None
                prioritised = await self._prioritised(urged, writes) if urged else []
                also = [*results, *writes, *prioritised, *views]
                await self._store.commit(stored.next_record(new, steps, self._mark, also))
                break
            except Conflict as conflict:
                refused = conflict
            except StoreUnavailable as error:
                if self.sealed:
                    raise self._closed() from None
                log.warning("the journal of plan %s waits for the store: %s", self.head.name, error)
                failures += 1
                await self._clock.sleep(retry_delay(failures, *COMMIT_RETRY_PAUSES, self._chance))
        stored.written(new, steps, self._mark)

    def _views(self, head: Head, *, at_once: bool) -> list[Write]:
        """What lists show of the plan, as it is now, if this commit writes it: the summary after ``head``."""
        state = self.plan.state
        if not (at_once or self._list_due or state is not self._listed_state):
            if self._list_timer is None:
                self._list_timer = asyncio.get_running_loop().call_later(LIST_INTERVAL, self.list_soon)
            return []
        self._list_due, self._listed_state = False, state
        if self._list_timer is not None:
            self._list_timer.cancel()
            self._list_timer = None
        return [self._stored.summary(head, records=1)]

    def _refusal(self, conflict: Conflict) -> OwnershipLost:
        if conflict.kind in ("run", "key"):
            return ReloadRequired(f"another process has written or changed {conflict.what}")
        return ReloadRequired(f"{conflict.what} was written by another process")

    async def _is_written(self, number: int) -> bool:
        register = await self._store.register(record_key(self.head.name, number))
        return register is not None and register.value.get("mark") == self._mark


def _runs_of(writes: Iterable[PutRun | PutPriority]) -> list[str]:
    return [write.run.id for write in writes if isinstance(write, PutRun)]
