"""The steps that change a series, beside claim and release: promote, pause, resume, front and rebuild.

Each is a function of a series and the current time (see ``compare_and_swap``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from asterism.core.series.machine import Live, Series
from asterism.series.compare_and_swap import Step
from asterism.series.register import NotClaimable


def promote(by: str) -> Step:
    """End an expired lease, and activate the head of the queue if no item is active."""
    return lambda series, now: series.expire(now).promote(now, by=by).as_one_change_of(series)


def pause(by: str, reason: str) -> Step:
    """Let no item become active until the series is resumed."""
    return lambda series, now: series.pause(now, by, reason)


def resume(by: str) -> Step:
    """End a pause, and activate the head of the queue if no item is active."""

    def step(series: Series, now: float) -> Series:
        if series.paused is None:
            return series
        return series.resume(now).expire(now).promote(now, by=by).as_one_change_of(series)

    return step


def front(issue: int) -> Step:
    """Move a waiting issue to the head of the queue. Raises NotClaimable if it does not wait."""

    def step(series: Series, now: float) -> Series:
        if series.position(issue) is None:
            raise NotClaimable(f"#{issue} is not in the queue of {series.name}: claim it first")
        return series.front(issue, now)

    return step


def rebuild(issues: Sequence[int], active: int | None) -> Step:
    """Write a series again from its open issues, in their order."""
    return partial(rebuilt, live=live_issues(issues, active), active=active)


def live_issues(issues: Sequence[int], active: int | None) -> list[Live]:
    """Open issues in their order. ``active`` is the one that is active, if any is."""
    live = [Live(number, place, number == active) for place, number in enumerate(dict.fromkeys(issues))]
    return live if active is None or active in issues else [*live, Live(active, -1, True)]


def rebuilt(before: Series, now: float, *, live: Sequence[Live], active: int | None, revision: int = 0) -> Series:
    """A series with these open issues. ``revision`` is the last one that something else knows, such as GitHub. Raises
    NotClaimable if another issue would become active in a paused series."""
    unreadable = before.updated_at == 0.0  # or lost
    base = before.counted_from(revision) if unreadable else before
    if active not in (None, before.active) and before.paused is not None:
        raise NotClaimable(f"{before.name} is paused {before.paused}: resume it before an issue becomes active")
    replaced = active is not None and before.active not in (None, active)
    remaining = base.release(before.active or 0, now) if replaced else base
    after = remaining.rebuild(live, now).as_one_change_of(base)
    if after is not base:
        return after
    return before if base is before or before.revision == 0 else base.stamped(now)
