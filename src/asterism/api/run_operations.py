"""Operations on runs: list, create, show, logs, why, output, and pause, resume, cancel, retry and move."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Name, Operation, Reason
from asterism.api.quick_dataclass import dataclass

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
WaitingFor = Literal["device", "claim", "turn", "retry", "person", "peer"]
Keep = Literal["epoch", "original", "furthest"]
RunId = Annotated[str, Limit(min_length=1, max_length=500), Doc("The id of the run, or a part that no other id has.")]
CreationId = Annotated[
    str, Limit(min_length=1, max_length=64), Doc("What makes the creation the same when it is repeated.")
]
After = Annotated[str | None, Limit(max_length=100), Doc("The `next` of an earlier answer.")]


@dataclass(frozen=True)
class ListRuns:
    """Which runs: all conditions that are given hold."""

    status: Annotated[
        str | None, Limit(max_length=200), Doc(f"One or several, with commas, of {', '.join(STATUSES)}.")
    ] = None
    workflow: Name | None = None
    device: Name | None = None
    series: Name | None = None
    search: Annotated[str | None, Limit(min_length=1, max_length=500), Doc("In label, key or input.")] = None
    waiting: Annotated[WaitingFor | None, Doc("What an open run waits for.")] = None
    after: After = None
    limit: Annotated[int, Limit(ge=1, le=MOST_AT_ONCE)] = 100

    @property
    def conditions(self) -> bool:
        """Whether it asks for some runs, and not for all."""
        return any((self.status, self.workflow, self.device, self.series, self.search, self.waiting))


@dataclass(frozen=True)
class CreateRun:
    """The terms of a run. ``near`` are devices that are preferred if they can execute it now."""

    workflow: Name
    input: dict[str, Any] = field(default_factory=dict)
    key: Annotated[Name | None, Doc("A second run with this key is not created; the first is returned.")] = None
    series: Name | None = None
    priority: Annotated[int | None, Limit(ge=-1_000_000, le=1_000_000)] = None
    device: Name | None = None
    keep: Keep = "epoch"
    label: Name | None = None
    near: Annotated[list[str], Limit(max_length=1000)] = field(default_factory=list)


@dataclass(frozen=True)
class CreateRuns:
    """A batch of runs of one workflow, which are offered to all devices: all are created, or none. They are made of the
    lines after the first ``before``; ``lines`` is how many lines the creation has read with this batch, and ``sha256``
    their hash. This progress is recorded with the runs, so that the creation can be continued and makes no run twice.
    """

    creation: CreationId
    workflow: Name
    inputs: Annotated[list[dict[str, Any]], Limit(max_length=BATCH)]
    before: Annotated[int, Limit(ge=0)]
    lines: Annotated[int, Limit(ge=0)]
    sha256: Annotated[str, Limit(min_length=64, max_length=64)]
    label: Annotated[Name | None, Doc("A template for the labels, such as `{file}`.")] = None
    key: Annotated[Name | None, Doc("A template for the keys. A run whose key is taken is not created again.")] = None
    series: Name | None = None
    priority: Annotated[int | None, Limit(ge=-1_000_000, le=1_000_000)] = None
    device: Name | None = None
    keep: Keep = "epoch"


@dataclass(frozen=True)
class OneCreation:
    creation: CreationId


@dataclass(frozen=True)
class OneRun:
    run: RunId


@dataclass(frozen=True)
class WaitRun:
    run: RunId
    timeout: Annotated[float, Limit(ge=0, le=60), Doc("How long the answer may wait for the end, in seconds.")] = 20.0


@dataclass(frozen=True)
class PruneRuns:
    older_than: Annotated[float, Limit(ge=0), Doc("The least age since the end, in seconds.")]


@dataclass(frozen=True)
class ChangeRun:
    run: RunId
    reason: Reason = ""


@dataclass(frozen=True)
class MoveRun:
    run: RunId
    device: Name
    stop: Annotated[bool, Doc("If a device works on the run, stop it there first.")] = False
    reason: Reason = ""


@dataclass(frozen=True)
class ReadRunLogs:
    run: RunId
    after: After = None
    attempt: Annotated[int | None, Limit(ge=1, le=1_000_000)] = None
    timeout: Annotated[float, Limit(ge=0, le=60), Doc("How long the answer may wait for a line, in seconds.")] = 0.0


@dataclass(frozen=True)
class ActOnRuns(ListRuns):
    """An action on all runs that match. Without a condition it needs `all`."""

    action: Literal["pause", "resume", "cancel", "retry"] = "pause"
    all: Annotated[bool, Doc("Act on every run if no condition is given.")] = False
    reason: Reason = ""


RunPage = documents.Page[documents.Run]

list_runs = Operation("list_runs", ListRuns, RunPage, "List runs, the newest first.", "GET /runs")
create_run = Operation(
    "create_run", CreateRun, documents.Run, "Create a run.", "POST /runs", needs="operate", status=201
)
create_runs = Operation(
    "create_runs",
    CreateRuns,
    documents.CreatedRuns,
    "Create a batch of runs, as the next part of a creation.",
    "POST /runs/creations/{creation}",
    needs="operate",
    status=201,
)
show_creation = Operation(
    "show_creation",
    OneCreation,
    documents.Creation,
    "How far a creation of runs has come.",
    "GET /runs/creations/{creation}",
)
end_creation = Operation(
    "end_creation",
    OneCreation,
    documents.Creation,
    "Forget how far a creation of runs has come.",
    "DELETE /runs/creations/{creation}",
    needs="operate",
)
act_on_runs = Operation(
    "act_on_runs",
    ActOnRuns,
    documents.BulkOutcome,
    "Pause, resume, cancel or retry all runs that match.",
    "POST /runs/actions",
    needs="operate",
)
show_run = Operation("show_run", OneRun, documents.RunDetails, "Everything about a run.", "GET /runs/{run}")
read_output = Operation(
    "read_output", OneRun, documents.RunOutput, "The output of a completed run.", "GET /runs/{run}/output"
)
read_run_logs = Operation("read_run_logs", ReadRunLogs, documents.RunLog, "What a run printed.", "GET /runs/{run}/logs")
explain_run = Operation("explain_run", OneRun, documents.RunWhy, "Why a run does not run.", "GET /runs/{run}/why")
wait_run = Operation(
    "wait_run", WaitRun, documents.Run, "A run when it has ended, or as it is after a while.", "GET /runs/{run}/wait"
)
prune_runs = Operation(
    "prune_runs",
    PruneRuns,
    documents.PrunedRuns,
    "Delete runs that ended long ago.",
    "POST /runs/prune",
    needs="operate",
)
pause_run = Operation(
    "pause_run", ChangeRun, documents.Run, "Pause a run until it is resumed.", "POST /runs/{run}/pause", needs="operate"
)
resume_run = Operation(
    "resume_run", ChangeRun, documents.Run, "Resume a paused run.", "POST /runs/{run}/resume", needs="operate"
)
cancel_run = Operation(
    "cancel_run",
    ChangeRun,
    documents.Run,
    "Cancel a run: at once, or when its device has stopped it.",
    "POST /runs/{run}/cancel",
    needs="operate",
)
retry_run = Operation(
    "retry_run",
    ChangeRun,
    documents.Run,
    "Create a new run of the same work.",
    "POST /runs/{run}/retry",
    needs="operate",
)
move_run = Operation(
    "move_run", MoveRun, documents.Run, "Assign a run to another device.", "POST /runs/{run}/move", needs="operate"
)
