"""The documented names that Galaxy and Orion share."""

from __future__ import annotations

from asterism.compat.event_bus import EventBus, get_event_bus
from asterism.compat.task_star import TaskStar
from asterism.compat.task_star_line import TaskStarLine
from asterism.compat.vocabulary import (
    ConstellationState,
    DependencyType,
    DeviceEvent,
    DeviceType,
    Event,
    EventType,
    ExecutionResult,
    IEventObserver,
    ModificationRejected,
    TaskEvent,
    TaskPriority,
    TaskStatus,
)

__all__ = [
    "ConstellationState",
    "DependencyType",
    "DeviceEvent",
    "DeviceType",
    "Event",
    "EventBus",
    "EventType",
    "ExecutionResult",
    "IEventObserver",
    "ModificationRejected",
    "TaskEvent",
    "TaskPriority",
    "TaskStar",
    "TaskStarLine",
    "TaskStatus",
    "get_event_bus",
]
