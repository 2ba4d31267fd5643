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
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import Response

from asterism.base.follow import beside

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
            tasks.append(asyncio.create_task(server.credential_ends.wait(caller.id)))
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
