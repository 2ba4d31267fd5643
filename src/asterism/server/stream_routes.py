"""What the API serves that is no document: streams of events, and metrics as text."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import PlainTextResponse, Response

from asterism.api.local.fleet_handlers import metrics_families
from asterism.base.openmetrics import CONTENT_TYPE, render
from asterism.durable.journal_store import read_head
from asterism.server.endpoint import Call, Endpoint
from asterism.server.event_stream import EventStream

METRICS_AGE = 5.0
"""How old served metrics may be, in seconds: they are computed for all who ask."""


async def metrics(call: Call) -> Response:
    """The metrics of the fleet and its plans, for Prometheus."""

    async def produce() -> str:
        return render(await metrics_families(call.fleet))

    return PlainTextResponse(await call.server.remembered("metrics", METRICS_AGE, produce), media_type=CONTENT_TYPE)


POSITION = r"^\d{1,19}(\.\d{1,19})?$"


class FollowQuery(BaseModel, extra="forbid"):
    after: str | None = Field(None, pattern=POSITION, description="A `position`; default: from now on.")


async def follow_plan(call: Call) -> Any:
    """Follow a plan. `Last-Event-ID`, or `after` for the first connection, is the position to continue after."""
    after = call.request.headers.get("last-event-id") or call.query.after
    await read_head(call.fleet.store, call.path["plan"])
    return EventStream(call, await call.server.plan_feeds.events(call.path["plan"], after))


async def follow_fleet(call: Call) -> Any:
    """Follow runs, devices and notices. A client that was away for long gets a `reset`, and reads the lists again."""
    return EventStream(call, call.server.fleet_feed.events(call.request.headers.get("last-event-id")))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/plans/{plan}/events",
        follow_plan,
        "Events as they come.",
        needs="observe plan {plan}",
        query=FollowQuery,
        media="text/event-stream",
    ),
    Endpoint("GET", "/metrics", metrics, "Metrics, for Prometheus.", media="application/openmetrics-text"),
    Endpoint("GET", "/events", follow_fleet, "Events of runs, devices and notices.", media="text/event-stream"),
)
