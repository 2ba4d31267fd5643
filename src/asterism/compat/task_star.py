"""The documented task (TaskStar): a handle on a node of a plan.

A star that belongs to no constellation has a small plan of its own, so reading and writing are the same in both cases:
reading looks at the node and its task, writing is an edit that the plan may refuse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from uuid import uuid4

from asterism.compat.vocabulary import (
    TERMINAL,
    DeviceManager,
    DeviceType,
    ExecutionResult,
    ReadOnly,
    TaskPriority,
    TaskStatus,
    member,
    refuse,
    refusing,
)
from asterism.core.json_values import NOTHING, JsonObject
from asterism.core.plan import status as core
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import CancelTask, Edit, UpdateTask
from asterism.core.plan.node import Node
from asterism.core.plan.node_records import own_copy
from asterism.core.plan.task import Priority, Task

if TYPE_CHECKING:
    from asterism.compat.documented_plan import DocumentedPlan

DEFAULT_TIMEOUT = 1000.0
"""The timeout in seconds that a device manager gets for a task without a timeout."""

Value = TypeVar("Value")

RETRY_DELAY = 0.1
"""The first delay before a task is tried again, in seconds; it doubles from attempt to attempt."""

_FIELDS = {
    "description": "description",
    "timeout": "timeout",
    "retry_count": "retries",
    "priority": "priority",
    "target_device_id": "device",
}
"""Documented name -> field of the core's task."""

_DATA = ("name", "tips", "device_type", "task_data", "expected_output_type")
"""Fields stored inside ``data``, because the core's task does not have them."""

_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "priority": lambda value: Priority(member(TaskPriority, value)),
    "tips": lambda value: None if value is None else tuple(value),
    "device_type": lambda value: None if value is None else member(DeviceType, value),
    "task_data": lambda value: own_copy(dict(value)) if value else NOTHING,
}
"""How a documented value is stored, if not as it is."""


def changes_of(task: Task, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Translate documented fields into changes of the core's task. Raises ValueError for an unknown name."""
    unknown = [name for name in fields if name not in _FIELDS and name not in _DATA]
    if unknown:
        known = ", ".join(sorted({*_FIELDS, *_DATA}))
        raise ValueError(f"a task has no field {', '.join(map(repr, unknown))}; its fields are {known}")
    stored = {name: _CONVERSIONS[name](value) if name in _CONVERSIONS else value for name, value in fields.items()}
    changes = {_FIELDS[name]: value for name, value in stored.items() if name in _FIELDS}
    data = {name: value for name, value in stored.items() if name in _DATA}
    if data:
        changes["data"] = {**task.data, **data}
    if "device_type" in data:
        changes["needs"] = needs_of(data["device_type"])
    return changes


def needs_of(kind: DeviceType | None) -> frozenset[str]:
    """The capability for a device type."""
    return frozenset() if kind is None else frozenset({f"serve as {kind}"})


class _Spec(Generic[Value]):
    """An attribute stored in the core's task, as a field or inside its ``data``."""

    def __init__(self, field: str | None = None, read: Callable[[Any], Any] = lambda value: value) -> None:
        self._field, self._read = field, read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, star: None, owner: type) -> _Spec[Value]: ...
    @overload
    def __get__(self, star: TaskStar, owner: type) -> Value: ...
    def __get__(self, star: TaskStar | None, owner: type) -> Value | _Spec[Value]:
        if star is None:
            return self
        task = star.node.task
        value: Value = self._read(task.data[self._name] if self._field is None else getattr(task, self._field))
        return value

    def __set__(self, star: TaskStar, value: Any) -> None:
        star.update(**{self._name: value})


BY_HAND = "by hand"
"""The device name of a task that no orchestrator started."""

_BY_HAND_INSTEAD = "use start_execution, and mark_task_completed of the constellation"


class TaskStar:
    """One task. After ``add_task`` of a constellation it shows its progress there."""

    name = _Spec[str]()
    description = _Spec[str]("description")
    timeout = _Spec["float | None"]("timeout")
    retry_count = _Spec[int]("retries")
    expected_output_type = _Spec["str | None"]()
    tips = _Spec["list[str] | None"](read=lambda tips: None if tips is None else list(tips))
    device_type = _Spec["DeviceType | None"]()
    priority = _Spec[TaskPriority]("priority", TaskPriority)

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
        task_data: JsonObject | None = None,
        expected_output_type: str | None = None,
    ) -> None:
        task_id = task_id or str(uuid4())
        fields = {
            "description": description,
            "priority": priority,
            "retry_count": retry_count,
            "timeout": timeout,
            "target_device_id": target_device_id,
            "name": name or f"task_{task_id[:8]}",
            "tips": tips,
            "device_type": device_type,
            "task_data": task_data,
            "expected_output_type": expected_output_type,
        }
        task = Task(task_id, backoff=RETRY_DELAY)
        self.detach(replace(task, **changes_of(task, fields)))

    @classmethod
    def of(cls, plan: Constellation, node: Node, home: DocumentedPlan) -> TaskStar:
        """Make the handle of a node of a constellation."""
        star = cls.__new__(cls)
        star.bind(plan, node, home)
        return star

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskStar:
        """The same task in no constellation, not started."""
        twin = TaskStar.__new__(TaskStar)
        twin.detach(self.node.task)
        return twin

    # -- where it belongs ----------------------------------------------------------------------------------------------

    def bind(self, plan: Constellation, node: Node, home: DocumentedPlan | None) -> None:
        self._plan, self._node, self._home = plan, node, home

    def _refresh(self) -> None:
        if self._home is not None:
            self._home.refresh()

    @property
    def home(self) -> DocumentedPlan | None:
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

    def edit(self, edit: Edit) -> None:
        """Edit its constellation, or its own plan if it has none."""
        if self.home is not None:
            self.home.apply(edit)
            return
        if self.plan.owner is None:
            reopen(self.plan)
        self.plan.edit([edit])

    # -- the work --------------------------------------------------------------------------------------------

    @property
    def task_id(self) -> str:
        return self.node.id

    @property
    def target_device_id(self) -> str | None:
        """The device that has the task, or the one that it requests."""
        device = self.node.device
        return device if device is not None and device != BY_HAND else self.node.task.device

    @target_device_id.setter
    def target_device_id(self, value: str | None) -> None:
        self.update(target_device_id=value)

    @property
    def task_data(self) -> JsonObject:
        """A copy; ``update_task_data`` changes it."""
        return own_copy(dict(self.node.task.data["task_data"]))  # type: ignore[no-any-return]

    def update_task_data(self, data: Mapping[str, Any]) -> None:
        self.update(task_data={**self.task_data, **data})

    def to_request_string(self) -> str:
        """The request to a device: the description, then the tips, one per line."""
        tips = self.tips
        lines = [f"Task Description: {self.description}"]
        return "\n".join([*lines, "Tips for Completion:", *(f" - {tip}" for tip in tips)] if tips else lines)

    # -- progress ------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> TaskStatus:
        return TaskStatus(self.node.status)

    @property
    def result(self) -> Any:
        """Who changes it in place changes it in this plan, and in no copy of the plan."""
        self.plan.records.expose(self.node)
        return self.node.value

    @property
    def error(self) -> BaseException | None:
        return self.node.error

    @property
    def execution_start_time(self) -> datetime | None:
        return moment(self.node.started_at)

    @property
    def execution_end_time(self) -> datetime | None:
        return moment(self.node.ended_at)

    @property
    def execution_duration(self) -> float | None:
        began, ended = self.node.started_at, self.node.ended_at
        return None if began is None or ended is None else ended - began

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_ready_to_execute(self) -> bool:
        """Pending, with every dependency satisfied."""
        return self.node.status is core.PENDING and not self.node.open

    # -- by hand: for plans that no orchestrator runs ------------------------------------------------------------------

    def start_execution(self) -> None:
        """Record that it has started. Refused when it is not ready."""
        check_idle(self.plan)
        with refusing():
            self.plan.start(self.node, self.target_device_id or BY_HAND, time.time())

    def cancel(self) -> None:
        """Cancel it, or stop it if it is running; also allowed while an orchestrator runs the plan."""
        with refusing():
            self.edit(CancelTask(self.task_id, "cancelled by hand"))

    async def execute(self, device_manager: DeviceManager) -> ExecutionResult:
        """Execute it on its device through the device manager. An exception becomes a failed result."""
        device = self.target_device_id
        if device is None:
            raise ValueError(f"task {self.task_id!r} has no device: set target_device_id")
        began = datetime.now(UTC)
        try:
            answer = await device_manager.assign_task_to_device(
                task_id=self.task_id,
                device_id=device,
                task_description=self.to_request_string(),
                task_data=self.task_data,
                timeout=self.timeout or DEFAULT_TIMEOUT,
            )
            result = ExecutionResult.of(self.task_id, answer)
        except Exception as error:
            result = ExecutionResult(self.task_id, TaskStatus.FAILED, error=error, metadata={"device_id": device})
        result.start_time, result.end_time = began, datetime.now(UTC)
        return result

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id!r} {self.status}>"

    # -- private names that the documents show -------------------------------------------------------------------------

    _status = ReadOnly("status", _BY_HAND_INSTEAD)
    _result = ReadOnly("result", _BY_HAND_INSTEAD)
    _error = ReadOnly("error", _BY_HAND_INSTEAD)
    _execution_start_time = ReadOnly("execution_start_time", _BY_HAND_INSTEAD)
    _execution_end_time = ReadOnly("execution_end_time", _BY_HAND_INSTEAD)


def check_idle(plan: Constellation) -> None:
    """Refuse progress by hand while an orchestrator runs the plan: then only devices report."""
    if plan.owner is not None:
        raise refuse(
            "progress", f"{plan.id!r} is being run: devices report the progress of its tasks, it cannot be set by hand"
        )


def reopen(plan: Constellation) -> None:
    """Make a plan that has ended, or was started by hand, ready to be changed and run again. Ended tasks stay as they
    are; every later change is an edit."""
    check_idle(plan)
    if plan.state in (core.ConstellationState.CREATED, core.ConstellationState.READY):
        return
    plan.on_applied, plan.clock = None, time.time  # these belonged to the last run
    plan.settle([(node.id, node.epoch) for node in plan.nodes.values() if not node.reviewed], time.time())
    plan.state = core.ConstellationState.READY
    for node in plan.nodes.values():
        plan.requeue(node)


def newly_ready(node: Node) -> list[str]:
    """The tasks that the end of this one has made ready."""
    return [child.id for child in node.children.values() if child.status is core.PENDING and not child.open]


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
