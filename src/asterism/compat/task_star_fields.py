"""The documented fields of a TaskStar: reading reads the core's Task, writing is an edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar, overload
from uuid import uuid4

from asterism.compat import manual_progress
from asterism.compat.documented_names import Alias, ReadOnly
from asterism.compat.vocabulary import DeviceType, TaskConfiguration, TaskPriority, member, refusing
from asterism.core.json_values import NOTHING
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import Edit, UpdateTask
from asterism.core.plan.node import Node
from asterism.core.plan.node_records import own_copy
from asterism.core.plan.task import Priority, Task

Value = TypeVar("Value")

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
"""Documented name -> field of the core's task, and the conversion of its value."""

_DATA: dict[str, Callable[[Any], Any]] = {
    "name": lambda value: value,
    "tips": lambda value: None if value is None else tuple(value),
    "device_type": lambda value: None if value is None else member(DeviceType, value),
    "task_data": lambda value: own_copy(dict(value)) if value else NOTHING,
    "expected_output_type": lambda value: value,
}
"""Fields stored inside ``data``, because the core's task does not have them."""


def changes_of(task: Task, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Translate documented fields into changes of the core's task. Raises ValueError for an unknown name."""
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
    """The capability for a device type."""
    return frozenset() if kind is None else frozenset({f"serve as {kind}"})


def invalid_values(timeout: Any, retry_count: Any) -> dict[str, Any]:
    """The values that the core would refuse. The documented constructor accepts them, and ``validate`` reports them."""
    found: dict[str, Any] = {}
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        found["timeout"] = timeout
    if type(retry_count) is not int or retry_count < 0:
        found["retry_count"] = retry_count
    return found


class Home(Protocol):
    """The constellation that a star belongs to."""

    def apply(self, *edits: Edit) -> Applied: ...

    def add_unconditional(self, source: str, target: str) -> None: ...

    def remove_line(self, source: str, target: str) -> None: ...

    def refresh(self) -> None: ...


class _Spec(Generic[Value]):
    """An attribute stored in the core's task, as a field or inside its ``data``."""

    def __init__(self, field: str | None = None) -> None:
        self._field = field

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, star: None, owner: type) -> _Spec[Value]: ...
    @overload
    def __get__(self, star: StarSpec, owner: type) -> Value: ...
    def __get__(self, star: StarSpec | None, owner: type) -> Value | _Spec[Value]:
        if star is None:
            return self
        if self._name in star.invalid:
            refused: Value = star.invalid[self._name]
            return refused
        task = star.node.task
        value: Value = task.data[self._name] if self._field is None else getattr(task, self._field)
        return value

    def __set__(self, star: StarSpec, value: Value) -> None:
        star.update(**{self._name: value})


class StarSpec:
    """The part of a TaskStar that describes the work; TaskStar adds its progress."""

    name = _Spec[str]()
    description = _Spec[str]("description")
    timeout = _Spec["float | None"]("timeout")
    retry_count = _Spec[int]("retries")
    expected_output_type = _Spec["str | None"]()

    invalid: dict[str, Any]
    """Values that every plan would refuse; ``validate`` reports them."""

    def __init__(
        self,
        task_id: str | None = None,
        name: str = "",
        description: str = "",
        tips: list[str] | None = None,
        target_device_id: str | None = None,
        device_type: DeviceType | str | None = None,
        priority: TaskPriority | int | str = TaskPriority.MEDIUM,
        timeout: float | None = None,
        retry_count: int = 0,
        task_data: dict[str, Any] | None = None,
        expected_output_type: str | None = None,
        config: TaskConfiguration | None = None,
    ) -> None:
        task_id = task_id or str(uuid4())
        kind = None if device_type is None else member(DeviceType, device_type)
        delay = RETRY_DELAY
        if config is not None:  # it takes precedence over the other arguments
            timeout, retry_count = config.timeout or timeout, config.retry_count or retry_count
            priority, delay = config.priority or priority, config.retry_delay
            task_data = {**(task_data or {}), **config.metadata}
        invalid = invalid_values(timeout, retry_count)
        self._errors: list[str] = []
        self._begin(datetime.now(UTC))
        self.detach(
            Task(
                task_id,
                description=description,
                priority=Priority(member(TaskPriority, priority)),
                retries=0 if "retry_count" in invalid else retry_count,
                backoff=delay,
                timeout=None if "timeout" in invalid else timeout,
                device=target_device_id,
                needs=needs_of(kind),
                data={
                    "name": name or f"task_{task_id[:8]}",
                    "tips": None if tips is None else tuple(tips),
                    "device_type": kind,
                    "task_data": _DATA["task_data"](task_data),
                    "expected_output_type": expected_output_type,
                },
            )
        )
        self.invalid = invalid

    # -- where it belongs ----------------------------------------------------------------------------------------------

    def _begin(self, created: datetime) -> None:
        self.invalid = {}
        self._created, self._edited = created, created

    def restore(self, created: datetime, edited: datetime) -> None:
        """Set the times of its creation and last edit, read from a record."""
        self._created, self._edited = created, edited

    def bind(self, plan: Constellation, node: Node, home: Home | None) -> None:
        self._plan, self._node, self._home = plan, node, home

    def _refresh(self) -> None:
        if self._home is not None:
            self._home.refresh()

    @property
    def home(self) -> Home | None:
        """Its constellation, if it is in one."""
        self._refresh()
        return self._home

    @property
    def plan(self) -> Constellation:
        self._refresh()
        return self._plan

    @property
    def node(self) -> Node:
        self._refresh()
        return self._node

    def detach(self, task: Task) -> None:
        """Leave its constellation; the task is pending again."""
        plan = Constellation("star")
        plan.add(task)
        self.bind(plan, plan.nodes[task.id], None)

    def update(self, **fields: Any) -> None:
        """Change documented fields, all or none. Refused when the task has started or ended."""
        with refusing():
            self.edit(UpdateTask(self.task_id, **changes_of(self.node.task, fields)))
        self.invalid = {name: value for name, value in self.invalid.items() if name not in fields}
        self._edited = datetime.now(UTC)

    def edit(self, edit: Edit) -> None:
        """Edit its constellation, or its own plan if it has none."""
        if self.home is not None:
            self.home.apply(edit)
            return
        if self.plan.owner is None:
            manual_progress.reopen(self.plan)
        self.plan.edit([edit])

    # -- the work --------------------------------------------------------------------------------------------

    @property
    def task_id(self) -> str:
        return self.node.id

    @property
    def task_description(self) -> str:
        """The same as ``description``."""
        return self.description

    @task_description.setter
    def task_description(self, value: str) -> None:
        self.description = value

    @property
    def tips(self) -> list[str] | None:
        """A copy; assign another list to change them."""
        tips = self.node.task.data["tips"]
        return None if tips is None else list(tips)

    @tips.setter
    def tips(self, value: list[str] | None) -> None:
        self.update(tips=value)

    @property
    def target_device_id(self) -> str | None:
        """The device that has the task, or the one that it requests."""
        device = self.node.device
        return device if device is not None and device != manual_progress.BY_HAND else self.node.task.device

    @target_device_id.setter
    def target_device_id(self, value: str | None) -> None:
        self.update(target_device_id=value)

    @property
    def device_type(self) -> DeviceType | None:
        kind: DeviceType | None = self.node.task.data["device_type"]
        return kind

    @device_type.setter
    def device_type(self, value: DeviceType | str | None) -> None:
        self.update(device_type=value)

    @property
    def priority(self) -> TaskPriority:
        return TaskPriority(self.node.task.priority)

    @priority.setter
    def priority(self, value: TaskPriority | int | str) -> None:
        self.update(priority=value)

    @property
    def task_data(self) -> dict[str, Any]:
        """A copy; ``update_task_data`` changes it."""
        return own_copy(dict(self.node.task.data["task_data"]))  # type: ignore[no-any-return]

    def update_task_data(self, data: Mapping[str, Any]) -> None:
        self.update(task_data={**self.task_data, **data})

    def to_request_string(self) -> str:
        """The request to a device: the description, then the tips, one per line."""
        tips = self.tips
        lines = [f"Task Description: {self.description}"]
        return "\n".join([*lines, "Tips for Completion:", *(f" - {tip}" for tip in tips)] if tips else lines)

    def validate(self) -> bool:
        """Whether all required fields are set and valid."""
        self._errors = [
            message
            for wrong, message in (
                (not self.name, "Task name must be a non-empty string"),
                (not self.description, "Task description must be a non-empty string"),
                ("timeout" in self.invalid, "Timeout must be a positive number"),
                ("retry_count" in self.invalid, "Retry count must be a whole number, 0 or more"),
            )
            if wrong
        ]
        return not self._errors

    def get_validation_errors(self) -> list[str]:
        """The errors of the last ``validate``."""
        return list(self._errors)

    # -- private names that the documents show -------------------------------------------------------------------------

    _name = Alias("name")
    _description = Alias("description")
    _tips = Alias("tips")
    _target_device_id = Alias("target_device_id")
    _device_type = Alias("device_type")
    _priority = Alias("priority")
    _timeout = Alias("timeout")
    _retry_count = Alias("retry_count")
    _expected_output_type = Alias("expected_output_type")
    _task_id = ReadOnly("task_id", "a task keeps its id; add another task instead")
    _task_data = ReadOnly("task_data", "use update_task_data")
