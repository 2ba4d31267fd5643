"""Lost requests: repeat a pause or cancel request that a merge dropped.

A person can request a pause or a cancellation in one store while another store's record of the run wins the merge. The
story entry of the request survives beside the winning record, but the request itself is part of the record that lost.
The authority of the run repeats the request once: a request whose entry is known already has had its chance, and may
have been withdrawn since.
"""

from __future__ import annotations

import contextlib

from asterism.core.errors import RunRefused
from asterism.core.history import Entry
from asterism.core.run import transitions
from asterism.core.run.merge import own_story
from asterism.core.run.run import Run

_REQUEST_ENTRIES = ("asked to pause", "asked to cancel", "paused", "failed")


def reapply_request(lost: Run, known: Run, kept: Run, now: float) -> Run:
    """``kept`` with the request of ``lost``, unless it contains it or ``known`` has its entry already."""
    request, by, entry = _request_of(lost)
    if request is None or kept.ended or entry is None or entry in own_story(kept) or entry in known.story:
        return kept
    with contextlib.suppress(RunRefused):
        return transitions.cancel(kept, now, by) if request == "cancel" else transitions.pause(kept, now, by)
    return kept


def _request_of(run: Run) -> tuple[str | None, str, Entry | None]:
    """The request in a record, who made it, and its story entry."""
    entry = next((one for one in reversed(own_story(run)) if one.what in _REQUEST_ENTRIES), None)
    if run.cancelled:
        return "cancel", (run.error or "").removeprefix("cancelled by "), entry
    if run.stop_request is not None:
        return run.stop_request, run.stop_requested_by or "unknown", entry
    if run.paused is not None:
        return "pause", run.paused.removeprefix("by "), entry
    return None, "", None
