"""The events of a plan as a stream."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from asterism.durable.journal_store import read_head
from asterism.server.endpoint import Call, Endpoint
from asterism.server.event_stream import EventStream

POSITION = r"^\d{1,19}(\.\d{1,19})?$"


class FollowQuery(BaseModel, extra="forbid"):
    after: str | None = Field(None, pattern=POSITION, description="A `position`; default: from now on.")


async def follow(call: Call) -> Any:
    """Follow a plan. `Last-Event-ID`, or `after` for the first connection, is the position to continue after."""
    after = call.request.headers.get("last-event-id") or call.query.after
    await read_head(call.fleet.store, call.path["plan"])
    return EventStream(call, await call.server.plan_feeds.events(call.path["plan"], after))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/plans/{plan}/events",
        follow,
        "Events as they come.",
        needs="observe plan {plan}",
        query=FollowQuery,
        media="text/event-stream",
    ),
)
