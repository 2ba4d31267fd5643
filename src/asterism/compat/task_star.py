"""The documented task (TaskStar): a handle on a node of a plan.

A star that belongs to no constellation has a small plan of its own, so reading and writing are the same in both cases:
reading looks at the node, writing is an edit that the plan may refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Self

from asterism.compat import manual_progress, plan_records
from asterism.compat.documented_names import ReadOnly
from asterism.compat.plan_records import TaskStarSchema, checked
from asterism.compat.task_star_fields import Home, StarSpec
from asterism.compat.vocabulary import TERMINAL, DeviceManager, ExecutionResult, TaskStatus, member, refuse, refusing
from asterism.core.plan import status as core
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import CancelTask
from asterism.core.plan.node import Node

DEFAULT_TIMEOUT = 1000.0
"""The timeout in seconds that a device manager gets for a task without a timeout."""


class TaskStar(StarSpec):
    """One task. After ``add_task`` of a constellation it shows its progress there."""

    @classmethod
    def of(cls, plan: Constellation, node: Node, home: Home, created: datetime) -> TaskStar:
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

    def _constellation(self) -> Home:
        if self.home is None:
            raise refuse("unknown_task", f"task {self.task_id!r} is in no constellation, so it cannot wait for others")
        return self.home

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON data. A result that JSON cannot hold is written as text."""
        return plan_records.star_to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a task that ``to_dict`` wrote, with its progress; it is in no constellation."""
        with refusing():
            return plan_records.star_from_dict(cls, data)

    def to_json(self, save_path: str | None = None) -> str:
        return plan_records.write(self.to_dict(), save_path)

    @classmethod
    def from_json(cls, json_data: str | None = None, file_path: str | None = None) -> Self:
        return cls.from_dict(plan_records.read(json_data, file_path))

    def to_basemodel(self) -> TaskStarSchema:
        return TaskStarSchema.model_validate(self.to_dict())

    @classmethod
    def from_basemodel(cls, schema: TaskStarSchema) -> Self:
        return cls.from_dict(checked(schema, TaskStarSchema))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id!r} {self.status}>"

    # -- private names that the documents show -------------------------------------------------------------------------

    _current_retry = ReadOnly("retries_used", "use retry")
    _dependencies = ReadOnly("prerequisites", "use add_dependency and remove_dependency of the constellation")
    _dependents = ReadOnly("dependents", "use add_dependency and remove_dependency of the constellation")
    _created_at = ReadOnly("created_at", "it is when the task was made")
    _updated_at = ReadOnly("updated_at", "it is when the task last changed")

    @property
    def _status(self) -> TaskStatus:
        return self.status

    @_status.setter
    def _status(self, value: TaskStatus | str) -> None:
        status = member(TaskStatus, value)
        pending = status in (TaskStatus.PENDING, TaskStatus.WAITING_DEPENDENCY)
        manual_progress.state(self.plan, self.node, core.PENDING if pending else core.TaskStatus(status))

    @property
    def _result(self) -> Any:
        return self.result

    @_result.setter
    def _result(self, value: Any) -> None:
        manual_progress.note(self.plan, self.node, value=value)

    @property
    def _error(self) -> BaseException | None:
        return self.error

    @_error.setter
    def _error(self, value: BaseException | None) -> None:
        manual_progress.note(self.plan, self.node, error=value)

    @property
    def _execution_start_time(self) -> datetime | None:
        return self.execution_start_time

    @_execution_start_time.setter
    def _execution_start_time(self, value: datetime | None) -> None:
        manual_progress.note(self.plan, self.node, started_at=None if value is None else value.timestamp())

    @property
    def _execution_end_time(self) -> datetime | None:
        return self.execution_end_time

    @_execution_end_time.setter
    def _execution_end_time(self, value: datetime | None) -> None:
        manual_progress.note(self.plan, self.node, ended_at=None if value is None else value.timestamp())


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
