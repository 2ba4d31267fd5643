"""Plans over HTTP: list, submit, view, follow, versions, edit, undo, pause, resume, cancel, retry, story, why, logs.

Every change goes through the functions that the commands use: ``durable/plan_requests.py`` asks the process that runs
the plan, ``durable/admin.py`` and ``plan_retry.py`` change a plan that no process runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from asterism.api import documents
from asterism.base.http_limits import RequestRefused
from asterism.core.attempt_log import LogReader, TaskLog
from asterism.core.errors import InvalidTask, PlanError, UnknownTask
from asterism.core.plan.approval import ApprovalRule
from asterism.core.plan.edit_scope import EditScope
from asterism.core.plan.edits import Edit, EditBatch, edit_from_json
from asterism.durable import admin
from asterism.durable.approval_store import list_approvals
from asterism.durable.journal_store import check_name, read_head
from asterism.durable.plan_history import edit_history, plan_at, plan_events
from asterism.durable.plan_requests import edit_plan, pause_plan, undo_edit
from asterism.durable.plan_retry import reopen_plan
from asterism.durable.plan_submissions import submit_again, submit_plan
from asterism.durable.rejected_edits import rejected_edits
from asterism.durable.stored_plans import explain_task, explanation_json, find_plan, list_plans, read_plan
from asterism.durable.task_logs import story_tracebacks, task_logs, task_runs
from asterism.orchestrator.plan_mask import PlanMask
from asterism.planfile import loader
from asterism.server import plan_documents
from asterism.server.endpoint import Call, Endpoint, NoModel
from asterism.server.event_stream import EventStream
from asterism.server.plan_feed import parse_position
from asterism.server.problems import InvalidEdits

MAX_TASKS = 20_000
"""How many tasks a submitted plan, or an edited one, may have."""

Rule = TypeVar("Rule")

SMALL_FILE = 50_000
"""A plan file of at most this many characters is read at once."""

MAX_EDITS = 5_000
"""How many edits one batch may have."""

MAX_LINES = 5_000
"""How many lines of a log one answer has."""

MAX_EVENTS = 5_000
"""How many events one answer has."""

POSITION = r"^\d{1,19}(\.\d{1,19})?$"

READ = "observe plan {plan}"
EDIT = "edit {plan}"


# -- bodies and queries ------------------------------------------------------------------------------------------------


class Submission(BaseModel, extra="forbid"):
    """``file`` is the text of a plan file; it cannot include others."""

    name: str | None = Field(None, min_length=1, max_length=100, description="Default: the id in the plan file.")
    file: str = Field(max_length=2_000_000)
    params: dict[str, Any] = {}
    approvals: list[str] = Field([], max_length=50, description="Rules: which edits wait for a person.")
    scopes: list[str] = Field([], max_length=50, description="What the editors of the plan may do.")


class Edits(BaseModel, extra="forbid"):
    """A batch of edits, all or none; docs/reference/edits.md has their forms."""

    edits: list[dict[str, Any]] = Field(max_length=MAX_EDITS)
    reason: str = Field("", max_length=10_000)
    base_version: int | None = Field(None, description="The version that the author has seen.")
    dry_run: bool = False


class Undo(BaseModel, extra="forbid"):
    reason: str = Field("", max_length=10_000)
    dry_run: bool = False


class WithReason(BaseModel, extra="forbid"):
    reason: str = Field("", max_length=10_000)


class Retry(BaseModel, extra="forbid"):
    """``from_tasks`` run again with everything below them; without them, what failed."""

    from_tasks: list[str] = Field([], max_length=MAX_EDITS)
    edits: list[dict[str, Any]] = Field([], max_length=MAX_EDITS)
    reason: str = Field("", max_length=10_000)


class ViewQuery(BaseModel, extra="forbid"):
    tasks: bool = True


class StoryQuery(BaseModel, extra="forbid"):
    task: str | None = Field(None, max_length=500)


class ChangesQuery(BaseModel, extra="forbid"):
    since: str | None = Field(None, pattern=POSITION, description="A `position`; default: from the beginning.")


class FollowQuery(BaseModel, extra="forbid"):
    after: str | None = Field(None, pattern=POSITION, description="A `position`; default: from now on.")


class LogQuery(BaseModel, extra="forbid"):
    after: str | None = Field(None, pattern=r"^\d{1,9}\.\d{1,12}$", description="The `next` of an earlier answer.")
    attempt: int | None = Field(None, ge=1, le=1_000_000)


# -- reading -----------------------------------------------------------------------------------------------------------


async def list_all(call: Call) -> Any:
    return {"items": [plan_documents.summary(one) for one in await list_plans(call.fleet)], "next": None}


async def show(call: Call) -> Any:
    stored = await read_plan(call.fleet, call.path["plan"])
    approvals = await plan_documents.approvals_json(call.fleet, stored.record, stored.waiting)
    return plan_documents.view(stored, tasks=call.query.tasks, approvals=approvals)


async def story(call: Call) -> Any:
    plan = (await read_plan(call.fleet, call.path["plan"])).record.plan
    entries = plan.story(call.query.task)
    if call.query.task is not None and not entries and call.query.task not in plan:
        raise UnknownTask(call.query.task)
    tracebacks = await story_tracebacks(call.fleet, plan, entries)
    return {"items": plan_documents.story_json(entries, PlanMask(plan), tracebacks), "next": None}


async def show_task(call: Call) -> Any:
    stored = await read_plan(call.fleet, call.path["plan"])
    runs = await task_runs(call.fleet.store, call.path["plan"], call.path["task"])
    tracebacks = await story_tracebacks(call.fleet, stored.record.plan, stored.record.plan.story(call.path["task"]))
    return plan_documents.task_details(stored, call.path["task"], runs, tracebacks)


async def why(call: Call) -> Any:
    return explanation_json(await explain_task(call.fleet, call.path["plan"], call.path["task"]))


async def logs(call: Call) -> Any:
    name, task = call.path["plan"], call.path["task"]
    plan = (await read_plan(call.fleet, name)).record.plan
    if task not in plan and not await task_runs(call.fleet.store, name, task):
        raise UnknownTask(task)
    return log_page(await task_logs(call.fleet, name, task), call.query)


def log_page(found: list[TaskLog], query: LogQuery) -> dict[str, Any]:
    """The lines of some attempts after a place ``ATTEMPT.LINE``, and the place where the next part begins."""
    first, seen = map(int, query.after.split(".")) if query.after is not None else (0, 0)
    items: list[dict[str, Any]] = []
    for log in found:
        if log.attempt < first or query.attempt not in (None, log.attempt) or len(items) >= MAX_LINES:
            continue
        reader = LogReader(seen if log.attempt == first else 0)
        for line in reader.read(log.chunks):
            items.append({"attempt": log.attempt, **line._asdict()})
            first, seen = log.attempt, reader.seen
    return {"items": items, "next": f"{first}.{seen}"}


async def list_versions(call: Call) -> Any:
    """Every version, the newest edits that were rejected, and every closed cycle with what its editor has cost."""
    name, store = call.path["plan"], call.fleet.store
    await find_plan(call.fleet, name)
    found, rejected = await edit_history(store, name), await rejected_edits(store, name)
    approvals = await list_approvals(store, name)
    return {
        "items": [one.to_json() for one in found.versions],
        "rejected": [one.to_json() for one in rejected],
        "cycles": plan_documents.closed_cycles(found.cycles, approvals),
        "cost": plan_documents.total_cost(found.cycles),
        "next": None,
    }


async def show_version(call: Call) -> Any:
    """The plan right after the edit that made a version."""
    if not call.path["version"].isdecimal() or len(call.path["version"]) > 9:
        raise RequestRefused(404, "a version is a whole number")
    await find_plan(call.fleet, call.path["plan"])
    past = await plan_at(call.fleet.store, call.path["plan"], int(call.path["version"]))
    return {
        "name": call.path["plan"],
        "version": past.version.version,
        "edit": past.version.to_json(),
        "state": str(past.plan.state),
        "counts": plan_documents.counts(past.plan),
        **plan_documents.structure(past.plan),
    }


async def changes(call: Call) -> Any:
    """The events after a position, without a stream."""
    name, since = call.path["plan"], call.query.since
    await find_plan(call.fleet, name)
    found = await plan_events(call.fleet.store, name, None if since is None else parse_position(since))
    items = found.events[:MAX_EVENTS]
    more = len(found.events) > MAX_EVENTS
    position = items[-1].position if more else found.position
    return {
        "items": [one.to_json() for one in items],
        "position": str(position),
        "reset": found.reset,
        "next": str(position) if more else None,
    }


async def follow(call: Call) -> Any:
    """Follow a plan. `Last-Event-ID`, or `after` for the first connection, is the position to continue after."""
    after = call.request.headers.get("last-event-id") or call.query.after
    await find_plan(call.fleet, call.path["plan"])
    return EventStream(call, await call.server.plan_feeds.events(call.path["plan"], after))


# -- changing ----------------------------------------------------------------------------------------------------------


async def submit(call: Call) -> Any:
    given = call.body
    rules, scopes = _rules(ApprovalRule.parse, given.approvals), _rules(EditScope.parse, given.scopes)
    found = await examined(given.file, given.name or "plan", given.params)
    plan = found.constellation
    if len(plan) > MAX_TASKS:
        raise RequestRefused(413, f"the plan has {len(plan):,} tasks; the limit is {MAX_TASKS:,}")
    plan.id = given.name or plan.id
    _check_name(plan.id)
    policy = found.policy or "scoped"
    await submit_plan(call.fleet, plan, policy=policy, params=found.params, approvals=rules, scopes=scopes)
    call.server.submitted()
    return plan_documents.view(await read_plan(call.fleet, plan.id), tasks=False)


async def examined(text: str, name: str, params: dict[str, Any]) -> loader.PlanFile:
    """A plan file. A large one takes seconds, and is read in a thread. Raises BadPlan."""
    read = partial(loader.examine, text, name, params=params, files=False)
    found, mistakes = await asyncio.to_thread(read) if len(text) > SMALL_FILE else read()
    if found is None:
        raise loader.BadPlan("the plan file", mistakes)
    return found


def _check_name(name: str) -> None:
    try:
        check_name(name)
    except PlanError as error:
        raise RequestRefused(422, str(error)) from None


def _rules(parse: Callable[[str], Rule], texts: list[str]) -> list[Rule]:
    try:
        return [parse(text) for text in texts]
    except PlanError as error:
        raise RequestRefused(422, str(error)[:2000]) from None


async def edit(call: Call) -> Any:
    name, given = call.path["plan"], call.body
    batch = replace(batch_of_edits(given.edits), author=call.by, reason=given.reason, base_version=given.base_version)
    await check_size(call, name, batch)
    async with call.server.edited_plans.alone(call.fleet, name):
        done = await edit_plan(call.fleet, name, batch, dry_run=given.dry_run, editor=call.editor)
    if done.reopened:
        call.server.submitted()
    return plan_documents.edit_outcome(name, done, given.dry_run)


async def undo(call: Call) -> Any:
    name, given = call.path["plan"], call.body
    async with call.server.edited_plans.alone(call.fleet, name):
        done = await undo_edit(call.fleet, name, given.reason, dry_run=given.dry_run, editor=call.editor)
    if done.reopened:
        call.server.submitted()
    return plan_documents.edit_outcome(name, done, given.dry_run)


def batch_of_edits(edits: list[dict[str, Any]]) -> EditBatch:
    """Raises InvalidEdits with every edit that cannot be read."""
    found, reasons = list[Edit](), dict[int, str]()
    for number, data in enumerate(edits):
        try:
            found.append(edit_from_json(data))
        except (InvalidTask, TypeError, ValueError) as error:
            reasons[number] = str(error)[:2000]
    if reasons:
        raise InvalidEdits(reasons)
    return EditBatch(tuple(found))


async def check_size(call: Call, name: str, batch: EditBatch) -> None:
    """Raise RequestRefused if a batch makes a plan too large."""
    added = sum(edit.op == "add_task" for edit in batch.edits)
    if added:
        await call.server.edited_plans.add(call.fleet, name, added, MAX_TASKS)


async def pause(call: Call) -> Any:
    await find_plan(call.fleet, call.path["plan"])
    answer = await pause_plan(call.fleet, call.path["plan"], call.body.reason)
    return await _state(call, paused=answer.reason, owner=answer.owner, applied_by=answer.by)


async def resume(call: Call) -> Any:
    """Withdraw a pause, and let the server run the plan if no process does."""
    name = call.path["plan"]
    head = await find_plan(call.fleet, name)
    if head.ended:
        raise RequestRefused(409, f"plan {name!r} is {head.state}: it cannot be resumed")
    await admin.unpause(call.fleet, name)
    await _run_here(call, name)
    return await _state(call)


async def cancel(call: Call) -> Any:
    """Ask the owner to cancel the plan; if no process runs it, the server does."""
    name = call.path["plan"]
    await find_plan(call.fleet, name)
    await admin.cancel(call.fleet, name, call.body.reason)
    await _run_here(call, name)
    return await _state(call)


async def retry(call: Call) -> Any:
    name, given = call.path["plan"], call.body
    await find_plan(call.fleet, name)
    batch = None
    if given.edits:
        batch = replace(batch_of_edits(given.edits), author=call.by, reason=given.reason)
        await check_size(call, name, batch)
    terms = {"from_tasks": given.from_tasks, "batch": batch, "reason": given.reason, "editor": call.editor}
    reopened = await reopen_plan(call.fleet, name, **terms, submit=True)
    call.server.submitted()
    return await _state(call, tasks=list(reopened.tasks), version=reopened.version)


async def _run_here(call: Call, name: str) -> None:
    """Let a plan runner run a plan that no process runs."""
    head, _ = await read_head(call.fleet.store, name)
    if not head.ended and await admin.live_owner(call.fleet.store, head) is None:
        await submit_again(call.fleet, name)
        call.server.submitted()


async def _state(call: Call, **more: Any) -> dict[str, Any]:
    stored = await read_plan(call.fleet, call.path["plan"])
    owner = stored.owner.device if stored.owner is not None else None
    return {"name": call.path["plan"], "state": stored.state, "paused": stored.paused, "owner": owner, **more}


Plans = documents.Page[documents.PlanSummary]
Lines = documents.Page[documents.LogEntry]
Story = documents.Page[documents.StoryEntry]
EVENTS = "text/event-stream"
State, Outcome = documents.PlanState, documents.EditOutcome

ENDPOINTS = (
    Endpoint("GET", "/plans", list_all, "List the plans.", answer=Plans),
    Endpoint("POST", "/plans", submit, "Submit a plan.", "operate", NoModel, Submission, documents.Plan, 201),
    Endpoint("GET", "/plans/{plan}", show, "A plan as it is now.", READ, ViewQuery, answer=documents.Plan),
    Endpoint("GET", "/plans/{plan}/changes", changes, "Events.", READ, ChangesQuery, answer=documents.Changes),
    Endpoint("GET", "/plans/{plan}/events", follow, "Events as they come.", READ, FollowQuery, media=EVENTS),
    Endpoint("GET", "/plans/{plan}/versions", list_versions, "All versions.", READ, answer=documents.Versions),
    Endpoint("GET", "/plans/{plan}/versions/{version}", show_version, "A version.", READ, answer=documents.PastPlan),
    Endpoint("GET", "/plans/{plan}/story", story, "What happened.", READ, StoryQuery, answer=Story),
    Endpoint("POST", "/plans/{plan}/edits", edit, "Edit a plan.", EDIT, NoModel, Edits, Outcome, edits=True),
    Endpoint("POST", "/plans/{plan}/undo", undo, "Undo the newest edit.", EDIT, NoModel, Undo, Outcome, edits=True),
    Endpoint("POST", "/plans/{plan}/pause", pause, "Start no more tasks.", "operate", NoModel, WithReason, State),
    Endpoint("POST", "/plans/{plan}/resume", resume, "Resume a plan.", "operate", NoModel, NoModel, State),
    Endpoint("POST", "/plans/{plan}/cancel", cancel, "Cancel a plan.", "operate", NoModel, WithReason, State),
    Endpoint("POST", "/plans/{plan}/retry", retry, "Run it again.", "operate", NoModel, Retry, State, edits=True),
    Endpoint("GET", "/plans/{plan}/tasks/{task}", show_task, "A task.", READ, answer=documents.Task),
    Endpoint("GET", "/plans/{plan}/tasks/{task}/why", why, "Why a task waits.", READ, answer=documents.TaskWhy),
    Endpoint("GET", "/plans/{plan}/tasks/{task}/logs", logs, "What a task printed.", READ, LogQuery, answer=Lines),
)
