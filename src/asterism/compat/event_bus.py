"""The documented event bus: one queue per observer, process-wide.

Publishing hands the event to the queue of every observer that wants it and does not wait for any. The exception is a
*prompt* observer (the synchronizer): it takes notice within the call, so that a task's end is registered before
anything can be dispatched because of it.

An observer gets one event after the other. A handler that is still busy ``HANDLER_TIMEOUT`` seconds after it began
does not keep the next event from its observer: that is delivered beside it, so a handler may wait for a later event.

This is the only room of Asterism with a bus for the whole process, since the documented API has one. It may outlive
event loops: what was queued for a loop that is gone is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from asterism.compat.documented_events import (
    TASK_ENDS,
    Event,
    EventType,
    IEventObserver,
    IEventPublisher,
    PromptObserver,
)
from asterism.compat.private_names import ReadOnly

logger = logging.getLogger("asterism.compat.events")

LIMIT = 10_000
"""How many events wait for one observer. Beyond that the oldest is dropped, unless it tells the end of a task: the plan
waits for what an agent says of that, and there are no more ends than tasks."""

HANDLER_TIMEOUT = 5.0
"""How long a busy handler keeps the next event waiting, in seconds. After that, handlers of one observer overlap."""


class _Inbox:
    """One observer with what it wants and what it has not been given yet."""

    def __init__(self, observer: IEventObserver) -> None:
        self.observer = observer
        self.types: set[EventType] | None = set()  # None: all of them
        self.queue: deque[Event] = deque()
        self.dropped = 0
        self.handlers: set[asyncio.Task[None]] = set()  # more than one only if the first took too long
        self.delivery: asyncio.Task[None] | None = None  # the one that takes the next event
        self._since = 0.0  # when it took the one it is busy with
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def want(self, types: Iterable[EventType] | None) -> None:
        self.types = None if types is None or self.types is None else self.types | set(types)

    def put(self, event: Event) -> None:
        self._follow_loop()
        if len(self.queue) >= LIMIT and self.queue[0].event_type not in TASK_ENDS:
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
        """Let a new task take what is queued, also beside one that is still busy."""
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
                raise  # it is this task that was cancelled, not something that the observer waited for
            logger.exception("%r failed on %s; it receives the next event", self.observer, event.event_type)

    def _set_timer(self) -> None:
        """If something waits behind a busy handler, it waits until its patience is over."""
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
        """Tell ``observer`` of events of these types, or of all. Called again, it adds to what was asked for before."""
        inbox = self._inboxes.setdefault(id(observer), _Inbox(observer))
        inbox.want(event_types)

    def unsubscribe(self, observer: IEventObserver) -> None:
        inbox = self._inboxes.pop(id(observer), None)
        if inbox is not None:
            inbox.close()

    async def publish_event(self, event: Event) -> None:
        """Hand the event out, then give the loop one turn, so that an observer that waits for nothing has seen it."""
        self.hand_out(event)
        await asyncio.sleep(0)

    def hand_out(self, event: Event) -> None:
        """Prompt observers take notice now; for the others the event is queued."""
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
    """Wait for those that belong to this loop, and not for the caller itself."""
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    busy = [task for task in handlers if not task.done() and task.get_loop() is loop and task is not own]
    if busy:
        await asyncio.wait(busy, timeout=timeout)


_process_wide = EventBus()


def get_event_bus() -> EventBus:
    """The one bus of this process."""
    return _process_wide
