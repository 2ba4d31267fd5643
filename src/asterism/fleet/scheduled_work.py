"""The work of a schedule: creates the run or plan of a tick in the commit that moves the schedule on.

Two safeguards keep a tick from being created twice. The commit expects the revision of the schedule that was read, so
of two coordinators only one decides about a tick, and after a crash either everything of the commit is there or
nothing. And a run has a key of the schedule and the tick (a plan has such a name), so a tick that comes again because
the clock was set back is recognised.

What a tick replaces is recorded in the same commit and cancelled afterwards (``cancel_replaced``). The new run waits in
a series until then, so a crash between the two steps neither loses a tick nor lets two runs work at once.

The pass of the coordinator decides about every tick that is due. A schedule knows when its next tick fires, so a pass
without a due tick costs a comparison for each schedule. One commit decides about one tick. Two coordinators at once are
wasteful and never wrong: of two decisions about one tick, one meets a conflict, and nothing of it has happened.

A backfill creates plans for ticks of the past. Its state is a register, and the pass carries it on, so it survives
every process; a command that follows it only reads. The commit that stores a plan expects the revision of the register
that was read, and moves the cursor past the tick. A plan that failed is run again; one that succeeded is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Any, NamedTuple

from asterism.base.clock import new_id
from asterism.base.error_log import RecurringError
from asterism.core.errors import AsterismError, PlanError, PlanOverlaps, RunRefused
from asterism.core.json_values import NOTHING, JsonObject
from asterism.core.plan.plan_name import EACH_TICK
from asterism.core.plan.plan_name import plan_name as patterned_name
from asterism.core.schedule.schedule import InvalidSchedule, Schedule, interval_text, is_named, of_event
from asterism.core.schedule.tick_values import (
    TICK_INPUT,
    TICK_PATHS,
    TickValues,
    previous_tick,
    tick_on_request,
    tick_values,
)
from asterism.core.schedule.ticks import (
    CREATED,
    EXISTS,
    FAILED,
    MISSED,
    MOST_OPEN,
    SKIPPED,
    Backfill,
    NextTick,
    TickEntry,
    backfill_ticks,
    decided,
    due_for_backfill,
    due_tick,
    entries_of,
    interval_ticks,
    is_due,
    late_times,
    overlap,
    rewound,
    settle,
    tick_key,
    tick_text,
    with_entries,
    with_work,
)
from asterism.fleet.extensions import plan_port
from asterism.fleet.fleet import SCHEDULE_PREFIX, Fleet, new_run
from asterism.fleet.ledger import Overtaken
from asterism.fleet.sent_events import EventTaker, SentEvent, event_of, last_number, name_of, taking
from asterism.store.dump_format import SCHEDULES as SCHEDULES
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import PLANS as HEADS
from asterism.store.protocol import Notice, PutRegister, Register, Store, Write, read_slot
from asterism.store.store_errors import Conflict, CorruptRecord, StoreError

HISTORY = "schedule-history/"
PLANS = "schedule-plan/"
"""Prefixes of the keys of registers: the histories of schedules, and the plans that they create."""

IN_SERIES = ("queue", "replace")
"""The overlap policies under which runs wait for each other."""

REMOVED = "removed_at"
"""The field of a removed schedule. Its register stays: one that began again at revision 1 could be mistaken."""


BACKFILLS = "backfill/"
"""Prefix of the keys of registers: the last backfill of each schedule."""

BETWEEN_PASSES = 1.0
"""Seconds between two passes while a backfill is open."""


class StoredBackfill(NamedTuple):
    """A backfill with the revision of its register."""

    backfill: Backfill
    revision: int


class StoredSchedule(NamedTuple):
    """A schedule with the revision of its register."""

    schedule: Schedule
    revision: int


def schedule_key(name: str) -> str:
    return f"{SCHEDULES}{name}"


def history_key(name: str) -> str:
    return f"{HISTORY}{name}"


def plan_key(name: str) -> str:
    return f"{PLANS}{name}"


def plan_name(name: str, tick: int | None, chance: str) -> str:
    """The name of the plan that a tick creates, or, with letters of ``chance``, a person's request."""
    if tick is None:
        return f"{name}-{chance[-6:]}"
    return patterned_name(EACH_TICK, name, datetime.fromtimestamp(tick, UTC))


def event_plan_name(name: str, number: int) -> str:
    """The name of the plan that an event creates."""
    return f"{name}-event-{number}"


def backfill_key(schedule: str) -> str:
    return f"{BACKFILLS}{schedule}"


def decode_backfill(register: Register) -> StoredBackfill:
    return StoredBackfill(register.read(Backfill.from_json), register.revision)


def decode(register: Register | None, *, removed: bool = False) -> StoredSchedule | None:
    """The schedule in a register; None if there is none, or none any more. With ``removed``, also one that was removed:
    the plans that it has created go on. Raises InvalidSchedule."""
    if register is None:
        return None
    value = register.value
    if isinstance(value, Mapping) and REMOVED in value:
        if not removed:
            return None
        value = {name: field_value for name, field_value in value.items() if name != REMOVED}
    return StoredSchedule(Schedule.from_json(value), register.revision)


def ticks_of(schedule: Schedule) -> NextTick:
    """The function from a time to the first tick after it. Raises InvalidSchedule."""
    if schedule.on_event is not None:
        return lambda after: None
    if schedule.cron is None:
        return interval_ticks(schedule.start, schedule.every or 1)
    from asterism.base.cron import InvalidCron, cron_ticks  # cronsim, and the time zones

    try:
        return cron_ticks(schedule.cron, schedule.timezone)
    except InvalidCron as error:
        raise InvalidSchedule(f"schedule {schedule.name!r}: {error}") from None


def values_of(schedule: Schedule, tick: int, next_tick: NextTick) -> TickValues:
    """What the plan of a tick learns of it. Raises InvalidSchedule."""
    return tick_values(tick, next_tick, zone_of(schedule))


def awaited_name(schedule: Schedule, tick: int, next_tick: NextTick) -> str | None:
    """The plan of the tick before, if the plan of a tick waits for its success."""
    previous = None if schedule.after_previous is None else previous_tick(tick, next_tick)
    return None if previous is None else plan_name(schedule.name, previous, "")


def input_with_tick(run_input: Mapping[str, Any], values: TickValues) -> JsonObject:
    """The input of the run of a tick: that of the schedule with the values of the tick in place of ``{tick.date}`` and
    the others, and the values themselves, for the variables of a command. Raises UnknownPlaceholder."""
    from asterism.execution.placeholders import fill_value  # CEL

    filled: JsonObject = dict(run_input)
    if TICK_PATHS[0] not in filled:  # else the name means that input
        filled = fill_value(filled, values)
    return {**filled, TICK_INPUT: dict(values)} if values else filled


def zone_of(schedule: Schedule) -> tzinfo:
    """The time zone of the ticks of a schedule: UTC for an interval. Raises InvalidSchedule."""
    if schedule.cron is None:
        return UTC
    from asterism.base.cron import InvalidCron, time_zone

    try:
        return time_zone(schedule.timezone)
    except InvalidCron as error:
        raise InvalidSchedule(f"schedule {schedule.name!r}: {error}") from None


class _NewWork(NamedTuple):
    """The work of a tick that is to be created; see ``ScheduledWork.create``. ``open`` is what has not ended, and
    ``replaced`` what this work replaces."""

    stored: StoredSchedule
    after: Schedule
    tick: int | None
    before: Sequence[TickEntry]
    by: str
    event: SentEvent | None
    open: Sequence[str]
    replaced: Sequence[str]

    def entry(self, now: float, work: str | None) -> TickEntry:
        """The entry of the history about the work."""
        return TickEntry(now, self.tick, CREATED, work, self.cause)

    @property
    def cause(self) -> str:
        """Who or what asks for the work; empty for a tick."""
        if self.event is not None:
            return event_text(self.event)
        return f"by {self.by}" if self.by else ""

    def with_work(self, work: str) -> Schedule:
        """The schedule with the work."""
        return with_work(self.after, self.open, work, self.replaced)


def event_text(event: SentEvent) -> str:
    return f"event {event.number} {event.name!r}"


def _dropped(schedule: Schedule, entry: TickEntry) -> str | None:
    """What a notice says about ticks for which nothing was created; None for a tick that the schedule wants to be
    skipped while earlier work is open."""
    if entry.outcome == MISSED:
        more = " or more" if entry.why else ""
        return (
            f"{entry.number}{more} missed {'tick was' if entry.number == 1 and not more else 'ticks were'} not created"
        )
    if entry.outcome == FAILED:
        return f"nothing was created: {entry.why}"
    if entry.outcome == SKIPPED and entry.tick is not None and _keeps_ticks(schedule):
        return f"tick {tick_text(entry.tick)} was skipped: {entry.why}"
    return None


def _keeps_ticks(schedule: Schedule) -> bool:
    """Whether each tick of a schedule is to have its work, late or not."""
    return schedule.catch_up == "all" or schedule.overlap in ("queue", "allow")


class ScheduledWork:
    """Creates the work of schedules, and follows it until its end."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store = fleet, fleet.store

    async def open_work(self, schedule: Schedule) -> list[str]:
        """The runs or plans of a schedule that have not ended, oldest first."""
        return [work for work in schedule.open if not await self._ended(schedule, work)]

    async def _ended(self, schedule: Schedule, work: str) -> bool:
        if schedule.plan is not None:
            return await plan_port().plan_ended(self._store, work)
        run = await self._store.run(work)
        return run is None or run.ended

    async def create(
        self,
        stored: StoredSchedule,
        after: Schedule,
        tick: int | None,
        before: Sequence[TickEntry] = (),
        by: str = "",
        event: SentEvent | None = None,
    ) -> TickEntry:
        """Create the work of a tick, or skip it, by the overlap policy. ``after`` is the schedule with its new cursor;
        ``tick`` is None, and ``by`` or ``event`` is set, if a person or an event asks for the work. ``before`` are
        entries about earlier ticks.

        Raises Overtaken if another process has changed the schedule, and what prevents the creation, such as
        UnknownWorkflow. Then nothing has happened."""
        schedule = stored.schedule
        # if runs may overlap, it does not matter which have ended
        free = schedule.overlap == "allow" and schedule.plan is None
        open_work = list(schedule.open) if free else await self.open_work(schedule)
        verdict = overlap(stored.schedule, open_work)
        if not verdict.create:
            why = verdict.why if event is None else f"{event_text(event)}: {verdict.why}"
            entry = TickEntry(self._store.clock(), tick, SKIPPED, None, why)
            await self.record(stored, after.changed(open=tuple(open_work)), [*before, entry])
            return entry
        new = _NewWork(stored, after, tick, before, by, event, open_work, verdict.replaced)
        try:
            return await (self._create_run(new) if schedule.plan is None else self._create_plan(new))
        except PlanOverlaps as reason:
            entry = new.entry(self._store.clock(), None)._replace(outcome=SKIPPED, why=str(reason))
            await self.record(stored, after.changed(open=tuple(open_work)), [*before, entry])
            return entry

    async def _create_run(self, new: _NewWork) -> TickEntry:
        fleet, schedule, tick = self._fleet, new.stored.schedule, new.tick
        flow = await fleet.workflows.latest(schedule.workflow or "")
        run_input: Any = input_with_tick(schedule.input, self._values(new, ticks_of(schedule)))
        run = new_run(
            fleet,
            flow,
            await fleet.blobs.keep(run_input, f"the input of schedule {schedule.name!r}"),
            by=new.by or schedule.created_by,
            key=None if tick is None else tick_key(schedule.name, tick),
            series=f"{SCHEDULE_PREFIX}{schedule.name}" if schedule.overlap in IN_SERIES else None,
            priority=schedule.priority,
            device=schedule.device,
            uses=await fleet.uses(flow, run_input),
            label=schedule.name if tick is None else f"{schedule.name} {tick_text(tick)}",
        )
        entry = new.entry(run.created_at, run.id)
        writes = await self._writes(new.stored, new.with_work(run.id), [*new.before, entry])
        added = await fleet.place(run, partial(fleet.ledger.add, beside=writes))
        if added.id == run.id:
            return entry
        return await self._record_existing(new, entry._replace(what=added.id, why="its run was created before"))

    async def _create_plan(self, new: _NewWork) -> TickEntry:
        """Store the plan of a tick. No process runs it yet (durable/plan_runner.py)."""
        schedule, now = new.stored.schedule, self._store.clock()
        name, document = (
            plan_name(schedule.name, new.tick, new_id(now, self._fleet.chance)),
            await self.document(schedule),
        )
        taken: list[Write] = []
        if new.event is not None:
            name = event_plan_name(schedule.name, new.event.number)
            document = {**document, "plan": of_event(document["plan"], schedule.on_event or "", new.event.name)}
            taker = EventTaker(name, now, schedule=schedule.name)
            taken = [taking(new.event, document["plan"]["source"], taker, later=False)]
        entry, next_tick = new.entry(now, name), ticks_of(schedule)
        values = self._values(new, next_tick)
        # a person's request waits for nothing
        awaited = None if new.tick is None else awaited_name(schedule, new.tick, next_tick)
        plan = await self.plan_writes(name, document, values, awaited)
        writes = await self._writes(new.stored, new.with_work(name), [*new.before, entry])
        try:
            await self._store.commit([*writes, *plan, *taken])
        except Conflict as conflict:
            if not conflict.concerns("register", f"{HEADS}{name}"):
                raise Overtaken(f"another process has changed the {conflict.what}") from None
        else:
            self._fleet.plan_created()
            return entry
        return await self._record_existing(new, entry._replace(why="its plan was created before"))

    async def document(self, schedule: Schedule) -> JsonObject:
        """The plan that a schedule keeps."""
        kept = await self._store.register(plan_key(schedule.name))
        if kept is None:
            raise InvalidSchedule(f"schedule {schedule.name!r}: its plan is not in the store")
        document: JsonObject = kept.value
        return document

    async def plan_writes(
        self, name: str, document: Mapping[str, Any], values: TickValues, awaited: str | None
    ) -> list[Write]:
        """The writes that store a plan, with its turn among the plans of its file. Raises PlanOverlaps."""
        plan = plan_port().plan_writes(self._store, name, document, values, awaited)
        return [*plan, *await plan_port().plan_turn(self._store, name, document, values)]

    def _values(self, new: _NewWork, next_tick: NextTick) -> TickValues:
        """What the work learns of its tick: for an event when it was sent; for a person's request the last tick up to
        now."""
        if new.event is not None:
            return tick_on_request(datetime.fromtimestamp(int(new.event.at), UTC).isoformat())
        tick = new.tick if new.tick is not None else previous_tick(int(self._store.clock()) + 1, next_tick)
        return NOTHING if tick is None else values_of(new.stored.schedule, tick, next_tick)

    async def _record_existing(self, new: _NewWork, entry: TickEntry) -> TickEntry:
        entry = entry._replace(outcome=EXISTS)
        await self.record(new.stored, new.after.changed(open=tuple(new.open)), [*new.before, entry])
        return entry

    async def record_failure(
        self, stored: StoredSchedule, after: Schedule, tick: int | None, before: Sequence[TickEntry], error: Exception
    ) -> None:
        """Record that the work of a tick could not be created."""
        await self.record(stored, after, [*before, TickEntry(self._store.clock(), tick, FAILED, None, str(error))])

    async def record(
        self, stored: StoredSchedule, after: Schedule, entries: Sequence[TickEntry] = (), *further: Write
    ) -> StoredSchedule:
        """Write a schedule with new entries of its history, and return it. Raises Overtaken."""
        writes = [*await self._writes(stored, after, entries), *further]
        if not await try_commit(self._store, writes):
            raise Overtaken(f"another process has changed schedule {stored.schedule.name!r}")
        return StoredSchedule(after, stored.revision + 1)

    async def _writes(
        self, stored: StoredSchedule, after: Schedule, entries: Sequence[TickEntry]
    ) -> Sequence[PutRegister | Notice]:
        name = stored.schedule.name
        put = PutRegister(schedule_key(name), after.to_json(), stored.revision)
        if not entries:
            return [put]
        history = await read_slot(self._store, history_key(name))
        texts = [_dropped(stored.schedule, entry) for entry in entries]
        notices = [Notice(self._store.clock(), "schedule", f"schedule {name}: {text}") for text in texts if text]
        return [put, history.put(with_entries(history.value, entries)), *notices]

    async def cancel_replaced(self, stored: StoredSchedule) -> StoredSchedule:
        """Cancel the work that later ticks have replaced. Raises Overtaken."""
        schedule = stored.schedule
        for work in schedule.replaced:
            if schedule.plan is not None:
                await plan_port().cancel_plan(self._fleet, work, f"replaced by a later tick of {schedule.name}")
                continue
            with contextlib.suppress(RunRefused):  # it has ended
                await self._fleet.cancel(work)
        return await self.record(stored, schedule.changed(replaced=()))


async def read_schedule(store: Store, name: str) -> StoredSchedule | None:
    """A schedule; None if there is none of this name. Raises InvalidSchedule."""
    return decode(await store.register(schedule_key(name)))


# -- schedule pass -----------------------------------------------------------------------------------------------------


log = logging.getLogger("asterism.schedule")

DECISIONS_PER_PASS = 20
"""How many ticks of one schedule are decided in one pass: the fleet has other work to do."""

NEVER = float("inf")

EVENT_INTERVAL = 1.0
"""Seconds between two looks for events that create plans."""


class SchedulePass:
    """Decides about the due ticks of a fleet's schedules, and carries its backfills on."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store = fleet, fleet.store
        self._work = ScheduledWork(fleet)
        self._known: dict[str, tuple[int, StoredSchedule | None]] = {}  # by key, with the revision that was decoded
        self._troubles: dict[str, RecurringError] = {}
        self._passed_over: dict[tuple[str, str], int] = {}  # by schedule and pattern, the last event of another name

    async def run_pass(self) -> float:
        """Decide about all due ticks, and carry backfills on. Returns in how many seconds to look again. A schedule
        that cannot be used does not keep the others waiting. Only where a schedule creates plans, or did so before it
        was removed, may there be a backfill."""
        before, self._known, creates_plans = self._known, {}, False
        soonest = NEVER
        for register in await self._store.registers(SCHEDULES):
            name = register.key.removeprefix(SCHEDULES)
            creates_plans |= isinstance(register.value, Mapping) and "plan" in register.value
            async with self._troubled(f"decide about schedule {name}", f"decides about schedule {name} again"):
                seen = before.get(register.key)
                stored = seen[1] if seen is not None and seen[0] == register.revision else decode(register)
                self._known[register.key] = (register.revision, stored)
                if stored is not None:
                    soonest = min(soonest, await self._decide_all(stored))
        for register in await self._store.registers(BACKFILLS) if creates_plans else ():
            async with self._troubled("carry a backfill on", "carries backfills on again"):
                stored_backfill = decode_backfill(register)
                if stored_backfill.backfill.ended_at is None:
                    soonest = min(soonest, BETWEEN_PASSES)
                    await self._carry_on(stored_backfill)
        return soonest

    @contextlib.asynccontextmanager
    async def _troubled(self, what: str, again: str) -> AsyncIterator[None]:
        """Log what goes wrong in the block, once: it must not keep the others waiting."""
        trouble = self._troubles.setdefault(what, RecurringError(log, f"cannot {what}", again, self._fleet.clock.time))
        try:
            yield
        except CorruptRecord as error:
            trouble.occurred(error)
        except StoreError:
            raise
        except Overtaken:
            pass  # another coordinator decides about it
        except Exception as error:
            trouble.occurred(error)
        else:
            trouble.recovered()

    async def _decide_all(self, stored: StoredSchedule) -> float:
        """Decide about the due ticks of one schedule. Returns in how many seconds its next tick fires."""
        if stored.schedule.replaced:
            stored = await self._work.cancel_replaced(stored)
        for _ in range(DECISIONS_PER_PASS):
            if not is_due(stored.schedule, self._store.clock()):
                break
            stored = await self._decide(stored)
            await asyncio.sleep(0)  # a store in memory answers without giving way to others
        if stored.schedule.on_event is not None and stored.schedule.paused is None:
            await self._decide_events(stored)
            return EVENT_INTERVAL
        stored = await self._notify_late(stored)
        due = None if stored.schedule.paused is not None else stored.schedule.due
        times = [*late_times(stored.schedule).values(), *([] if due is None else [due])]
        return max(0.0, min(times) - self._store.clock()) if times else NEVER

    async def _decide_events(self, stored: StoredSchedule) -> None:
        """Create the plans of events, in the order in which they were sent. An event that finds no room in a queue is
        decided later."""
        for _ in range(DECISIONS_PER_PASS):
            schedule = stored.schedule
            event = await self._next_event(schedule)
            if event is None or (
                schedule.overlap in ("queue", "allow") and len(await self._work.open_work(schedule)) >= MOST_OPEN
            ):
                return
            after = schedule.changed(seen=event.number)
            try:
                await self._work.create(stored, after, None, event=event)
            except (StoreError, Overtaken, InvalidSchedule):
                raise
            except AsterismError as error:
                await self._work.record_failure(stored, after, None, (), error)
            stored = await self._read_again(stored, after.name)

    async def _next_event(self, schedule: Schedule) -> SentEvent | None:
        """The next event that a schedule has to decide about."""
        pattern = schedule.on_event or ""
        looked = schedule.name, pattern
        number, last = max(schedule.seen, self._passed_over.get(looked, 0)), await last_number(self._store)
        while number < last:
            name = await name_of(self._store, number + 1)
            if name is not None and is_named(pattern, name):
                event = await event_of(self._store, name, number + 1)
                if event is not None:
                    return event
            number += 1
            self._passed_over[looked] = number
        return None

    async def _notify_late(self, stored: StoredSchedule) -> StoredSchedule:
        """Write a notice about each plan that should have ended by now, in the commit that remembers it."""
        schedule, now = stored.schedule, self._store.clock()
        late = [name for name, at in late_times(schedule).items() if at <= now]
        if not late:
            return stored
        notices = []
        for name in late:
            if not await plan_port().plan_ended(self._store, name):
                limit = interval_text(int(schedule.late_after or 0))
                text = f"schedule {schedule.name}: plan {name} is late: it has not ended {limit} after its tick"
                notices.append(Notice(now, "schedule", text))
        after = schedule.changed(late=(*schedule.late, *late))
        return await self._work.record(stored, after, (), *notices)

    async def _decide(self, stored: StoredSchedule) -> StoredSchedule:
        """Decide about the next tick of a schedule. Returns the schedule as it is then."""
        now, next_tick = self._store.clock(), ticks_of(stored.schedule)
        schedule = rewound(stored.schedule, now, next_tick)
        due = due_tick(schedule, now, next_tick)
        if due is None:
            return await self._work.record(stored, schedule)
        after, missed = decided(schedule, due, next_tick), entries_of(due, now)
        if due.tick is None:
            return await self._work.record(stored, after, missed)
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

    # -- backfills -----------------------------------------------------------------------------------------------------

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
            stored = await self._decide_backfill(stored, schedule.schedule, tick)
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

    async def _decide_backfill(self, stored: StoredBackfill, schedule: Schedule, tick: int) -> StoredBackfill:
        """Create the plan of a tick, in the commit that moves the cursor; or find it."""
        backfill = stored.backfill.changed(after=float(tick))
        name = plan_name(schedule.name, tick, "")
        created = backfill.changed(open=(*backfill.open, name))
        if await self._store.register(f"{HEADS}{name}") is None:
            writes = await self._backfill_writes(schedule, name, tick, backfill_ticks(backfill, ticks_of(schedule)))
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

    async def _backfill_writes(self, schedule: Schedule, name: str, tick: int, next_tick: NextTick) -> list[Write]:
        values, awaited = values_of(schedule, tick, next_tick), awaited_name(schedule, tick, next_tick)
        document = await self._work.document(schedule)
        if overlap_of_file := document["plan"].get("overlap"):  # to skip or replace a tick would defeat the backfill
            document = {**document, "plan": {**document["plan"], "overlap": ["queue", *overlap_of_file[1:]]}}
        writes = await self._work.plan_writes(name, document, values, awaited)
        return [*writes, await plan_port().submission(self._fleet, name)]


def _end_text(backfill: Backfill) -> str:
    outcome = f"{backfill.succeeded} succeeded, {backfill.failed} failed, {backfill.skipped} skipped"
    word = "has ended" if backfill.cancelled is None else f"was cancelled {backfill.cancelled}"
    return f"schedule {backfill.schedule}: the backfill of {backfill.total} ticks {word}: {outcome}"
