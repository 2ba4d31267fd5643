"""The events of a fleet: runs, devices and notices that changed, read from the store for all clients together.

A store keeps no journal of runs, so the feed compares what it reads every second with what it read before. The id of an
event is ``FEED-NUMBER``: a client that reconnects continues after it as long as the feed remembers, and otherwise gets
a ``reset`` and reads the lists again. After the last client has left, the feed goes on for ``KEPT_FOR`` seconds: also a
lone client that reconnects misses nothing.

==========  ===========================================================================================================
``run``     ``id``, ``status``, ``workflow``, ``label``, ``device``, ``epoch``, ``revision``: the run has changed
``device``  the device as in ``GET /devices``: its state, slots or profile have changed
``notice``  ``number`` and the fields of the notice; its kind is ``notice``
``reset``   the client has to read the lists again
==========  ===========================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from asterism.api.local.device_handlers import device_document
from asterism.api.local.run_handlers import notice_document
from asterism.core.json_values import JsonObject
from asterism.core.run.run import Run
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_queries import labels_of, take_snapshot
from asterism.server.event_stream import EventBuffer, Events, encode_event
from asterism.store.store_errors import StoreUnavailable

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
        labels = await labels_of(fleet, changed)
        self._runs = {run.id: run.revision for run in snapshot.runs}
        events = [("run", _run_event(run, labels[run.id])) for run in changed]
        for session in sessions:
            shown = vars(device_document(session, now, ranks, snapshot.coordinator))
            kept = {name: value for name, value in shown.items() if name not in IGNORED}
            if self._devices.get(session.device) != kept:
                self._devices[session.device] = kept
                events.append(("device", shown))
        for number, notice in notices:
            self._notices = number
            events.append(("notice", {**vars(notice_document(number, notice)), "notice": notice.kind}))
        return events


def _run_event(run: Run, label: str | None) -> JsonObject:
    names = ("id", "workflow", "device", "epoch", "revision", "series", "started_at", "ended_at")
    return {**{name: getattr(run, name) for name in names}, "status": run.reported_status, "label": label}
