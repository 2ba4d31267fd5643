"""Devices, schedules, notices, metrics and events of the fleet over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import PlainTextResponse, Response

from asterism.api import documents
from asterism.api.local.plan_handlers import examined
from asterism.api.local.run_handlers import run_documents
from asterism.base.http_limits import RequestRefused
from asterism.base.openmetrics import CONTENT_TYPE, render
from asterism.core.run.run import OWNED
from asterism.durable.plan_metrics import plan_families
from asterism.fleet.fleet import Fleet, UnknownDevice
from asterism.fleet.fleet_json import device_json, entry_json, notice_json, schedule_json
from asterism.fleet.run_queries import list_runs
from asterism.fleet.scheduled_work import ScheduledWork
from asterism.fleet.selection_metrics import MAX_RUNS, WINDOW, fleet_families
from asterism.server.endpoint import Call, Endpoint, NoModel
from asterism.server.event_stream import EventStream
from asterism.store.protocol import Query

METRICS_AGE = 5.0
"""How old served metrics may be, in seconds: they are computed for all who ask."""

LATEST_RUNS = 20
"""How many runs of a device are listed."""

NEXT_TIMES = 5


# -- devices -----------------------------------------------------------------------------------------------------------


async def devices_of(fleet: Fleet) -> list[dict[str, Any]]:
    placer, coordinator = await fleet.placer(fresh=True), await fleet.coordinator()
    now, ranks = fleet.store.clock(), placer.ranks
    return [device_json(one, now, ranks.get(one.device, 0.0), coordinator) for one in await fleet.devices()]


async def list_devices(call: Call) -> Any:
    return {"items": await devices_of(call.fleet), "next": None}


async def show_device(call: Call) -> Any:
    name = call.path["device"]
    found = next((one for one in await devices_of(call.fleet) if one["name"] == name), None)
    if found is None:
        raise UnknownDevice(f"no device {name!r} has joined")
    latest = await list_runs(
        call.fleet,
        statuses=(),
        workflow=None,
        device=name,
        series=None,
        search=None,
        limit=LATEST_RUNS,
        newest=True,
    )
    held = await call.fleet.store.find(Query(session=found["session"], limit=LATEST_RUNS * 10))
    return {
        **found,
        "holds": await run_documents(call.fleet, [run for run in held if run.status in OWNED]),
        "latest": await run_documents(call.fleet, latest.runs),
    }


async def drain(call: Call) -> Any:
    session = await call.fleet.drain(call.path["device"])
    placer = await call.fleet.placer(fresh=True)
    rank = placer.ranks.get(session.device, 0.0)
    return device_json(session, call.fleet.store.clock(), rank, await call.fleet.coordinator())


# -- schedules ---------------------------------------------------------------------------------------------------------


class WithReason(BaseModel, extra="forbid"):
    reason: str = Field("", max_length=10_000)


class NewSchedule(BaseModel, extra="forbid"):
    """A schedule, as for `asterism schedule add`: of a workflow, or of a plan (``file`` is the text of a plan file)."""

    name: str = Field(min_length=1, max_length=100)
    workflow: str | None = Field(None, min_length=1, max_length=500)
    file: str | None = Field(None, max_length=900_000)
    params: dict[str, Any] = {}
    input: dict[str, Any] = {}
    priority: int | None = Field(None, ge=-1_000_000, le=1_000_000)
    device: str | None = Field(None, min_length=1, max_length=500)
    cron: str | None = Field(None, max_length=200)
    every: int | None = Field(None, ge=1, le=366 * 86_400)
    timezone: str = Field("UTC", max_length=100)
    catch_up: Literal["none", "last", "all"] = "last"
    overlap: Literal["skip", "queue", "replace", "allow"] = "skip"
    jitter: float = Field(0.0, ge=0.0, le=86_400.0)
    replace: bool = False


async def list_schedules(call: Call) -> Any:
    now = call.fleet.store.clock()
    return {"items": [schedule_json(one, now) for one in await call.fleet.schedules.all()], "next": None}


async def show_schedule(call: Call) -> Any:
    schedules, name = call.fleet.schedules, call.path["schedule"]
    schedule = await schedules.get(name)
    return {
        **schedule_json(schedule, call.fleet.store.clock()),
        "open": list(await ScheduledWork(call.fleet).open_work(schedule)),
        "next_times": list(await schedules.next_times(name, NEXT_TIMES)),
        "history": [entry_json(one) for one in await schedules.history(name)],
        "coordinator": await call.fleet.coordinator(),
    }


async def add_schedule(call: Call) -> Any:
    given: NewSchedule = call.body
    if (given.workflow is None) == (given.file is None):
        raise RequestRefused(422, "a schedule has either a workflow or a plan file")
    if (given.cron is None) == (given.every is None):
        raise RequestRefused(422, "a schedule has either a cron expression or an interval")
    names = ("workflow", "priority", "device", "cron", "every", "timezone", "catch_up", "overlap", "jitter", "replace")
    terms = {name: getattr(given, name) for name in names}
    if given.file is not None:
        found = await examined(given.file, given.name, given.params)
        terms |= {"plan": found.constellation, "plan_text": given.file, "params": found.params}
        terms |= {"policy": found.policy or "scoped"}
    schedule = await call.fleet.schedules.add(given.name, given=given.input or None, **terms)
    return schedule_json(schedule, call.fleet.store.clock())


async def pause_schedule(call: Call) -> Any:
    schedule = await call.fleet.schedules.pause(call.path["schedule"], call.body.reason)
    return schedule_json(schedule, call.fleet.store.clock())


async def resume_schedule(call: Call) -> Any:
    return schedule_json(await call.fleet.schedules.resume(call.path["schedule"]), call.fleet.store.clock())


async def run_schedule(call: Call) -> Any:
    entry = await call.fleet.schedules.run(call.path["schedule"])
    call.server.submitted()
    return entry_json(entry)


async def remove_schedule(call: Call) -> Any:
    return schedule_json(await call.fleet.schedules.remove(call.path["schedule"]), call.fleet.store.clock())


# -- notices, metrics, events ------------------------------------------------------------------------------------------


class NoticeQuery(BaseModel, extra="forbid"):
    after: int = Field(0, ge=0, le=1 << 53, description="The `next` of an earlier answer.")
    limit: int = Field(100, ge=1, le=1000)
    run: str | None = Field(None, max_length=100)


async def list_notices(call: Call) -> Any:
    query: NoticeQuery = call.query
    found = await call.fleet.store.notices(run=query.run, after=query.after, limit=query.limit)
    last = found[-1][0] if found else query.after
    return {"items": [{"number": number, **notice_json(one)} for number, one in found], "next": str(last)}


async def metrics(call: Call) -> Response:
    """The metrics of the fleet and its plans, for Prometheus."""

    async def produce() -> str:
        store = call.fleet.store
        return render([*await fleet_families(call.fleet, WINDOW, MAX_RUNS), *await plan_families(store, WINDOW)])

    return PlainTextResponse(await call.server.remembered("metrics", METRICS_AGE, produce), media_type=CONTENT_TYPE)


async def follow(call: Call) -> Any:
    """Follow runs, devices and notices. A client that was away for long gets a `reset`, and reads the lists again."""
    return EventStream(call, call.server.fleet_feed.events(call.request.headers.get("last-event-id")))


Devices, OneSchedule = documents.Page[documents.Device], documents.Schedule
Schedules, Notices = documents.Page[documents.Schedule], documents.Page[documents.Notice]

ENDPOINTS = (
    Endpoint("GET", "/devices", list_devices, "List devices.", answer=Devices),
    Endpoint("GET", "/devices/{device}", show_device, "A device and its runs.", answer=documents.DeviceDetails),
    Endpoint("POST", "/devices/{device}/drain", drain, "Let it leave.", "operate", NoModel, NoModel, documents.Device),
    Endpoint("GET", "/schedules", list_schedules, "List schedules.", answer=Schedules),
    Endpoint("POST", "/schedules", add_schedule, "Add one.", "operate", NoModel, NewSchedule, OneSchedule, 201),
    Endpoint("GET", "/schedules/{schedule}", show_schedule, "A schedule.", answer=OneSchedule),
    Endpoint("DELETE", "/schedules/{schedule}", remove_schedule, "Remove a schedule.", "operate", answer=OneSchedule),
    Endpoint(
        "POST", "/schedules/{schedule}/pause", pause_schedule, "Pause.", "operate", NoModel, WithReason, OneSchedule
    ),
    Endpoint(
        "POST", "/schedules/{schedule}/resume", resume_schedule, "Resume.", "operate", NoModel, NoModel, OneSchedule
    ),
    Endpoint(
        "POST", "/schedules/{schedule}/run", run_schedule, "Tick now.", "operate", NoModel, NoModel, documents.Tick
    ),
    Endpoint("GET", "/notices", list_notices, "Notices, oldest first.", "observe", NoticeQuery, answer=Notices),
    Endpoint("GET", "/metrics", metrics, "Metrics, for Prometheus.", media="application/openmetrics-text"),
    Endpoint("GET", "/events", follow, "Events of runs, devices and notices.", media="text/event-stream"),
)
