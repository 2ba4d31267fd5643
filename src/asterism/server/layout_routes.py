"""The layout of a plan for the page: ``GET /plans/{plan}/layout``, of the plan as it is now or of a version."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from asterism.core.plan.constellation import Constellation
from asterism.durable.plan_history import plan_at
from asterism.durable.stored_plans import find_plan, read_plan
from asterism.server.endpoint import Call, Endpoint


class LayoutQuery(BaseModel, extra="forbid"):
    version: int | None = Field(None, ge=0, le=999_999_999, description="Default: the newest.")


class Layout(BaseModel):
    """Places in pixels: ``nodes`` has the centre of each task and its layer, ``edges`` the bends of dependencies that
    pass layers, as ``[source, target, [[x, y], …]]``."""

    version: int
    top: float
    width: float
    height: float
    nodes: dict[str, tuple[float, float, int]]
    edges: list[tuple[str, str, list[tuple[float, float]]]]


async def layout(call: Call) -> Any:
    name, version = call.path["plan"], call.query.version
    plan: Constellation
    if version is None:
        plan = (await read_plan(call.fleet, name)).record.plan
    else:
        await find_plan(call.fleet, name)
        plan = (await plan_at(call.fleet.store, name, version)).plan
    return await call.server.plan_layouts.layout(name, plan)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/plans/{plan}/layout",
        layout,
        "Where to draw each task.",
        "observe plan {plan}",
        LayoutQuery,
        answer=Layout,
    ),
)
