"""Tools that wait: for events of a plan, for the end of a run or of a plan; and what they wait for, as a value.

``Work`` names a run or a plan that goes on. A handler returns it instead of a document, and the MCP server decides: a
client with the Tasks extension gets a handle at once, any other waits until the end or the timeout, and calls again.
Nothing is kept in memory: each question reads the store, so a handle outlives the server.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, create_model
from pydantic_core import to_jsonable_python

from asterism.api import documents, plan_operations, run_operations
from asterism.api.edit_operations import READ
from asterism.api.local import plan_documents
from asterism.api.local.plan_handlers import MAX_EVENTS, parse_position
from asterism.api.local.run_handlers import run_document
from asterism.base.http_limits import RequestRefused
from asterism.core.plan.approval import WaitingEdit
from asterism.durable.journal_store import read_head
from asterism.durable.plan_history import PlanFollower, VersionUnknown, versions
from asterism.durable.stored_plans import find_plan, read_plan
from asterism.server.endpoint import Call, Endpoint, NoModel, ServerState
from asterism.server.operation_endpoint import endpoint_of, system_of
from asterism.server.plan_feed import LOOK_INTERVAL
from asterism.server.plan_routes import POSITION

DEFAULT_WAIT, LONGEST_WAIT = 20.0, 55.0
"""How long a tool waits, in seconds: many clients give up after a minute."""

PLAN_INTERVAL = 0.5
"""Seconds between two looks at a plan that is followed to its end."""


class Since(BaseModel, extra="forbid"):
    """The beginning of what is read: a position or a version; without both, everything."""

    since: str | None = Field(None, pattern=POSITION, description="A `position` of an earlier answer.")
    since_version: int | None = Field(None, ge=0, description="A version of the plan, in place of a position.")


class EventFilter(BaseModel, extra="forbid"):
    after: str | None = Field(None, pattern=POSITION, description="A `position`; default: from now on.")
    kinds: list[Literal["task", "edit", "cycle", "approval", "plan"]] = Field(
        [], description="Only these; default: all."
    )
    timeout: float = Field(DEFAULT_WAIT, ge=0, le=LONGEST_WAIT, description="Seconds.")


class Patience(BaseModel, extra="forbid"):
    timeout: float = Field(DEFAULT_WAIT, ge=0, le=LONGEST_WAIT, description="Seconds to wait for the end.")


FollowedSubmission = create_model(
    "FollowedSubmission",
    __base__=endpoint_of(plan_operations.submit_plan).body,
    follow=(bool, Field(False, description="Answer when the plan has ended.")),
)


FollowedNewRun = create_model(
    "FollowedNewRun",
    __base__=endpoint_of(run_operations.create_run).body,
    follow=(bool, Field(False, description="Answer when the run has ended.")),
)


@dataclass(frozen=True, kw_only=True)
class FollowedPlan(documents.Plan):
    """A plan without its tasks; ``ended`` is false if it goes on: follow it with follow_plan."""

    ended: bool


# -- events ------------------------------------------------------------------------------------------------------------


async def read_changes(call: Call) -> Any:
    given: Since = call.query
    since = given.since
    if given.since_version is not None:
        if since is not None:
            raise RequestRefused(422, "give either since or since_version")
        since = await _position_of(call, given.since_version)
    return await system_of(call).read_changes(call.path["plan"], since)


async def _position_of(call: Call, version: int) -> str:
    """Where a version of the plan begins. Raises VersionUnknown."""
    name = call.path["plan"]
    await find_plan(call.fleet, name)
    for one in await versions(call.fleet.store, name):
        if one.version == version:
            return str(one.position)
    raise VersionUnknown(f"plan {name!r} has no version {version}, or its history does not reach back to it")


async def wait_for_events(call: Call) -> Any:
    name, given = call.path["plan"], call.query
    await find_plan(call.fleet, name)
    after = None if given.after is None else parse_position(given.after)
    follower = await PlanFollower.open(call.fleet.store, name, after)
    deadline = asyncio.get_running_loop().time() + given.timeout
    while True:
        found = await follower.read()  # never interrupted: what it has read would be lost
        items = [one for one in found if not given.kinds or one.kind in (*given.kinds, "reset", "gone")]
        remaining = deadline - asyncio.get_running_loop().time()
        if items or remaining <= 0 or call.server.stopping.is_set():
            break
        await asyncio.sleep(min(LOOK_INTERVAL, remaining))
    more = len(items) > MAX_EVENTS
    position = items[MAX_EVENTS - 1].position if more else follower.position
    return {
        "items": [one.to_json() for one in items[:MAX_EVENTS] if one.kind != "reset"],
        "position": str(position),
        "reset": any(one.kind == "reset" for one in items),
        "next": str(position) if more else None,
    }


# -- runs and plans that go on -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A run or a plan that goes on. ``begun`` is whether the call began it, so that to cancel the call cancels it.
    ``timeout`` is how long a client without tasks waits."""

    kind: Literal["run", "plan"]
    name: str
    begun: bool
    timeout: float = DEFAULT_WAIT


@dataclass(frozen=True)
class WorkState:
    """Work as it is now. ``document`` is the answer of its tool, and ``text`` says in words how far it is. ``waiting``
    are the edits that wait for a person."""

    ended: bool
    text: str
    created_at: float
    updated_at: float
    document: dict[str, Any]
    waiting: tuple[WaitingEdit, ...] = ()


async def follow_run(call: Call) -> Work:
    return Work("run", (await call.fleet.run(call.path["run"])).id, False, call.query.timeout)


async def follow_plan(call: Call) -> Work:
    await find_plan(call.fleet, call.path["plan"])
    return Work("plan", call.path["plan"], False, call.query.timeout)


async def create_run(call: Call) -> Any:
    fields = vars(call.body)
    follow = fields.pop("follow")
    created = await system_of(call).create_run(**fields)
    return Work("run", created.id, True, LONGEST_WAIT if follow else 0.0)


async def submit_plan(call: Call) -> Any:
    fields = vars(call.body)
    follow = fields.pop("follow")
    submitted = await system_of(call).submit_plan(**fields)
    return Work("plan", submitted.name, True, LONGEST_WAIT if follow else 0.0)


async def read_work(call: Call, work: Work) -> WorkState:
    """Raises UnknownRun and UnknownConstellation."""
    return await (_read_run if work.kind == "run" else _read_plan)(call, work.name)


async def _read_run(call: Call, name: str) -> WorkState:
    found = await run_document(call.fleet, await call.fleet.run(name))
    updated = max(at for at in (found.created_at, found.started_at, found.ended_at) if at is not None)
    document = to_jsonable_python(found)
    return WorkState(found.ended, f"run {found.id} is {found.status}", found.created_at, updated, document)


async def _read_plan(call: Call, name: str) -> WorkState:
    stored = await read_plan(call.fleet, name)
    waiting, head = stored.waiting, stored.record.head
    approvals = await plan_documents.approval_documents(call.fleet, stored.record, waiting)
    view = plan_documents.view(stored, now=call.fleet.store.clock(), tasks=False, approvals=approvals)
    document = {**to_jsonable_python(view), "ended": head.ended}
    counts = ", ".join(f"{number} {status}" for status, number in document["counts"].items())
    text = f"plan {name!r} is {stored.state}" + (f" ({counts})" if counts else "")
    plan = stored.record.plan
    updated = max(at for at in (head.created_at, plan.started_at, plan.ended_at) if at is not None)
    return WorkState(head.ended, text, head.created_at, updated, document, tuple(waiting))


async def wait_for_work(server: ServerState, work: Work) -> None:
    """Return when work has ended, its timeout is over, or the server stops."""
    if work.timeout <= 0:
        return
    waits = [asyncio.create_task(_end_of(server, work)), asyncio.create_task(server.stopping.wait())]
    try:
        await asyncio.wait(waits, timeout=work.timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _end_of(server: ServerState, work: Work) -> None:
    if work.kind == "run":
        await server.fleet.wait(work.name)
        return
    while True:
        head, _ = await read_head(server.fleet.store, work.name)
        if head.ended:
            return
        await asyncio.sleep(PLAN_INTERVAL)


ENDPOINTS = (
    Endpoint("GET", "/plans/{plan}/changes-since", read_changes, "Changes.", READ, Since, answer=documents.Changes),
    Endpoint("GET", "/plans/{plan}/wait", wait_for_events, "Events.", READ, EventFilter, answer=documents.Changes),
    Endpoint("GET", "/plans/{plan}/follow", follow_plan, "The end of a plan.", READ, Patience, answer=FollowedPlan),
    Endpoint("POST", "/plans/submit", submit_plan, "Submit.", "operate", NoModel, FollowedSubmission, FollowedPlan),
    Endpoint("GET", "/runs/{run}/follow", follow_run, "The end of a run.", "observe", Patience, answer=documents.Run),
    Endpoint("POST", "/runs/create", create_run, "Create a run.", "operate", NoModel, FollowedNewRun, documents.Run),
)
"""Endpoints of tools only; the HTTP API has event streams for this."""
