"""Operations on events that plans wait for: send and list."""

from __future__ import annotations

from typing import Annotated, Any

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Operation
from asterism.api.quick_dataclass import Request

EventName = Annotated[str, Limit(min_length=1, max_length=200), Doc("The name that tasks wait for.")]


class SendEvent(Request):
    """An event continues the tasks that wait for its name, also those that begin to wait while it is kept."""

    name: EventName
    data: Annotated[Any, Doc("A JSON value: the result of these tasks.")] = None
    key: Annotated[str | None, Limit(min_length=1, max_length=500), Doc("An event with this key is sent once.")] = None


class ListEvents(Request):
    name: Annotated[str | None, Doc("Only events of this name.")] = None
    before: Annotated[int | None, Doc("Only events with a smaller number.")] = None
    limit: Annotated[int, Limit(ge=1, le=1000)] = 50


EventPage = documents.Page[documents.SentEvent]


class EventOperations:
    send_event = Operation(
        SendEvent,
        documents.SentEvent,
        "Send an event that plans wait for.",
        "POST /sent-events",
        needs="event",
        status=201,
    )
    list_events = Operation(
        ListEvents,
        EventPage,
        "List the events that are kept, the newest first, and who has taken them.",
        "GET /sent-events",
    )
