"""Operations on series of issues in the register of a store: list, show, history, claim, release and more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Name, NoFields, Operation, Parameters, Reason
from asterism.api.request import Request
from asterism.core.record import Meta, field

Changing = TypeVar("Changing", bound="Change")

SHORTEST_LEASE, LONGEST_LEASE = 0.001, 3650 * 86_400.0
LONGEST_WAIT = 30.0
"""How long a request for the next issue waits for a turn, in seconds."""

LONGEST_DEADLINE = 50.0
"""How long a server tries a change, in seconds: less than its clients wait."""

SeriesName = Annotated[str, Meta(min_length=1, max_length=500), Doc("The name of the series.")]
Issue = Annotated[int, Meta(ge=1, le=1 << 53), Doc("The number of the issue.")]
Lease = Annotated[float, Meta(ge=SHORTEST_LEASE, le=LONGEST_LEASE), Doc("Seconds until the claim ends by itself.")]


class OneSeries(Request):
    series: SeriesName


class ListSeriesChanges(OneSeries):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


class ChangeTerms(Request, kw_only=True):
    """How a series is changed. Without ``tries`` and ``deadline`` it is tried for as long as a request may take."""

    reason: Reason = ""
    dry_run: Annotated[bool, Doc("Say what would happen, and change nothing.")] = False
    tries: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None, Doc("How often to try while others write; 0: no limit.")
    ] = None
    deadline: Annotated[Annotated[float, Meta(ge=0.001)] | None, Doc("How long to try, in seconds.")] = None


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
    holder: Annotated[
        Name | None,
        Doc("Whose the claim is. An issue that another holds stays theirs: compare `holder` of the answer."),
    ] = None


class ReleaseSeries(Change):
    issue: Issue
    promote: Annotated[bool, Doc("Make the next issue of the queue active.")] = True
    holder: Annotated[Name | None, Doc("Release it only if no other holder has it.")] = None


class TakeNextIssue(ChangeTerms):
    """The next issue that ``holder`` may have. A repeated request answers with the issue that they hold."""

    holder: Annotated[str, Meta(min_length=1, max_length=500), Doc("Whose the issue will be.")]
    series: Annotated[SeriesName | None, Doc("Only in this series; by default in the first that has one.")] = None
    lease: Lease | None = None
    wait: Annotated[
        float, Meta(ge=0, le=LONGEST_WAIT), Doc("How long to wait for a turn, in seconds, while others hold issues.")
    ] = 0.0


class FrontSeries(Change):
    issue: Issue


class RebuildSeries(Change):
    """``issues`` are the open issues in their order."""

    issues: Annotated[list[Issue], Meta(max_length=10_000)] = field(default_factory=list)
    active: Annotated[Issue | None, Doc("The issue that is being worked on.")] = None


def _change(
    request: Callable[Parameters, Changing], verb: str, text: str
) -> Operation[Parameters, Changing, documents.SeriesOutcome]:
    return Operation(request, documents.SeriesOutcome, text, f"POST /series/{{series}}/{verb}")


class SeriesOperations:
    list_series = Operation(NoFields, documents.Page[documents.Series], "List series.", "GET /series")
    show_series = Operation(OneSeries, documents.SeriesDetails, "A series.", "GET /series/{series}")
    list_series_changes = Operation(
        ListSeriesChanges,
        documents.Page[documents.SeriesChange],
        "The last changes of a series, newest first.",
        "GET /series/{series}/history",
    )
    claim_series = _change(
        ClaimSeries, "claim", "Claim a series for an issue: it becomes active, or waits in the queue."
    )
    release_series = _change(ReleaseSeries, "release", "Release an issue; the next one of the queue becomes active.")
    take_next_issue = Operation(
        TakeNextIssue,
        documents.NextIssue,
        "Claim the next issue that a holder may have: one that they hold already, or one that nobody holds.",
        "POST /series/next",
    )
    promote_series = _change(PromoteSeries, "promote", "Make the first issue of the queue active, if none is.")
    pause_series = _change(PauseSeries, "pause", "Promote no issue until the series is resumed.")
    resume_series = _change(ResumeSeries, "resume", "End a pause, and promote the first issue of the queue.")
    front_series = _change(FrontSeries, "front", "Move a waiting issue to the head of the queue.")
    rebuild_series = _change(RebuildSeries, "rebuild", "Write the state of a series again from its open issues.")


CHANGES: dict[Any, Operation[Any, Any, documents.SeriesOutcome]] = {
    operation.request: operation
    for operation in vars(SeriesOperations).values()
    if isinstance(operation, Operation) and operation.answer is documents.SeriesOutcome
}
"""The operation of each request that changes a series."""
