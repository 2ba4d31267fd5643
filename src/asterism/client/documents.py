"""The documents of the HTTP API, as models: the server publishes their schemas, the client reads answers with them.

A client ignores fields that it does not know, so that a newer server may add some. Times are seconds since 1970 by the
clock of the store, durations are seconds.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from asterism.client.document_base import Document as Document
from asterism.client.document_base import Page as Page
from asterism.client.editor_documents import ClosedCycle as ClosedCycle
from asterism.client.editor_documents import Cycle as Cycle
from asterism.client.editor_documents import CycleDetails as CycleDetails
from asterism.client.editor_documents import CycleEnd as CycleEnd
from asterism.client.editor_documents import Cycles as Cycles
from asterism.client.editor_documents import EditorBudget as EditorBudget
from asterism.client.editor_documents import EditorCost as EditorCost
from asterism.client.editor_documents import Refusal as Refusal
from asterism.client.editor_documents import WaitingEdit as WaitingEdit


class Violation(Document):
    """One reason why a request was refused. ``edit`` is the index of the edit; null for the whole."""

    edit: int | None
    rule: str
    message: str


class Problem(Document):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    violations: list[Violation] | None = None
    approval: int | None = Field(None, description="The number of an edit that waits for a person.")


class Health(Document):
    """``problem`` says what is wrong; it is absent if everything is well."""

    status: str = Field(examples=["ok", "unavailable"])
    version: str
    problem: str | None = None


class Me(Document):
    name: str
    scopes: list[str]
    kind: str
    expires_at: float


# -- plans -------------------------------------------------------------------------------------------------------------


class PlanSummary(Document):
    """A plan in a list. A plan that cannot be read has the state ``unreadable`` and an ``error``."""

    name: str
    state: str = Field(description="Its state; `at_rest` if it has begun, has not ended, and no process runs it.")
    state_text: str = Field(description="The state in words, such as `at rest` or `cancelling`.")
    version: int | None = None
    created_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    tasks: int = 0
    done: int = 0
    counts: dict[str, int] = Field({})
    owner: str | None = None
    paused: str | None = None
    waiting_edits: int = Field(0, description="How many edits wait for a person.")
    budget_spent: bool = Field(False, description="Whether the budget of its editor is spent, and holds the plan.")
    error: str | None = None


class AttemptTimes(Document):
    """When an attempt was created, assigned to a device, begun and ended, as far as it has come."""

    created_at: float
    assigned_at: float | None
    begun_at: float | None
    ended_at: float | None


class PlanTask(Document):
    """A task of a plan. ``phase`` says what a running one does: it is ``queued`` until a device has it, ``starting``
    until it has begun there, then ``running``; null for others and in views of the past. ``attempt`` has the times of
    its last attempt in the fleet; it worked from ``begun_at`` to ``ended_at``. ``held_by`` are the tasks under review
    that hold it; ``group`` is the group that it is an element of; ``needless`` is whether it was cancelled because a
    condition made it unnecessary."""

    id: str
    name: str
    status: str
    reason: str | None
    device: str | None
    phase: str | None = None
    attempts: int
    attempt: AttemptTimes | None = None
    started_at: float | None
    ended_at: float | None
    provisional: bool
    held_by: list[str]
    needless: bool
    group: str | None
    estimate: float | None


class PlanDependency(Document):
    source: str
    target: str
    on: str
    when: str | None


class Plan(Document):
    """A plan as it is now. ``position`` is its place in the journal: the events after it continue this view."""

    name: str
    state: str
    state_text: str
    version: int
    position: str
    owner: str | None
    paused: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    params: dict[str, Any]
    counts: dict[str, int]
    tasks: list[PlanTask]
    dependencies: list[PlanDependency]
    cycles: list[Cycle]
    approvals: list[WaitingEdit] = Field([])
    budget: EditorBudget | None = None


class PlanEvent(Document):
    """Something that happened to a plan; docs/reference/http-api.md lists the kinds and their fields."""

    model_config = ConfigDict(extra="allow", frozen=True)

    position: str
    at: float
    kind: str


class FleetEvent(Document):
    """A change of a run or a device, or a new notice; docs/reference/http-api.md lists the kinds. ``position`` is what
    ``follow_fleet`` continues after."""

    model_config = ConfigDict(extra="allow", frozen=True)

    position: str
    kind: str


class Changes(Page[PlanEvent]):
    """The events after a position. With ``reset`` there are none: read the plan again, and continue after
    ``position``."""

    position: str
    reset: bool


class PlanVersion(Document):
    """A version of a plan, and the edit that made it; version 0 is the plan as it was stored."""

    version: int
    at: float
    position: str
    author: str
    reason: str
    edits: list[dict[str, Any]]
    diff: dict[str, Any] | None
    triggers: list[str]
    undoes: int | None


class RejectedEdit(Document):
    """``edits`` is null if the batch was too long to be kept."""

    number: int
    at: float
    version: int
    author: str
    reason: str
    triggers: list[str]
    edits: list[dict[str, Any]] | None
    violations: list[Violation]


class Versions(Page[PlanVersion]):
    """``cycles`` are the edit cycles that are closed; ``cost`` is what their editors have cost together."""

    rejected: list[RejectedEdit]
    cycles: list[ClosedCycle] = Field([])
    cost: EditorCost | None = None


class PastPlan(Document):
    """A plan as it was right after the edit that made a version."""

    name: str
    version: int
    edit: PlanVersion
    state: str
    counts: dict[str, int]
    tasks: list[PlanTask]
    dependencies: list[PlanDependency]


class StoryEntry(Document):
    at: float
    what: str
    why: str
    task: str | None = None
    traceback: str | None = None
    """That of the function that failed."""


class Attempt(Document):
    """One run of the fleet that executed a task."""

    run: str
    status: str
    device: str | None
    created_at: float
    assigned_at: float | None = None
    started_at: float | None
    ended_at: float | None
    error: str | None


class Task(PlanTask):
    """A task with everything that is known of it. ``definition`` is the task as an edit has it."""

    definition: dict[str, Any]
    result: Any = None
    executions: list[Attempt]
    story: list[StoryEntry]


class Reason(Document):
    kind: str
    name: str | None = None
    text: str
    at: float | None = None


class TaskWhy(Document):
    """Why a task does not run. ``answered_by`` is the process that runs the plan, if it gave the answer."""

    name: str
    task: str
    status: str
    run: str | None
    reasons: list[Reason]
    answered_by: str | None = None


class LogEntry(Document):
    attempt: int
    at: float
    stream: str
    text: str


class EditOutcome(Document):
    """An edit that was accepted. With ``dry_run`` nothing has changed. ``inverse`` undoes it."""

    name: str
    accepted: bool
    dry_run: bool
    version_before: int
    version: int
    edits: list[dict[str, Any]]
    inverse: dict[str, Any] | None
    applied_by: str | None
    reopened: bool = Field(False, description="Whether the plan had ended: the edit opened it again.")
    rests: str | None = Field(None, description="If no process runs the plan, and none will: how to resume it.")
    waits: list[str] = Field([], description="In a dry run: why the edit would wait for a person.")


class PlanState(Document):
    """What became of a request about a plan. ``applied_by`` is the process that runs it and has obeyed."""

    name: str
    state: str
    paused: str | None = None
    owner: str | None = None
    applied_by: str | None = None
    tasks: list[str] | None = Field(None, description="The tasks that run again after a retry.")
    version: int | None = None


# -- fleet -------------------------------------------------------------------------------------------------------------


class Run(Document):
    """A run of the fleet; the fields are those of `asterism runs show --json`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str
    workflow: str
    version: int
    status: str
    label: str | None
    key: str | None
    series: str | None
    device: str | None
    created_at: float
    created_by: str
    started_at: float | None
    ended_at: float | None
    error: str | None
    input: Any
    output: Any
    epoch: int
    revision: int


class RunWhy(Document):
    run: str
    status: str
    reasons: list[Reason]


class BulkOutcome(Document):
    """What became of an action on several runs. ``refused`` has a sentence for each run that it was refused for."""

    changed: list[str]
    refused: dict[str, str]
    next: str | None = Field(description="The value of `after` for the runs that follow; null if all were visited.")


class RunOutput(Document):
    run: str
    output: Any


class Workflow(Document):
    """A workflow; the fields are those of `asterism workflow show --json`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    version: int


class Device(Document):
    """A device; the fields are those of `asterism device list --json`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    state: str
    coordinator: bool
    session: str
    host: str
    can: list[str]
    slots: int
    used: int
    load: float | None
    battery: float | None
    draining: bool
    joined_at: float
    last_heartbeat_at: float


class DeviceDetails(Device):
    """A device with the runs that it holds, and those that it had."""

    holds: list[Run]
    latest: list[Run]


class Schedule(Document):
    """A schedule; the fields are those of `asterism schedule list --json`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str


class Tick(Document):
    """What became of one tick of a schedule."""

    model_config = ConfigDict(extra="allow", frozen=True)

    outcome: str


class Series(Document):
    """A series of issues. ``why_not_promoted`` says why the head of the queue is not active."""

    name: str
    status: str = Field(examples=["active", "free", "paused", "unreadable"])
    active: int | str | None = None
    queue: list[int | str] = Field([])
    since: float | None = None
    lease_until: float | None = None
    by: str | None = None
    paused: str | None = None
    why_not_promoted: str | None = None
    problem: str | None = None


class SeriesChange(Document):
    at: float
    message: str


class SeriesDetails(Series):
    changes: list[SeriesChange]


class Notice(Document):
    number: int
    at: float
    kind: str
    message: str
    run: str | None
    device: str | None
