"""Backfills of schedules: plans for ticks of the past, one a tick, created by the coordinator.

The state of a backfill is a register. The coordinator carries it on, in the pass in which it also decides about ticks,
so a backfill survives every process; a command that follows it only reads. Three things keep a tick from being created
twice: the commit that stores its plan expects the revision of the register that was read, it moves the cursor past the
tick, and the name of the plan follows from schedule and tick. A plan that failed before is run again; one that
succeeded is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import NamedTuple

from asterism.base.error_log import RecurringError
from asterism.core.errors import AsterismError, PlanError
from asterism.core.schedule.schedule import InvalidSchedule, Schedule
from asterism.core.schedule.tick_values import parse_time, time_until
from asterism.core.schedule.ticks import (
    MOST_TICKS,
    Backfill,
    NextTick,
    backfill_ticks,
    due_for_backfill,
    interval_ticks,
    settle,
    ticks_between,
)
from asterism.fleet.extensions import plan_port
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import Overtaken
from asterism.fleet.scheduled_work import (
    DECISIONS_PER_PASS,
    NEVER,
    awaited_name,
    plan_key,
    plan_name,
    read_schedule,
    ticks_of,
    values_of,
    zone_of,
)
from asterism.store.optimistic_update import retried, retry_on_conflict, try_commit
from asterism.store.protocol import PLANS as HEADS
from asterism.store.protocol import Notice, PutRegister, Register, Write
from asterism.store.store_errors import Conflict, CorruptRecord, StoreError

log = logging.getLogger("asterism.schedule")

BACKFILLS = "backfill/"
"""Prefix of the keys of registers: the last backfill of each schedule."""

BETWEEN_PASSES = 1.0
"""Seconds between two passes while a backfill is open."""

TICKS_PER_TURN = 20
"""How many ticks are counted in one turn of the event loop: those of a cron expression take long."""


class BackfillRuns(AsterismError):
    """A schedule has a backfill that has not ended."""


class UnknownBackfill(AsterismError):
    """A schedule has had no backfill."""


class StoredBackfill(NamedTuple):
    """A backfill with the revision of its register."""

    backfill: Backfill
    revision: int


def backfill_key(schedule: str) -> str:
    return f"{BACKFILLS}{schedule}"


def _decode(register: Register) -> StoredBackfill:
    return StoredBackfill(register.read(Backfill.from_json), register.revision)


# -- what a person asks for --------------------------------------------------------------------------------------------


async def start_backfill(
    fleet: Fleet,
    name: str,
    first: str,
    last: str | None,
    *,
    every: int | None = None,
    parallel: int = 1,
    only_missing: bool = False,
) -> Backfill:
    """Begin a backfill of a schedule, from one day or time to another, in the time zone of the schedule; without
    ``last`` up to now. With ``every`` the ticks are so many seconds apart; with ``only_missing`` plans that failed are
    left alone. Durable on return.

    Raises UnknownSchedule, InvalidSchedule for a time without ticks or with too many, InvalidTick, and BackfillRuns."""
    schedule, now = await fleet.schedules.get(name), fleet.store.clock()
    if schedule.on_event is not None:
        raise InvalidSchedule(f"schedule {name!r} creates plans for events; a backfill creates those of ticks")
    if schedule.plan is None:
        raise InvalidSchedule(f"schedule {name!r} creates runs of a workflow; a backfill creates plans")
    begin, end = _range(schedule, first, last, now)
    next_tick = ticks_of(schedule) if every is None else interval_ticks(int(begin), every)
    ticks = list[int]()
    for tick in ticks_between(begin, end, next_tick):
        ticks.append(tick)
        if len(ticks) > MOST_TICKS:
            raise InvalidSchedule(f"a backfill has at most {MOST_TICKS:,} ticks; choose a shorter time")
        if not len(ticks) % TICKS_PER_TURN:
            await asyncio.sleep(0)
    if not ticks:
        raise InvalidSchedule(f"schedule {name!r} has no tick from {first} to {last or 'now'}")
    new = Backfill(
        name, ticks[0], ticks[-1], len(ticks), parallel, fleet.by, now, float(ticks[0] - 1), every, only_missing
    )

    async def attempt() -> None:
        register = await fleet.store.register(backfill_key(name))
        if register is not None and _decode(register).backfill.ended_at is None:
            raise BackfillRuns(
                f"a backfill of schedule {name!r} has not ended; cancel it with: asterism schedule backfill {name} "
                "--cancel"
            )
        await fleet.store.commit([PutRegister(backfill_key(name), new.to_json(), register and register.revision)])

    await retry_on_conflict(attempt)
    return new


def _range(schedule: Schedule, first: str, last: str | None, now: float) -> tuple[float, float]:
    """From when to when. A day without a time is meant as a whole. No tick of the future is created."""
    zone = zone_of(schedule)
    begin = parse_time(first, zone)[0].timestamp()
    return begin, now if last is None else min(now, time_until(last, zone))


async def read_backfill(fleet: Fleet, name: str) -> Backfill:
    """The last backfill of a schedule. Raises UnknownSchedule and UnknownBackfill."""
    return (await _read(fleet, name)).backfill


async def _read(fleet: Fleet, name: str) -> StoredBackfill:
    await fleet.schedules.get(name)
    register = await fleet.store.register(backfill_key(name))
    if register is None:
        raise UnknownBackfill(f"schedule {name!r} has had no backfill")
    return _decode(register)


@retried
async def cancel_backfill(fleet: Fleet, name: str, reason: str = "") -> Backfill:
    """Create no more plans of a backfill, and cancel those that have not ended; the coordinator does that. Raises
    UnknownBackfill."""
    why = f"by {fleet.by}: {reason}" if reason else f"by {fleet.by}"
    backfill, revision = await _read(fleet, name)
    if backfill.ended_at is not None or backfill.cancelled is not None:
        return backfill
    after = backfill.changed(cancelled=why)
    await fleet.store.commit([PutRegister(backfill_key(name), after.to_json(), revision)])
    return after


# -- the pass of the coordinator ---------------------------------------------------------------------------------------


class BackfillPass:
    """Carries the backfills of a fleet on."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store = fleet, fleet.store
        self._trouble = RecurringError(
            log, "cannot carry a backfill on", "carries backfills on again", fleet.clock.time
        )

    async def run_pass(self) -> float:
        """Settle what has ended, and create what is due. Returns in how many seconds to look again."""
        soonest = NEVER
        for register in await self._store.registers(BACKFILLS):
            try:
                stored = _decode(register)
                if stored.backfill.ended_at is None:
                    soonest = BETWEEN_PASSES
                    await self._carry_on(stored)
            except CorruptRecord as error:
                self._trouble.occurred(error)
            except StoreError:
                raise
            except Overtaken:
                continue  # another coordinator carries it on
            except Exception as error:
                self._trouble.occurred(error)
            else:
                self._trouble.recovered()
        return soonest

    async def _carry_on(self, stored: StoredBackfill) -> None:
        backfill = stored.backfill
        schedule = await read_schedule(self._store, backfill.schedule)
        if schedule is None:
            backfill = backfill.changed(cancelled=backfill.cancelled or "the schedule was removed")
        if backfill.cancelled is not None:
            for name in backfill.open:
                await plan_port().cancel_plan(self._fleet, name, f"the backfill was cancelled {backfill.cancelled}")
        stored = await self._settled(stored, backfill)
        if schedule is None:
            return
        next_tick = ticks_of(schedule.schedule)
        for _ in range(DECISIONS_PER_PASS):
            tick = due_for_backfill(stored.backfill, next_tick)
            if tick is None:
                break
            stored = await self._decide(stored, schedule.schedule, tick)
            stored = await self._settled(stored, stored.backfill)

    async def _settled(self, stored: StoredBackfill, backfill: Backfill) -> StoredBackfill:
        """Write which plans have ended, and that the backfill has."""
        ends = {}
        for name in backfill.open:
            if await plan_port().plan_ended(self._store, name):
                ends[name] = await plan_port().plan_succeeded(self._store, name)
        now = self._store.clock()
        settled = settle(backfill, ends, now)
        if settled == stored.backfill:
            return stored
        notices = [Notice(now, "schedule", _end_text(settled))] if settled.ended_at is not None else []
        return await self._put(stored, settled, *notices)

    async def _put(self, stored: StoredBackfill, after: Backfill, *further: Write) -> StoredBackfill:
        """Raises Overtaken."""
        put = PutRegister(backfill_key(after.schedule), after.to_json(), stored.revision)
        if not await try_commit(self._store, [put, *further]):
            raise Overtaken(f"another process has changed the backfill of schedule {after.schedule!r}")
        return StoredBackfill(after, stored.revision + 1)

    async def _decide(self, stored: StoredBackfill, schedule: Schedule, tick: int) -> StoredBackfill:
        """Create the plan of a tick, in the commit that moves the cursor; or find it."""
        backfill = stored.backfill.changed(after=float(tick))
        name = plan_name(schedule.name, tick, "")
        created = backfill.changed(open=(*backfill.open, name))
        if await self._store.register(f"{HEADS}{name}") is None:
            writes = await self._plan_writes(schedule, name, tick, backfill_ticks(backfill, ticks_of(schedule)))
            with contextlib.suppress(Conflict):  # of the head: the schedule has just created it; else _put is overtaken
                put = PutRegister(backfill_key(schedule.name), created.to_json(), stored.revision)
                await self._store.commit([put, *writes])
                self._fleet.plan_created()
                return StoredBackfill(created, stored.revision + 1)
        elif not await plan_port().plan_ended(self._store, name):
            pass
        elif backfill.only_missing or await plan_port().plan_succeeded(self._store, name):
            return await self._put(stored, backfill.changed(skipped=backfill.skipped + 1))
        else:
            # it may have been cancelled, or reopened; if it has ended, it counts as failed
            with contextlib.suppress(PlanError):
                await plan_port().run_again(self._fleet, name, f"backfill of schedule {schedule.name}")
                self._fleet.plan_created()
        return await self._put(stored, created)

    async def _plan_writes(self, schedule: Schedule, name: str, tick: int, next_tick: NextTick) -> list[Write]:
        kept = await self._store.register(plan_key(schedule.name))
        if kept is None:
            raise InvalidSchedule(f"schedule {schedule.name!r}: its plan is not in the store")
        values, awaited = values_of(schedule, tick, next_tick), awaited_name(schedule, tick, next_tick)
        document, overlap = kept.value, kept.value["plan"].get("overlap")
        if overlap:  # to skip a tick, or to replace the one before, would defeat the backfill
            document = {**document, "plan": {**document["plan"], "overlap": ["queue", *overlap[1:]]}}
        writes = plan_port().plan_writes(self._store, name, document, values, awaited)
        turn = await plan_port().plan_turn(self._store, name, document, values)
        return [*writes, *turn, await plan_port().submission(self._fleet, name)]


def _end_text(backfill: Backfill) -> str:
    outcome = f"{backfill.succeeded} succeeded, {backfill.failed} failed, {backfill.skipped} skipped"
    word = "has ended" if backfill.cancelled is None else f"was cancelled {backfill.cancelled}"
    return f"schedule {backfill.schedule}: the backfill of {backfill.total} ticks {word}: {outcome}"
