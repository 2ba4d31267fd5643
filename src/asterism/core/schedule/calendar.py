"""The calendar of a schedule: what became of each of its ticks.

A tick with a *work*, the plan or run that was created for it, has the state of that work. Of a tick without one the
history of the schedule says why. The history keeps the latest entries only (``ticks.HISTORY_LENGTH``), so that of an
old tick without work no more is known than that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from asterism.core.schedule.schedule import Schedule
from asterism.core.schedule.ticks import FAILED, HISTORY_LENGTH, LATE, MISSED, SKIPPED, TickEntry

SUCCEEDED, CANCELLED, RUNNING, WAITING, NONE, DUE = "succeeded", "cancelled", "running", "waiting", "none", "due"
TICK_STATES = (SUCCEEDED, FAILED, CANCELLED, RUNNING, WAITING, SKIPPED, MISSED, NONE, DUE)
"""The states of a tick. The work of one that is ``waiting`` is created and not begun; for one with ``none`` nothing was
created, and it is not known why; one that is ``due`` is not decided yet."""


class TickWork(NamedTuple):
    """The plan or run of a tick. ``state`` is one of the first five of TICK_STATES."""

    name: str
    state: str
    started_at: float | None
    ended_at: float | None
    why: str = ""


class CalendarTick(NamedTuple):
    """One tick. ``work`` is None if nothing was created. ``late`` is whether the work has not ended in time, or did not
    end in time."""

    tick: int
    state: str
    work: TickWork | None
    late: bool
    why: str


class Calendar:
    """What is known of the ticks of a schedule at one moment. ``history`` is that of the schedule, oldest first."""

    def __init__(self, schedule: Schedule, history: Sequence[TickEntry], now: float) -> None:
        self._schedule, self._now = schedule, now
        self._entries: Mapping[int, TickEntry] = {entry.tick: entry for entry in history if entry.tick is not None}
        forgets = len(history) >= HISTORY_LENGTH and bool(self._entries)
        self._known_from = max(schedule.start, min(self._entries)) if forgets else schedule.start

    def tick(self, tick: int, work: TickWork | None) -> CalendarTick:
        """What became of a tick whose work is known."""
        if work is not None:
            return CalendarTick(tick, work.state, work, self._is_late(tick, work), work.why)
        state, why = self._without_work(tick)
        return CalendarTick(tick, state, None, False, why)

    def _is_late(self, tick: int, work: TickWork) -> bool:
        limit = self._schedule.late_after
        return limit is not None and (self._now if work.ended_at is None else work.ended_at) > tick + limit

    def _without_work(self, tick: int) -> tuple[str, str]:
        schedule, entry = self._schedule, self._entries.get(tick)
        if entry is not None and entry.outcome in (SKIPPED, FAILED):
            return entry.outcome, entry.why
        if tick > schedule.after and tick + schedule.jitter + LATE > self._now:
            return DUE, ""
        if tick < self._known_from:
            return NONE, ""
        if tick > schedule.after and schedule.paused is not None:
            return MISSED, f"the schedule was paused {schedule.paused}"
        return MISSED, ""
