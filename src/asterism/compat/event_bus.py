"""The documented event bus, process-wide, and the outlet through which a run publishes its events.

Publishing puts the event into the queue of every observer that subscribed to its type, and waits for none of them. The
exception is a *prompt* observer (the synchronizer): it is called directly, so that a task's end is registered before
anything can be dispatched because of it.

An observer gets one event at a time. If a handler is still busy ``HANDLER_TIMEOUT`` seconds after it began, the next
event is delivered in parallel, so a handler may wait for a later event.

Only ``compat`` has a process-wide bus, since the documented API has one. The bus may outlive event loops: events queued
for a closed loop are dropped.

``Outlet`` calls the documented bus directly, within the step that makes the event. It calls a bus of the user's own, or
a subclass that overrides ``publish_event``, in a task of its own, so that no observer delays the plan. The end of a
task must be delivered before the plan continues: the run waits for that while the plan is held.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from asterism.compat.vocabulary import (
    TASK_ENDS,
    Event,
    EventType,
    IEventObserver,
    IEventPublisher,
    ReadOnly,
)

if TYPE_CHECKING:
    from asterism.compat.plan_orchestrator import Run

logger = logging.getLogger("asterism.compat.events")

QUEUE_LIMIT = 10_000
"""The most events queued for one observer. Beyond that the oldest is dropped, unless it reports the end of a task: the
plan waits for the agent's answer to that, and there are no more ends than tasks."""

HANDLER_TIMEOUT = 5.0
"""How long a busy handler keeps the next event waiting, in seconds. After that, handlers of one observer overlap."""


class PromptObserver(IEventObserver):
    """An observer that is called while the event is being published. It must be quick and must not raise."""

    @property
    def prompt(self) -> bool:
        """Whether to call ``notice``. A subclass that overrides ``on_event`` is called through ``on_event``."""
        return untouched(self, "on_event")

    @abstractmethod
    def notice(self, event: Event) -> None: ...

    async def on_event(self, event: Event) -> None:
        self.notice(event)


def untouched(thing: object, *names: str) -> bool:
    """Whether these methods are those of Asterism, not overridden by a subclass or replaced on the object."""
    kind = type(thing)
    ours = next((base for base in kind.__mro__ if base.__module__.startswith("asterism.compat.")), None)
    return ours is not None and all(
        name not in getattr(thing, "__dict__", {}) and getattr(kind, name) is getattr(ours, name) for name in names
    )


class _Inbox:
    """One observer, the event types it subscribed to, and the events not delivered yet."""

    def __init__(self, observer: IEventObserver) -> None:
        self.observer = observer
        self.types: set[EventType] | None = set()  # None: all of them
        self.queue: deque[Event] = deque()
        self.dropped = 0
        self.handlers: set[asyncio.Task[None]] = set()  # more than one only if the first took too long
        self.delivery: asyncio.Task[None] | None = None  # the task that takes the next event
        self._since = 0.0  # when the current delivery took its event
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def want(self, types: Iterable[EventType] | None) -> None:
        self.types = None if types is None or self.types is None else self.types | set(types)

    def put(self, event: Event) -> None:
        self._follow_loop()
        if len(self.queue) >= QUEUE_LIMIT and self.queue[0].event_type not in TASK_ENDS:
            self.queue.popleft()
            self.dropped += 1
        self.queue.append(event)
        if self.delivery is None:
            self._begin()
        elif self._timer is None:
            self._set_timer()

    def _follow_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self.delivery, self._timer = loop, None, None
            self.queue.clear()
            self.handlers.clear()

    def _begin(self) -> None:
        """Start a task that delivers the queue, also in parallel with one that is still busy."""
        assert self._loop is not None
        self._timer = None
        self.delivery = self._loop.create_task(self._deliver())
        self.handlers.add(self.delivery)
        self.delivery.add_done_callback(self.handlers.discard)

    async def _deliver(self) -> None:
        assert self._loop is not None
        own = asyncio.current_task()
        try:
            while self.queue and self.delivery is own:
                event = self.queue.popleft()
                self._since = self._loop.time()
                self._set_timer()
                await self._handle(event)
        finally:
            if self.delivery is own:
                self.delivery = None
                self._set_timer()

    async def _handle(self, event: Event) -> None:
        try:
            answer = self.observer.on_event(event)
            if inspect.isawaitable(answer):
                await answer
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # this task was cancelled, not something that the observer awaited
            logger.exception("%r failed on %s; it receives the next event", self.observer, event.event_type)

    def _set_timer(self) -> None:
        """If an event waits behind a busy handler, deliver it after ``HANDLER_TIMEOUT`` seconds."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.queue and self.delivery is not None and self._loop is not None:
            self._timer = self._loop.call_at(self._since + HANDLER_TIMEOUT, self._begin)

    def close(self) -> None:
        """Drop the queue. The observer may finish its current call, which may be the caller."""
        self.queue.clear()
        self._set_timer()


class EventBus(IEventPublisher):
    def __init__(self) -> None:
        self._inboxes: dict[int, _Inbox] = {}

    def subscribe(self, observer: IEventObserver, event_types: Iterable[EventType] | None = None) -> None:
        """Deliver events of these types, or all, to ``observer``. A second call adds types."""
        inbox = self._inboxes.setdefault(id(observer), _Inbox(observer))
        inbox.want(event_types)

    def unsubscribe(self, observer: IEventObserver) -> None:
        inbox = self._inboxes.pop(id(observer), None)
        if inbox is not None:
            inbox.close()

    async def publish_event(self, event: Event) -> None:
        """Deliver the event, then yield to the loop once, so that an observer that does not wait has seen it."""
        self.deliver(event)
        await asyncio.sleep(0)

    def deliver(self, event: Event) -> None:
        """Call prompt observers now; queue the event for the others."""
        wanting = [i for i in self._inboxes.values() if i.types is None or event.event_type in i.types]
        later = []
        for inbox in wanting:
            observer = inbox.observer
            if not isinstance(observer, PromptObserver) or observer.prompt is not True:
                later.append(inbox)
                continue
            try:
                observer.notice(event)
            except Exception:
                logger.exception("%r failed on %s", observer, event.event_type)
        for inbox in later:
            inbox.put(event)

    async def caught_up(self, observer: object, timeout: float) -> None:
        """Wait until an observer has handled what was published so far, at most ``timeout`` seconds."""
        inbox = self._inboxes.get(id(observer))
        if inbox is not None:
            await _wait(inbox.handlers, timeout)

    async def drain(self, timeout: float) -> None:
        """Wait until the observers have caught up, at most ``timeout`` seconds."""
        await _wait([task for inbox in self._inboxes.values() for task in inbox.handlers], timeout)

    # -- private names that the documents show -------------------------------------------------------------------------

    @property
    def all_observers(self) -> frozenset[IEventObserver]:
        """The observers that want all events."""
        return frozenset(inbox.observer for inbox in self._inboxes.values() if inbox.types is None)

    @property
    def by_type(self) -> Mapping[EventType, frozenset[IEventObserver]]:
        """The observers that asked for certain types."""
        asked = [inbox for inbox in self._inboxes.values() if inbox.types is not None]
        wanted = {kind for inbox in asked for kind in inbox.types or ()}
        return MappingProxyType(
            {kind: frozenset(inbox.observer for inbox in asked if kind in (inbox.types or ())) for kind in wanted}
        )

    _all_observers = ReadOnly("all_observers", "use subscribe and unsubscribe")
    _observers = ReadOnly("by_type", "use subscribe and unsubscribe")


async def _wait(handlers: Iterable[asyncio.Task[None]], timeout: float) -> None:
    """Wait for the handlers of this loop, except the caller itself."""
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    busy = [task for task in handlers if not task.done() and task.get_loop() is loop and task is not own]
    if busy:
        await asyncio.wait(busy, timeout=timeout)


_process_wide = EventBus()


def get_event_bus() -> EventBus:
    """The bus of this process."""
    return _process_wide


_runs: dict[int, dict[str, Run]] = {}
"""The runs on each bus, by the bus's identity and the plan's id: an event names its plan only by id."""


def runs_on(bus: object) -> dict[str, Run]:
    return dict(_runs.get(id(bus), {}))


def add_run(bus: object, plan_id: str, run: Run) -> None:
    _runs.setdefault(id(bus), {})[plan_id] = run


def drop_run(bus: object, plan_id: str) -> None:
    runs = _runs.get(id(bus), {})
    runs.pop(plan_id, None)
    if not runs:
        _runs.pop(id(bus), None)


class Outlet:
    """``publish`` never waits. A bus of the user's own has ``HANDLER_TIMEOUT`` seconds to deliver the end of a task."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        self._documented = bus if issubclass(type(bus), EventBus) else None
        self._at_once = self._documented is not None and untouched(bus, "publish_event")
        self._publishing: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()

    def publish(self, event: Event) -> None:
        if self._at_once:
            self._bus.deliver(event)
            return
        task = asyncio.get_running_loop().create_task(self._send(event))
        for group in (self._publishing, self._ends) if event.event_type in TASK_ENDS else (self._publishing,):
            group.add(task)
            task.add_done_callback(group.discard)

    async def _send(self, event: Event) -> None:
        try:
            answer = self._bus.publish_event(event)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            logger.exception("%r failed to publish %s", self._bus, event.event_type)

    def subscribe(self, observer: IEventObserver) -> None:
        """Let an observer of a run hear the bus, if the bus takes observers."""
        if callable(getattr(self._bus, "subscribe", None)):
            self._bus.subscribe(observer)

    def unsubscribe(self, observer: IEventObserver) -> None:
        if callable(getattr(self._bus, "unsubscribe", None)):
            self._bus.unsubscribe(observer)

    async def delivered(self, observer: object, timeout: float) -> None:
        """Wait until an observer has received the published ends, at most ``timeout`` seconds."""
        if self._ends:
            await asyncio.wait(self._ends, timeout=min(timeout, HANDLER_TIMEOUT))
        if self._documented is not None:
            await self._documented.caught_up(observer, timeout)

    async def drain(self, timeout: float) -> None:
        """Wait until everything is published and the observers have caught up, at most ``timeout`` seconds."""
        if self._publishing:
            await asyncio.wait(self._publishing, timeout=timeout)
        if self._documented is not None:
            await self._documented.drain(timeout)
