"""Schedules of a store: their documents, and what the operations of ``api/schedule_operations`` do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from functools import partial
from pathlib import PurePath
from typing import Any, TypeVar

from asterism.api import documents
from asterism.api import schedule_operations as declared
from asterism.api.documents import document_of
from asterism.api.local.edit_handlers import check_backfill
from asterism.api.operation import NoFields
from asterism.api.system import LocalSystem
from asterism.base.http_limits import RequestRefused
from asterism.base.secret_mask import environment_mask, secret_names
from asterism.base.yaml_lines import Mistake
from asterism.core.record import asdict
from asterism.core.schedule.schedule import Schedule
from asterism.core.schedule.tick_values import parse_time, time_until
from asterism.core.schedule.ticks import Backfill, CalendarTick, TickEntry
from asterism.durable.journal_store import read_head
from asterism.durable.plan_submissions import read_ticks
from asterism.durable.plan_summaries import live_owner
from asterism.durable.plan_turns import awaited_plan
from asterism.durable.runner_registers import runner_lives
from asterism.execution.task_inputs import is_secret
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import ScheduledWork, plan_key, zone_of
from asterism.planfile import loader

Answer = TypeVar("Answer")

DAY, DEFAULT_DAYS = 86_400, 30
"""A day in seconds, and how many days of ticks are listed if the beginning is not given."""

NO_COORDINATOR = "No coordinator is running, so nothing is created. Start one with: asterism monitor"
NO_RUNNER = "No process runs the plans. Start one with: asterism monitor"


# -- documents ---------------------------------------------------------------------------------------------------------


async def _document(fleet: Fleet, schedule: Schedule) -> documents.Schedule:
    """A schedule as every door shows it, with secrets masked and defaults included."""
    names = secret_names(list(filter(is_secret, schedule.input.values())))
    waits = schedule.due is None or schedule.paused is not None
    return document_of(
        documents.Schedule,
        schedule,
        input=environment_mask(set(names)).data(dict(schedule.input)),
        open=list(await ScheduledWork(fleet).open_work(schedule)),
        due_in=None if waits else max(0.0, (schedule.due or 0.0) - fleet.store.clock()),
    )


def _tick(entry: TickEntry) -> documents.Tick:
    return documents.Tick(**entry._asdict())


# -- reading -----------------------------------------------------------------------------------------------------------


async def list_schedules(system: LocalSystem, request: NoFields) -> documents.Schedules:
    fleet = system.fleet
    items = [await _document(fleet, schedule) for schedule in await fleet.schedules.all()]
    advice = await _advice(fleet, plans=any(item.plan is not None for item in items)) if items else []
    return documents.Schedules(items=items, now=fleet.store.clock(), advice=advice)


async def _advice(fleet: Fleet, *, plans: bool) -> list[str]:
    """What to start so that schedules go on."""
    if await fleet.coordinator() is None:
        return [NO_COORDINATOR]
    return [] if not plans or await runner_lives(fleet.store) else [NO_RUNNER]


async def show_schedule(system: LocalSystem, request: declared.ShowSchedule) -> documents.ScheduleDetails:
    fleet, name = system.fleet, request.schedule
    schedule = await fleet.schedules.get(name)
    document = await _document(fleet, schedule)
    kept = None if schedule.plan is None else await fleet.store.register(plan_key(name))
    return document_of(
        documents.ScheduleDetails,
        document,
        next_times=[float(at) for at in await fleet.schedules.next_times(name, request.times)],
        history=[_tick(entry) for entry in await fleet.schedules.history(name)],
        coordinator=await fleet.coordinator(),
        params={} if kept is None else dict(kept.value.get("params", {})),
        text=await fleet.schedules.plan_text(name) or None if request.text else None,
        unowned=await _unowned(fleet, document.open[0]) if schedule.plan is not None and document.open else None,
        awaited=await awaited_plan(fleet.store, document.open[0]) if schedule.plan and document.open else None,
    )


async def list_ticks(system: LocalSystem, request: declared.ListTicks) -> documents.ScheduleTicks:
    fleet = system.fleet
    schedule = await fleet.schedules.get(request.schedule)
    now, zone = fleet.store.clock(), zone_of(schedule)
    first, last = now - DEFAULT_DAYS * DAY, now
    if request.first is not None:
        first = parse_time(request.first, zone)[0].timestamp()
    if request.last is not None:
        last = time_until(request.last, zone)
    if request.after is not None:
        first = max(first, request.after + 1)
    ticks, more = await read_ticks(fleet, schedule, first, last, request.limit)
    return documents.ScheduleTicks(
        items=[_calendar_tick(tick, zone) for tick in ticks],
        next=str(ticks[-1].tick) if more else None,
        now=now,
        timezone=schedule.timezone,
        today=datetime.fromtimestamp(now, zone).date().isoformat(),
    )


def _calendar_tick(tick: CalendarTick, zone: tzinfo) -> documents.CalendarTick:
    local, work = datetime.fromtimestamp(tick.tick, zone), tick.work
    return document_of(
        documents.CalendarTick,
        tick,
        local=local.isoformat(),
        date=local.date().isoformat(),
        work=None if work is None else work.name,
        started_at=None if work is None else work.started_at,
        ended_at=None if work is None else work.ended_at,
    )


async def _unowned(fleet: Fleet, plan: str) -> str | None:
    """The plan, if no process runs it."""
    head, _ = await read_head(fleet.store, plan)
    return plan if await live_owner(fleet.store, head) is None else None


# -- changing ----------------------------------------------------------------------------------------------------------


async def add_schedule(system: LocalSystem, request: declared.AddSchedule) -> documents.ChangedSchedule:
    fleet = system.fleet
    if (request.workflow is None) == (request.text is None):
        raise RequestRefused(422, "a schedule has either a workflow or a plan file")
    elsewhere = ("name", "input", "reason", "text", "file", "includes", "params")
    options = {name: value for name, value in asdict(request).items() if name not in elsewhere}
    if request.text is not None:
        file = PurePath(request.file)
        name = file.stem or request.name
        plan_file = await read_plan_text(request.text, name, request.params, request.includes, scheduled=True)
        options |= {"plan": plan_file.constellation, "plan_text": request.text, "params": plan_file.params}
        options |= {"policy": plan_file.policy or "scoped", "file": file.name}
    schedule = await fleet.schedules.add(request.name, input=request.input or None, **options)
    await system.leave_reason(f"added schedule {schedule.name!r}", request.reason)
    advice = await _advice(fleet, plans=schedule.plan is not None)
    return document_of(documents.ChangedSchedule, await _document(fleet, schedule), changed=True, advice=advice)


async def pause_schedule(system: LocalSystem, request: declared.ChangeSchedule) -> documents.ChangedSchedule:
    schedules = system.fleet.schedules
    before = await schedules.get(request.schedule)
    paused = await schedules.pause(request.schedule, request.reason)
    return await _changed(system.fleet, paused, before.paused is None)


async def resume_schedule(system: LocalSystem, request: declared.ChangeSchedule) -> documents.ChangedSchedule:
    schedules = system.fleet.schedules
    before = await schedules.get(request.schedule)
    resumed = await schedules.resume(request.schedule)
    await system.leave_reason(f"resumed schedule {resumed.name!r}", request.reason)
    return await _changed(system.fleet, resumed, before.paused is not None)


async def remove_schedule(system: LocalSystem, request: declared.ChangeSchedule) -> documents.ChangedSchedule:
    removed = await system.fleet.schedules.remove(request.schedule)
    await system.leave_reason(f"removed schedule {removed.name!r}", request.reason)
    return await _changed(system.fleet, removed, True)


async def _changed(fleet: Fleet, schedule: Schedule, changed: bool) -> documents.ChangedSchedule:
    return document_of(documents.ChangedSchedule, await _document(fleet, schedule), changed=changed)


async def run_schedule(system: LocalSystem, request: declared.ChangeSchedule) -> documents.Tick:
    entry = await system.fleet.schedules.run(request.schedule)
    system.submitted()
    await system.leave_reason(f"ran schedule {request.schedule!r}", request.reason)
    return _tick(entry)


# -- backfills ---------------------------------------------------------------------------------------------------------


async def backfill_schedule(system: LocalSystem, request: declared.BackfillSchedule) -> documents.Backfill:
    fleet, name = system.fleet, request.schedule
    check_backfill(system, only_missing=request.only_missing)
    backfill = await fleet.schedules.start_backfill(
        name,
        request.first,
        request.last,
        every=request.every,
        parallel=request.parallel,
        only_missing=request.only_missing,
    )
    await system.leave_reason(f"began a backfill of schedule {name!r}", request.reason)
    return await _backfill(fleet, backfill)


async def show_backfill(system: LocalSystem, request: declared.OneSchedule) -> documents.Backfill:
    return await _backfill(system.fleet, await system.fleet.schedules.read_backfill(request.schedule))


async def cancel_backfill(system: LocalSystem, request: declared.ChangeSchedule) -> documents.Backfill:
    cancelled = await system.fleet.schedules.cancel_backfill(request.schedule, request.reason)
    return await _backfill(system.fleet, cancelled)


async def _backfill(fleet: Fleet, backfill: Backfill) -> documents.Backfill:
    return document_of(
        documents.Backfill,
        backfill,
        time_left=backfill.time_left(fleet.store.clock()),
        advice=await _advice(fleet, plans=True) if backfill.ended_at is None else [],
    )


# -- plan files that are sent as text, with the texts of the files that they include -----------------------------------


SMALL_FILE = 50_000
"""Up to this many characters a plan file is read at once; a larger one takes long, and so may one with aliases."""

_ALIAS = re.compile(r"(?<![^\s,:\[{])\*\w")


async def read_plan_text(
    text: str,
    name: str,
    params: Mapping[str, Any],
    includes: Mapping[str, str],
    only: Sequence[str] = (),
    tick: str | None = None,
    *,
    scheduled: bool = False,
) -> loader.PlanFile:
    """A plan file. ``includes`` are the texts of the files that it includes, by their paths from its folder; with
    ``only`` the plan has these tasks and what they need; ``tick`` and ``scheduled`` are as for ``loader.load``. A large
    one takes seconds, and is read in a thread. Raises BadPlan and InvalidTick."""
    options: dict[str, Any] = {"only": only, "tick": tick, "scheduled": scheduled}
    plan_file, mistakes = await examine_plan_text(text, name, params, includes, **options)
    if plan_file is None:
        raise loader.BadPlan("the plan file", mistakes)
    return plan_file


async def examine_plan_text(
    text: str, name: str, params: loader.Params, includes: Mapping[str, str], **options: Any
) -> tuple[loader.PlanFile | None, list[Mistake]]:
    """The same, or None, and all mistakes and warnings. Raises InvalidTick."""
    read = partial(loader.examine, text, name, params=params, texts=includes, fleet=True, **options)
    return await read_texts(read, [text, *includes.values()])


async def read_texts(read: Callable[[], Answer], texts: Sequence[str]) -> Answer:
    """Read texts of plan files: in a thread if that may take long."""
    quick = sum(map(len, texts)) <= SMALL_FILE and not any(map(_ALIAS.search, texts))
    return read() if quick else await asyncio.to_thread(read)
