"""Typed events, and the bus that carries them from the loop to whoever listens.

The loop never waits for a listener. Each subscriber has a queue of its own and a task that empties it; a subscriber
that crashes is logged and goes on with the next event. A queue that is full drops its *oldest* event and counts it in
``Subscription.dropped``: a slow listener loses history, never the present. An event that nobody listens for is not
even made.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from asterism.core.errors import Violation
from asterism.core.status import ConstellationState, TaskStatus

logger = logging.getLogger("asterism.events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``kind`` is a fixed word, ``at`` the time in seconds, ``constellation`` the id of the plan it belongs to."""

    kind: str
    at: float
    constellation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent(Event):
    """task_started, task_retrying, task_completed, task_failed, task_cancelled, task_revoked, task_confirmed,
    task_released, task_result_refused (a result that came after its execution had been stopped)."""

    task_id: str
    status: TaskStatus
    device: str | None = None
    epoch: int = 0
    attempt: int = 0
    value: Any = None
    error: BaseException | None = None
    provisional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstellationEvent(Event):
    """constellation_started, _paused, _resumed, _cancelling, and its end: _completed, _failed, _partially_failed,
    _cancelled."""

    state: ConstellationState
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EditEvent(Event):
    """cycle_opened, stuck, edit_applied, edit_rejected, edit_abandoned (rejected too often), edit_timeout,
    editor_failed, cycle_closed."""

    version: int
    cycle: int | None = None
    tasks: tuple[str, ...] = ()
    author: str = ""
    edits: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent(Event):
    """device_joined, device_left, device_lost, no_device (no device can take a ready task)."""

    device: str
    detail: str = ""


Observer = Callable[[Any], Awaitable[None] | None]


class Subscription:
    """One listener with its queue. ``close()`` ends it."""

    def __init__(self, bus: EventBus, kinds: tuple[type[Event], ...], observer: Observer | None, limit: int) -> None:
        self._bus, self._kinds, self._observer = bus, kinds, observer
        self._queue: deque[Event] = deque()
        self._limit = limit
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def offer(self, event: Event) -> None:
        if self._kinds and not isinstance(event, self._kinds):
            return
        if len(self._queue) >= self._limit:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self._wake.set()
        self._idle.clear()
        if self._observer is not None and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._deliver(self._observer))

    async def _deliver(self, observer: Observer) -> None:
        """Empty the queue into the observer, then end: an idle subscription costs no task."""
        while self._queue:
            event = self._queue.popleft()
            try:
                answer = observer(event)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                logger.exception("an observer failed on %s; it goes on with the next event", event.kind)
        self._idle.set()

    async def next(self) -> Event:
        while not self._queue:
            self._idle.set()
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()

    async def idle(self) -> None:
        await self._idle.wait()

    def close(self) -> None:
        self._bus.remove(self)
        self._queue.clear()
        self._idle.set()
        if self._task is not None:
            self._task.cancel()


class EventBus:
    """Belongs to one orchestrator. While ``subscriptions`` is empty nobody needs to make an event."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []

    def subscribe(self, observer: Observer, *kinds: type[Event], limit: int = 10_000) -> Subscription:
        """Call ``observer`` (a function or coroutine function) with every event of the given types, or with all."""
        subscription = Subscription(self, kinds, observer, limit)
        self.subscriptions.append(subscription)
        return subscription

    @contextlib.asynccontextmanager
    async def listen(self, *kinds: type[Event], limit: int = 10_000) -> AsyncIterator[AsyncIterator[Event]]:
        """``async with bus.listen(TaskEvent) as events: async for event in events: …``"""
        subscription = Subscription(self, kinds, None, limit)
        self.subscriptions.append(subscription)
        try:
            yield _iterate(subscription)
        finally:
            subscription.close()

    def remove(self, subscription: Subscription) -> None:
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)

    def publish(self, event: Event) -> None:
        for subscription in tuple(self.subscriptions):
            subscription.offer(event)

    async def drain(self, timeout: float) -> None:
        """Wait until every observer has caught up, but no longer than ``timeout`` seconds."""
        waits = [asyncio.ensure_future(s.idle()) for s in self.subscriptions if s._observer is not None]
        if waits:
            _, late = await asyncio.wait(waits, timeout=timeout)
            for wait in late:
                wait.cancel()


async def _iterate(subscription: Subscription) -> AsyncIterator[Event]:
    while True:
        yield await subscription.next()
