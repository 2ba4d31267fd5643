"""A task with the documented names: a handle on a node of a plan.

A star that belongs to no constellation has a small plan of its own, so reading and writing are the same in both cases:
reading looks at the node, writing is an edit that the plan may refuse.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, overload
from uuid import uuid4

from asterism.compat.changes import by_hand, change, refusing
from asterism.compat.vocabulary import (
    TERMINAL,
    DeviceManager,
    DeviceType,
    ExecutionResult,
    TaskPriority,
    TaskStatus,
    member,
)
from asterism.core import status as core
from asterism.core.constellation import Constellation
from asterism.core.edits import CancelTask, UpdateTask
from asterism.core.node import Node
from asterism.core.task import Priority, Task

DEFAULT_TIMEOUT = 1000.0
"""What a device manager is told for a task without a timeout, in seconds."""

RETRY_DELAY = 0.1
"""The first delay before a task is tried again, in seconds; it doubles from attempt to attempt."""

BY_HAND = "by hand"
"""Stands for the device of a task that no orchestrator started."""

Value = TypeVar("Value")


class _Spec(Generic[Value]):
    """An attribute that is kept in the core's task, as a field of it or inside its ``data``."""

    def __init__(self, field: str | None = None) -> None:
        self._field = field

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
        value: Value = task.data[self._name] if self._field is None else getattr(task, self._field)
        return value

    def __set__(self, star: TaskStar, value: Value) -> None:
        if self._field is None:
            star.update(data={**star.node.task.data, self._name: value})
        else:
            star.update(**{self._field: value})


class TaskStar:
    """One task. Give it to a constellation with ``add_task``; from then on it shows how far it has come there."""

    name = _Spec[str]()
    description = _Spec[str]("description")
    timeout = _Spec["float | None"]("timeout")
    retry_count = _Spec[int]("retries")
    expected_output_type = _Spec["str | None"]()

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
    ) -> None:
        task_id = task_id or str(uuid4())
        kind = None if device_type is None else member(DeviceType, device_type)
        data = {
            "name": name or f"task_{task_id[:8]}",
            "tips": None if tips is None else tuple(tips),
            "device_type": kind,
            "task_data": dict(task_data or {}),
            "expected_output_type": expected_output_type,
        }
        self.stand_alone(
            Task(
                task_id,
                description=description,
                priority=Priority(member(TaskPriority, priority)),
                retries=retry_count,
                backoff=RETRY_DELAY,
                timeout=timeout,
                device=target_device_id,
                needs=needs_of(kind),
                data=data,
            )
        )

    # -- where it belongs ----------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, plan: Constellation, node: Node) -> TaskStar:
        """The handle of a node that is in a plan already."""
        star = cls.__new__(cls)
        star.bind(plan, node)
        return star

    def bind(self, plan: Constellation, node: Node) -> None:
        self.plan, self.node = plan, node
        self.alone = False

    def stand_alone(self, task: Task) -> None:
        """Belong to no constellation, with nothing done yet."""
        plan = Constellation("star")
        plan.add(task)
        self.bind(plan, plan.nodes[task.id])
        self.alone = True

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskStar:
        """The same task in the same state, on its own."""
        twin = TaskStar.__new__(TaskStar)
        twin.stand_alone(self.node.task)
        carry(self.node, twin.plan, twin.node)
        return twin

    def update(self, **changes: Any) -> None:
        """Change fields of the core's task. Refused when the task has started or ended."""
        change(self.plan, UpdateTask(self.task_id, **changes))

    # -- what is to be done --------------------------------------------------------------------------------------------

    @property
    def task_id(self) -> str:
        return self.node.id

    @property
    def tips(self) -> list[str] | None:
        """A copy; assign another list to change them."""
        tips = self.node.task.data["tips"]
        return None if tips is None else list(tips)

    @tips.setter
    def tips(self, value: list[str] | None) -> None:
        self.update(data={**self.node.task.data, "tips": None if value is None else tuple(value)})

    @property
    def target_device_id(self) -> str | None:
        """The device that has the task, or the one that it asks for."""
        device = self.node.device
        return device if device is not None and device != BY_HAND else self.node.task.device

    @target_device_id.setter
    def target_device_id(self, value: str | None) -> None:
        self.update(device=value)

    @property
    def device_type(self) -> DeviceType | None:
        kind: DeviceType | None = self.node.task.data["device_type"]
        return kind

    @device_type.setter
    def device_type(self, value: DeviceType | str | None) -> None:
        kind = None if value is None else member(DeviceType, value)
        self.update(needs=needs_of(kind), data={**self.node.task.data, "device_type": kind})

    @property
    def priority(self) -> TaskPriority:
        return TaskPriority(self.node.task.priority)

    @priority.setter
    def priority(self, value: TaskPriority | int | str) -> None:
        self.update(priority=Priority(member(TaskPriority, value)))

    @property
    def task_data(self) -> dict[str, Any]:
        """A copy; ``update_task_data`` changes it."""
        return dict(self.node.task.data["task_data"])

    def update_task_data(self, data: dict[str, Any]) -> None:
        self.update(data={**self.node.task.data, "task_data": {**self.task_data, **data}})

    # -- how far it has come -------------------------------------------------------------------------------------------

    @property
    def status(self) -> TaskStatus:
        return TaskStatus(self.node.status)

    @property
    def result(self) -> Any:
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
        """It has started. Refused when it is not ready."""
        by_hand(self.plan)
        with refusing():
            self.plan.start(self.node, self.target_device_id or BY_HAND, time.time())

    def complete_with_success(self, result: Any) -> None:
        by_hand(self.plan)
        with refusing():
            self.plan.finish(self.node, core.COMPLETED, time.time(), result)

    def complete_with_failure(self, error: BaseException | None) -> None:
        by_hand(self.plan)
        with refusing():
            self.plan.finish(self.node, core.FAILED, time.time(), None, error)

    def cancel(self) -> None:
        """It will not run, or is told to stop; also while an orchestrator runs it."""
        change(self.plan, CancelTask(self.task_id, "cancelled by hand"))

    async def execute(self, device_manager: DeviceManager) -> ExecutionResult:
        """Have the device manager carry it out on its device. An exception becomes a failed result."""
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

    def to_request_string(self) -> str:
        """What a device is asked for: the description, then the tips, one a line."""
        return "\n - ".join([self.description, *(self.tips or ())])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id!r} {self.status}>"


def needs_of(kind: DeviceType | None) -> frozenset[str]:
    """The capability that a device type stands for."""
    return frozenset() if kind is None else frozenset({f"serve as {kind}"})


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def carry(source: Node, plan: Constellation, node: Node) -> None:
    """Give a node that has just been added to an idle plan the progress of another."""
    plan.counts[node.status] -= 1
    for name in ("status", "device", "attempts", "value", "error", "started_at", "ended_at"):
        setattr(node, name, getattr(source, name))
    plan.counts[node.status] += 1
