"""Events of running plans: their types, the bus that delivers them, and the publisher of one plan's events.

The event loop never waits for a subscriber. Each subscriber has a queue of its own and a task that empties it. If an
observer raises, the error is logged and the next event follows. A full queue drops its *oldest* event and counts it in
``Subscription.dropped``: a slow subscriber loses history, never the latest event. A plain function runs on the loop,
like any asyncio callback, so it has to be short.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from asterism.core.errors import Violation, error_text
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.status import ConstellationState, TaskStatus
from asterism.core.record import Record

logger = logging.getLogger("asterism.events")

DRAIN_TIMEOUT = 1.0
"""Seconds that the end of a plan waits for observers with undelivered events."""


class Event(Record, kw_only=True):
    """``kind`` is a fixed word, ``at`` the time in seconds since 1970, ``constellation`` the id of the plan."""

    kind: str
    at: float
    constellation: str = ""


class TaskEvent(Event, kw_only=True):
    """task_started, task_retrying, task_completed, task_failed, task_cancelled, task_revoked, task_confirmed,
    task_waiting (it waits for the world), task_released, task_unchanged (it completes with its recorded result),
    task_result_refused (the result arrived after the execution had been stopped)."""

    task_id: str
    status: TaskStatus
    device: str | None = None
    epoch: int = 0
    attempt: int = 0
    value: Any = None
    error: BaseException | None = None
    reason: str = ""
    provisional: bool = False


class ConstellationEvent(Event, kw_only=True):
    """constellation_started, _paused, _resumed, _cancelling, and its end: _completed, _failed, _partially_failed,
    _cancelled."""

    state: ConstellationState
    version: int


class EditEvent(Event, kw_only=True):
    """cycle_opened, stuck, edit_applied, edit_rejected, edit_overtaken (an editor returned a whole plan; its changes to
    tasks that have started since are left out), edit_abandoned (rejected too often), edit_waiting (for a person),
    edit_escalated (nobody has decided yet), edit_refused (by a person, or nobody approved it in time), edit_timeout,
    editor_held (it waits for a person), editor_failed, cycle_closed."""

    version: int
    cycle: int | None = None
    tasks: tuple[str, ...] = ()
    author: str = ""
    reason: str = ""
    edits: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    error: BaseException | None = None
    approval: int | None = None


class DeviceEvent(Event, kw_only=True):
    """device_joined, device_left, device_lost, no_device (no device can take a ready task)."""

    device: str
    task_id: str | None = None
    detail: str = ""


Observer = Callable[[Any], Awaitable[None] | None]


class Subscription:
    """One subscriber with its queue; an asynchronous iterator if it has no observer. ``close()`` ends it."""

    def __init__(self, bus: EventBus, kinds: tuple[type[Event], ...], observer: Observer | None, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit (the length of an event queue) must be 1 or more, not {limit}")
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
        """The task that empties the queue; None while the subscription is idle."""
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
                    raise  # this task was cancelled, not something that the observer awaited
                logger.exception("an observer raised on %s; it receives the next event", event.kind)

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
    """The bus of one orchestrator. While ``subscriptions`` is empty, no event is made."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []

    def subscribe(self, observer: Observer, *kinds: type[Event], limit: int = 10_000) -> Subscription:
        """Call ``observer`` (a function or coroutine function) with each event of these types, or of all types."""
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
        """Whether a subscriber receives events of this type."""
        return any(subscription.wants(kind) for subscription in self.subscriptions)

    def publish(self, event: Event) -> None:
        for subscription in tuple(self.subscriptions):
            if subscription.wants(type(event)):
                subscription.offer(event)

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Wait until every observer has received its events, for at most ``timeout`` seconds."""
        own = asyncio.current_task()  # an observer that runs a plan does not wait for itself
        deliveries = [task for s in self.subscriptions if (task := s.delivering) is not None and task is not own]
        if deliveries:
            await asyncio.wait(deliveries, timeout=timeout)


class PlanEvents:
    """Makes the events of one plan, and publishes them. An event without a subscriber is not made.

    ``publish`` replaces the bus as the receiver: a journal publishes an event once its cause is durable."""

    def __init__(
        self,
        bus: EventBus,
        plan: Constellation,
        now: Callable[[], float],
        publish: Callable[[Event], None] | None = None,
    ) -> None:
        self.bus, self._plan, self._now = bus, plan, now
        self.publish = bus.publish if publish is None else publish

    def emit(self, make: type[Event], /, **fields: Any) -> None:
        if self.bus.wants(make):
            self.publish(make(at=self._now(), constellation=self._plan.id, **fields))

    def plan_changed(self, kind: str) -> None:
        self.emit(ConstellationEvent, kind=kind, state=self._plan.state, version=self._plan.version)

    def task_changed(self, kind: str, node: Node, error: BaseException | None = None) -> None:
        if self.bus.subscriptions:
            facts = {"status": node.status, "error": error, "reason": error_text(error)}
            self.emit(TaskEvent, kind=kind, **_execution_of(node), **facts)

    def task_ended(self, node: Node) -> None:
        """A provisional end is not an event: it becomes one when it is confirmed."""
        if not node.provisional and self.bus.wants(TaskEvent):
            self.publish(self.end_event(node))

    def confirmed(self, nodes: list[Node]) -> None:
        for node in nodes:
            if node.ended_at is None:
                self.task_changed("task_confirmed", node)
            else:
                self.task_ended(node)

    def end_event(self, node: Node) -> TaskEvent:
        """The end of a task, provisional or not. Editors receive it too."""
        return end_event(self._plan.id, node, self._now())


def end_event(plan: str, node: Node, now: float) -> TaskEvent:
    """The end of a task, at ``now`` if its time is not known."""
    status = node.tentative or node.status
    return TaskEvent(
        kind=f"task_{status}",
        at=now if node.ended_at is None else node.ended_at,
        constellation=plan,
        status=status,
        value=node.value,
        error=node.error,
        reason=node.reason if node.error is None else error_text(node.error) or node.reason,
        **_execution_of(node),
    )


def _execution_of(node: Node) -> dict[str, Any]:
    """What an event says of the present execution of a task."""
    at_device = {"device": node.device, "epoch": node.epoch, "attempt": node.attempts}
    return {"task_id": node.id, **at_device, "provisional": node.provisional}
