"""Plans as JSON data in the documented form, and the documented Pydantic models of it.

Tasks and lines are stored by id, with their state. Two keys are our own: ``version`` and ``lineage`` say what a copy
was made from, so that it can be merged when it comes back. Both are optional in a file.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from asterism.compat import manual_progress
from asterism.compat.vocabulary import DependencyType, ExecutionResult, TaskPriority, TaskStatus, member
from asterism.core.json_values import JsonObject
from asterism.core.plan import status as core

if TYPE_CHECKING:
    from asterism.compat.documented_plan import DocumentedPlan
    from asterism.compat.task_star import TaskStar
    from asterism.compat.task_star_line import TaskStarLine

Star = TypeVar("Star", bound="TaskStar")
Line = TypeVar("Line", bound="TaskStarLine")


class _Model(BaseModel):
    """Unknown fields are kept unchanged."""

    model_config = ConfigDict(extra="allow")


class TaskStarSchema(_Model):
    task_id: str | None = None
    name: str = ""
    description: str = ""
    tips: list[str] | None = None
    target_device_id: str | None = None
    device_type: str | None = None
    priority: int | str | None = None
    timeout: float | None = None
    retry_count: int = 0
    task_data: JsonObject = {}
    expected_output_type: str | None = None
    status: str | None = None
    result: Any = None
    error: str | None = None


class TaskStarLineSchema(_Model):
    line_id: str | None = None
    from_task_id: str
    to_task_id: str
    dependency_type: str = "unconditional"
    condition_description: str | None = None
    metadata: JsonObject = {}


class _PlanSchema(_Model):
    """Tasks and lines are lists, or mappings by id."""

    name: str | None = None
    state: str | None = None
    tasks: dict[str, TaskStarSchema] | list[TaskStarSchema] = []
    dependencies: dict[str, TaskStarLineSchema] | list[TaskStarLineSchema] = []
    metadata: JsonObject = {}


class TaskConstellationSchema(_PlanSchema):
    constellation_id: str | None = None


class TaskOrionSchema(_PlanSchema):
    orion_id: str | None = None


class JsonForm(ABC):
    """A plan, task or line as JSON text and as a Pydantic model, by its ``to_dict`` and ``from_dict``."""

    schema: ClassVar[type[BaseModel]]

    @abstractmethod
    def to_dict(self) -> JsonObject: ...

    @classmethod
    @abstractmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self: ...

    def to_json(self, save_path: str | None = None) -> str:
        """Return it as JSON text, and write that to a file if ``save_path`` is given."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
        if save_path is not None:
            Path(save_path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_json(cls, json_data: str | None = None, file_path: str | None = None) -> Self:
        """Read it from a text or a file. Raises ValueError if that is not a JSON object."""
        if (json_data is None) == (file_path is None):
            raise ValueError("give either json_data or file_path")
        text = Path(file_path).read_text(encoding="utf-8") if file_path is not None else json_data or ""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"this is not a JSON object: {data!r:.80}")
        return cls.from_dict(data)

    def to_basemodel(self) -> Any:
        """The documented Pydantic model of it."""
        return self.schema.model_validate(self.to_dict())

    @classmethod
    def from_basemodel(cls, schema: Any) -> Self:
        """Read it from such a model. Raises ValueError for any other object."""
        if not isinstance(schema, cls.schema):
            raise ValueError(f"this takes a {cls.schema.__name__}, not {schema!r:.80}")
        return cls.from_dict(schema.model_dump())


def plan_to_dict(documented: DocumentedPlan) -> JsonObject:
    plan = documented.plan
    return {
        documented.naming.id_key: plan.id,
        "name": documented.name,
        "state": documented.state.value,
        "version": plan.version,
        "lineage": documented.lineage,
        "tasks": {task_id: star_to_dict(star) for task_id, star in documented.tasks.items()},
        "dependencies": {line_id: line.to_dict() for line_id, line in documented.dependencies.items()},
        "metadata": plain(documented.metadata),
        "created_at": documented.created_at.isoformat(),
        "updated_at": documented.updated_at.isoformat(),
        "execution_start_time": _iso(documented.execution_start_time),
        "execution_end_time": _iso(documented.execution_end_time),
        "execution_duration": documented.execution_duration,
    }


def star_to_dict(star: TaskStar) -> JsonObject:
    return {
        "task_id": star.task_id,
        "name": star.name,
        "description": star.description,
        "tips": star.tips,
        "target_device_id": star.target_device_id,
        "device_type": star.device_type,
        "priority": star.priority.value,
        "timeout": star.timeout,
        "retry_count": star.retry_count,
        "task_data": plain(star.task_data),
        "expected_output_type": star.expected_output_type,
        "status": star.status.value,
        "result": plain(_result_to_dict(star.node.value)),
        "error": None if star.error is None else str(star.error),
        "execution_start_time": _iso(star.execution_start_time),
        "execution_end_time": _iso(star.execution_end_time),
        "execution_duration": star.execution_duration,
        "current_retry": star.retries_used,
        "created_at": star.created_at.isoformat(),
        "updated_at": star.updated_at.isoformat(),
    }


def _result_to_dict(result: Any) -> Any:
    if not isinstance(result, ExecutionResult):
        return result
    return {
        "task_id": result.task_id,
        "status": str(getattr(result.status, "value", result.status)),
        "result": result.result,
        "error": None if result.error is None else str(result.error),
        "metadata": result.metadata,
    }


def line_to_dict(line: TaskStarLine) -> JsonObject:
    return {
        "line_id": line.line_id,
        "from_task_id": line.from_task_id,
        "to_task_id": line.to_task_id,
        "dependency_type": line.dependency_type.value,
        "condition_description": line.condition_description,
        "condition": line.condition,
        "metadata": plain(line.metadata),
        "is_satisfied": line.is_satisfied(),
        "last_evaluation_result": line.last_evaluation_result,
        "last_evaluation_time": _iso(line.last_evaluation_time),
        "created_at": line.created_at.isoformat(),
        "updated_at": line.updated_at.isoformat(),
    }


def plain(value: Any) -> Any:
    """JSON data unchanged; each entry that JSON cannot hold as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return _plain(value)


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _iso(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat()


def fill_plan(documented: DocumentedPlan, data: Mapping[str, Any]) -> None:
    """Put tasks and lines into an empty plan. The lines are linked directly, not by an edit: an edit could not add a
    dependency to a task that has started."""
    documented.metadata = dict(data.get("metadata") or {})
    documented.lineage, documented.stamp = data.get("lineage") or documented.lineage, data.get("version")
    if data.get("created_at"):
        documented.created_at = _moment(data["created_at"])
    for item in items_of(data.get("tasks")):
        documented.add_with_progress(documented.make_star(item))
    for item in items_of(data.get("dependencies")):
        line = documented.make_line(item)
        edge = line.dependency
        over = documented.plan.node(edge.source).status in core.TERMINAL
        documented.plan.link(edge, bool(item.get("is_satisfied")) if edge.when is not None and over else None)
        documented.lines.add(line)


def items_of(part: Any) -> Iterable[Mapping[str, Any]]:
    """The parts, from a list or a mapping by id. Raises ValueError for an invalid part."""
    parts = list(part.values() if isinstance(part, Mapping) else part or ())
    for item in parts:
        if not isinstance(item, Mapping):
            raise ValueError(f"a task or a dependency must be an object, not {item!r:.80}")
    return parts


def line_from_dict(cls: type[Line], data: Mapping[str, Any]) -> Line:
    for end in ("from_task_id", "to_task_id"):
        if not data.get(end):
            raise ValueError(f"a line needs {end!r}: {dict(data)!r:.200}")
    line = cls(
        data["from_task_id"],
        data["to_task_id"],
        data.get("dependency_type") or DependencyType.UNCONDITIONAL,
        data.get("condition_description"),
        data.get("condition_evaluator"),
        line_id=data.get("line_id"),
        metadata=data.get("metadata"),
        condition=data.get("condition"),
    )
    when = data.get("last_evaluation_time")
    verdict = data.get("last_evaluation_result")
    evaluated = None if verdict is None else (bool(verdict), _moment(when) if when else datetime.now(UTC))
    created = _moment(data["created_at"]) if data.get("created_at") else line.created_at
    line.restore(created, _moment(data["updated_at"]) if data.get("updated_at") else created, evaluated)
    return line


def star_from_dict(cls: type[Star], data: Mapping[str, Any]) -> Star:
    star = cls(
        task_id=data.get("task_id"),
        name=data.get("name") or "",
        description=data.get("description") or data.get("task_description") or "",
        tips=data.get("tips"),
        target_device_id=data.get("target_device_id"),
        device_type=data.get("device_type"),
        priority=data.get("priority") or TaskPriority.MEDIUM,
        timeout=data.get("timeout"),
        retry_count=data.get("retry_count") or 0,
        task_data=data.get("task_data"),
        expected_output_type=data.get("expected_output_type"),
    )
    if data.get("created_at"):
        star.restore(_moment(data["created_at"]), _moment(data.get("updated_at") or data["created_at"]))
    status = member(TaskStatus, data.get("status") or TaskStatus.PENDING)
    pending = status in (TaskStatus.PENDING, TaskStatus.WAITING_DEPENDENCY)
    retries = data.get("current_retry") or 0
    facts: dict[str, Any] = {"attempts": retries + (not pending)}
    if not pending:
        facts |= {
            "status": core.TaskStatus(status),
            "device": manual_progress.BY_HAND,
            "value": data.get("result"),
            "error": RuntimeError(data["error"]) if data.get("error") else None,
            "started_at": _seconds(data.get("execution_start_time")),
            "ended_at": _seconds(data.get("execution_end_time")),
        }
    manual_progress.write(star.plan, star.node, facts)
    return star


def _moment(when: str) -> datetime:
    read = datetime.fromisoformat(when)
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)


def _seconds(when: str | None) -> float | None:
    return None if when is None else _moment(when).timestamp()
