"""The documented events and the interfaces of publishers and observers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


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
    AGENT_RESPONSE = "agent_response"
    AGENT_ACTION = "agent_action"
    DEVICE_CONNECTED = "device_connected"
    DEVICE_DISCONNECTED = "device_disconnected"
    DEVICE_STATUS_CHANGED = "device_status_changed"


TASK_ENDS = frozenset({EventType.TASK_COMPLETED, EventType.TASK_FAILED})


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


@dataclass
class AgentEvent(Event):
    """What an agent said (``AGENT_RESPONSE``) or did (``AGENT_ACTION``). Agents publish these; nothing here does."""

    agent_name: str
    agent_type: str
    output_type: str
    output_data: dict[str, Any] = field(default_factory=dict)


@dataclass
class DeviceEvent(Event):
    """A device came or went while a plan was running. ``all_devices`` is what the device manager says of each."""

    device_id: str
    device_status: str
    device_info: Any = None
    all_devices: dict[str, Any] = field(default_factory=dict)


class IEventObserver(ABC):
    @abstractmethod
    async def on_event(self, event: Event) -> None:
        """Called with one event after the other, in the order in which they were published."""


class IEventPublisher(ABC):
    @abstractmethod
    def subscribe(self, observer: IEventObserver, event_types: Iterable[EventType] | None = None) -> None: ...

    @abstractmethod
    def unsubscribe(self, observer: IEventObserver) -> None: ...

    @abstractmethod
    async def publish_event(self, event: Event) -> None: ...


class PromptObserver(IEventObserver):
    """An observer that takes notice while the event is being published. It must be quick and must not raise."""

    @property
    def prompt(self) -> bool:
        """Whether ``notice`` says all: a subclass with an ``on_event`` of its own is called through that."""
        return untouched(self, "on_event")

    @abstractmethod
    def notice(self, event: Event) -> None: ...

    async def on_event(self, event: Event) -> None:
        self.notice(event)


def untouched(thing: object, *names: str) -> bool:
    """Whether these methods are still those of Asterism: no subclass and no test has put its own in their place."""
    kind = type(thing)
    ours = next((base for base in kind.__mro__ if base.__module__.startswith("asterism.compat.")), None)
    return ours is not None and all(
        name not in getattr(thing, "__dict__", {}) and getattr(kind, name) is getattr(ours, name) for name in names
    )
