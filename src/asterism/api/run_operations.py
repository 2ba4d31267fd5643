"""Operations on runs: list, create, show, logs, why, output, and pause, resume, cancel, retry and move."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Name, Operation, Reason
from asterism.api.quick_dataclass import Request
from asterism.core.json_values import JsonObject

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
Keep = Literal["epoch", "original", "furthest"]
RunId = Annotated[str, Limit(min_length=1, max_length=500), Doc("The id of the run, or a part that no other id has.")]
CreationId = Annotated[
    str, Limit(min_length=1, max_length=64), Doc("What makes the creation the same when it is repeated.")
]
After = Annotated[str | None, Limit(max_length=100), Doc("The `next` of an earlier answer.")]


class ListRuns(Request):
    """Which runs: all conditions that are given hold."""

    status: Annotated[
        str | None, Limit(max_length=200), Doc(f"One or several, with commas, of {', '.join(STATUSES)}.")
    ] = None
    workflow: Name | None = None
    device: Name | None = None
    series: Name | None = None
    batch: Annotated[Name | None, Doc("Runs of this batch; those that were retried are left out.")] = None
    search: Annotated[str | None, Limit(min_length=1, max_length=500), Doc("In label, key or input.")] = None
    waiting: Annotated[WaitingFor | None, Doc("What an open run waits for.")] = None
    after: After = None
    limit: Annotated[int, Limit(ge=1, le=MOST_AT_ONCE)] = 100

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
    priority: Annotated[int | None, Limit(ge=-1_000_000, le=1_000_000)] = None
    device: Name | None = None
    keep: Keep = "epoch"
    label: Name | None = None
    batch: Annotated[Name | None, Doc("The name of the runs to which it belongs.")] = None
    near: Annotated[list[str], Limit(max_length=1000)] = field(default_factory=list)


class CreateRuns(Request):
    """Runs of one workflow, which are offered to all devices: all are created, or none. They are made of the lines
    after the first ``before``; ``lines`` is how many lines the creation has read with these, and ``sha256`` their hash.
    This progress is recorded with the runs, so that the creation can be continued and makes no run twice.
    """

    creation: CreationId
    workflow: Name
    inputs: Annotated[list[JsonObject], Limit(max_length=BATCH)]
    before: Annotated[int, Limit(ge=0)]
    lines: Annotated[int, Limit(ge=0)]
    sha256: Annotated[str, Limit(min_length=64, max_length=64)]
    label: Annotated[Name | None, Doc("A template for the labels, such as `{file}`.")] = None
    key: Annotated[Name | None, Doc("A template for the keys. A run whose key is taken is not created again.")] = None
    series: Name | None = None
    priority: Annotated[int | None, Limit(ge=-1_000_000, le=1_000_000)] = None
    device: Name | None = None
    keep: Keep = "epoch"
    batch: Annotated[Name | None, Doc("The name of the runs to which they belong.")] = None


class OneCreation(Request):
    creation: CreationId


class OneRun(Request):
    run: RunId


class WaitRun(Request):
    run: RunId
    timeout: Annotated[float, Limit(ge=0, le=60), Doc("How long the answer may wait for the end, in seconds.")] = 20.0


class PruneRuns(Request):
    older_than: Annotated[float, Limit(ge=0), Doc("The least age since the end, in seconds.")]


class ChangeRun(Request):
    run: RunId
    reason: Reason = ""


class MoveRun(Request):
    run: RunId
    device: Name
    stop: Annotated[bool, Doc("If a device works on the run, stop it there first.")] = False
    reason: Reason = ""


class ReadRunLogs(Request):
    run: RunId
    after: After = None
    attempt: Annotated[int | None, Limit(ge=1, le=1_000_000)] = None
    timeout: Annotated[float, Limit(ge=0, le=60), Doc("How long the answer may wait for a line, in seconds.")] = 0.0


class ActOnRuns(ListRuns):
    """An action on all runs that match. Without a condition it needs `all`."""

    action: Literal["pause", "resume", "cancel", "retry"] = "pause"
    all: Annotated[bool, Doc("Act on every run if no condition is given.")] = False
    reason: Reason = ""


RunPage = documents.Page[documents.Run]


class RunOperations:
    list_runs = Operation(ListRuns, RunPage, "List runs, the newest first.", "GET /runs")
    create_run = Operation(CreateRun, documents.Run, "Create a run.", "POST /runs", status=201)
    create_runs = Operation(
        CreateRuns,
        documents.CreatedRuns,
        "Create runs, as the next part of a creation.",
        "POST /runs/creations/{creation}",
        status=201,
    )
    show_creation = Operation(
        OneCreation, documents.Creation, "How far a creation of runs has come.", "GET /runs/creations/{creation}"
    )
    end_creation = Operation(
        OneCreation,
        documents.Creation,
        "Forget how far a creation of runs has come.",
        "DELETE /runs/creations/{creation}",
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
