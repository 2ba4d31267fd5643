"""The status of a series: active, free or paused, and why the head of its queue is not active."""

from __future__ import annotations

from asterism.core.json_values import JsonObject
from asterism.core.series.machine import Series


def status_word(series: Series) -> str:
    return "paused" if series.paused is not None else "active" if series.active is not None else "free"


def series_status(series: Series, now: float) -> JsonObject:
    """A series as JSON, with its status and age."""
    return {
        **series.to_document(),
        "status": status_word(series),
        "age": None if series.since is None else round(max(0.0, now - series.since), 3),
        "why_not_promoted": why_not_promoted(series, now),
    }


def why_not_promoted(series: Series, now: float) -> str | None:
    """Why the head of the queue is not active; None if no issue waits, or the active one has a right to be."""
    if series.active is not None:
        if series.lease_until is not None and series.lease_until <= now:
            return f"the lease of #{series.active} has expired: the next claim or promotion ends it"
        return None
    if not series.queue:
        return None
    if series.paused is not None:
        return f"paused {series.paused}"
    return f"not promoted yet: run `asterism series promote {series.name}`, or claim it"
