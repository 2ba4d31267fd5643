"""What the API serves of a fleet that is no document: metrics as text, and the stream of its events."""

from __future__ import annotations

from typing import Any

from starlette.responses import PlainTextResponse, Response

from asterism.api.local.fleet_handlers import metrics_families
from asterism.base.openmetrics import CONTENT_TYPE, render
from asterism.server.endpoint import Call, Endpoint
from asterism.server.event_stream import EventStream

METRICS_AGE = 5.0
"""How old served metrics may be, in seconds: they are computed for all who ask."""


async def metrics(call: Call) -> Response:
    """The metrics of the fleet and its plans, for Prometheus."""

    async def produce() -> str:
        return render(await metrics_families(call.fleet))

    return PlainTextResponse(await call.server.remembered("metrics", METRICS_AGE, produce), media_type=CONTENT_TYPE)


async def follow(call: Call) -> Any:
    """Follow runs, devices and notices. A client that was away for long gets a `reset`, and reads the lists again."""
    return EventStream(call, call.server.fleet_feed.events(call.request.headers.get("last-event-id")))


ENDPOINTS = (
    Endpoint("GET", "/metrics", metrics, "Metrics, for Prometheus.", media="application/openmetrics-text"),
    Endpoint("GET", "/events", follow, "Events of runs, devices and notices.", media="text/event-stream"),
)
