"""Events and the bus that carries them, with the documented names.

Publishing hands the event to the queue of every observer that wants it and does not wait for any. The exception is a
*prompt* observer (the synchronizer): it takes notice within the call, so that a task's end is registered before
anything can be dispatched because of it.

This is the only room of Asterism with a bus for the whole process, since the documented API has one. It may outlive
event loops: what was queued for a loop that is gone is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

logger = logging.getLogger("asterism.compat.events")

LIMIT = 10_000
"""How many events wait for one observer. Beyond that the oldest is dropped, unless it tells the end of a task: the plan
waits for what an agent says of that, and there are no more ends than tasks."""


class EventType(Enum):
    TASK_STARTED = "task_started"
    TASK_COMPLETED = "task_completed"
    TASK_FAILED = "task_failed"
    CONSTELLATION_STARTED = "constellation_started"
    CONSTELLATION_COMPLETED = "constellation_completed"
    CONSTELLATION_FAILED = "constellation_failed"
    CONSTELLATION_MODIFIED = "constellation_modified"
    ORION_STARTED = "orion_started"
    ORION_COMPLETED = "orion_completed"
    ORION_FAILED = "orion_failed"
    ORION_MODIFIED = "orion_modified"


_NEVER_DROPPED = frozenset({EventType.TASK_COMPLETED, EventType.TASK_FAILED})


@dataclass
class Event:
    event_type: EventType
    source_id: str
    timestamp: float
    data: dict[str, Any]


@dataclass
class TaskEvent(Event):
    task_id: str
    status: str
    result: Any = None
    error: BaseException | None = None


@dataclass
class ConstellationEvent(Event):
    constellation_id: str
    constellation_state: str
    new_ready_tasks: list[str] | None = None


@dataclass
class OrionEvent(Event):
    orion_id: str
    orion_state: str
    new_ready_tasks: list[str] | None = None


class IEventObserver(ABC):
    @abstractmethod
    async def on_event(self, event: Event) -> None:
        """Called with one event after the other, in the order in which they were published."""


class PromptObserver(IEventObserver):
    """An observer that takes notice while the event is being published. It must be quick and must not raise."""

    @abstractmethod
    def notice(self, event: Event) -> None: ...

    async def on_event(self, event: Event) -> None:
        self.notice(event)


class _Inbox:
    """One observer with what it wants and what it has not been given yet."""

    def __init__(self, observer: IEventObserver) -> None:
        self.observer = observer
        self.types: set[EventType] | None = set()  # None: all of them
        self.queue: deque[Event] = deque()
        self.dropped = 0
        self.task: asyncio.Task[None] | None = None  # only while there is something to deliver

    def want(self, types: Iterable[EventType] | None) -> None:
        self.types = None if types is None or self.types is None else self.types | set(types)

    def put(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        if self.task is not None and self.task.get_loop() is not loop:
            self.queue.clear()
            self.task = None
        if len(self.queue) >= LIMIT and self.queue[0].event_type not in _NEVER_DROPPED:
            self.queue.popleft()
            self.dropped += 1
        self.queue.append(event)
        if self.task is None or self.task.done():
            self.task = loop.create_task(self._deliver())

    async def _deliver(self) -> None:
        while self.queue:
            event = self.queue.popleft()
            try:
                answer = self.observer.on_event(event)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                logger.exception("%r failed on %s; it goes on with the next event", self.observer, event.event_type)

    def close(self) -> None:
        """Forget what is queued. What the observer is doing at this moment it may finish, for it may be the caller."""
        self.queue.clear()


class EventBus:
    """``running`` holds the ids of the plans that are being run on this bus: an event names its plan by id alone."""

    def __init__(self) -> None:
        self._inboxes: dict[int, _Inbox] = {}
        self.running: set[str] = set()

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
        for inbox in wanting:
            if isinstance(inbox.observer, PromptObserver):
                try:
                    inbox.observer.notice(event)
                except Exception:
                    logger.exception("%r failed on %s", inbox.observer, event.event_type)
        for inbox in wanting:
            if not isinstance(inbox.observer, PromptObserver):
                inbox.put(event)

    async def drain(self, timeout: float) -> None:
        """Wait until the observers have caught up, at most ``timeout`` seconds."""
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        tasks = [inbox.task for inbox in self._inboxes.values() if inbox.task is not None]
        busy = [task for task in tasks if not task.done() and task.get_loop() is loop and task is not own]
        if busy:
            await asyncio.wait(busy, timeout=timeout)


_process_wide = EventBus()


def get_event_bus() -> EventBus:
    """The one bus of this process."""
    return _process_wide
