"""Typed events, and the bus that carries them from the loop to whoever listens.

The loop never waits for a listener (a plain function runs on the loop, like any callback of asyncio: keep it short).
Each subscriber has a queue of its own and a task that empties it; a subscriber
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
from asterism.core.plan.status import ConstellationState, TaskStatus

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
    reason: str = ""
    provisional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstellationEvent(Event):
    """constellation_started, _paused, _resumed, _cancelling, and its end: _completed, _failed, _partially_failed,
    _cancelled."""

    state: ConstellationState
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EditEvent(Event):
    """cycle_opened, stuck, edit_applied, edit_rejected, edit_overtaken (what progress has overtaken was left out of a
    whole plan handed back), edit_abandoned (rejected too often), edit_timeout, editor_failed, cycle_closed."""

    version: int
    cycle: int | None = None
    tasks: tuple[str, ...] = ()
    author: str = ""
    reason: str = ""
    edits: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent(Event):
    """device_joined, device_left, device_lost, no_device (no device can take a ready task)."""

    device: str
    task_id: str | None = None
    detail: str = ""


Observer = Callable[[Any], Awaitable[None] | None]


class Subscription:
    """One listener with its queue; an asynchronous iterator if it has no observer. ``close()`` ends it."""

    def __init__(self, bus: EventBus, kinds: tuple[type[Event], ...], observer: Observer | None, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit is the room in a queue of events: 1 or more, not {limit}")
        self._bus, self._kinds, self._observer = bus, kinds, observer
        self._queue: deque[Event] = deque()
        self._limit = limit
        self._waiter: asyncio.Future[None] | None = None
        self._delivery: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0

    def wants(self, kind: type[Event]) -> bool:
        return not self._kinds or issubclass(kind, self._kinds)

    def offer(self, event: Event) -> None:
        if len(self._queue) >= self._limit:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._observer is not None and self.delivering is None:
            self._delivery = asyncio.get_running_loop().create_task(self._deliver(self._observer))

    @property
    def delivering(self) -> asyncio.Task[None] | None:
        """The task that is emptying the queue now; an idle subscription costs none."""
        task = self._delivery
        return task if task is not None and not task.done() and not task.get_loop().is_closed() else None

    async def _deliver(self, observer: Observer) -> None:
        while self._queue:
            event = self._queue.popleft()
            try:
                answer = observer(event)
                if inspect.isawaitable(answer):
                    await answer
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise  # it is this task that was cancelled, not something that the observer waited for
                logger.exception("an observer failed on %s; it goes on with the next event", event.kind)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._queue.popleft()

    def close(self) -> None:
        self._bus.remove(self)
        self._closed = True
        self._queue.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.delivering is not None:
            self.delivering.cancel()


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
    async def listen(self, *kinds: type[Event], limit: int = 10_000) -> AsyncIterator[Subscription]:
        """``async with bus.listen(TaskEvent) as events: async for event in events: …``"""
        subscription = Subscription(self, kinds, None, limit)
        self.subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            subscription.close()

    def remove(self, subscription: Subscription) -> None:
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody listens for events of a type; if not, none is made."""
        return any(subscription.wants(kind) for subscription in self.subscriptions)

    def publish(self, event: Event) -> None:
        for subscription in tuple(self.subscriptions):
            if subscription.wants(type(event)):
                subscription.offer(event)

    async def drain(self, timeout: float) -> None:
        """Wait until every observer has caught up, but no longer than ``timeout`` seconds."""
        own = asyncio.current_task()  # a plan that is run by an observer does not wait for itself
        deliveries = [task for s in self.subscriptions if (task := s.delivering) is not None and task is not own]
        if deliveries:
            await asyncio.wait(deliveries, timeout=timeout)
