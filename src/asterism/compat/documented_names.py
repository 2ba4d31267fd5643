"""The documented names that Galaxy and Orion share."""

from __future__ import annotations

from asterism.compat.event_bus import EventBus, get_event_bus
from asterism.compat.plan_editor import CommandExecutionError
from asterism.compat.plan_records import TaskStarLineSchema, TaskStarSchema
from asterism.compat.task_star import TaskStar
from asterism.compat.task_star_line import TaskStarLine
from asterism.compat.vocabulary import (
    AgentEvent,
    ConstellationState,
    DependencyType,
    DeviceEvent,
    DeviceType,
    Event,
    EventType,
    ExecutionResult,
    IEventObserver,
    IEventPublisher,
    ModificationRejected,
    TaskConfiguration,
    TaskEvent,
    TaskPriority,
    TaskStatus,
)

__all__ = [
    "AgentEvent",
    "CommandExecutionError",
    "ConstellationState",
    "DependencyType",
    "DeviceEvent",
    "DeviceType",
    "Event",
    "EventBus",
    "EventType",
    "ExecutionResult",
    "IEventObserver",
    "IEventPublisher",
    "ModificationRejected",
    "TaskConfiguration",
    "TaskEvent",
    "TaskPriority",
    "TaskStar",
    "TaskStarLine",
    "TaskStarLineSchema",
    "TaskStarSchema",
    "TaskStatus",
    "get_event_bus",
]
