"""The coordinator's pass over schedules: decides about every tick that is due.

A schedule knows when its next tick fires, so a pass without a due tick costs a comparison for each schedule. One commit
decides about one tick (scheduled_work.py). Two coordinators at once are wasteful and never wrong: of two decisions
about one tick, one meets a conflict, and nothing of it has happened.
"""

from __future__ import annotations

import logging

from asterism.base.error_log import RecurringError
from asterism.core.errors import AsterismError
from asterism.core.schedule.schedule import InvalidSchedule
from asterism.core.schedule.ticks import decided, due_tick, entries_of, is_due, rewound
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import Overtaken
from asterism.fleet.scheduled_work import SCHEDULES, ScheduledWork, StoredSchedule, decode, ticks_of
from asterism.store.protocol import Notice
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.schedule")

DECISIONS_PER_PASS = 20
"""How many ticks of one schedule are decided in one pass: the fleet has other work to do."""

NEVER = float("inf")


class SchedulePass:
    """Decides about the due ticks of a fleet's schedules."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store = fleet, fleet.store
        self._work = ScheduledWork(fleet)
        self._known: dict[str, tuple[int, StoredSchedule | None]] = {}  # by key, with the revision that was decoded
        self._troubles: dict[str, RecurringError] = {}

    async def run_pass(self) -> float:
        """Decide about all due ticks. Returns in how many seconds the next one fires. A schedule that cannot be used
        does not keep the others waiting."""
        before, self._known = self._known, {}
        soonest = NEVER
        for register in await self._store.registers(SCHEDULES):
            name = register.key.removeprefix(SCHEDULES)
            try:
                seen = before.get(register.key)
                stored = seen[1] if seen is not None and seen[0] == register.revision else decode(register)
                self._known[register.key] = (register.revision, stored)
                if stored is not None:
                    soonest = min(soonest, await self._decide_all(stored))
            except StoreError:
                raise
            except Overtaken:
                continue  # another coordinator decides about it
            except Exception as error:
                self._trouble(name).occurred(error)
            else:
                self._trouble(name).recovered()
        return soonest

    def _trouble(self, name: str) -> RecurringError:
        what = f"cannot decide about schedule {name}"
        known = self._troubles.get(name)
        if known is None:
            known = RecurringError(log, what, f"decides about schedule {name} again", self._fleet.clock.time)
            self._troubles[name] = known
        return known

    async def _decide_all(self, stored: StoredSchedule) -> float:
        """Decide about the due ticks of one schedule. Returns in how many seconds its next tick fires."""
        if stored.schedule.replaced:
            stored = await self._work.cancel_replaced(stored)
        for _ in range(DECISIONS_PER_PASS):
            if not is_due(stored.schedule, self._store.clock()):
                break
            stored = await self._decide(stored)
        due = None if stored.schedule.paused is not None else stored.schedule.due
        return NEVER if due is None else max(0.0, due - self._store.clock())

    async def _decide(self, stored: StoredSchedule) -> StoredSchedule:
        """Decide about the next tick of a schedule. Returns the schedule as it is then."""
        now, next_tick = self._store.clock(), ticks_of(stored.schedule)
        schedule = rewound(stored.schedule, now, next_tick)
        due = due_tick(schedule, now, next_tick)
        if due is None:
            await self._work.record(stored, schedule)
            return StoredSchedule(schedule, stored.revision + 1)
        after, missed = decided(schedule, due, next_tick), entries_of(due, now)
        if due.tick is None:
            more = " or more" if due.more else ""
            message = f"schedule {schedule.name}: {len(due.missed)}{more} missed ticks were not created"
            await self._work.record(stored, after, missed, Notice(now, "schedule", message))
            return StoredSchedule(after, stored.revision + 1)
        try:
            await self._work.create(stored, after, due.tick, missed)
        except (StoreError, Overtaken, InvalidSchedule):
            raise
        except AsterismError as error:
            await self._work.record_failure(stored, after, due.tick, missed, error)
        return await self._read_again(stored, after.name)

    async def _read_again(self, stored: StoredSchedule, name: str) -> StoredSchedule:
        again = decode(await self._store.register(f"{SCHEDULES}{name}"))
        if again is None:
            raise Overtaken(f"schedule {name!r} was removed")
        return again if not again.schedule.replaced else await self._work.cancel_replaced(again)
