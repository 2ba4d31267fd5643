"""Entries of a story: what happened, when and why; and times that never go backwards."""

from __future__ import annotations

from typing import NamedTuple

MAX_CLOCK_STEP_BACK = 7 * 86_400.0
"""An entry further in the future than this, in seconds, came from a wrong clock. The next entry ignores it."""


def step_time(last: float, now: float) -> float:
    """The time to record for a step: ``now``, or the time of the ``last`` step if that is later, because the clock was
    set back or another clock is read. Deadlines count from ``now``: they concern only the clock that checks them."""
    return last if 0.0 < last - now <= MAX_CLOCK_STEP_BACK else now


class Entry(NamedTuple):
    """One entry of a story. ``task`` is None if it concerns the whole plan."""

    at: float
    what: str
    task: str | None
    why: str = ""

    def __str__(self) -> str:
        subject = f"{self.task} " if self.task is not None else ""
        reason = f": {self.why}" if self.why else ""
        return f"{self.at:.3f} {subject}{self.what}{reason}"
