"""Writing the journal of a constellation while it runs: what was recorded is committed together with what follows from
it, and only then does it happen.

All steps that were recorded until a commit begins are one record, and so are the runs that they start. Commits follow
one another, each with the next number. If another process has written that number, the constellation is not ours any
more: nothing that was to be written with it has happened, and nothing more is written.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from asterism.base.clock import Clock
from asterism.base.ids import new_id
from asterism.core.plan.journal import RecordedConstellation, Step
from asterism.durable.compaction import Shortening
from asterism.durable.journal_store import (
    Head,
    OwnershipLost,
    ReloadRequired,
    StoredConstellation,
    head_key,
    record_key,
    step_record,
)
from asterism.orchestrator.events import Event
from asterism.store.protocol import ExpectRegister, PutRegister, PutRun, Store, Write
from asterism.store.store_errors import Conflict, StoreUnavailable

log = logging.getLogger("asterism.journal")

PAUSE = (0.05, 5.0)
"""How long to wait while the store is out of reach: at first, and at most."""


class Journal:
    """``lost`` is called once if the constellation is not ours any more, or not as we know it. ``announce`` hears of
    events when what they tell of is durable."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: random.Random,
        kept: StoredConstellation,
        lost: Callable[[OwnershipLost], None],
        announce: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._store, self._clock, self._chance, self._kept, self._lost = store, clock, chance, kept, lost
        self._mark = new_id(store.clock(), chance)  # of all that this journal writes, each number of it once
        self._steps: list[Step] = []
        self._writes: list[Write] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._announce = announce
        self._events: list[Event] = []  # of what has been recorded
        self._flying: list[Event] | None = None  # of what is being written
        self._changes: dict[str, object] = {}  # of the head, for the next commit
        self._scheduled = False
        self._writing: asyncio.Task[None] | None = None
        self.sealed = False
        self._why: OwnershipLost | None = None
        self.leaving = False
        """Whether the constellation is being left to others: what stops now is not called off."""
        self.taken_up: set[tuple[str, int]] = set()
        """The executions (task, epoch) that were under way when this process took the constellation up."""
        self.shortening = Shortening(store, kept, self)
        kept.plan.record = self.record

    @property
    def head(self) -> Head:
        return self._kept.head

    @property
    def plan(self) -> RecordedConstellation:
        return self._kept.plan

    def record(self, step: Step) -> None:
        if not self.sealed:
            self._steps.append(step)
            self._soon()

    def tell(self, event: Event) -> None:
        """Announce an event as soon as everything that was recorded up to now is durable."""
        if self._steps or self._changes:
            self._events.append(event)
        elif self._flying is not None:
            self._flying.append(event)
        elif not self.sealed:
            self._announce(event)

    async def commit(self, *writes: Write) -> None:
        """Write these together with everything that was recorded up to now. It is durable when this returns. Raises
        OwnershipLost."""
        if self.sealed:
            raise self._why or OwnershipLost(f"the journal of {self.head.name!r} is closed")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes += writes
        self._waiting.append(done)
        self._soon()
        await done

    async def change_head(self, **changes: object) -> None:
        """Write another head, with everything that was recorded up to now."""
        self.wish(**changes)
        await self.commit()

    def wish(self, **changes: object) -> None:
        """Change the head with the next commit."""
        self._changes |= changes

    def seal(self) -> None:
        """Write nothing more, whatever is still recorded: the constellation is left as the store has it."""
        self.sealed = True
        self._steps.clear()
        self._writes.clear()
        self._fail(OwnershipLost(f"the journal of {self.head.name!r} is closed"))

    async def close(self) -> None:
        """End, and wait for what is being written."""
        self.seal()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self.shortening.close(lost=self._why is not None)

    # -- one commit after the other ------------------------------------------------------------------------------------

    def _soon(self) -> None:
        """After the tasks that were made in this turn of the loop have had theirs: what they want to write belongs to
        the same commit. The task that writes it is made in the next turn, and begins in the one after that."""
        if self._scheduled or (self._writing is not None and not self._writing.done()):
            return
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        if (self._steps or self._waiting) and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        try:
            while (self._steps or self._waiting) and not self.sealed:
                steps, self._steps = self._steps, []
                writes, self._writes = self._writes, []
                waiting, self._waiting = self._waiting, []
                self._flying, self._events = self._events, []
                try:
                    self.shortening.cut(len(steps))
                    await self._append(steps, writes)
                except BaseException:
                    self._waiting = [*waiting, *self._waiting]
                    raise
                for one in waiting:
                    if not one.done():
                        one.set_result(None)
                events, self._flying = self._flying, None
                for event in events:
                    self._announce(event)
                self.shortening.written()
        except OwnershipLost as error:
            self.sealed, self._why = True, error
            self._fail(error)
            self._lost(error)
        except Exception as error:  # a mistake of ours must not leave everybody waiting
            log.exception("the journal of %s cannot be written", self.head.name)
            self.seal()
            self._lost(OwnershipLost(f"the journal of {self.head.name!r} cannot be written: {error}"))

    def _fail(self, error: OwnershipLost) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_exception(error)
                one.exception()  # whoever waits hears of it; if nobody does any more, that is no mistake

    async def _append(self, steps: list[Step], writes: list[Write]) -> None:
        kept, number = self._kept, self._kept.number + 1
        changes, self._changes = self._changes, {}
        new = kept.head.changed(**changes) if changes else kept.head
        # the one before it has to be there: its number may be free because all that we know of is removed or lost
        fences: list[Write] = [ExpectRegister(record_key(new.name, kept.number), 1)]
        if changes:
            fences.append(PutRegister(head_key(new.name), new.to_json(), kept.revision))
        record = step_record(kept.plan.id, number, new.epoch, steps, self._mark)
        await self._surely([*fences, record, *writes], number)
        kept.number, kept.steps = number, kept.steps + len(steps)
        kept.head, kept.revision = new, kept.revision + bool(changes)

    async def _surely(self, writes: list[Write], number: int) -> None:
        """Until it is known to be written. Raises OwnershipLost if somebody else has written this number."""
        pause, _ = PAUSE
        tried = False
        refused: Conflict | None = None
        while True:
            try:
                if tried and await self._is_there(number):
                    return  # by ourselves, and we were not told
                if refused is not None:
                    raise self._refusal(refused.what)
                tried = True
                await self._store.commit(writes)
                return
            except Conflict as conflict:
                refused = conflict
            except ValueError as error:
                if any(isinstance(write, PutRun) and write.expected is not None for write in writes):
                    raise ReloadRequired(
                        f"the end of a run cannot be kept: {error}"
                    ) from error  # its device says so, alone
                raise
            except StoreUnavailable as error:
                if self.sealed:
                    raise OwnershipLost(f"the journal of {self.head.name!r} is closed") from None
                log.warning("the journal of %s waits for the store: %s", self.head.name, error)
                await self._clock.sleep(pause * self._chance.uniform(0.5, 1.5))
                pause = min(2 * pause, PAUSE[1])

    def _refusal(self, what: str) -> OwnershipLost:
        if what.startswith("run "):
            return ReloadRequired(f"{what} was changed by others when it was about to end")
        return OwnershipLost(
            f"another process has gone on with constellation {self.head.name!r} ({what} is not as this one left it)"
        )

    async def _is_there(self, number: int) -> bool:
        found = await self._store.register(record_key(self.head.name, number))
        return found is not None and found.value.get("mark") == self._mark
