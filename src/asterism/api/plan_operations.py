"""Operations on plans in a store: read them, submit one, and pause, resume, cancel and retry.

Those that edit a plan are in ``edit_operations``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.edit_operations import MAX_EDITS, READ, Edits, PlanName
from asterism.api.operation import Limit, Name, Operation, Reason
from asterism.api.quick_dataclass import Request

EVENT_KINDS = ("task", "edit", "cycle", "approval", "plan")

TaskId = Annotated[str, Limit(min_length=1, max_length=500), Doc("The id of the task.")]
Position = Annotated[str | None, Limit(max_length=60_000), Doc("The `next` of an earlier answer.")]
Attempt = Annotated[int | None, Limit(ge=1, le=1_000_000)]
Wait = Annotated[float, Limit(ge=0, le=60), Doc("How long the answer may wait for something new, in seconds.")]
Rules = Annotated[list[str], Limit(max_length=50)]
Includes = Annotated[dict[str, str], Doc("The texts of files that it includes, by path from its folder.")]
LockPolicy = Literal["scoped", "global", "speculative"]
Strategy = Literal["score", "round_robin", "capability_match", "load_balance"]
Seconds = Annotated[float, Limit(ge=0, le=1e10)]


class SubmitPlan(Request):
    """``text`` is that of a plan file. Without a ``name`` the plan has the id in it, or if it has none, a name for each
    start, such as ``nightly-20261117-0300``."""

    text: Annotated[str, Limit(max_length=2_000_000), Doc("The text of a plan file.")]
    name: Annotated[
        str | None,
        Limit(min_length=1, max_length=100),
        Doc("May have the placeholders {name}, {date}, {time}, {seconds}."),
    ] = None
    params: Mapping[str, Any] = field(default_factory=dict)
    approvals: Annotated[Rules, Doc("Rules: which edits wait for a person.")] = field(default_factory=list)
    scopes: Annotated[Rules, Doc("What the editors of the plan may do.")] = field(default_factory=list)
    file: Annotated[str, Limit(max_length=500), Doc("The name of the plan file, such as nightly.yaml.")] = ""
    includes: Includes = field(default_factory=dict)
    only: Annotated[list[str], Limit(max_length=10_000), Doc("Only these tasks and what they need.")] = field(
        default_factory=list
    )
    policy: Annotated[LockPolicy | None, Doc("The lock policy; default: that of the plan file, or `scoped`.")] = None
    edit_timeout: Annotated[Seconds, Doc("After so long, an edit cycle without an answer is closed.")] = 600.0
    approval_timeout: Annotated[Seconds, Doc("After so long, an edit that waits for a person is refused.")] = 86_400.0
    approval_escalation: Annotated[Seconds | None, Doc("After so long, people are told again of such an edit.")] = None
    no_device_timeout: Annotated[Seconds, Doc("How long a task waits for a device that can execute it.")] = 300.0
    strategy: Annotated[Strategy, Doc("How the fleet chooses a device.")] = "score"
    tick: Annotated[str | None, Limit(max_length=40), Doc("What {tick} stands for, such as 2026-11-17.")] = None
    reason: Reason = ""


MOST_TASKS = 1000
"""How many tasks one page lists."""

Opened = Annotated[str, Limit(max_length=10_000), Doc("Large groups whose tasks are shown one by one, between `|`.")]


class ShowPlan(Request):
    """Without ``tasks`` the lists of tasks and dependencies are empty. With ``folded`` a large group is one task, with
    counts of its elements, unless it is among ``opened``."""

    plan: PlanName
    tasks: bool = True
    results: Annotated[bool, Doc("Also what the tasks returned.")] = False
    folded: bool = False
    opened: Opened = ""


class OnePlan(Request):
    plan: PlanName


class CopyPlan(Request):
    plan: PlanName
    results: Annotated[bool, Doc("Also what the tasks returned.")] = False


class ShowVersion(Request):
    plan: PlanName
    version: int
    folded: bool = False
    opened: Opened = ""


class DrawPlan(Request):
    """``width`` is how many cells a line of a ``text`` may take."""

    plan: PlanName
    form: Literal["text", "mermaid", "svg"] = "text"
    width: Annotated[int, Limit(ge=1, le=10_000)] = 80
    version: Annotated[int | None, Limit(ge=0, le=999_999_999), Doc("Default: as it is now.")] = None
    opened: Opened = ""


class ListTasks(Request):
    """``search`` is a part of the id, the description, the device or the status of a task."""

    plan: PlanName
    group: Annotated[Name | None, Doc("Only the elements of this group.")] = None
    status: Annotated[str, Limit(max_length=100), Doc("Only tasks with this status, such as `failed`.")] = ""
    search: Annotated[str, Limit(max_length=200), Doc("Only tasks with this text in them.")] = ""
    after: Annotated[Name | None, Doc("Continue after this task.")] = None
    limit: Annotated[int, Limit(ge=1, le=MOST_TASKS)] = 100


class ReadStory(Request):
    plan: PlanName
    task: Name | None = None


class ReadChanges(Request):
    plan: PlanName
    since: Annotated[str | None, Limit(max_length=40), Doc("A `position`, or `now`; default: the beginning.")] = None
    since_version: Annotated[
        int | None, Limit(ge=0, le=999_999_999), Doc("A version of the plan, in place of a position.")
    ] = None
    kinds: Annotated[
        str | None, Limit(max_length=100), Doc(f"One or several, with commas, of {', '.join(EVENT_KINDS)}.")
    ] = None
    timeout: Wait = 0.0


class OneTask(Request):
    plan: PlanName
    task: TaskId


MOST_BYTES = 4 << 20
"""How much of a file one answer has at most."""


class ListFiles(Request):
    plan: PlanName
    task: Annotated[Name | None, Doc("Only the files of this task.")] = None


class ReadFile(Request):
    plan: PlanName
    task: TaskId
    output: Annotated[str, Limit(min_length=1, max_length=500), Doc("The name of an output of the task.")]
    path: Annotated[str, Limit(min_length=1, max_length=4096), Doc("The path of one of its files.")]
    offset: Annotated[int, Limit(ge=0, le=1 << 60)] = 0
    limit: Annotated[int, Limit(ge=1, le=MOST_BYTES), Doc("At most so many bytes.")] = MOST_BYTES


class ReadTaskLogs(Request):
    plan: PlanName
    task: TaskId
    after: Position = None
    attempt: Attempt = None
    timeout: Wait = 0.0


class ReadPlanLogs(Request):
    plan: PlanName
    task: Annotated[Name | None, Doc("Only what this task printed.")] = None
    after: Position = None
    attempt: Attempt = None
    timeout: Wait = 0.0


class WatchPlan(Request):
    plan: PlanName
    timeout: Wait = 20.0


class WatchCancel(Request):
    plan: PlanName
    timeout: Wait = 0.0


class ChangePlan(Request):
    plan: PlanName
    reason: Reason = ""


class RetryPlan(Request):
    """``from_tasks`` run again with everything below them; without them, what failed."""

    plan: PlanName
    from_tasks: Annotated[list[str], Limit(max_length=MAX_EDITS)] = field(default_factory=list)
    edits: Edits = field(default_factory=list)
    reason: Reason = ""


class PlanOperations:
    submit_plan = Operation(SubmitPlan, documents.Plan, "Submit a plan.", "POST /plans", status=201)
    show_plan = Operation(ShowPlan, documents.Plan, "A plan as it is now.", "GET /plans/{plan}", needs=READ)
    list_tasks = Operation(
        ListTasks,
        documents.Page[documents.PlanTask],
        "The tasks of a plan, some at a time: those of a large group, or those that failed.",
        "GET /plans/{plan}/tasks",
        needs=READ,
    )
    copy_plan = Operation(
        CopyPlan,
        documents.PlanCopy,
        "A plan as Asterism writes it, for a program that shows it.",
        "GET /plans/{plan}/copy",
        needs=READ,
    )
    read_changes = Operation(
        ReadChanges,
        documents.Changes,
        "What happened to a plan after a position; `timeout` waits for something new.",
        "GET /plans/{plan}/changes",
        needs=READ,
    )
    list_versions = Operation(
        OnePlan,
        documents.Versions,
        "Every version of a plan, the edits that were rejected, and the closed edit cycles.",
        "GET /plans/{plan}/versions",
        needs=READ,
    )
    show_version = Operation(
        ShowVersion,
        documents.PastPlan,
        "A plan as it was when a version was made.",
        "GET /plans/{plan}/versions/{version}",
        needs=READ,
    )
    read_story = Operation(
        ReadStory,
        documents.Page[documents.StoryEntry],
        "What happened to a plan, or to one task.",
        "GET /plans/{plan}/story",
        needs=READ,
    )
    show_task = Operation(
        OneTask,
        documents.Task,
        "A task of a plan, with its executions, result and story.",
        "GET /plans/{plan}/tasks/{task}",
        needs=READ,
    )
    explain_task = Operation(
        OneTask, documents.TaskWhy, "Why a task does not run.", "GET /plans/{plan}/tasks/{task}/why", needs=READ
    )
    list_files = Operation(
        ListFiles,
        documents.Page[documents.PlanFile],
        "The files that tasks have made.",
        "GET /plans/{plan}/files",
        needs=READ,
    )
    read_file = Operation(
        ReadFile,
        documents.FilePart,
        "A part of a file that a task has made.",
        "GET /plans/{plan}/files/part",
        needs=READ,
    )
    read_task_logs = Operation(
        ReadTaskLogs, documents.PlanLog, "What a task printed.", "GET /plans/{plan}/tasks/{task}/logs", needs=READ
    )
    read_plan_logs = Operation(
        ReadPlanLogs, documents.PlanLog, "What the tasks of a plan printed.", "GET /plans/{plan}/logs", needs=READ
    )
    draw_plan = Operation(DrawPlan, documents.Drawing, "Draw a plan.", "GET /plans/{plan}/drawing", needs=READ)
    pause_plan = Operation(
        ChangePlan,
        documents.PlanState,
        "Start no more tasks of a plan until it is resumed.",
        "POST /plans/{plan}/pause",
    )
    resume_plan = Operation(
        ChangePlan,
        documents.PlanState,
        "Withdraw a pause, and let a server run the plan if no process does.",
        "POST /plans/{plan}/resume",
    )
    watch_plan = Operation(
        WatchPlan,
        documents.Plan,
        "A plan without its tasks when it has ended, or as it is after a while.",
        "GET /plans/{plan}/wait",
        needs=READ,
    )
    cancel_plan = Operation(ChangePlan, documents.PlanState, "Cancel a plan.", "POST /plans/{plan}/cancel")
    watch_cancel = Operation(
        WatchCancel,
        documents.Cancellation,
        "What has become of a request to cancel a plan: when it has ended, or after a while.",
        "GET /plans/{plan}/cancel",
        needs=READ,
    )
    remove_plan = Operation(
        ChangePlan,
        documents.RemovedPlan,
        "Remove a plan that has ended, with its journal and its runs.",
        "DELETE /plans/{plan}",
    )
    retry_plan = Operation(
        RetryPlan,
        documents.PlanState,
        "Run again what failed in a plan that has ended.",
        "POST /plans/{plan}/retry",
        edits=True,
    )
