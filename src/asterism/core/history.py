"""What happened, in order, with the reason for each step; and the times of a story, which never go backwards."""

from __future__ import annotations

from typing import NamedTuple

MAX_CLOCK_STEP_BACK = 7 * 86_400.0
"""What was told more than so many seconds in the future was told by a clock that nobody follows."""


def step_time(last: float, now: float) -> float:
    """When a step happened, for its record: ``now``, or when the ``last`` one did, if the clock was set back since or
    is another one. Deadlines are counted from ``now``: they are a matter of the clock that judges them."""
    return last if 0.0 < last - now <= MAX_CLOCK_STEP_BACK else now


class Entry(NamedTuple):
    """One line of a story. ``task`` is None for what concerns the whole constellation."""

    at: float
    what: str
    task: str | None
    why: str = ""

    def __str__(self) -> str:
        subject = f"{self.task} " if self.task is not None else ""
        reason = f": {self.why}" if self.why else ""
        return f"{self.at:.3f} {subject}{self.what}{reason}"
