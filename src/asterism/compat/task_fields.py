"""The mapping of documented task fields to fields of the core's Task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asterism.compat.vocabulary import DeviceType, TaskPriority, member
from asterism.core.plan.task import Priority, Task

RETRY_DELAY = 0.1
"""The first delay before a task is tried again, in seconds; it doubles from attempt to attempt."""

_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "description": ("description", lambda value: value),
    "task_description": ("description", lambda value: value),
    "timeout": ("timeout", lambda value: value),
    "retry_count": ("retries", lambda value: value),
    "priority": ("priority", lambda value: Priority(member(TaskPriority, value))),
    "target_device_id": ("device", lambda value: value),
}
"""Documented name -> field of the core's task, and how its value is written there."""

_DATA: dict[str, Callable[[Any], Any]] = {
    "name": lambda value: value,
    "tips": lambda value: None if value is None else tuple(value),
    "device_type": lambda value: None if value is None else member(DeviceType, value),
    "task_data": lambda value: dict(value or {}),
    "expected_output_type": lambda value: value,
}
"""What is kept inside ``data``, as the core has no word for it."""


def changes_of(task: Task, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of the core's task that documented fields stand for. Raises ValueError for a name it does not
    know."""
    unknown = [name for name in fields if name not in _FIELDS and name not in _DATA]
    if unknown:
        known = ", ".join(sorted({*_FIELDS, *_DATA}))
        raise ValueError(f"a task has no field {', '.join(map(repr, unknown))}; its fields are {known}")
    changes = {_FIELDS[name][0]: _FIELDS[name][1](value) for name, value in fields.items() if name in _FIELDS}
    data = {name: _DATA[name](value) for name, value in fields.items() if name in _DATA}
    if data:
        changes["data"] = {**task.data, **data}
    if "device_type" in data:
        changes["needs"] = needs_of(data["device_type"])
    return changes


def needs_of(kind: DeviceType | None) -> frozenset[str]:
    """The capability that a device type stands for."""
    return frozenset() if kind is None else frozenset({f"serve as {kind}"})


def invalid_values(timeout: Any, retry_count: Any) -> dict[str, Any]:
    """Of these, what the core would not take. The documented constructor accepts it, and ``validate`` complains."""
    found: dict[str, Any] = {}
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        found["timeout"] = timeout
    if type(retry_count) is not int or retry_count < 0:
        found["retry_count"] = retry_count
    return found
