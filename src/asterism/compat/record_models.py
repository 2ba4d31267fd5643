"""The documented Pydantic models of a task, a line and a plan, in the form of ``to_dict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class _Model(BaseModel):
    """What a model does not name is kept as it came."""

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
    task_data: dict[str, Any] = {}
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
    metadata: dict[str, Any] = {}


class _PlanSchema(_Model):
    """Tasks and lines are listed or filed under their ids."""

    name: str | None = None
    state: str | None = None
    tasks: dict[str, TaskStarSchema] | list[TaskStarSchema] = []
    dependencies: dict[str, TaskStarLineSchema] | list[TaskStarLineSchema] = []
    metadata: dict[str, Any] = {}


class TaskConstellationSchema(_PlanSchema):
    constellation_id: str | None = None


class TaskOrionSchema(_PlanSchema):
    orion_id: str | None = None


def checked(schema: object, kind: type[BaseModel]) -> Mapping[str, Any]:
    """The data of a model. Raises ValueError for anything else."""
    if not isinstance(schema, kind):
        raise ValueError(f"this takes a {kind.__name__}, not {schema!r:.80}")
    return schema.model_dump()
