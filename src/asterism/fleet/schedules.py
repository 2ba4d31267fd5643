"""Schedules of a fleet, as a program uses them: add, pause and remove them; their times, histories and backfills.

::

    await fleet.schedules.add("nightly", workflow="report", cron="0 3 * * *", timezone="Europe/Berlin")
    await fleet.schedules.next_times("nightly", 5)

The coordinator of the fleet creates the runs (scheduled_work.py), so a device or a monitor must have joined.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from asterism.core.errors import AsterismError, NotJson, TooLarge, safe_repr
from asterism.core.json_values import JsonObject, plain_json
from asterism.core.plan.constellation import Constellation
from asterism.core.schedule.schedule import InvalidSchedule, Schedule
from asterism.core.schedule.tick_values import TICK_PATHS, parse_time, time_until
from asterism.core.schedule.ticks import (
    MOST_TICKS,
    Backfill,
    TickEntry,
    history_of,
    interval_ticks,
    moved_to,
    ticks_between,
)
from asterism.fleet.extensions import plan_port
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import Overtaken
from asterism.fleet.scheduled_work import (
    REMOVED,
    SCHEDULES,
    ScheduledWork,
    StoredBackfill,
    StoredSchedule,
    backfill_key,
    decode,
    decode_backfill,
    history_key,
    input_with_tick,
    plan_key,
    read_schedule,
    schedule_key,
    ticks_of,
    zone_of,
)
from asterism.fleet.sent_events import last_number
from asterism.fleet.stored_limits import check_plan_limits
from asterism.store.optimistic_update import retried, retry_on_conflict
from asterism.store.protocol import PutRegister, read_slot
from asterism.store.row_codec import readable
from asterism.store.store_errors import Conflict

log = logging.getLogger("asterism.schedule")

MOST_NEXT_TIMES = 1000

TICKS_PER_TURN = 20
"""How many ticks are counted in one turn of the event loop: those of a cron expression take long."""

LARGEST_PLAN = 1_000_000
"""The largest plan that a schedule keeps, in bytes of JSON."""


class UnknownSchedule(AsterismError):
    """No schedule has this name."""


class ScheduleExists(AsterismError):
    """A schedule of this name exists already."""


class BackfillRuns(AsterismError):
    """A schedule has a backfill that has not ended."""


class UnknownBackfill(AsterismError):
    """A schedule has had no backfill."""


def check_has_ticks(schedule: Schedule) -> None:
    """Raises InvalidSchedule if events create the work, and no ticks: it needs one."""
    if schedule.on_event is not None:
        raise InvalidSchedule(
            f"schedule {schedule.name!r} creates a plan for each event {schedule.on_event!r}. Send one with: asterism "
            "event send"
        )


class Schedules:
    """The schedules of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store = fleet, fleet.store

    async def add(
        self,
        name: str,
        *,
        workflow: str | None = None,
        plan: Constellation | None = None,
        plan_text: str = "",
        file: str = "",
        policy: str = "scoped",
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,
        priority: int | None = None,
        device: str | None = None,
        cron: str | None = None,
        every: int | None = None,
        timezone: str = "UTC",
        on_event: str | None = None,
        catch_up: str = "last",
        overlap: str | None = None,
        parallel: int = 1,
        jitter: float = 0.0,
        after_previous: str | None = None,
        late_after: float | None = None,
        replace: bool = False,
    ) -> Schedule:
        """Add a schedule. Its first tick is the first one from now on.

        :param workflow: the workflow whose runs are created; each tick uses its latest version.
        :param plan: the plan that is created at each tick, instead of runs of a workflow; the store keeps it.
        :param plan_text: the text of the plan file, kept for people; ``file`` is its name, recorded with each plan.
        :param policy: the lock policy of the plans; ``params`` are the parameters of their file, recorded with them.
        :param input: the input of each run; its texts may use ``{tick.date}`` and the like.
        :param priority: the priority of each run; ``device`` is the only one that may execute it.
        :param cron: a cron expression with five fields, in the time zone ``timezone``.
        :param every: an interval in whole seconds, instead of ``cron``.
        :param on_event: the name of the events, such as ``payment/*``, that create a plan each, instead of times.
        :param catch_up: ticks that were missed: ``none`` is created, only the ``last``, or ``all`` (100 at most).
        :param overlap: if work is open: ``skip``, ``queue`` (for events and catch-up ``all``), ``replace``, ``allow``.
        :param parallel: how much work may be open before ``overlap`` counts.
        :param jitter: delay each tick by up to so many seconds, chosen by name and tick.
        :param after_previous: ``success``: the plan of a tick waits until that of the tick before has completed.
        :param late_after: a notice says if the plan of a tick has not ended so many seconds after the tick.
        :param replace: change an existing schedule. Its history stays.

        Raises InvalidSchedule (such as a cron that never fires), UnknownPlaceholder, UnknownWorkflow, ScheduleExists.
        """
        now = self._store.clock()
        options: dict[str, Any] = {"cron": cron, "every": every, "timezone": timezone, "jitter": jitter}
        overlap = overlap or ("skip" if on_event is None and catch_up != "all" else "queue")
        options |= {"catch_up": catch_up, "overlap": overlap, "priority": priority, "device": device}
        options |= {"on_event": on_event, "parallel": parallel}
        options |= {"after_previous": after_previous, "late_after": late_after}
        options |= {"workflow": workflow, "plan": None if plan is None else plan.id, "created_by": self._fleet.by}
        schedule = Schedule(name, input=await self._checked_input(name, input), start=int(now), **options)
        self._check_fires(schedule, now)
        self._check_keeps_ticks(schedule, plan)
        document = None if plan is None else await self._document(name, plan, plan_text, file, policy, params)
        if document is None:
            await self._fleet.workflows.latest(workflow or "")
        return await self._put(schedule, replace, document)

    async def _document(
        self, name: str, plan: Constellation, text: str, file: str, policy: str, params: Mapping[str, Any] | None
    ) -> JsonObject:
        """A plan as the store keeps it for a schedule. Raises PlanError for limits that are not set."""
        await check_plan_limits(self._store, plan)
        document = {**plan_port().plan_document(plan, policy, self._fleet.by), "text": text, "file": file}
        if params:
            document["params"] = plain_json(dict(params), f"the parameters of schedule {name!r}")
        size = len(json.dumps(document))
        if size > LARGEST_PLAN:
            raise TooLarge(f"the plan of schedule {name!r} has {size:,} bytes; the limit is {LARGEST_PLAN:,}")
        return document

    async def plan_text(self, name: str) -> str:
        """The plan file that a schedule keeps; empty if it has none."""
        await self._read(name)
        kept = await self._store.register(plan_key(name))
        return "" if kept is None else str(kept.value.get("text", ""))

    async def _checked_input(self, name: str, run_input: Mapping[str, Any] | None) -> JsonObject:
        what = f"the input of schedule {safe_repr(name)}"
        if run_input is not None and not isinstance(run_input, Mapping):
            raise NotJson(f"{what} must be an object of named values, not {safe_repr(run_input)}")
        value: JsonObject = plain_json(dict(run_input or {}), what)
        input_with_tick(value, dict.fromkeys(TICK_PATHS, ""))
        most = (await self._fleet.settings()).large
        size = len(json.dumps(value))
        if size > most:
            raise TooLarge(f"{what} has {size:,} bytes; a schedule keeps {most:,} at most: put it into a file")
        return value

    def _check_keeps_ticks(self, schedule: Schedule, plan: Constellation | None) -> None:
        """Raises InvalidSchedule if missed ticks are to be caught up, and an overlap policy would drop them."""
        if schedule.catch_up != "all" or schedule.on_event is not None:
            return
        in_file = None if plan is None or plan.overlap is None else plan.overlap[0]
        for whose, policy in (("overlap", schedule.overlap), ("`overlap` of the plan file", in_file)):
            if policy in ("skip", "replace"):
                raise InvalidSchedule(
                    f"schedule {schedule.name!r}: with catch-up all, {whose} {policy} would drop the missed ticks but "
                    f"{'the first' if policy == 'skip' else 'the last'}: use queue, or catch-up last"
                )

    def _check_fires(self, schedule: Schedule, now: float) -> None:
        if schedule.cron is None:
            if schedule.timezone != "UTC":
                raise InvalidSchedule(f"schedule {schedule.name!r}: a time zone needs a cron expression")
            return
        from asterism.base.cron import InvalidCron, check_cron

        try:
            check_cron(schedule.cron, schedule.timezone, now)
        except InvalidCron as error:
            raise InvalidSchedule(f"schedule {schedule.name!r}: {error}") from None

    @retried
    async def _put(self, schedule: Schedule, replace: bool, document: Mapping[str, Any] | None) -> Schedule:
        name, next_tick = schedule.name, ticks_of(schedule)
        register = await self._store.register(schedule_key(name))
        existing = decode(register)
        if existing is not None and not replace:
            raise ScheduleExists(
                f"there is a schedule {name!r} already ({existing.schedule.times}); change it with --replace"
            )
        new = moved_to(schedule, float(schedule.start), next_tick)
        new = new.changed(seen=await last_number(self._store))
        if existing is not None:
            old = existing.schedule
            seen = old.seen if old.on_event == new.on_event else new.seen
            new = new.changed(made=old.made, paused=old.paused, seen=seen)
        before = decode(register, removed=True)
        if before is not None:
            new = await self._with_open_work(new, before.schedule, removed=existing is None)
        writes = [PutRegister(schedule_key(name), new.to_json(), register and register.revision)]
        if document is not None:
            writes.append((await read_slot(self._store, plan_key(name))).put(document))
        await self._store.commit(writes)
        return new

    async def _with_open_work(self, new: Schedule, old: Schedule, *, removed: bool) -> Schedule:
        """What the schedule of this name has created before goes on, also if it was removed: without this record, no
        process would run its plans. Raises ScheduleExists."""
        if (old.plan is None) == (new.plan is None):
            return new.changed(open=old.open, replaced=old.replaced)
        if not removed:
            raise ScheduleExists(f"schedule {new.name!r} creates {old.target}: remove it before you add this one")
        left = [] if old.plan is None else await ScheduledWork(self._fleet).open_work(old)
        if left:
            raise ScheduleExists(
                f"schedule {new.name!r} was removed, but its plan {left[0]!r} has not ended: wait for its end, cancel "
                "it, or choose another name"
            )
        return new

    async def get(self, name: str) -> Schedule:
        """Raises UnknownSchedule."""
        return (await self._read(name)).schedule

    async def _read(self, name: str) -> StoredSchedule:
        stored = await read_schedule(self._store, name)
        if stored is None:
            raise UnknownSchedule(f"there is no schedule {name!r}; list them with: asterism schedule list")
        return stored

    async def all(self) -> list[Schedule]:
        """All schedules, by name. One that cannot be read is left out, and logged."""
        stored_schedules = readable(decode, await self._store.registers(SCHEDULES))
        return [stored.schedule for stored in stored_schedules if stored is not None]

    async def pause(self, name: str, reason: str = "") -> Schedule:
        """Create nothing more until the schedule is resumed. What it has created goes on."""
        why = self._asked(reason)
        return await self._change(
            name, lambda schedule: schedule if schedule.paused is not None else schedule.changed(paused=why)
        )

    def _asked(self, reason: str) -> str:
        """Who asks, and why."""
        return f"by {self._fleet.by}: {reason}" if reason else f"by {self._fleet.by}"

    async def resume(self, name: str) -> Schedule:
        """Create work again, from the next tick on. The ticks of the pause are not caught up."""
        now, last = self._store.clock(), await last_number(self._store)

        def change(schedule: Schedule) -> Schedule:
            if schedule.paused is None:
                return schedule
            return moved_to(schedule.changed(paused=None, seen=last), float(int(now)), ticks_of(schedule))

        return await self._change(name, change)

    @retried
    async def _change(self, name: str, change: Callable[[Schedule], Schedule]) -> Schedule:
        stored = await self._read(name)
        after = change(stored.schedule)
        if after is not stored.schedule:
            await self._store.commit([PutRegister(schedule_key(name), after.to_json(), stored.revision)])
        return after

    @retried
    async def remove(self, name: str) -> Schedule:
        """Remove a schedule and its history. What it has created goes on."""
        stored = await self._read(name)
        history = await self._store.register(history_key(name))
        plan = await self._store.register(plan_key(name))
        value = {**stored.schedule.to_json(), REMOVED: self._store.clock()}
        writes = [PutRegister(schedule_key(name), value, stored.revision)]
        if history is not None:
            writes.append(PutRegister(history_key(name), [], history.revision))
        if plan is not None:
            writes.append(PutRegister(plan_key(name), None, plan.revision))
        await self._store.commit(writes)
        return stored.schedule

    async def next_times(self, name: str, number: int = 5) -> list[int]:
        """The next ticks, in seconds since 1970; none while it is paused."""
        schedule = await self.get(name)
        next_tick, ticks = ticks_of(schedule), list[int]()
        tick = next_tick(max(schedule.after, self._store.clock()))
        while schedule.paused is None and tick is not None and len(ticks) < min(number, MOST_NEXT_TIMES):
            ticks.append(tick)
            tick = next_tick(tick)
        return ticks

    async def history(self, name: str) -> list[TickEntry]:
        """What became of the latest ticks, oldest first."""
        await self._read(name)
        register = await self._store.register(history_key(name))
        return [] if register is None else register.read(history_of)

    async def run(self, name: str) -> TickEntry:
        """Create the work of a schedule now, by its overlap policy, also while it is paused. Its times stay as they
        are."""
        work = ScheduledWork(self._fleet)

        async def attempt() -> TickEntry:
            stored = await self._read(name)
            check_has_ticks(stored.schedule)
            try:
                return await work.create(stored, stored.schedule, None, by=self._fleet.by)
            except Overtaken as error:
                raise Conflict(f"register {schedule_key(name)}") from error

        entry = await retry_on_conflict(attempt)
        after = await read_schedule(self._store, name)
        if after is not None and after.schedule.replaced:
            with contextlib.suppress(Overtaken):  # the coordinator cancels it, then
                await work.cancel_replaced(after)
        return entry

    # -- backfills -----------------------------------------------------------------------------------------------------

    async def start_backfill(
        self,
        name: str,
        first: str,
        last: str | None,
        *,
        every: int | None = None,
        parallel: int = 1,
        only_missing: bool = False,
    ) -> Backfill:
        """Begin a backfill of a schedule, from one day or time to another, in the time zone of the schedule; without
        ``last`` up to now. With ``every`` the ticks are so many seconds apart; with ``only_missing`` plans that failed
        are left alone. Durable on return.

        Raises UnknownSchedule, InvalidSchedule for a time without ticks or with too many, InvalidTick, BackfillRuns."""
        schedule, now = await self.get(name), self._store.clock()
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
            name,
            ticks[0],
            ticks[-1],
            len(ticks),
            parallel,
            self._fleet.by,
            now,
            float(ticks[0] - 1),
            every,
            only_missing,
        )

        async def attempt() -> None:
            register = await self._store.register(backfill_key(name))
            if register is not None and decode_backfill(register).backfill.ended_at is None:
                raise BackfillRuns(
                    f"a backfill of schedule {name!r} has not ended; cancel it with: asterism schedule backfill {name} "
                    "--cancel"
                )
            await self._store.commit([PutRegister(backfill_key(name), new.to_json(), register and register.revision)])

        await retry_on_conflict(attempt)
        return new

    async def read_backfill(self, name: str) -> Backfill:
        """The last backfill of a schedule. Raises UnknownSchedule and UnknownBackfill."""
        return (await self._stored_backfill(name)).backfill

    async def _stored_backfill(self, name: str) -> StoredBackfill:
        await self._read(name)
        register = await self._store.register(backfill_key(name))
        if register is None:
            raise UnknownBackfill(f"schedule {name!r} has had no backfill")
        return decode_backfill(register)

    @retried
    async def cancel_backfill(self, name: str, reason: str = "") -> Backfill:
        """Create no more plans of a backfill, and cancel those that have not ended; the coordinator does that. Raises
        UnknownBackfill."""
        backfill, revision = await self._stored_backfill(name)
        if backfill.ended_at is not None or backfill.cancelled is not None:
            return backfill
        after = backfill.changed(cancelled=self._asked(reason))
        await self._store.commit([PutRegister(backfill_key(name), after.to_json(), revision)])
        return after


def _range(schedule: Schedule, first: str, last: str | None, now: float) -> tuple[float, float]:
    """From when to when. A day without a time is meant as a whole. No tick of the future is created."""
    zone = zone_of(schedule)
    begin = parse_time(first, zone)[0].timestamp()
    return begin, now if last is None else min(now, time_until(last, zone))
