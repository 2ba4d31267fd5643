"""Server-sent events: a stream to one client, and the buffer of newest events that all clients of one source share.

An event has an id. A client that reconnects with ``Last-Event-ID`` continues after it: from the buffer, or from where
the source of the events finds older ones. ``EventStream`` ends when the client leaves, the server stops, or the
credential is revoked or expires. A client that does not read is disconnected (endpoint.py); the others do not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import Response

from asterism.api.local.fleet_handlers import device_document
from asterism.api.local.plan_handlers import parse_position
from asterism.api.local.run_handlers import notice_document
from asterism.base.clock import beside
from asterism.core.json_values import JsonObject
from asterism.core.record import asdict
from asterism.core.run.run import Run
from asterism.durable.plan_history import EVENTS_PER_READ, PlanEvent, PlanFollower, Position
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_queries import labels_of, take_snapshot
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreUnavailable

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from asterism.server.endpoint import Call

log = logging.getLogger("asterism.server")

HEARTBEAT = 15.0
"""Seconds after which a comment is sent."""

KEPT_EVENTS = 10_000
"""How many of the newest events of one source are kept in memory while somebody follows it."""

RETRY = 1000
"""After how many milliseconds a client connects again."""

Events = AsyncGenerator[bytes, None]
"""Encoded events, some at a time."""


def encode_event(identity: str, kind: str, data: Mapping[str, Any]) -> bytes:
    """An event as it is sent. Its JSON has no line breaks, and neither has an id."""
    return f"id: {identity}\nevent: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class EventStream(Response):
    """The answer to a client that follows events."""

    def __init__(self, call: Call, events: Events) -> None:
        self._call, self._events = call, events
        self.status_code, self.background = 200, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._events):
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_left(receive))
        server, caller = self._call.server, self._call.caller
        tasks = [sending, leaving, asyncio.create_task(server.stopping.wait())]
        if caller is not None:
            tasks.append(asyncio.create_task(server.credential_ends.wait(caller)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone = leaving.done()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not gone:
            with contextlib.suppress(Exception):  # it may have left meanwhile
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        sending = asyncio.Lock()  # a large body is sent in parts, and nothing may come between them

        async def body(data: bytes) -> None:
            async with sending:
                await send({"type": "http.response.body", "body": data, "more_body": True})

        async def heartbeat() -> None:
            while True:
                await asyncio.sleep(HEARTBEAT)
                await body(b": alive\n\n")

        try:
            await body(f"retry: {RETRY}\n\n".encode())
            async with beside(heartbeat()):
                async for data in self._events:
                    await body(data)
        except Exception as error:
            log.warning("an event stream of %s ended: %s", self._call.fleet.by, error)


async def _left(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Buffered(NamedTuple):
    """An event in a buffer: its number there, its position at its source, and as it is sent."""

    number: int
    position: Any
    data: bytes


class EventBuffer:
    """The newest events of one source. Positions are comparable and only grow."""

    def __init__(self, begin: Any, most: int | None = None) -> None:
        self._events: deque[Buffered] = deque(maxlen=KEPT_EVENTS if most is None else most)
        self._count, self._known_after = 0, begin
        self._changed, self._ended = asyncio.Event(), False
        self._error: Exception | None = None
        self._newest = Buffered(0, begin, b"")  # the events that were added last, as most readers get them

    @property
    def position(self) -> Any:
        """The position of the newest event; where the buffer began, if there is none."""
        return self._events[-1].position if self._events else self._known_after

    def has_since(self, position: Any) -> bool:
        """Whether all events after a position are here."""
        return bool(self._known_after <= position)

    def add(self, events: Sequence[tuple[Any, bytes]]) -> None:
        self._newest = Buffered(self._count, events[0][0], b"".join([data for _, data in events]))
        for position, data in events:
            if len(self._events) == self._events.maxlen:
                self._known_after = self._events[0].position
            self._events.append(Buffered(self._count, position, data))
            self._count += 1
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        """No more events will come."""
        self._ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def after(self, position: Any) -> Events:
        """The events after a position. Ends at the end of the source, and for a reader that has fallen behind the
        buffer: its client reconnects."""
        seen = next((event.number for event in self._events if event.position > position), self._count)
        while True:
            while self._count <= seen and not self._ended:
                await self._changed.wait()
            if self._events and self._events[0].number > seen:
                return
            data, seen, ended = self._since(seen, position), self._count, self._ended
            if data:
                yield data
            if ended:
                if self._error is not None:
                    raise self._error
                return

    def _since(self, number: int, position: Any) -> bytes:
        """The events from this number on that come after a position: a reader may be ahead of the source."""
        if number == self._newest.number and self._newest.position > position:
            return self._newest.data
        newest = islice(reversed(self._events), self._count - number)
        return b"".join([event.data for event in newest if event.position > position][::-1])


# -- the events of plans -----------------------------------------------------------------------------------------------


PLAN_INTERVAL = 0.2
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
                pause = PLAN_INTERVAL + self.listeners * LISTENER_INTERVAL
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


# -- the events of a fleet ---------------------------------------------------------------------------------------------


LOOK_INTERVAL = 1.0
"""Seconds between two looks."""

MOST_RUNS = 500
"""How many runs of each kind (owned, waiting, ended) are compared."""

KEPT_FOR = 60.0
"""For how many seconds the feed goes on without a client."""

IGNORED = ("last_heartbeat_at", "profile", "load", "rank", "quality")
"""Values of a device that change all the time, and are no event."""


class FleetFeed:
    """``spawn`` begins a task that ends with the server."""

    def __init__(self, fleet: Fleet, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._fleet, self._spawn, self._id = fleet, spawn, secrets.token_hex(4)
        self._buffer, self._number = EventBuffer(0), 0
        self._task: asyncio.Task[None] | None = None
        self._listeners, self._left_at, self._beginning = 0, 0.0, asyncio.Lock()
        self._runs: dict[str, int] = {}
        self._devices: dict[str, JsonObject] = {}
        self._notices = 0

    async def events(self, after: str | None) -> Events:
        """The events after an id. Without one, and for one that is forgotten, a ``reset`` comes first."""
        self._listeners += 1
        try:
            async with self._beginning:  # the reset below promises that later changes are seen
                if self._task is None or self._task.done():
                    await self._begin()
            feed, _, number = (after or "").partition("-")
            position = int(number) if feed == self._id and number.isdecimal() and len(number) < 16 else -1
            if not 0 <= position <= self._number or not self._buffer.has_since(position):
                position = self._number
                yield encode_event(f"{self._id}-{position}", "reset", {"kind": "reset"})
            async for data in self._buffer.after(position):
                yield data
        finally:
            self._listeners -= 1
            self._left_at = asyncio.get_running_loop().time()

    async def _begin(self) -> None:
        """Remember how things are now; then look for changes. After a pause the feed has another id: it has not seen
        what changed meanwhile."""
        self._id, self._buffer, self._number = secrets.token_hex(4), EventBuffer(0), 0
        while page := await self._fleet.store.notices(after=self._notices, limit=1000):
            self._notices = page[-1][0]
        await self._changes()
        self._task = self._spawn(self._look(self._buffer))

    async def _look(self, buffer: EventBuffer) -> None:
        """Look for changes until there was no client for a while. An error that does not pass ends the streams: their
        clients connect again, to a feed that begins anew."""
        now = asyncio.get_running_loop().time
        try:
            while self._listeners or now() - self._left_at < KEPT_FOR:
                await asyncio.sleep(LOOK_INTERVAL)
                changes: list[tuple[str, JsonObject]] = []
                with contextlib.suppress(StoreUnavailable):  # it comes back
                    changes = await self._changes()
                if changes:
                    buffer.add([self._numbered(kind, data) for kind, data in changes])
        except Exception as error:
            buffer.end(error)

    def _numbered(self, kind: str, data: JsonObject) -> tuple[int, bytes]:
        self._number += 1
        return self._number, encode_event(f"{self._id}-{self._number}", kind, {**data, "kind": kind})

    async def _changes(self) -> list[tuple[str, JsonObject]]:
        """What has changed since the last call. Everything is read before anything is remembered: if the store fails
        meanwhile, the next call finds the same changes."""
        fleet = self._fleet
        snapshot = await take_snapshot(fleet, MOST_RUNS, list(self._runs))
        ranks, now = (await fleet.placer()).ranks, fleet.store.clock()
        sessions = await fleet.devices()
        notices = await fleet.store.notices(after=self._notices, limit=1000)
        changed = [run for run in snapshot.runs if self._runs.get(run.id) != run.revision]
        labels = labels_of(changed)
        self._runs = {run.id: run.revision for run in snapshot.runs}
        events = [("run", _run_event(run, labels[run.id])) for run in changed]
        for session in sessions:
            shown = asdict(device_document(session, now, ranks, snapshot.coordinator))
            kept = {name: value for name, value in shown.items() if name not in IGNORED}
            if self._devices.get(session.device) != kept:
                self._devices[session.device] = kept
                events.append(("device", shown))
        for number, notice in notices:
            self._notices = number
            events.append(("notice", {**asdict(notice_document(number, notice)), "notice": notice.kind}))
        return events


def _run_event(run: Run, label: str | None) -> JsonObject:
    names = ("id", "workflow", "device", "epoch", "revision", "series", "started_at", "ended_at")
    return {**{name: getattr(run, name) for name in names}, "status": run.reported_status, "label": label}
