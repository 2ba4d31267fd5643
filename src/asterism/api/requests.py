"""The requests of the client: one function for each operation of the API, for both kinds of clients.

A function checks nothing that the server checks. It returns what is sent, and the model of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from asterism.api import documents
from asterism.base.path_names import path_part
from asterism.core.plan.edits import Edit, EditBatch

Answer = TypeVar("Answer")
Edits = EditBatch | Iterable[Edit | Mapping[str, Any]]
API = "/api/v1"


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[Answer]):
    """``model`` reads the answer; None returns its text."""

    method: str
    path: str
    model: type[Answer]
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)


def _get(path: str, model: type[Answer], **query: Any) -> ApiRequest[Answer]:
    given = {name: _text(value) for name, value in query.items() if value is not None}
    return ApiRequest("GET", f"{API}{path}", model, None, given)


def _post(path: str, model: type[Answer], **body: Any) -> ApiRequest[Answer]:
    return ApiRequest("POST", f"{API}{path}", model, {name: value for name, value in body.items() if value is not None})


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at(*parts: str) -> str:
    """A path with names in it, which may have any letters."""
    return "/" + "/".join(map(path_part, parts))


def edits_json(edits: Edits) -> list[Any]:
    found = edits.edits if isinstance(edits, EditBatch) else edits
    return [dict(one) if isinstance(one, Mapping) else one.to_json() for one in found]


# -- the server --------------------------------------------------------------------------------------------------------


def health() -> ApiRequest[documents.Health]:
    """Whether the server can reach its store."""
    return _get("/health", documents.Health)


def me() -> ApiRequest[documents.Me]:
    """The credential of this client: its name and scopes."""
    return _get("/me", documents.Me)


def metrics() -> ApiRequest[str]:
    """The metrics of the fleet and its plans, as OpenMetrics text."""
    return _get("/metrics", str)


# -- plans -------------------------------------------------------------------------------------------------------------


def plans() -> ApiRequest[documents.Page[documents.PlanSummary]]:
    """All plans in the store."""
    return _get("/plans", documents.Page[documents.PlanSummary])


def plan(name: str, *, tasks: bool = True) -> ApiRequest[documents.Plan]:
    """A plan as it is now; without ``tasks`` its lists of tasks and dependencies are empty."""
    return _get(_at("plans", name), documents.Plan, tasks=tasks)


def submit_plan(
    file: str,
    *,
    name: str | None = None,
    params: Mapping[str, Any] | None = None,
    approvals: Iterable[str] = (),
    scopes: Iterable[str] = (),
) -> ApiRequest[documents.Plan]:
    """Submit the text of a plan file; the server runs it. ``approvals`` are rules: which edits wait for a person;
    ``scopes`` say what its editors may do."""
    given = {"params": None if params is None else dict(params), "approvals": list(approvals) or None}
    given["scopes"] = list(scopes) or None
    return _post("/plans", documents.Plan, file=file, name=name, **given)


def edit_plan(
    name: str, edits: Edits, *, reason: str = "", base_version: int | None = None, dry_run: bool = False
) -> ApiRequest[documents.EditOutcome]:
    """Edit a plan, all or nothing. Raises EditRejected with every violation. With ``dry_run`` it is only checked."""
    base = edits.base_version if isinstance(edits, EditBatch) and base_version is None else base_version
    why = edits.reason if isinstance(edits, EditBatch) and not reason else reason
    body = {"edits": edits_json(edits), "reason": why, "base_version": base, "dry_run": dry_run}
    return _post(_at("plans", name, "edits"), documents.EditOutcome, **body)


def undo_edit(name: str, reason: str = "", *, dry_run: bool = False) -> ApiRequest[documents.EditOutcome]:
    """Undo the newest edit of a plan that is not undone. Raises EditRejected."""
    return _post(_at("plans", name, "undo"), documents.EditOutcome, reason=reason, dry_run=dry_run)


def pause_plan(name: str, reason: str = "") -> ApiRequest[documents.PlanState]:
    """Start no more tasks of a plan until it is resumed."""
    return _post(_at("plans", name, "pause"), documents.PlanState, reason=reason)


def resume_plan(name: str) -> ApiRequest[documents.PlanState]:
    """Resume a plan that was paused or stopped."""
    return _post(_at("plans", name, "resume"), documents.PlanState)


def cancel_plan(name: str, reason: str = "") -> ApiRequest[documents.PlanState]:
    """Cancel a plan for good."""
    return _post(_at("plans", name, "cancel"), documents.PlanState, reason=reason)


def retry_plan(
    name: str, *, from_tasks: Iterable[str] = (), edits: Edits = (), reason: str = ""
) -> ApiRequest[documents.PlanState]:
    """Run again what failed in a plan that has ended, or ``from_tasks`` and everything below them."""
    body = {"from_tasks": list(from_tasks), "edits": edits_json(edits), "reason": reason}
    return _post(_at("plans", name, "retry"), documents.PlanState, **body)


def cycles(name: str) -> ApiRequest[documents.Cycles]:
    """The open edit cycles of a plan."""
    return _get(_at("plans", name, "cycles"), documents.Cycles)


def claim_cycle(name: str, cycle: int, *, lease: float = 60.0) -> ApiRequest[documents.CycleDetails]:
    """Claim an open edit cycle, or renew the claim."""
    return _post(_at("plans", name, "cycles", str(cycle), "claim"), documents.CycleDetails, lease=lease)


def answer_cycle(
    name: str, cycle: int, edits: Edits = (), *, reason: str = "", base_version: int | None = None
) -> ApiRequest[documents.EditOutcome]:
    """Answer an edit cycle; without edits the plan goes on as it is. ``base_version`` is by default that of the cycle.
    Raises EditRejected."""
    body = {"edits": edits_json(edits), "reason": reason, "base_version": base_version}
    return _post(_at("plans", name, "cycles", str(cycle), "answer"), documents.EditOutcome, **body)


def budget(name: str) -> ApiRequest[documents.EditorBudget]:
    """What the model that edits a plan may spend, and has spent."""
    return _get(_at("plans", name, "budget"), documents.EditorBudget)


def raise_budget(name: str, limits: str) -> ApiRequest[documents.EditorBudget]:
    """Change limits of the budget of a plan, such as ``$5 80calls``; its editor continues."""
    return _post(_at("plans", name, "budget"), documents.EditorBudget, limits=limits)


def go_on_without_editor(name: str) -> ApiRequest[documents.EditorBudget]:
    """Let a plan go on without its editor."""
    return _post(_at("plans", name, "budget"), documents.EditorBudget, without_editor=True)


def approvals(name: str, *, everything: bool = False) -> ApiRequest[documents.Page[documents.WaitingEdit]]:
    """The edits of a plan that wait for a person; with ``everything`` also the newest ones that were decided."""
    return _get(_at("plans", name, "approvals"), documents.Page[documents.WaitingEdit], all=everything)


def approve_edit(
    name: str, approval: int, edits: Edits | None = None, *, reason: str = ""
) -> ApiRequest[documents.EditOutcome]:
    """Apply an edit that waits for a person, or other edits in its place. Raises EditRejected; it then still waits."""
    path = _at("plans", name, "approvals", str(approval), "approve")
    return _post(path, documents.EditOutcome, edits=None if edits is None else edits_json(edits), reason=reason)


def refuse_edit(name: str, approval: int, reason: str = "") -> ApiRequest[documents.WaitingEdit]:
    """Drop an edit that waits for a person."""
    return _post(_at("plans", name, "approvals", str(approval), "refuse"), documents.WaitingEdit, reason=reason)


def story(name: str, task: str | None = None) -> ApiRequest[documents.Page[documents.StoryEntry]]:
    """What happened to a plan, or to one task."""
    return _get(_at("plans", name, "story"), documents.Page[documents.StoryEntry], task=task)


def versions(name: str) -> ApiRequest[documents.Versions]:
    """Every version of a plan, and the edits that were rejected."""
    return _get(_at("plans", name, "versions"), documents.Versions)


def plan_at(name: str, version: int) -> ApiRequest[documents.PastPlan]:
    """A plan as it was when a version was made."""
    return _get(_at("plans", name, "versions", str(version)), documents.PastPlan)


def plan_events(name: str, after: str | None = None) -> ApiRequest[documents.Changes]:
    """The events of a plan after a position."""
    return _get(_at("plans", name, "changes"), documents.Changes, since=after)


def task(name: str, task: str) -> ApiRequest[documents.Task]:
    """A task of a plan, with its executions, result and story."""
    return _get(_at("plans", name, "tasks", task), documents.Task)


def why(name: str, task: str) -> ApiRequest[documents.TaskWhy]:
    """Why a task does not run."""
    return _get(_at("plans", name, "tasks", task, "why"), documents.TaskWhy)


def task_logs(
    name: str, task: str, *, after: str | None = None, attempt: int | None = None
) -> ApiRequest[documents.Page[documents.LogEntry]]:
    """What a task printed; ``after`` is the ``next`` of an earlier answer."""
    path = _at("plans", name, "tasks", task, "logs")
    return _get(path, documents.Page[documents.LogEntry], after=after, attempt=attempt)


# -- the fleet ---------------------------------------------------------------------------------------------------------


def devices() -> ApiRequest[documents.Page[documents.Device]]:
    """All devices that are there, or were lately."""
    return _get("/devices", documents.Page[documents.Device])


def device(name: str) -> ApiRequest[documents.DeviceDetails]:
    """A device, the runs that it holds, and its latest ones."""
    return _get(_at("devices", name), documents.DeviceDetails)


def drain(device: str) -> ApiRequest[documents.Device]:
    """Ask a device to finish what it does, and leave."""
    return _post(_at("devices", device, "drain"), documents.Device)


def schedules() -> ApiRequest[documents.Page[documents.Schedule]]:
    """All schedules."""
    return _get("/schedules", documents.Page[documents.Schedule])


def schedule(name: str) -> ApiRequest[documents.Schedule]:
    """A schedule with its next times and its history."""
    return _get(_at("schedules", name), documents.Schedule)


def add_schedule(name: str, **terms: Any) -> ApiRequest[documents.Schedule]:
    """Add a schedule; ``terms`` are ``workflow`` or ``file``, ``cron`` or ``every``, and more (docs/reference)."""
    return _post("/schedules", documents.Schedule, name=name, **terms)


def remove_schedule(name: str) -> ApiRequest[documents.Schedule]:
    """Remove a schedule; what it has created goes on."""
    return ApiRequest("DELETE", f"{API}{_at('schedules', name)}", documents.Schedule)


def pause_schedule(name: str, reason: str = "") -> ApiRequest[documents.Schedule]:
    """Create nothing more until the schedule is resumed."""
    return _post(_at("schedules", name, "pause"), documents.Schedule, reason=reason)


def resume_schedule(name: str) -> ApiRequest[documents.Schedule]:
    """Resume a paused schedule."""
    return _post(_at("schedules", name, "resume"), documents.Schedule)


def run_schedule(name: str) -> ApiRequest[documents.Tick]:
    """Create the work of a schedule now."""
    return _post(_at("schedules", name, "run"), documents.Tick)


def all_series() -> ApiRequest[documents.Page[documents.Series]]:
    """All series of issues in the store."""
    return _get("/series", documents.Page[documents.Series])


def series(name: str) -> ApiRequest[documents.SeriesDetails]:
    """A series of issues."""
    return _get(_at("series", name), documents.SeriesDetails)


def claim(name: str, issue: int, *, lease: float | None = None) -> ApiRequest[documents.Series]:
    """Claim a series for an issue: it becomes active, or waits in the queue."""
    return _post(_at("series", name, "claim"), documents.Series, issue=issue, lease=lease)


def release(name: str, issue: int) -> ApiRequest[documents.Series]:
    """Release an issue; the next one becomes active."""
    return _post(_at("series", name, "release"), documents.Series, issue=issue)


def notices(
    *, after: str | None = None, limit: int = 100, run: str | None = None
) -> ApiRequest[documents.Page[documents.Notice]]:
    """Notices, oldest first; ``after`` is the ``next`` of an earlier answer."""
    return _get("/notices", documents.Page[documents.Notice], after=after, limit=limit, run=run)
