"""Entries of a story: what happened, when and why; reasons why nothing happens; times that never go backwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from asterism.core.json_values import NOTHING
from asterism.core.record import Record

MAX_CLOCK_STEP_BACK = 7 * 86_400.0
"""An entry further in the future than this, in seconds, came from a wrong clock. The next entry ignores it."""


def step_time(last: float, now: float) -> float:
    """The time to record for a step: ``now``, or the time of the ``last`` step if that is later, because the clock was
    set back or another clock is read. Deadlines count from ``now``: they concern only the clock that checks them."""
    return last if 0.0 < last - now <= MAX_CLOCK_STEP_BACK else now


Facts = Mapping[str, Any] | None
"""What an entry of a plan says to programs, as JSON."""


class Entry(NamedTuple):
    """One entry of a story. ``task`` is None if it concerns the whole plan."""

    at: float
    what: str
    task: str | None
    why: str = ""

    def __str__(self) -> str:
        return _text(self)


class PlanEntry(NamedTuple):
    """One entry of the story of a plan. ``why`` is for people, and ``facts`` for programs."""

    at: float
    what: str
    task: str | None
    why: str = ""
    facts: Mapping[str, Any] = NOTHING

    def __str__(self) -> str:
        return _text(self)


def _text(entry: Entry | PlanEntry) -> str:
    subject = f"{entry.task} " if entry.task is not None else ""
    reason = f": {entry.why}" if entry.why else ""
    return f"{entry.at:.3f} {subject}{entry.what}{reason}"


class Reason(Record):
    """One reason why something does not happen. ``kind`` is a fixed word, ``name`` names what it waits for, ``text`` is
    the sentence. ``at`` is when the reason ends or ended by itself, or since when it holds."""

    kind: str
    name: str
    text: str
    at: float | None = None
