"""The layout of a plan for the page: as it is now, at a version, or as a batch of edits would leave it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from asterism.api.edit_operations import MAX_EDITS, READ
from asterism.api.local.edit_handlers import batch_of_edits, check_size
from asterism.core.json_values import JsonObject
from asterism.core.plan.constellation import Constellation
from asterism.durable.plan_history import plan_at
from asterism.durable.stored_plans import read_plan
from asterism.server.endpoint import Call, Endpoint


class OpenedQuery(BaseModel, extra="forbid"):
    opened: str = Field("", max_length=10_000, description="Large groups whose tasks are shown, between `|`.")


class LayoutQuery(OpenedQuery):
    version: int | None = Field(None, ge=0, le=999_999_999, description="Default: the newest.")


class PlannedEdits(BaseModel, extra="forbid"):
    edits: list[JsonObject] = Field(max_length=MAX_EDITS)


class BentEdge(BaseModel):
    source: str
    target: str
    points: list[tuple[float, float]]


class Layout(BaseModel):
    """Places in pixels: ``nodes`` has the centre of each task and its layer, ``edges`` the bends of dependencies that
    pass layers."""

    version: int
    top: float
    width: float
    height: float
    nodes: dict[str, tuple[float, float, int]]
    edges: list[BentEdge]


async def layout(call: Call) -> Any:
    name, version = call.path["plan"], call.query.version
    plan: Constellation
    if version is None:
        plan = (await read_plan(call.fleet, name)).record.plan
    else:
        plan = (await plan_at(call.fleet.store, name, version)).plan
    return await call.server.plan_layouts.layout(name, plan, call.query.opened.split("|"))


async def layout_after(call: Call) -> Any:
    """Nothing is changed: the edits are applied to a copy."""
    name = call.path["plan"]
    batch = batch_of_edits(call.body.edits)
    await check_size(call.system, name, batch)
    plan = (await read_plan(call.fleet, name)).record.plan
    edited = plan.copy()
    edited.apply(batch, call.fleet.store.clock())
    return await call.server.plan_layouts.layout_after(name, plan, edited, call.query.opened.split("|"))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/plans/{plan}/layout",
        layout,
        "Where to draw each task.",
        READ,
        LayoutQuery,
        answer=Layout,
    ),
    Endpoint(
        "POST",
        "/plans/{plan}/layout",
        layout_after,
        "Where to draw each task after some edits.",
        READ,
        OpenedQuery,
        PlannedEdits,
        Layout,
    ),
)
