"""Operations on runs and their batches, on workflows, which they execute, and on what they wait for: limits, events."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Line, Name, NoFields, Operation, Priority, Reason
from asterism.api.request import Request
from asterism.core.json_values import JsonObject
from asterism.core.record import Meta, field

MOST_AT_ONCE = 500
"""How many runs one answer lists, and on how many one request acts."""

BATCH = 1000
"""How many runs one request creates."""

STATUSES = (
    "created",
    "assigned",
    "claimed",
    "processing",
    "reassigning",
    "completed",
    "failed",
    "paused",
    "pausing",
    "cancelling",
    "cancelled",
    "open",
    "ended",
)
CONDITIONS = ("status", "workflow", "device", "series", "batch", "search", "waiting")
WaitingFor = Literal["device", "limit", "claim", "turn", "retry", "person", "peer"]
WAITS = get_args(WaitingFor)
Keep = Literal["epoch", "original"]
RunId = Annotated[str, Meta(min_length=1, max_length=500), Doc("The id of the run, or a part that no other id has.")]
After = Annotated[Annotated[str, Meta(max_length=100)] | None, Doc("The `next` of an earlier answer.")]


class ListRuns(Request):
    """Which runs: all conditions that are given hold."""

    status: Annotated[Line | None, Doc(f"One or several, with commas, of {', '.join(STATUSES)}.")] = None
    workflow: Name | None = None
    device: Name | None = None
    series: Name | None = None
    batch: Annotated[Name | None, Doc("Runs of this batch; those that were retried are left out.")] = None
    search: Annotated[Name | None, Doc("In label, key or input.")] = None
    waiting: Annotated[WaitingFor | None, Doc("What an open run waits for.")] = None
    after: After = None
    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 100

    @property
    def conditions(self) -> bool:
        """Whether it asks for some runs, and not for all."""
        return any(getattr(self, name) for name in CONDITIONS)


class CreateRun(Request):
    """The terms of a run. ``near`` are devices that are preferred if they can execute it now."""

    workflow: Name
    input: JsonObject = field(default_factory=dict)
    key: Annotated[Name | None, Doc("A second run with this key is not created; the first is returned.")] = None
    series: Name | None = None
    priority: Priority | None = None
    device: Name | None = None
    keep: Keep | None = None
    label: Name | None = None
    batch: Annotated[Name | None, Doc("The name of the runs to which it belongs.")] = None
    near: Annotated[list[str], Meta(max_length=1000)] = field(default_factory=list)


class CreateRuns(Request):
    """Runs of one workflow, which are offered to all devices: all are created, or none."""

    workflow: Name
    inputs: Annotated[list[JsonObject], Meta(max_length=BATCH)]
    label: Annotated[Name | None, Doc("A template for the labels, such as `{file}`.")] = None
    key: Annotated[Name | None, Doc("A template for the keys. A run whose key is taken is not created again.")] = None
    series: Name | None = None
    priority: Priority | None = None
    device: Name | None = None
    keep: Keep | None = None
    batch: Annotated[Name | None, Doc("The name of the runs to which they belong.")] = None


class OneRun(Request):
    run: RunId


class WaitRun(OneRun):
    timeout: Annotated[float, Meta(ge=0, le=60), Doc("How long the answer may wait for the end, in seconds.")] = 20.0


class PruneRuns(Request):
    older_than: Annotated[float, Meta(ge=0), Doc("The least age since the end, in seconds.")]


class ChangeRun(OneRun):
    reason: Reason = ""


class MoveRun(OneRun):
    device: Name
    stop: Annotated[bool, Doc("If a device works on the run, stop it there first.")] = False
    reason: Reason = ""


class ReadRunLogs(OneRun):
    after: After = None
    attempt: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    timeout: Annotated[float, Meta(ge=0, le=60), Doc("How long the answer may wait for a line, in seconds.")] = 0.0


class ActOnRuns(ListRuns):
    """An action on all runs that match. Without a condition it needs `all`."""

    action: Literal["pause", "resume", "cancel", "retry"] = "pause"
    all: Annotated[bool, Doc("Act on every run if no condition is given.")] = False
    reason: Reason = ""


# -- batches -----------------------------------------------------------------------------------------------------------

BatchName = Annotated[Name, Doc("The name of the batch.")]


class OneBatch(Request):
    batch: BatchName


class WaitBatch(OneBatch):
    timeout: Annotated[float, Meta(ge=0, le=60), Doc("How long the answer may wait for the end, in seconds.")] = 20.0


class CancelBatch(OneBatch):
    after: After = None
    reason: Reason = ""


class RetryBatch(OneBatch):
    failed: Annotated[bool, Doc("Leave runs alone that were cancelled.")] = False
    after: After = None
    reason: Reason = ""


class ReadBatchResults(OneBatch):
    after: After = None
    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 100


# -- workflows ---------------------------------------------------------------------------------------------------------


class OneWorkflow(Request):
    workflow: Annotated[Name, Doc("Its name, or NAME@VERSION.")]


class AddWorkflow(Request):
    """A workflow. If it differs from the latest version of its name, it becomes the next version."""

    workflow: Annotated[JsonObject, Doc("Its fields, as `show_workflow` answers; those left out have defaults.")]
    reason: Reason = ""


class RemoveWorkflow(Request):
    workflow: Annotated[Name, Doc("Its name. All its versions are removed.")]
    reason: Reason = ""


# -- limits ------------------------------------------------------------------------------------------------------------

LimitName = Annotated[Name, Doc("The name of the limit.", "warehouse", "account/*")]


class OneLimit(Request):
    limit: LimitName


class SetLimit(OneLimit):
    """A limit has a size, a rate, or both."""

    size: Annotated[
        Annotated[int, Meta(ge=0)] | None, Doc("How much may be in use at a time; 0 lets nothing begin.")
    ] = None
    rate: Annotated[Annotated[int, Meta(ge=1)] | None, Doc("How much may begin within any period.")] = None
    period: Annotated[Annotated[float, Meta(gt=0)] | None, Doc("The period of the rate, in seconds.")] = None
    reason: Reason = ""


class RemoveLimit(OneLimit):
    reason: Reason = ""


# -- events ------------------------------------------------------------------------------------------------------------

EventNumber = Annotated[int, Meta(ge=0, le=1 << 53)]
EventName = Annotated[str, Meta(min_length=1, max_length=200), Doc("The name that tasks wait for.")]


class SendEvent(Request):
    """An event continues the tasks that wait for its name, also those that begin to wait while it is kept."""

    name: EventName
    data: Annotated[Any, Doc("A JSON value: the result of these tasks.")] = None
    key: Annotated[Name | None, Doc("An event with this key is sent once.")] = None


class ListEvents(Request):
    name: Annotated[Name | None, Doc("Only events of this name.")] = None
    before: Annotated[EventNumber | None, Doc("Only events with a smaller number.")] = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50


# -- declarations ------------------------------------------------------------------------------------------------------


class RunOperations:
    list_runs = Operation(ListRuns, documents.Page[documents.Run], "List runs, the newest first.", "GET /runs")
    create_run = Operation(CreateRun, documents.Run, "Create a run.", "POST /runs", status=201)
    create_runs = Operation(
        CreateRuns,
        documents.CreatedRuns,
        "Create many runs of one workflow.",
        "POST /runs/bulk",
        status=201,
    )
    act_on_runs = Operation(
        ActOnRuns, documents.BulkOutcome, "Pause, resume, cancel or retry all runs that match.", "POST /runs/actions"
    )
    show_run = Operation(OneRun, documents.RunDetails, "Everything about a run.", "GET /runs/{run}")
    read_output = Operation(OneRun, documents.RunOutput, "The output of a completed run.", "GET /runs/{run}/output")
    read_run_logs = Operation(ReadRunLogs, documents.RunLog, "What a run printed.", "GET /runs/{run}/logs")
    explain_run = Operation(OneRun, documents.RunWhy, "Why a run does not run.", "GET /runs/{run}/why")
    wait_run = Operation(
        WaitRun, documents.Run, "A run when it has ended, or as it is after a while.", "GET /runs/{run}/wait"
    )
    prune_runs = Operation(PruneRuns, documents.PrunedRuns, "Delete runs that ended long ago.", "POST /runs/prune")
    pause_run = Operation(ChangeRun, documents.Run, "Pause a run until it is resumed.", "POST /runs/{run}/pause")
    resume_run = Operation(ChangeRun, documents.Run, "Resume a paused run.", "POST /runs/{run}/resume")
    cancel_run = Operation(
        ChangeRun, documents.Run, "Cancel a run: at once, or when its device has stopped it.", "POST /runs/{run}/cancel"
    )
    retry_run = Operation(ChangeRun, documents.Run, "Create a new run of the same work.", "POST /runs/{run}/retry")
    move_run = Operation(MoveRun, documents.Run, "Assign a run to another device.", "POST /runs/{run}/move")
    list_batches = Operation(
        NoFields, documents.Page[documents.Batch], "List the batches, the newest first.", "GET /batches"
    )
    show_batch = Operation(
        OneBatch,
        documents.BatchDetails,
        "How far a batch has come: counts, rate, time left, and what failed.",
        "GET /batches/{batch}",
    )
    wait_batch = Operation(
        WaitBatch,
        documents.BatchDetails,
        "A batch when all its runs have ended, or as it is after a while.",
        "GET /batches/{batch}/wait",
    )
    cancel_batch = Operation(
        CancelBatch,
        documents.BulkOutcome,
        f"Cancel the runs of a batch, {MOST_AT_ONCE} at a time.",
        "POST /batches/{batch}/cancel",
    )
    retry_batch = Operation(
        RetryBatch,
        documents.BulkOutcome,
        f"Retry the runs of a batch that failed or were cancelled, {MOST_AT_ONCE} at a time.",
        "POST /batches/{batch}/retry",
    )
    read_batch_results = Operation(
        ReadBatchResults,
        documents.Page[documents.BatchResult],
        "The results of the runs of a batch that have ended, in the order of their creation.",
        "GET /batches/{batch}/results",
    )
    list_workflows = Operation(NoFields, documents.Page[documents.Workflow], "List workflows.", "GET /workflows")
    show_workflow = Operation(
        OneWorkflow, documents.Workflow, "A workflow with all its fields.", "GET /workflows/{workflow}"
    )
    add_workflow = Operation(
        AddWorkflow,
        documents.AddedWorkflow,
        "Add a workflow, or a new version of one.",
        "POST /workflows",
        needs="admin",
        status=201,
    )
    remove_workflow = Operation(
        RemoveWorkflow,
        documents.Workflow,
        "Remove a workflow that no schedule needs.",
        "DELETE /workflows/{workflow}",
        needs="admin",
    )
    list_limits = Operation(
        NoFields,
        documents.Page[documents.Limit],
        "The limits, how much of each is in use, and how many runs wait.",
        "GET /limits",
    )
    show_limit = Operation(
        OneLimit,
        documents.LimitDetails,
        "A limit with the runs that hold it and those that wait for it.",
        "GET /limits/{limit}",
    )
    set_limit = Operation(
        SetLimit,
        documents.Limit,
        "Set or change a limit: at once for what waits; what runs goes on.",
        "POST /limits/{limit}",
    )
    remove_limit = Operation(
        RemoveLimit,
        documents.Limit,
        "Remove a limit. Runs that wait for it wait until it is set again.",
        "DELETE /limits/{limit}",
    )
    send_event = Operation(
        SendEvent,
        documents.SentEvent,
        "Send an event that plans wait for.",
        "POST /sent-events",
        needs="event",
        status=201,
    )
    list_events = Operation(
        ListEvents,
        documents.Page[documents.SentEvent],
        "List the events that are kept, the newest first, and who has taken them.",
        "GET /sent-events",
    )
