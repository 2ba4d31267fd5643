"""Series of issues: their documents, and what the operations of ``api/series_operations`` do.

The functions on a register serve commands on git remotes and on GitHub, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asterism.api import documents
from asterism.api import series_operations as declared
from asterism.api.documents import document_of
from asterism.api.operation import NoFields
from asterism.core.record import asdict, replace
from asterism.core.series.machine import Series, UnreadableSeries
from asterism.series import claims as steps
from asterism.series.claims import Claim, Release, claim, release, signed, take_next
from asterism.series.compare_and_swap import Outcome, RetryOptions, UpdateCounts, update
from asterism.series.register import (
    Change,
    DryRunRegister,
    SeriesRegister,
    Snapshot,
    UnknownSeries,
    read_all,
    status_word,
    why_not_promoted,
)

if TYPE_CHECKING:
    from asterism.api.system import LocalSystem

MOST_CHANGES = 50
"""How many of the last changes of a series are shown with it."""


# -- documents ---------------------------------------------------------------------------------------------------------


def series_document(name: str, text: str | None, now: float) -> documents.Series:
    """A series from the text of its register."""
    try:
        return _series(Series.from_text(text, name), now)
    except UnreadableSeries as error:
        return documents.Series(name=name, status="unreadable", problem=str(error))


def state_document(series: Series) -> documents.SeriesState:
    return documents.SeriesState(**series.to_document())


def series_of(state: documents.SeriesState) -> Series:
    """The series of a state. Raises UnreadableSeries."""
    always = ("active_issue", "queue")
    document = {name: value for name, value in asdict(state).items() if value is not None or name in always}
    if state.leases is not None:
        document["leases"] = [list(pair) for pair in state.leases]
    return Series.from_document(document)


def _series(series: Series, now: float) -> documents.Series:
    return document_of(
        documents.Series,
        series,
        status=status_word(series),
        queue=list(series.queue),
        why_not_promoted=why_not_promoted(series, now),
        state=state_document(series),
    )


def _change_document(name: str, change: Change) -> documents.SeriesChange:
    try:
        state = state_document(Series.from_text(change.text, name))
    except UnreadableSeries:
        state = None
    return document_of(documents.SeriesChange, change, state=state)


# -- on a register -----------------------------------------------------------------------------------------------------


async def all_series(register: SeriesRegister) -> documents.Page[documents.Series]:
    registered, now = await read_all(register), register.clock()
    return documents.Page(items=[series_document(name, entry.text, now) for name, entry in registered.items()], now=now)


async def find_series(register: SeriesRegister, name: str) -> Snapshot:
    """Raises UnknownSeries."""
    snapshot = await register.read(name)
    if snapshot.token is None:
        raise UnknownSeries(f"there is no series {name!r}")
    return snapshot


async def series_changes(register: SeriesRegister, name: str, limit: int) -> list[documents.SeriesChange]:
    return [_change_document(name, change) for change in await register.history(name, limit)]


async def change_series(
    register: SeriesRegister,
    request: declared.Change,
    by: str,
    *,
    counts: UpdateCounts | None = None,
    make: Callable[..., Awaitable[Outcome]] | None = None,
) -> documents.SeriesOutcome:
    """Make a change. ``make`` makes another one than that of the request. Raises as ``update`` does."""
    counts = counts if counts is not None else UpdateCounts()
    target = DryRunRegister(register) if request.dry_run else register
    retry = RetryOptions.limited(request.tries, request.deadline)
    outcome = await (make or _made)(target, request, by, retry=retry, counts=counts)
    now = register.clock()
    return document_of(
        documents.SeriesOutcome,
        _series(outcome.after, now),
        changed=outcome.changed,
        exists=outcome.token is not None,
        promoted=outcome.promoted,
        tries=outcome.tries,
        dry_run=request.dry_run,
        before=state_document(outcome.before),
        counts=document_of(documents.SeriesCounts, counts),
        now=now,
    )


async def _made(
    register: SeriesRegister, request: declared.Change, by: str, *, retry: RetryOptions, counts: UpdateCounts
) -> Outcome:
    name, why = request.series, f" ({request.reason})" if request.reason else ""
    limits: Any = {"retry": retry, "counts": counts}
    match request:
        case declared.ClaimSeries():
            wanted = Claim(
                request.issue, by, request.lease, request.renew, reason=request.reason, holder=request.holder
            )
            return await claim(register, name, wanted, **limits)
        case declared.ReleaseSeries():
            leaving = Release(request.issue, by, request.promote, reason=request.reason, holder=request.holder)
            return await release(register, name, leaving, **limits)
        case declared.FrontSeries():
            step, message = steps.front(request.issue), f"front #{request.issue}"
        case declared.RebuildSeries():
            step, message = steps.rebuild(request.issues, request.active), "rebuild"
        case declared.PauseSeries():
            step, message = steps.pause(by, request.reason), "pause"
        case declared.ResumeSeries():
            step, message = steps.resume(by), "resume"
        case _:
            step, message = steps.promote(by), "promote"
    repair = isinstance(request, declared.RebuildSeries)
    return await update(register, name, step, signed(f"{message}{why}", by), repair=repair, **limits)


async def next_issue(
    register: SeriesRegister,
    request: declared.TakeNextIssue,
    by: str,
    *,
    make: Callable[..., Awaitable[Outcome]] | None = None,
) -> documents.NextIssue:
    """Claim the next issue, or wait for one. Raises as ``take_next`` does."""
    target = DryRunRegister(register) if request.dry_run else register
    taken = await take_next(
        target,
        request.holder,
        request.series,
        by=by,
        lease=request.lease,
        reason=request.reason,
        wait=request.wait,
        make=make,
        retry=RetryOptions.limited(request.tries, request.deadline),
    )
    now = register.clock()
    if taken is not None:
        shown = _series(taken.after, now)
        return documents.NextIssue(issue=taken.after.active, series=shown, changed=taken.changed, others=[], now=now)
    others = [
        shown
        for shown in (await all_series(register)).items
        if request.series in (None, shown.name) and (shown.active is not None or shown.queue or shown.problem)
    ]
    return documents.NextIssue(issue=None, series=None, changed=False, others=others, now=now)


# -- on a store --------------------------------------------------------------------------------------------------------


def _register(system: LocalSystem) -> SeriesRegister:
    from asterism.series.store_register import StoreRegister  # not for commands on a git remote

    return StoreRegister(system.fleet.store, owned=False)


async def list_series(system: LocalSystem, request: NoFields) -> documents.Page[documents.Series]:
    return await all_series(_register(system))


async def show_series(system: LocalSystem, request: declared.OneSeries) -> documents.SeriesDetails:
    register = _register(system)
    snapshot, now = await find_series(register, request.series), register.clock()
    shown = series_document(request.series, snapshot.text, now)
    changes = await series_changes(register, request.series, MOST_CHANGES)
    return document_of(documents.SeriesDetails, shown, changes=changes, now=now)


async def list_series_changes(
    system: LocalSystem, request: declared.ListSeriesChanges
) -> documents.Page[documents.SeriesChange]:
    changes = await series_changes(_register(system), request.series, request.limit)
    return documents.Page(items=changes, now=system.fleet.store.clock())


async def _change(system: LocalSystem, request: declared.Change) -> documents.SeriesOutcome:
    longest = declared.LONGEST_DEADLINE
    limited = replace(request, deadline=min(request.deadline or longest, longest))
    return await change_series(_register(system), limited, system.fleet.by)


async def take_next_issue(system: LocalSystem, request: declared.TakeNextIssue) -> documents.NextIssue:
    longest = declared.LONGEST_DEADLINE - declared.LONGEST_WAIT
    limited = replace(request, deadline=min(request.deadline or longest, longest))
    return await next_issue(_register(system), limited, system.fleet.by)


claim_series = release_series = promote_series = pause_series = _change
resume_series = front_series = rebuild_series = _change
