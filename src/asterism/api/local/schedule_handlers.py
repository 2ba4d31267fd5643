"""Schedules of a store: their documents, and what the operations of ``api/schedule_operations`` do."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from asterism.api import documents
from asterism.api import schedule_operations as declared
from asterism.api.documents import document_of
from asterism.api.local.plan_texts import read_plan_text
from asterism.api.local.reasons import leave_reason
from asterism.api.operation import implements
from asterism.api.schedule_operations import ScheduleOperations
from asterism.api.system import LocalSystem
from asterism.base.http_limits import RequestRefused
from asterism.base.secret_mask import environment_mask, secret_names
from asterism.core.schedule.backfill import Backfill
from asterism.core.schedule.schedule import Schedule
from asterism.core.schedule.ticks import TickEntry
from asterism.durable.admin import live_owner
from asterism.durable.journal_store import read_head
from asterism.durable.plan_submissions import awaited_plan
from asterism.fleet import backfills
from asterism.fleet.device.run_inputs import is_secret
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import ScheduledWork, plan_key

NO_COORDINATOR = "No coordinator is running, so nothing is created{}. Start one with: asterism monitor"


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
        replaced=list(schedule.replaced),
        late=list(schedule.late),
        due_in=None if waits else max(0.0, (schedule.due or 0.0) - fleet.store.clock()),
    )


def _tick(entry: TickEntry) -> documents.Tick:
    return documents.Tick(**entry._asdict())


# -- reading -----------------------------------------------------------------------------------------------------------


@implements(ScheduleOperations.list_schedules)
async def list_schedules(system: LocalSystem, request: declared.ListSchedules) -> documents.Schedules:
    fleet = system.fleet
    items = [await _document(fleet, schedule) for schedule in await fleet.schedules.all()]
    idle = bool(items) and await fleet.coordinator() is None
    advice = [NO_COORDINATOR.format("")] if idle else []
    return documents.Schedules(items=items, now=fleet.store.clock(), advice=advice)


@implements(ScheduleOperations.show_schedule)
async def show_schedule(system: LocalSystem, request: declared.ShowSchedule) -> documents.ScheduleDetails:
    fleet, name = system.fleet, request.schedule
    schedule = await fleet.schedules.get(name)
    document = await _document(fleet, schedule)
    kept = None if schedule.plan is None else await fleet.store.register(plan_key(name))
    return documents.ScheduleDetails(
        **vars(document),
        next_times=[float(at) for at in await fleet.schedules.next_times(name, request.times)],
        history=[_tick(entry) for entry in await fleet.schedules.history(name)],
        coordinator=await fleet.coordinator(),
        params={} if kept is None else dict(kept.value.get("params", {})),
        text=await fleet.schedules.plan_text(name) or None if request.text else None,
        unowned=await _unowned(fleet, document.open[0]) if schedule.plan is not None and document.open else None,
        awaited=await awaited_plan(fleet.store, document.open[0]) if schedule.plan and document.open else None,
    )


async def _unowned(fleet: Fleet, plan: str) -> str | None:
    """The plan, if no process runs it."""
    head, _ = await read_head(fleet.store, plan)
    return plan if await live_owner(fleet.store, head) is None else None


# -- changing ----------------------------------------------------------------------------------------------------------


@implements(ScheduleOperations.add_schedule)
async def add_schedule(system: LocalSystem, request: declared.AddSchedule) -> documents.ChangedSchedule:
    fleet = system.fleet
    if (request.workflow is None) == (request.text is None):
        raise RequestRefused(422, "a schedule has either a workflow or a plan file")
    if (request.cron is None) == (request.every is None):
        raise RequestRefused(422, "a schedule has either a cron expression or an interval")
    names = (
        *("workflow", "priority", "device", "cron", "every", "timezone", "catch_up", "overlap", "jitter", "replace"),
        *("after_previous", "late_after"),
    )
    options: dict[str, Any] = {name: getattr(request, name) for name in names}
    if request.text is not None:
        file = PurePath(request.file)
        name = file.stem or request.name
        plan_file = await read_plan_text(request.text, name, request.params, request.includes, scheduled=True)
        options |= {"plan": plan_file.constellation, "plan_text": request.text, "params": plan_file.params}
        options |= {"policy": plan_file.policy or "scoped", "file": file.name}
    schedule = await fleet.schedules.add(request.name, input=request.input or None, **options)
    await leave_reason(fleet, f"added schedule {schedule.name!r}", request.reason)
    advice = [] if schedule.plan is None else ["Its plans are run by: asterism monitor"]
    if await fleet.coordinator() is None:
        advice.append(NO_COORDINATOR.format(" yet"))
    return documents.ChangedSchedule(**vars(await _document(fleet, schedule)), changed=True, advice=advice)


@implements(ScheduleOperations.pause_schedule)
async def pause_schedule(system: LocalSystem, request: declared.ChangeSchedule) -> documents.ChangedSchedule:
    schedules = system.fleet.schedules
    before = await schedules.get(request.schedule)
    paused = await schedules.pause(request.schedule, request.reason)
    return await _changed(system.fleet, paused, before.paused is None)


@implements(ScheduleOperations.resume_schedule)
async def resume_schedule(system: LocalSystem, request: declared.ChangeSchedule) -> documents.ChangedSchedule:
    schedules = system.fleet.schedules
    before = await schedules.get(request.schedule)
    resumed = await schedules.resume(request.schedule)
    await leave_reason(system.fleet, f"resumed schedule {resumed.name!r}", request.reason)
    return await _changed(system.fleet, resumed, before.paused is not None)


@implements(ScheduleOperations.remove_schedule)
async def remove_schedule(system: LocalSystem, request: declared.ChangeSchedule) -> documents.ChangedSchedule:
    removed = await system.fleet.schedules.remove(request.schedule)
    await leave_reason(system.fleet, f"removed schedule {removed.name!r}", request.reason)
    return await _changed(system.fleet, removed, True)


async def _changed(fleet: Fleet, schedule: Schedule, changed: bool) -> documents.ChangedSchedule:
    return documents.ChangedSchedule(**vars(await _document(fleet, schedule)), changed=changed)


@implements(ScheduleOperations.run_schedule)
async def run_schedule(system: LocalSystem, request: declared.ChangeSchedule) -> documents.Tick:
    entry = await system.fleet.schedules.run(request.schedule)
    system.submitted()
    await leave_reason(system.fleet, f"ran schedule {request.schedule!r}", request.reason)
    return _tick(entry)


# -- backfills ---------------------------------------------------------------------------------------------------------


@implements(ScheduleOperations.backfill_schedule)
async def backfill_schedule(system: LocalSystem, request: declared.BackfillSchedule) -> documents.Backfill:
    fleet, name = system.fleet, request.schedule
    backfill = await backfills.start_backfill(
        fleet, name, request.first, request.last, every=request.every, parallel=request.parallel
    )
    await leave_reason(fleet, f"began a backfill of schedule {name!r}", request.reason)
    return await _backfill(fleet, backfill)


@implements(ScheduleOperations.show_backfill)
async def show_backfill(system: LocalSystem, request: declared.ShowBackfill) -> documents.Backfill:
    return await _backfill(system.fleet, await backfills.read_backfill(system.fleet, request.schedule))


@implements(ScheduleOperations.cancel_backfill)
async def cancel_backfill(system: LocalSystem, request: declared.ChangeSchedule) -> documents.Backfill:
    cancelled = await backfills.cancel_backfill(system.fleet, request.schedule, request.reason)
    return await _backfill(system.fleet, cancelled)


async def _backfill(fleet: Fleet, backfill: Backfill) -> documents.Backfill:
    idle = backfill.ended_at is None and await fleet.coordinator() is None
    return document_of(
        documents.Backfill,
        backfill,
        open=list(backfill.open),
        failures=list(backfill.failures),
        time_left=backfill.time_left(fleet.store.clock()),
        advice=[NO_COORDINATOR.format("")] if idle else [],
    )
