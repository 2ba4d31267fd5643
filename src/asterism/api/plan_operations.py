"""Operations on plans in a store: list, read, submit, pause, resume, cancel and retry them; and those of editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Line, Moment, Name, Number, Operation, Reason, Word
from asterism.api.request import Request
from asterism.core.json_values import JsonObject
from asterism.core.plan.plan_options import LockPolicy, PlanOptions
from asterism.core.record import Meta, field

if TYPE_CHECKING:
    from asterism.core.plan.edits import Edit
else:  # a server reads JSON, and a command need not import what edits are made of
    Edit = Mapping[str, Any]

EDIT = "edit {plan}"
MAX_EDITS = 5_000
"""How many edits one batch may have."""

LONGEST_LEASE = 86_400.0
"""The longest claim of a cycle, in seconds."""

PlanName = Annotated[str, Meta(min_length=1, max_length=500), Doc("The name of the plan.")]
Author = Annotated[Name | None, Doc("Default: the caller. A server refuses another name.")]
CycleNumber = Annotated[Number, Doc("The number of the edit cycle.")]
ApprovalNumber = Annotated[Number, Doc("The number of the edit that waits.")]
Timeout = Annotated[float, Meta(ge=0, le=3600), Doc("How long to wait for the process that runs the plan, in seconds.")]


Edits = Annotated[Sequence[Edit | Mapping[str, Any]], Meta(max_length=MAX_EDITS)]
"""Edits, all or none, as objects or as JSON; docs/reference/edits.md has their forms."""


# -- the list ----------------------------------------------------------------------------------------------------------

OPEN_STATES = ("created", "ready", "executing", "at_rest", "cancelling")
ENDED_STATES = ("completed", "failed", "partially_failed", "cancelled")
STATES = (*OPEN_STATES, *ENDED_STATES, "open", "ended")
"""The states by which plans can be filtered. ``open`` stands for all that have not ended, ``ended`` for the others."""

MOST_PLANS = 1000
"""How many plans one page has at most."""


class ListPlans(Request):
    """Which plans: all conditions that are given hold."""

    state: Annotated[Line | None, Doc(f"One or several, with commas, of {', '.join(STATES)}.")] = None
    name: Annotated[Name | None, Doc("A part of the name; with `*` or `?`, a pattern for the whole name.")] = None
    file: Annotated[Name | None, Doc("The name of the plan file.")] = None
    tag: Annotated[Name | None, Doc("A tag of the plan file.")] = None
    since: Annotated[Moment | None, Doc("Created at this time or later, in seconds since 1970.")] = None
    until: Annotated[Moment | None, Doc("Created before this time.")] = None
    after: Annotated[Line | None, Doc("The `next` of the page before.")] = None
    limit: Annotated[int, Meta(ge=1, le=MOST_PLANS)] = 100


class PlanListOperations:
    """Apart from the others on plans: their functions take long to import."""

    list_plans = Operation(
        ListPlans, documents.Page[documents.PlanSummary], "List plans, the newest first.", "GET /plans"
    )


# -- plans -------------------------------------------------------------------------------------------------------------

EVENT_KINDS = ("task", "edit", "cycle", "approval", "plan")

TaskId = Annotated[str, Meta(min_length=1, max_length=500), Doc("The id of the task.")]
Position = Annotated[Annotated[str, Meta(max_length=60_000)] | None, Doc("The `next` of an earlier answer.")]
Attempt = Annotated[int, Meta(ge=1, le=1_000_000)] | None
Wait = Annotated[float, Meta(ge=0, le=60), Doc("How long the answer may wait for something new, in seconds.")]
Rules = Annotated[list[str], Meta(max_length=50)]
Includes = Annotated[dict[str, str], Doc("The texts of files that it includes, by path from its folder.")]


class SubmitPlan(Request, PlanOptions):
    """``text`` is that of a plan file. Without a ``name`` the plan has the id in it, or if it has none, a name for each
    start, such as ``nightly-20261117-0300``."""

    text: Annotated[str, Meta(max_length=2_000_000), Doc("The text of a plan file.")]
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=100)] | None,
        Doc("May have the placeholders {name}, {date}, {time}, {seconds}."),
    ] = None
    params: Mapping[str, Any] = field(default_factory=dict)
    approvals: Annotated[Rules, Doc("Rules: which edits wait for a person.")] = field(default_factory=list)
    scopes: Annotated[Rules, Doc("What the editors of the plan may do.")] = field(default_factory=list)
    file: Annotated[str, Meta(max_length=500), Doc("The name of the plan file, such as nightly.yaml.")] = ""
    includes: Includes = field(default_factory=dict)
    only: Annotated[list[str], Meta(max_length=10_000), Doc("Only these tasks and what they need.")] = field(
        default_factory=list
    )
    policy: Annotated[LockPolicy | None, Doc("The lock policy; default: that of the plan file, or `scoped`.")] = None
    tick: Annotated[Word | None, Doc("What {tick} stands for, such as 2026-11-17.")] = None
    reason: Reason = ""


class CheckPlan(Request):
    """A parameter without a value is no mistake here."""

    text: Annotated[str, Meta(max_length=2_000_000), Doc("The text of a plan file.")]
    params: Mapping[str, Any] = field(default_factory=dict)
    file: Annotated[str, Meta(max_length=500), Doc("The name of the plan file, such as nightly.yaml.")] = ""
    includes: Includes = field(default_factory=dict)


MOST_TASKS = 1000
"""How many tasks one page lists."""

Opened = Annotated[str, Meta(max_length=10_000), Doc("Large groups whose tasks are shown one by one, between `|`.")]


class OnePlan(Request):
    plan: PlanName


class ShowPlan(OnePlan):
    """Without ``tasks`` the lists of tasks and dependencies are empty. With ``folded`` a large group is one task, with
    counts of its elements, unless it is among ``opened``."""

    tasks: bool = True
    results: Annotated[bool, Doc("Also what the tasks returned.")] = False
    folded: bool = False
    opened: Opened = ""


class CopyPlan(OnePlan):
    results: Annotated[bool, Doc("Also what the tasks returned.")] = False


class ShowVersion(OnePlan):
    version: Number
    folded: bool = False
    opened: Opened = ""


class DrawPlan(OnePlan):
    """``width`` is how many cells a line of a ``text`` may take."""

    form: Literal["text", "mermaid"] = "text"
    width: Annotated[int, Meta(ge=1, le=10_000)] = 80
    version: Annotated[Number | None, Doc("Default: as it is now.")] = None
    opened: Opened = ""


class ListTasks(OnePlan):
    """``search`` is a part of the id, the description, the device or the status of a task."""

    group: Annotated[Name | None, Doc("Only the elements of this group.")] = None
    status: Annotated[str, Meta(max_length=100), Doc("Only tasks with this status, such as `failed`.")] = ""
    search: Annotated[str, Meta(max_length=200), Doc("Only tasks with this text in them.")] = ""
    after: Annotated[Name | None, Doc("Continue after this task.")] = None
    limit: Annotated[int, Meta(ge=1, le=MOST_TASKS)] = 100


class ReadStory(OnePlan):
    task: Name | None = None


class ReadChanges(OnePlan):
    since: Annotated[Word | None, Doc("A `position`, or `now`; default: the beginning.")] = None
    since_version: Annotated[Number | None, Doc("A version of the plan, in place of a position.")] = None
    kinds: Annotated[
        Annotated[str, Meta(max_length=100)] | None, Doc(f"One or several, with commas, of {', '.join(EVENT_KINDS)}.")
    ] = None
    timeout: Wait = 0.0


class OneTask(OnePlan):
    task: TaskId


MOST_BYTES = 4 << 20
"""How much of a file one answer has at most."""


MOST_FILES = 10_000
"""How many files one answer lists at most."""


class ListFiles(OnePlan):
    task: Annotated[Name | None, Doc("Only the files of this task.")] = None
    after: Annotated[Annotated[str, Meta(max_length=10_000)] | None, Doc("The `next` of the page before.")] = None
    limit: Annotated[int, Meta(ge=1, le=MOST_FILES)] = 1000


class ReadFile(OneTask):
    output: Annotated[str, Meta(min_length=1, max_length=500), Doc("The name of an output of the task.")]
    path: Annotated[str, Meta(min_length=1, max_length=4096), Doc("The path of one of its files.")]
    offset: Annotated[int, Meta(ge=0, le=1 << 60)] = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_BYTES), Doc("At most so many bytes.")] = MOST_BYTES


class ReadTaskLogs(OneTask):
    after: Position = None
    attempt: Attempt = None
    timeout: Wait = 0.0


class ReadPlanLogs(OnePlan):
    task: Annotated[Name | None, Doc("Only what this task printed.")] = None
    after: Position = None
    attempt: Attempt = None
    timeout: Wait = 0.0


class WatchPlan(OnePlan):
    timeout: Wait = 20.0


class WatchCancel(OnePlan):
    timeout: Wait = 0.0


class ChangePlan(OnePlan):
    reason: Reason = ""


class RetryPlan(OnePlan):
    """``from_tasks`` run again with everything below them; without them, what failed. With ``dry_run`` it is only
    checked, and the answer has the tasks that would run again."""

    from_tasks: Annotated[list[str], Meta(max_length=MAX_EDITS)] = field(default_factory=list)
    edits: Edits = field(default_factory=list)
    reason: Reason = ""
    dry_run: bool = False


class PlanOperations:
    submit_plan = Operation(SubmitPlan, documents.Plan, "Submit a plan.", "POST /plans", status=201)
    check_plan = Operation(
        CheckPlan,
        documents.CheckedPlan,
        "Every mistake in a plan file, with its line, and its parameters. Nothing is stored.",
        "POST /plan-checks",
        needs="operate",
        reads=True,
    )
    show_plan = Operation(ShowPlan, documents.Plan, "A plan as it is now.", "GET /plans/{plan}")
    list_tasks = Operation(
        ListTasks,
        documents.Page[documents.PlanTask],
        "The tasks of a plan, some at a time: those of a large group, or those that failed.",
        "GET /plans/{plan}/tasks",
    )
    copy_plan = Operation(
        CopyPlan,
        documents.PlanCopy,
        "A plan as Asterism writes it, for a program that shows it.",
        "GET /plans/{plan}/copy",
    )
    read_changes = Operation(
        ReadChanges,
        documents.Changes,
        "What happened to a plan after a position; `timeout` waits for something new.",
        "GET /plans/{plan}/changes",
    )
    list_versions = Operation(
        OnePlan,
        documents.Versions,
        "Every version of a plan, the edits that were rejected, and the closed edit cycles.",
        "GET /plans/{plan}/versions",
    )
    show_version = Operation(
        ShowVersion,
        documents.PastPlan,
        "A plan as it was when a version was made.",
        "GET /plans/{plan}/versions/{version}",
    )
    read_story = Operation(
        ReadStory,
        documents.Page[documents.StoryEntry],
        "What happened to a plan, or to one task.",
        "GET /plans/{plan}/story",
    )
    show_task = Operation(
        OneTask,
        documents.Task,
        "A task of a plan, with its executions, result and story.",
        "GET /plans/{plan}/tasks/{task}",
    )
    explain_task = Operation(
        OneTask, documents.TaskWhy, "Why a task does not run.", "GET /plans/{plan}/tasks/{task}/why"
    )
    explain_plan = Operation(OnePlan, documents.PlanWhy, "What holds a plan, by cause.", "GET /plans/{plan}/why")
    list_files = Operation(
        ListFiles, documents.Page[documents.PlanFile], "The files that tasks have made.", "GET /plans/{plan}/files"
    )
    read_file = Operation(
        ReadFile, documents.FilePart, "A part of a file that a task has made.", "GET /plans/{plan}/files/part"
    )
    read_task_logs = Operation(
        ReadTaskLogs,
        documents.PlanLog,
        "What a task, or the elements of a group, printed.",
        "GET /plans/{plan}/tasks/{task}/logs",
    )
    read_plan_logs = Operation(
        ReadPlanLogs, documents.PlanLog, "What the tasks of a plan printed.", "GET /plans/{plan}/logs"
    )
    draw_plan = Operation(DrawPlan, documents.Drawing, "Draw a plan.", "GET /plans/{plan}/drawing")
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
    )
    cancel_plan = Operation(ChangePlan, documents.PlanState, "Cancel a plan.", "POST /plans/{plan}/cancel")
    watch_cancel = Operation(
        WatchCancel,
        documents.Cancellation,
        "What has become of a request to cancel a plan: when it has ended, or after a while.",
        "GET /plans/{plan}/cancel",
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


# -- editors -----------------------------------------------------------------------------------------------------------


class EditPlan(OnePlan):
    """A batch of edits, all or none. With ``dry_run`` it is only checked."""

    edits: Edits
    reason: Reason = ""
    base_version: Annotated[Number | None, Doc("The version that the author has seen.")] = None
    dry_run: bool = False
    author: Author = None
    timeout: Timeout = 10.0
    editor: Annotated[
        Name | None,
        Doc("The model that wrote the edits for the author, as in a proposal: what limits editors limits it."),
    ] = None


MOST_ROUNDS = 20
"""How many requests one conversation about edits has."""


MOST_REQUEST = 10_000
"""How many characters a request in words has. It is also the reason of the edits."""

PROPOSAL_LASTS = 900.0
"""How long a client waits for the model of a server, in seconds: it reads, answers, and may be asked again."""


class ProposeEdit(OnePlan):
    """``requests`` say in words what to change. The last one is answered; ``answers`` are the edits and the reasons
    that were proposed for those before it."""

    requests: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MOST_REQUEST)]], Meta(min_length=1, max_length=MOST_ROUNDS)
    ]
    answers: Annotated[
        list[JsonObject],
        Meta(max_length=MOST_ROUNDS - 1),
        Doc("Objects with `edits` and `reason`, one for each request but the last."),
    ] = field(default_factory=list)


class UndoEdit(OnePlan):
    reason: Reason = ""
    dry_run: bool = False
    timeout: Timeout = 10.0


class ClaimCycle(OnePlan):
    """``lease`` is how long other editors stay away, in seconds. To claim it again renews the claim."""

    cycle: CycleNumber
    lease: Annotated[float, Meta(gt=0, le=LONGEST_LEASE)] = 60.0
    author: Author = None
    timeout: Timeout = 10.0


class ReleaseCycle(OnePlan):
    cycle: CycleNumber
    reason: Reason = ""
    author: Author = None
    timeout: Timeout = 10.0


class AnswerCycle(OnePlan):
    """The edits of an answer; without any, the plan goes on as it is."""

    cycle: CycleNumber
    edits: Edits = field(default_factory=list)
    reason: Reason = ""
    base_version: Annotated[Number | None, Doc("Default: the version of the cycle.")] = None
    author: Author = None
    timeout: Timeout = 10.0


class ListApprovals(OnePlan):
    all: Annotated[bool, Doc("Also the newest edits that were decided.")] = False


class ApproveEdit(OnePlan):
    """``edits`` take the place of the edits that wait; without them, these are applied."""

    approval: ApprovalNumber
    edits: Annotated[Edits | None, Doc("Null: as they are.")] = None
    reason: Reason = ""
    author: Author = None
    timeout: Timeout = 10.0


class RefuseEdit(OnePlan):
    approval: ApprovalNumber
    reason: Reason = ""
    author: Author = None
    timeout: Timeout = 10.0


class DecideBudget(OnePlan):
    """``limits`` as text, such as ``$5 80calls``; or ``without_editor``."""

    limits: Annotated[Line | None, Doc("New limits; the others stay.")] = None
    without_editor: Annotated[bool, Doc("The plan goes on without its editor.")] = False
    reason: Reason = ""


class EditOperations:
    edit_plan = Operation(
        EditPlan,
        documents.EditOutcome,
        "Edit a plan, all or nothing.",
        "POST /plans/{plan}/edits",
        needs=EDIT,
        edits=True,
    )
    propose_edit = Operation(
        ProposeEdit,
        documents.EditProposal,
        "Let the model of the server write edits for a request in words. The plan does not change.",
        "POST /plans/{plan}/proposals",
        needs=EDIT,
        edits=True,
        lasts=PROPOSAL_LASTS,
    )
    undo_edit = Operation(
        UndoEdit,
        documents.EditOutcome,
        "Undo the newest edit of a plan.",
        "POST /plans/{plan}/undo",
        needs=EDIT,
        edits=True,
    )
    list_cycles = Operation(OnePlan, documents.Cycles, "The open edit cycles.", "GET /plans/{plan}/cycles")
    claim_cycle = Operation(
        ClaimCycle,
        documents.CycleDetails,
        "Claim an edit cycle while thinking about it.",
        "POST /plans/{plan}/cycles/{cycle}/claim",
        needs=EDIT,
    )
    answer_cycle = Operation(
        AnswerCycle,
        documents.EditOutcome,
        "Answer an edit cycle.",
        "POST /plans/{plan}/cycles/{cycle}/answer",
        needs=EDIT,
        edits=True,
    )
    release_cycle = Operation(
        ReleaseCycle,
        documents.CycleDetails,
        "Close an edit cycle whose editor does not answer: the plan goes on as it is.",
        "POST /plans/{plan}/cycles/{cycle}/release",
    )
    list_approvals = Operation(
        ListApprovals,
        documents.Page[documents.WaitingEdit],
        "Edits that wait for a person.",
        "GET /plans/{plan}/approvals",
    )
    approve_edit = Operation(
        ApproveEdit,
        documents.EditOutcome,
        "Approve an edit that waits, as it is or changed.",
        "POST /plans/{plan}/approvals/{approval}/approve",
        edits=True,
    )
    refuse_edit = Operation(
        RefuseEdit, documents.WaitingEdit, "Drop an edit that waits.", "POST /plans/{plan}/approvals/{approval}/refuse"
    )
    show_budget = Operation(
        OnePlan,
        documents.EditorBudget,
        "What the model that edits a plan may spend, and has spent.",
        "GET /plans/{plan}/budget",
    )
    decide_budget = Operation(
        DecideBudget,
        documents.EditorBudget,
        "Raise the budget of its editor, or let the plan go on without it.",
        "POST /plans/{plan}/budget",
    )
