"""Events of a store: their documents, and what the operations of ``api/event_operations`` do."""

from __future__ import annotations

from collections.abc import Sequence

from asterism.api import documents
from asterism.api import event_operations as declared
from asterism.api.documents import document_of
from asterism.api.system import LocalSystem
from asterism.fleet import sent_events
from asterism.fleet.sent_events import SentEvent
from asterism.store.protocol import Store


async def _documents(store: Store, events: Sequence[SentEvent]) -> list[documents.SentEvent]:
    takers = {name: await sent_events.takers_of(store, name) for name in {event.name for event in events}}
    items = []
    for event in events:
        by_time = sorted(takers[event.name].get(event.number, ()), key=lambda taker: taker.at)
        taken = [document_of(documents.EventTaker, taker) for taker in by_time]
        items.append(document_of(documents.SentEvent, event, taken_by=taken))
    return items


async def send_event(system: LocalSystem, request: declared.SendEvent) -> documents.SentEvent:
    fleet = system.fleet
    event = await sent_events.send_event(fleet.store, request.name, request.data, key=request.key, by=fleet.by)
    [item] = await _documents(fleet.store, [event])
    return item


async def list_events(system: LocalSystem, request: declared.ListEvents) -> documents.Page[documents.SentEvent]:
    store = system.fleet.store
    if request.name is None:
        events = await sent_events.latest_events(store, request.before, request.limit)
    else:
        kept = await sent_events.events_of(store, request.name)
        older = (event for event in kept if request.before is None or event.number < request.before)
        events = sorted(older, key=lambda event: -event.number)[: request.limit]
    items = await _documents(store, events)
    following = str(events[-1].number) if len(events) == request.limit else None
    return documents.Page(items=items, next=following, now=store.clock())
