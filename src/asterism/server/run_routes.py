"""Runs over HTTP: list, create, show, logs, why, output, and actions on one run or on all that match a filter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from asterism.base.http_limits import RequestRefused
from asterism.client import documents
from asterism.core.errors import AsterismError, RunRefused
from asterism.core.run.run import REPORTED_STATUSES, Run
from asterism.fleet.fleet import Fleet, check_terms
from asterism.fleet.fleet_json import masks_of, run_in, run_json, why_json, workflow_json
from asterism.fleet.run_explanation import explain_run
from asterism.fleet.run_queries import RunList, list_runs
from asterism.peers.takeover import held_runs
from asterism.server.endpoint import Call, Endpoint, NoModel
from asterism.server.plan_routes import Lines, LogQuery, WithReason, log_page
from asterism.server.waiting_runs import Waiting, list_waiting, waiting_for
from asterism.store.store_errors import StoreError

MOST_AT_ONCE = 500
"""On how many runs one request acts, and how many one answer lists."""

MOVE_TIMEOUT = 10.0
"""How long a request waits until a device has handed back a run that is moved, in seconds."""

CONDITIONS = ("status", "workflow", "device", "series", "search", "waiting")
STATUSES = frozenset({*REPORTED_STATUSES, "open", "ended"})
Text = Field(None, min_length=1, max_length=500)


class RunFilter(BaseModel, extra="forbid"):
    """Which runs: all conditions that are given hold. ``status`` may name several, separated by commas."""

    status: str | None = Field(None, max_length=200, description=f"Any of {', '.join(sorted(STATUSES))}.")
    workflow: str | None = Text
    device: str | None = Text
    series: str | None = Text
    search: str | None = Field(None, min_length=1, max_length=500, description="In label, key or input.")
    waiting: Waiting | None = Field(None, description="What an open run waits for.")
    after: str | None = Field(None, max_length=100, description="The `next` of an earlier answer.")
    limit: int = Field(100, ge=1, le=MOST_AT_ONCE)

    async def read(self, fleet: Fleet) -> RunList:
        """The runs that match, newest first. Raises RequestRefused."""
        statuses = tuple(self.status.split(",")) if self.status else ()
        unknown = [one for one in statuses if one not in STATUSES]
        if unknown:
            raise RequestRefused(422, f"{unknown[0]!r} is not a status; they are: {', '.join(sorted(STATUSES))}")
        given = {name: getattr(self, name) for name in ("workflow", "device", "series", "search", "limit", "after")}
        if self.waiting is not None:
            return await list_waiting(fleet, self.waiting, statuses=statuses, **given)
        return await list_runs(fleet, statuses=statuses, newest=True, **given)


class NewRun(BaseModel, extra="forbid"):
    """The terms of a run, as for `asterism runs create`."""

    workflow: str = Field(min_length=1, max_length=500)
    input: dict[str, Any] = {}
    label: str | None = Text
    key: str | None = Text
    series: str | None = Text
    priority: int | None = Field(None, ge=-1_000_000, le=1_000_000)
    device: str | None = Text
    keep: Literal["epoch", "original", "furthest"] = "epoch"


class Move(BaseModel, extra="forbid"):
    device: str = Field(min_length=1, max_length=500)
    stop: bool = Field(False, description="If a device works on the run, stop it there first.")


class Action(RunFilter):
    """An action on all runs that match. Without a condition it needs `all`."""

    action: Literal["pause", "resume", "cancel", "retry"]
    all: bool = Field(False, description="Act on every run if no condition is given.")
    reason: str = Field("", max_length=10_000)


async def list_all(call: Call) -> Any:
    found = await call.query.read(call.fleet)
    return {"items": await runs_json(call.fleet, found), "next": _next(found)}


async def runs_json(fleet: Fleet, found: RunList) -> list[dict[str, Any]]:
    masks = await masks_of(fleet, found.runs)
    held = await held_runs(fleet.store, [run.id for run in found.runs if not run.ended])
    now = fleet.store.clock()
    return [
        {
            **run_json(run, found.sessions, found.reports, masks[run.id]),
            "shown_label": found.labels[run.id],
            "waiting": waiting_for(run, run.id in held, now),
            **({"held_for": held[run.id]} if run.id in held else {}),
        }
        for run in found.runs
    ]


def _next(found: RunList) -> str | None:
    return found.runs[-1].id if found.more else None


async def create(call: Call) -> Any:
    given = call.body
    terms = {name: getattr(given, name) for name in ("key", "series", "priority", "device", "keep", "label")}
    try:
        check_terms(**terms)
    except AsterismError as error:
        raise RequestRefused(422, str(error)) from None
    return await run_in(call.fleet, await call.fleet.create(given.workflow, given.input, **terms))


async def show(call: Call) -> Any:
    return await run_in(call.fleet, await call.fleet.run(call.path["run"]))


async def output(call: Call) -> Any:
    run = await call.fleet.run(call.path["run"])
    if not run.ended or run.error is not None:
        raise RequestRefused(409, f"run {run.id} is {run.reported_status}: it has no output")
    masks = await masks_of(call.fleet, [run])
    return {"run": run.id, "output": masks[run.id].result(await call.fleet.output(run))}


async def logs(call: Call) -> Any:
    return log_page(await call.fleet.logs(call.path["run"]), call.query)


async def why(call: Call) -> Any:
    return why_json(await explain_run(call.fleet, call.path["run"]))


async def pause(call: Call) -> Any:
    return await run_in(call.fleet, await call.fleet.pause(call.path["run"], call.body.reason))


async def resume(call: Call) -> Any:
    return await run_in(call.fleet, await call.fleet.resume(call.path["run"]))


async def cancel(call: Call) -> Any:
    return await run_in(call.fleet, await call.fleet.cancel(call.path["run"]))


async def retry(call: Call) -> Any:
    return await run_in(call.fleet, await call.fleet.retry(call.path["run"]))


async def move(call: Call) -> Any:
    """Assign a run to another device. If its device takes long to hand it back, the answer is 202, and the move goes
    on."""
    work = call.server.spawn(call.fleet.move(call.path["run"], call.body.device, stop=call.body.stop))
    await asyncio.wait([work], timeout=MOVE_TIMEOUT)
    if work.done():
        return await run_in(call.fleet, work.result())
    return JSONResponse(await run_in(call.fleet, await call.fleet.run(call.path["run"])), 202)


async def act(call: Call) -> Any:
    """Act on the runs that match, each on its own: a refusal of one does not stop the others."""
    given: Action = call.body
    if not given.all and not any(getattr(given, name) for name in CONDITIONS):
        raise RequestRefused(422, f'this would act on every run: give a condition ({", ".join(CONDITIONS)}), or "all"')
    found = await given.read(call.fleet)
    changed: list[str] = []
    refused: dict[str, str] = {}
    for run in found.runs:
        try:
            changed.append((await _actions(call.fleet, given.reason)[given.action](run)).id)
        except StoreError:
            raise
        except AsterismError as error:
            refused[run.id] = error.why if isinstance(error, RunRefused) else str(error)
    return {"changed": changed, "refused": refused, "next": _next(found)}


def _actions(fleet: Fleet, reason: str) -> dict[str, Callable[[Run], Awaitable[Run]]]:
    return {
        "pause": lambda run: fleet.pause(run.id, reason),
        "resume": lambda run: fleet.resume(run.id),
        "cancel": lambda run: fleet.cancel(run.id),
        "retry": lambda run: fleet.retry(run.id),
    }


async def list_workflows(call: Call) -> Any:
    return {"items": [workflow_json(one) for one in await call.fleet.workflows.all()], "next": None}


Runs, OneRun = documents.Page[documents.Run], documents.Run

ENDPOINTS = (
    Endpoint("GET", "/runs", list_all, "List runs, the newest first.", "observe", RunFilter, answer=Runs),
    Endpoint("POST", "/runs", create, "Create a run.", "operate", NoModel, NewRun, OneRun, 201),
    Endpoint("POST", "/runs/actions", act, "Act on all matches.", "operate", NoModel, Action, documents.BulkOutcome),
    Endpoint("GET", "/runs/{run}", show, "A run.", answer=OneRun),
    Endpoint("GET", "/runs/{run}/output", output, "The output of a run.", answer=documents.RunOutput),
    Endpoint("GET", "/runs/{run}/logs", logs, "What a run printed.", "observe", LogQuery, answer=Lines),
    Endpoint("GET", "/runs/{run}/why", why, "Why a run waits.", answer=documents.RunWhy),
    Endpoint("POST", "/runs/{run}/pause", pause, "Pause a run.", "operate", NoModel, WithReason, OneRun),
    Endpoint("POST", "/runs/{run}/resume", resume, "Resume a run.", "operate", NoModel, NoModel, OneRun),
    Endpoint("POST", "/runs/{run}/cancel", cancel, "Cancel a run.", "operate", NoModel, NoModel, OneRun),
    Endpoint("POST", "/runs/{run}/retry", retry, "Repeat a run as a new one.", "operate", NoModel, NoModel, OneRun),
    Endpoint("POST", "/runs/{run}/move", move, "Give a run to a device.", "operate", NoModel, Move, OneRun),
    Endpoint("GET", "/workflows", list_workflows, "List workflows.", answer=documents.Page[documents.Workflow]),
)
