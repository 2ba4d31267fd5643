"""Operations on schedules: list, show, add, pause, resume, run and remove."""

from __future__ import annotations

from typing import Annotated, Literal

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Line, Moment, Name, NoFields, Operation, Priority, Reason, Word
from asterism.api.plan_operations import Includes
from asterism.api.request import Request
from asterism.core.json_values import JsonObject
from asterism.core.record import Meta, field

CatchUp = Literal["none", "last", "all"]
Overlap = Literal["skip", "queue", "replace", "allow"]
MOST_TIMES = 1000
MOST_TICKS = 1000
"""How many ticks one page has at most."""

LARGEST_FILE = 900_000

Tick = Annotated[int, Meta(ge=0, le=1 << 53)]
ScheduleName = Annotated[str, Meta(min_length=1, max_length=100)]


class OneSchedule(Request):
    schedule: ScheduleName


class ShowSchedule(OneSchedule):
    times: Annotated[int, Meta(ge=0, le=MOST_TIMES), Doc("How many of the next times to answer.")] = 5
    text: Annotated[bool, Doc("Whether to answer the text of its plan file.")] = False


class AddSchedule(Request):
    """A schedule of runs of a workflow, or of plans: ``text`` is that of a plan file."""

    name: ScheduleName
    workflow: Name | None = None
    text: Annotated[Annotated[str, Meta(max_length=LARGEST_FILE)] | None, Doc("The text of a plan file.")] = None
    file: Annotated[str, Meta(max_length=500), Doc("The name of the plan file, such as nightly.yaml.")] = ""
    includes: Includes = field(default_factory=dict)
    params: Annotated[JsonObject, Doc("The parameters of the plan file.")] = field(default_factory=dict)
    input: Annotated[JsonObject, Doc("The input of each run.")] = field(default_factory=dict)
    priority: Priority | None = None
    device: Name | None = None
    cron: Line | None = None
    every: Annotated[int | None, Doc("An interval in seconds, instead of `cron`.")] = None
    timezone: Annotated[str, Meta(max_length=100)] = "UTC"
    catch_up: CatchUp = "last"
    overlap: Annotated[
        Overlap | None,
        Doc(
            "What happens to a tick or event while earlier work is open; default: `skip`; `queue` for events and with "
            "`catch_up` `all`."
        ),
    ] = None
    jitter: Moment = 0.0
    after_previous: Annotated[
        Literal["success"] | None, Doc("What the plan of a tick waits for: the success of that of the tick before.")
    ] = None
    late_after: Annotated[
        Moment | None, Doc("A notice says if the plan of a tick has not ended so many seconds after the tick.")
    ] = None
    on_event: Annotated[Line | None, Doc("The name of the events that create a plan each, instead of times.")] = None
    parallel: Annotated[int, Meta(ge=1, le=100), Doc("How much work may be open before `overlap` counts.")] = 1
    replace: Annotated[bool, Doc("Change a schedule that exists.")] = False
    reason: Reason = ""


class ChangeSchedule(OneSchedule):
    reason: Reason = ""


class BackfillSchedule(OneSchedule):
    """``first`` and ``last`` are days or times in the time zone of the schedule; a day is meant as a whole."""

    first: Annotated[Word, Doc("The first day or time, such as 2026-01-01.")]
    last: Annotated[Word | None, Doc("The last day or time; default: now.")] = None
    every: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Doc("Seconds between two ticks, counted from the first; default: as scheduled."),
    ] = None
    parallel: Annotated[int, Meta(ge=1, le=100), Doc("How many plans run at once.")] = 1
    only_missing: Annotated[bool, Doc("Leave plans alone that failed or were cancelled, instead of a retry.")] = False
    reason: Reason = ""


class ListTicks(OneSchedule):
    """``first`` and ``last`` are days or times in the time zone of the schedule; a day is meant as a whole."""

    first: Annotated[Word | None, Doc("The first day or time, such as 2026-01-01; default: 30 days ago.")] = None
    last: Annotated[Word | None, Doc("The last day or time, which may be in the future; default: now.")] = None
    after: Annotated[Tick | None, Doc("The `next` of the page before.")] = None
    limit: Annotated[int, Meta(ge=1, le=MOST_TICKS)] = 500


class ScheduleOperations:
    list_schedules = Operation(NoFields, documents.Schedules, "List schedules.", "GET /schedules")
    add_schedule = Operation(
        AddSchedule, documents.ChangedSchedule, "Add a schedule, or change one.", "POST /schedules", status=201
    )
    show_schedule = Operation(
        ShowSchedule,
        documents.ScheduleDetails,
        "A schedule with its next times and latest ticks.",
        "GET /schedules/{schedule}",
    )
    remove_schedule = Operation(
        ChangeSchedule,
        documents.ChangedSchedule,
        "Remove a schedule and its history; what it has created goes on.",
        "DELETE /schedules/{schedule}",
    )
    pause_schedule = Operation(
        ChangeSchedule,
        documents.ChangedSchedule,
        "Create nothing more until the schedule is resumed.",
        "POST /schedules/{schedule}/pause",
    )
    resume_schedule = Operation(
        ChangeSchedule,
        documents.ChangedSchedule,
        "Resume a paused schedule, from its next tick on.",
        "POST /schedules/{schedule}/resume",
    )
    run_schedule = Operation(
        ChangeSchedule,
        documents.Tick,
        "Create the work of a schedule now; its times stay as they are.",
        "POST /schedules/{schedule}/run",
    )
    list_ticks = Operation(
        ListTicks,
        documents.ScheduleTicks,
        "The ticks of a schedule with what became of them, in their order: created, skipped, missed, or still due.",
        "GET /schedules/{schedule}/ticks",
    )
    backfill_schedule = Operation(
        BackfillSchedule,
        documents.Backfill,
        "Create the plans of past ticks of a schedule, one a tick, and run again those that failed.",
        "POST /schedules/{schedule}/backfill",
        status=201,
    )
    show_backfill = Operation(
        OneSchedule, documents.Backfill, "The last backfill of a schedule.", "GET /schedules/{schedule}/backfill"
    )
    cancel_backfill = Operation(
        ChangeSchedule,
        documents.Backfill,
        "Create no more plans of a backfill, and cancel those that have not ended.",
        "POST /schedules/{schedule}/backfill/cancel",
    )
