"""Plans as JSON data in the documented form, and the documented Pydantic models of it.

Tasks and lines are stored by id, with their state. Two keys are our own: ``version`` and ``lineage`` say what a copy
was made from, so that it can be merged when it comes back. Both are optional in a file.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from asterism.compat.vocabulary import ExecutionResult
from asterism.core.json_values import JsonObject


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


def as_json(value: Any) -> Any:
    """A documented attribute as JSON data. What JSON cannot hold is written as text."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BaseException):
        return str(value)
    if isinstance(value, ExecutionResult):
        fields = {name: getattr(value, name) for name in ("task_id", "result", "metadata")}
        value = {**fields, "status": as_json(value.status), "error": as_json(value.error)}
    if isinstance(value, Mapping):  # only an entry that JSON cannot hold is written as text, not all of them
        return {str(key): _plain(item) for key, item in value.items()}
    return _plain(value.value if isinstance(value, Enum) else value)


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return str(value)


def items_of(part: Any) -> Iterable[Mapping[str, Any]]:
    """The parts, from a list or a mapping by id. Raises ValueError for an invalid part."""
    parts = list(part.values() if isinstance(part, Mapping) else part or ())
    for item in parts:
        if not isinstance(item, Mapping):
            raise ValueError(f"a task or a dependency must be an object, not {item!r:.80}")
    return parts


def read_moment(when: str) -> datetime:
    """A time that ``as_json`` wrote; one without a zone is in UTC."""
    read = datetime.fromisoformat(when)
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
