"""The documented task (TaskStar): a handle on a node of a plan.

A star that belongs to no constellation has a small plan of its own, so reading and writing are the same in both cases:
reading looks at the node and its task, writing is an edit that the plan may refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload
from uuid import uuid4

from asterism.compat import manual_progress
from asterism.compat.plan_records import JsonForm, TaskStarSchema, as_json, read_moment
from asterism.compat.vocabulary import (
    TERMINAL,
    Alias,
    DeviceManager,
    DeviceType,
    ExecutionResult,
    ReadOnly,
    TaskConfiguration,
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
from asterism.core.record import replace

if TYPE_CHECKING:
    from asterism.compat.documented_plan import DocumentedPlan

DEFAULT_TIMEOUT = 1000.0
"""The timeout in seconds that a device manager gets for a task without a timeout."""

Value = TypeVar("Value")

RETRY_DELAY = 0.1
"""The first delay before a task is tried again, in seconds; it doubles from attempt to attempt."""

_FIELDS = {
    "description": "description",
    "task_description": "description",
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

_GIVEN = (
    *("task_id", "name", "description", "tips", "target_device_id", "device_type", "priority", "timeout"),
    *("retry_count", "task_data", "expected_output_type"),
)
"""The fields of a task in JSON that are also arguments of its constructor."""

_TOLD = (
    *("status", "error", "execution_start_time", "execution_end_time", "execution_duration"),
    *("created_at", "updated_at"),
)
"""The fields that tell its progress."""

_TIMES = {"started_at": "execution_start_time", "ended_at": "execution_end_time"}


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


def invalid_values(timeout: Any, retry_count: Any) -> dict[str, Any]:
    """The values that the core would refuse. The documented constructor accepts them, and ``validate`` reports them."""
    invalid: dict[str, Any] = {}
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        invalid["timeout"] = timeout
    if type(retry_count) is not int or retry_count < 0:
        invalid["retry_count"] = retry_count
    return invalid


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
        if self._name in star.invalid:
            refused: Value = star.invalid[self._name]
            return refused
        task = star.node.task
        value: Value = self._read(task.data[self._name] if self._field is None else getattr(task, self._field))
        return value

    def __set__(self, star: TaskStar, value: Any) -> None:
        star.update(**{self._name: value})


class _Noted:
    """A documented private name for a fact of its progress: writing it records that by hand."""

    def __init__(self, public: str, fact: str) -> None:
        self._public, self._fact = public, fact

    def __get__(self, star: TaskStar | None, owner: type) -> Any:
        return self if star is None else getattr(star, self._public)

    def __set__(self, star: TaskStar, value: Any) -> None:
        fact = value.timestamp() if isinstance(value, datetime) else value
        manual_progress.note(star.plan, star.node, **{self._fact: fact})


class TaskStar(JsonForm):
    """One task. After ``add_task`` of a constellation it shows its progress there."""

    name = _Spec[str]()
    description = _Spec[str]("description")
    timeout = _Spec["float | None"]("timeout")
    retry_count = _Spec[int]("retries")
    expected_output_type = _Spec["str | None"]()
    tips = _Spec["list[str] | None"](read=lambda tips: None if tips is None else list(tips))
    device_type = _Spec["DeviceType | None"]()
    priority = _Spec[TaskPriority]("priority", TaskPriority)

    schema = TaskStarSchema
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
        task_data: JsonObject | None = None,
        expected_output_type: str | None = None,
        config: TaskConfiguration | None = None,
    ) -> None:
        task_id = task_id or str(uuid4())
        delay = RETRY_DELAY
        if config is not None:  # it takes precedence over the other arguments
            timeout, retry_count = config.timeout or timeout, config.retry_count or retry_count
            priority, delay = config.priority or priority, config.retry_delay
            task_data = {**(task_data or {}), **config.metadata}
        invalid = invalid_values(timeout, retry_count)
        self._errors: list[str] = []
        self._begin(datetime.now(UTC))
        fields = {
            "description": description,
            "priority": priority,
            "retry_count": 0 if "retry_count" in invalid else retry_count,
            "timeout": None if "timeout" in invalid else timeout,
            "target_device_id": target_device_id,
            "name": name or f"task_{task_id[:8]}",
            "tips": tips,
            "device_type": device_type,
            "task_data": task_data,
            "expected_output_type": expected_output_type,
        }
        task = Task(task_id, backoff=delay)
        self.detach(replace(task, **changes_of(task, fields)))
        self.invalid = invalid

    # -- where it belongs ----------------------------------------------------------------------------------------------

    def _begin(self, created: datetime) -> None:
        self.invalid = {}
        self._created, self._edited = created, created

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

    task_description = Alias("description")

    @property
    def target_device_id(self) -> str | None:
        """The device that has the task, or the one that it requests."""
        device = self.node.device
        return device if device is not None and device != manual_progress.BY_HAND else self.node.task.device

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

    @classmethod
    def of(cls, plan: Constellation, node: Node, home: DocumentedPlan, created: datetime) -> TaskStar:
        """Make the handle of a node of a constellation."""
        star = cls.__new__(cls)
        star._errors = []
        star._begin(created)
        star.bind(plan, node, home)
        return star

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskStar:
        """The same task in the same state, in no constellation."""
        twin = TaskStar.__new__(TaskStar)
        twin._errors = []
        twin._begin(self._created)
        twin.detach(self.node.task)
        twin.invalid = dict(self.invalid)
        manual_progress.carry(self.node, twin.plan, twin.node)
        return twin

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
    def created_at(self) -> datetime:
        return self._created

    @property
    def updated_at(self) -> datetime:
        """When it was last edited, started or ended."""
        moments = (self._edited, self.execution_start_time, self.execution_end_time)
        return max(when for when in moments if when is not None)

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_ready_to_execute(self) -> bool:
        """Pending, with every dependency satisfied."""
        return self.node.status is core.PENDING and not self.node.open

    @property
    def prerequisites(self) -> frozenset[str]:
        """The tasks that this task still waits for."""
        nodes = self.plan.nodes
        return frozenset(s for s, d in self.node.parents.items() if not nodes[s].satisfies(d, self.node))

    @property
    def dependents(self) -> frozenset[str]:
        """The tasks that wait for this task."""
        return frozenset(self.node.children)

    @property
    def retries_used(self) -> int:
        """The number of retries, including a pending one."""
        attempts = self.node.attempts
        return attempts if self.node.status is core.PENDING else max(0, attempts - 1)

    # -- by hand: for plans that no orchestrator runs ------------------------------------------------------------------

    def start_execution(self) -> None:
        """Record that it has started. Refused when it is not ready."""
        manual_progress.start(self.plan, self.node, self.target_device_id)

    def complete_with_success(self, result: Any) -> None:
        manual_progress.finish(self.plan, self.node, core.COMPLETED, result)

    def complete_with_failure(self, error: BaseException | None) -> None:
        manual_progress.finish(self.plan, self.node, core.FAILED, None, error)

    def should_retry(self) -> bool:
        """Whether it has failed and ``retry_count`` allows another attempt."""
        failures = self.node.attempts - self.node.losses
        return self.node.status is core.FAILED and failures <= self.node.task.retries

    def retry(self) -> None:
        """Make a failed task pending again. In a run the orchestrator does that, up to ``retry_count`` times."""
        if not self.should_retry():
            why = "its retries are used up" if self.node.status is core.FAILED else f"it is {self.status}, not failed"
            raise refuse("progress", f"task {self.task_id!r} cannot be retried: {why}")
        manual_progress.reset(self.plan, self.node)

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

    # -- dependencies: of a star in a constellation --------------------------------------------------------------------

    def add_dependency(self, task_id: str) -> None:
        """Wait for another task of the same constellation, by an unconditional line."""
        self._constellation().add_unconditional(task_id, self.task_id)

    def remove_dependency(self, task_id: str) -> None:
        self._constellation().remove_line(task_id, self.task_id)

    def add_dependent(self, task_id: str) -> None:
        """Make another task of the same constellation wait for this one."""
        self._constellation().add_unconditional(self.task_id, task_id)

    def _constellation(self) -> DocumentedPlan:
        if self.home is None:
            raise refuse("unknown_task", f"task {self.task_id!r} is in no constellation, so it cannot wait for others")
        return self.home

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def to_dict(self) -> JsonObject:
        """Everything as JSON data. A result that JSON cannot hold is written as text."""
        fields = {name: as_json(getattr(self, name)) for name in (*_GIVEN, *_TOLD)}
        return {**fields, "result": as_json(self.node.value), "current_retry": self.retries_used}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a task that ``to_dict`` wrote, with its progress; it is in no constellation."""
        given = {name: data[name] for name in _GIVEN if data.get(name) not in (None, "")}
        with refusing():
            star = cls(**{"description": data.get("task_description") or "", **given})
            star._read_progress(data)
        return star

    def _read_progress(self, data: Mapping[str, Any]) -> None:
        if data.get("created_at"):
            self._created = read_moment(data["created_at"])
            self._edited = read_moment(data.get("updated_at") or data["created_at"])
        status = member(TaskStatus, data.get("status") or TaskStatus.PENDING)
        pending = status in (TaskStatus.PENDING, TaskStatus.WAITING_DEPENDENCY)
        facts: dict[str, Any] = {"attempts": (data.get("current_retry") or 0) + (not pending)}
        if not pending:
            facts |= {"status": core.TaskStatus(status), "device": manual_progress.BY_HAND, "value": data.get("result")}
            facts["error"] = RuntimeError(data["error"]) if data.get("error") else None
            for fact in ("started_at", "ended_at"):
                when = data.get(_TIMES[fact])
                facts[fact] = None if when is None else read_moment(when).timestamp()
        manual_progress.write(self.plan, self.node, facts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id!r} {self.status}>"

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
    _current_retry = ReadOnly("retries_used", "use retry")
    _dependencies = ReadOnly("prerequisites", "use add_dependency and remove_dependency of the constellation")
    _dependents = ReadOnly("dependents", "use add_dependency and remove_dependency of the constellation")
    _created_at = ReadOnly("created_at", "it is when the task was made")
    _updated_at = ReadOnly("updated_at", "it is when the task last changed")
    _result = _Noted("result", "value")
    _error = _Noted("error", "error")
    _execution_start_time = _Noted("execution_start_time", "started_at")
    _execution_end_time = _Noted("execution_end_time", "ended_at")

    @property
    def _status(self) -> TaskStatus:
        return self.status

    @_status.setter
    def _status(self, value: TaskStatus | str) -> None:
        status = member(TaskStatus, value)
        pending = status in (TaskStatus.PENDING, TaskStatus.WAITING_DEPENDENCY)
        manual_progress.state(self.plan, self.node, core.PENDING if pending else core.TaskStatus(status))


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
