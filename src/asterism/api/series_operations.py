"""Operations on series of issues in the register of a store: list, show, history, claim, release and more."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, NoFields, Operation, Reason
from asterism.api.quick_dataclass import Request

SHORTEST_LEASE, LONGEST_LEASE = 0.001, 3650 * 86_400.0
LONGEST_DEADLINE = 50.0
"""How long a server tries a change, in seconds: less than its clients wait."""

SeriesName = Annotated[str, Limit(min_length=1, max_length=500), Doc("The name of the series.")]
Issue = Annotated[int, Limit(ge=1, le=1 << 53), Doc("The number of the issue.")]
Lease = Annotated[float, Limit(ge=SHORTEST_LEASE, le=LONGEST_LEASE), Doc("Seconds until the claim ends by itself.")]


class OneSeries(Request):
    series: SeriesName


class ListSeriesChanges(Request):
    series: SeriesName
    limit: Annotated[int, Limit(ge=1, le=1000)] = 20


class ChangeTerms(Request, kw_only=True):
    """How a series is changed. Without ``tries`` and ``deadline`` it is tried for as long as a request may take."""

    reason: Reason = ""
    dry_run: Annotated[bool, Doc("Say what would happen, and change nothing.")] = False
    tries: Annotated[int | None, Limit(ge=0, le=1000), Doc("How often to try while others write; 0: no limit.")] = None
    deadline: Annotated[float | None, Limit(ge=0.001), Doc("How long to try, in seconds.")] = None


class Change(ChangeTerms):
    series: SeriesName


class PromoteSeries(Change):
    """No more is needed."""


class PauseSeries(Change):
    """``reason`` is shown with the series."""


class ResumeSeries(Change):
    """No more is needed."""


class ClaimSeries(Change):
    issue: Issue
    lease: Lease | None = None
    renew: Annotated[bool, Doc("If the issue is active already, start its lease again.")] = False


class ReleaseSeries(Change):
    issue: Issue
    promote: Annotated[bool, Doc("Make the next issue of the queue active.")] = True


class FrontSeries(Change):
    issue: Issue


class RebuildSeries(Change):
    """``issues`` are the open issues in their order."""

    issues: Annotated[list[Issue], Limit(max_length=10_000)] = field(default_factory=list)
    active: Annotated[Issue | None, Doc("The issue that is being worked on.")] = None


READ = "observe series"


class SeriesOperations:
    list_series = Operation(NoFields, documents.Page[documents.Series], "List series.", "GET /series", needs=READ)
    show_series = Operation(OneSeries, documents.SeriesDetails, "A series.", "GET /series/{series}", needs=READ)
    list_series_changes = Operation(
        ListSeriesChanges,
        documents.Page[documents.SeriesChange],
        "The last changes of a series, newest first.",
        "GET /series/{series}/history",
        needs=READ,
    )
    claim_series = Operation(
        ClaimSeries,
        documents.SeriesOutcome,
        "Claim a series for an issue: it becomes active, or waits in the queue.",
        "POST /series/{series}/claim",
        needs="series",
    )
    release_series = Operation(
        ReleaseSeries,
        documents.SeriesOutcome,
        "Release an issue; the next one of the queue becomes active.",
        "POST /series/{series}/release",
        needs="series",
    )
    promote_series = Operation(
        PromoteSeries,
        documents.SeriesOutcome,
        "Make the first issue of the queue active, if none is.",
        "POST /series/{series}/promote",
        needs="series",
    )
    pause_series = Operation(
        PauseSeries,
        documents.SeriesOutcome,
        "Promote no issue until the series is resumed.",
        "POST /series/{series}/pause",
        needs="series",
    )
    resume_series = Operation(
        ResumeSeries,
        documents.SeriesOutcome,
        "End a pause, and promote the first issue of the queue.",
        "POST /series/{series}/resume",
        needs="series",
    )
    front_series = Operation(
        FrontSeries,
        documents.SeriesOutcome,
        "Move a waiting issue to the head of the queue.",
        "POST /series/{series}/front",
        needs="series",
    )
    rebuild_series = Operation(
        RebuildSeries,
        documents.SeriesOutcome,
        "Write the state of a series again from its open issues.",
        "POST /series/{series}/rebuild",
        needs="series",
    )


CHANGES: dict[type[Change], Operation[Any, Any, documents.SeriesOutcome]] = {
    ClaimSeries: SeriesOperations.claim_series,
    ReleaseSeries: SeriesOperations.release_series,
    PromoteSeries: SeriesOperations.promote_series,
    PauseSeries: SeriesOperations.pause_series,
    ResumeSeries: SeriesOperations.resume_series,
    FrontSeries: SeriesOperations.front_series,
    RebuildSeries: SeriesOperations.rebuild_series,
}
"""The operation of each request that changes a series."""
