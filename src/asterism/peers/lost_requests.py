"""What a person wished of a run in one store comes true although the record of another store was kept.

The entry of a wish is never lost, it stands beside the line; but the mark is part of the line. Whoever judges the run
makes the wish anew, once: a wish whose entry is known already has had its chance, and may have been taken back since.
"""

from __future__ import annotations

import contextlib

from asterism.core.errors import RunRefused
from asterism.core.history import Entry
from asterism.core.run import transitions
from asterism.core.run.merge import own_story
from asterism.core.run.run import Run

_ENTRIES = ("asked to pause", "asked to cancel", "paused", "failed")


def reapply_request(lost: Run, known: Run, kept: Run, now: float) -> Run:
    """``kept`` with the wish that stands in ``lost`` and not in it, if ``known`` has not heard of it."""
    wish, by, entry = _request_of(lost)
    if wish is None or kept.ended or entry is None or entry in own_story(kept) or entry in known.story:
        return kept
    with contextlib.suppress(RunRefused):
        return transitions.cancel(kept, now, by) if wish == "cancel" else transitions.pause(kept, now, by)
    return kept


def _request_of(run: Run) -> tuple[str | None, str, Entry | None]:
    """What is wished, by whom, and where it stands."""
    entry = next((one for one in reversed(own_story(run)) if one.what in _ENTRIES), None)
    if run.cancelled:
        return "cancel", (run.error or "").removeprefix("cancelled by "), entry
    if run.stop_request is not None:
        return run.stop_request, run.stop_requested_by or "somebody", entry
    if run.paused is not None:
        return "pause", run.paused.removeprefix("by "), entry
    return None, "", None
