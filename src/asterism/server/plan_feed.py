"""The events of plans: one reader of the journal of each plan that somebody follows, for all its clients.

The id of an event is its position in the journal. A client that was away for longer than the buffer lasts gets the
missed events from the journal itself. If the journal cannot tell them, the first event is ``reset``: the client reads
the plan again, and continues after the position of the reset.
"""

from __future__ import annotations

import asyncio
import contextlib

from asterism.api.local.plan_handlers import parse_position
from asterism.durable.plan_history import EVENTS_PER_READ, PlanEvent, PlanFollower, Position
from asterism.server.event_stream import EventBuffer, Events, encode_event
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreUnavailable

LOOK_INTERVAL = 0.2
"""Seconds between two looks for new events of a plan. What comes in between is sent at once: for 200 clients of a busy
plan, to send each record as it comes took most of the server's time."""

LISTENER_INTERVAL = 0.002
"""How many seconds that takes longer for each client: what is sent to many, again and again, takes time of the plan."""


class PlanFeed:
    """The newest events of one plan, read while somebody listens."""

    def __init__(self, follower: PlanFollower) -> None:
        self._follower, self.buffer = follower, EventBuffer(follower.position)
        self.listeners = 0
        self.task = asyncio.create_task(self._read())

    @property
    def read_until(self) -> Position:
        """The last record of the journal that was read."""
        return self._follower.position

    async def _read(self) -> None:
        """Read the journal until this is cancelled, or the plan is gone. It ends without an error then: the task would
        keep the error, the error this frame, and that the feed with all its events."""
        try:
            while True:
                events: list[PlanEvent] = []
                with contextlib.suppress(StoreUnavailable):  # it comes back
                    events = await self._follower.read()
                if events:
                    self.buffer.add([(event.position, _encoded(event)) for event in events])
                    if events[-1].kind == "gone":
                        return self.buffer.end()
                pause = LOOK_INTERVAL + self.listeners * LISTENER_INTERVAL
                await asyncio.sleep(0.0 if len(events) >= EVENTS_PER_READ else pause)
        except asyncio.CancelledError:
            return
        except Exception as error:  # else its streams would be silent for ever
            self.buffer.end(error)


class PlanFeeds:
    """The feeds of the plans that are followed, by name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._feeds: dict[str, PlanFeed] = {}
        self._opening = asyncio.Lock()

    async def events(self, name: str, after: str | None) -> Events:
        """The events of a plan after a position; for None, from now on. Raises UnknownConstellation, and RequestRefused
        for what is not a position."""
        position = None if after is None else parse_position(after)
        feed = await self._open(name)
        events = self._events(name, feed, position)
        await anext(events)  # now it counts as a listener until it is closed, whether or not it is read
        return events

    async def _open(self, name: str) -> PlanFeed:
        async with self._opening:
            feed = self._feeds.get(name)
            if feed is None or feed.task.done():
                feed = self._feeds[name] = PlanFeed(await PlanFollower.open(self._store, name))
            feed.listeners += 1
            return feed

    async def _events(self, name: str, feed: PlanFeed, position: Position | None) -> Events:
        try:
            if position is None:
                position = feed.buffer.position
            yield b""
            ahead = position > feed.read_until  # of what the feed has read, or of another plan of this name
            while ahead or not feed.buffer.has_since(position):
                ahead, follower = False, await PlanFollower.open(self._store, name, position)
                while missed := await follower.read():
                    yield b"".join(map(_encoded, missed))
                    if missed[-1].kind == "gone":
                        return
                position = follower.position
            async for data in feed.buffer.after(position):
                yield data
        finally:
            feed.listeners -= 1
            if not feed.listeners:
                feed.task.cancel()
                if self._feeds.get(name) is feed:
                    del self._feeds[name]


def _encoded(event: PlanEvent) -> bytes:
    return encode_event(str(event.position), event.kind, event.to_json())
