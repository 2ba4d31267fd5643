"""The record of a backfill: which ticks of a schedule are made up for, and how far that has come.

A backfill goes through its ticks in their order, at most ``parallel`` at once. A tick is *decided* when the cursor
``after`` moves past it: in the commit that creates its plan, or once it is known that its plan exists. So a process
that is killed at any point leaves each tick decided once or not yet. The name of a plan follows from schedule and tick,
so a tick that the schedule itself has created is found, and is not created again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from asterism.core.record_codec import Record
from asterism.core.schedule.ticks import NextTick, interval_ticks

MOST_TICKS = 10_000
"""How many ticks one backfill has at most."""

MOST_FAILURES = 20
"""How many of the plans that did not succeed are named: the last ones."""


@dataclass(frozen=True)
class Backfill(Record, sparse=True):
    """``first`` and ``last`` are the first and the last tick, ``total`` is how many there are. With ``every`` they are
    so many seconds apart, otherwise those of the schedule. ``open`` are the plans that have not ended, oldest first;
    ``skipped`` counts the ticks whose plan had succeeded before, with ``only_missing`` all whose plan had ended.
    ``cancelled`` says who cancelled it, and why."""

    schedule: str
    first: int
    last: int
    total: int
    parallel: int
    created_by: str
    started_at: float
    after: float
    every: int | None = None
    only_missing: bool = False
    open: tuple[str, ...] = ()
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    cancelled: str | None = None
    ended_at: float | None = None

    @property
    def decided(self) -> int:
        """How many ticks have ended: they succeeded, failed or were skipped."""
        return self.succeeded + self.failed + self.skipped

    def changed(self, **changes: Any) -> Backfill:
        return replace(self, **changes)

    def time_left(self, now: float) -> float | None:
        """How many seconds it will take, at the pace so far; None while nothing has ended, and after its end. Ticks
        that were skipped took no time."""
        worked = self.succeeded + self.failed
        if not worked or self.ended_at is not None:
            return None
        return (now - self.started_at) / worked * (self.total - self.decided)


def backfill_ticks(backfill: Backfill, next_tick: NextTick) -> NextTick:
    """The ticks of a backfill; ``next_tick`` are those of its schedule."""
    return next_tick if backfill.every is None else interval_ticks(backfill.first, backfill.every)


def ticks_between(first: float, last: float, next_tick: NextTick) -> Iterator[int]:
    """The ticks from one time to another, both ends included."""
    tick = next_tick(first - 1)
    while tick is not None and tick <= last:
        yield tick
        tick = next_tick(tick)


def due_for_backfill(backfill: Backfill, next_tick: NextTick) -> int | None:
    """The next tick to create; None if there is none now."""
    if backfill.cancelled is not None or backfill.ended_at is not None or len(backfill.open) >= backfill.parallel:
        return None
    tick = backfill_ticks(backfill, next_tick)(backfill.after)
    return tick if tick is not None and tick <= backfill.last else None


def settle(backfill: Backfill, ends: Mapping[str, bool], now: float) -> Backfill:
    """The backfill with the plans that have ended: whether each of them succeeded, by name. If none is left, and no
    tick either, it has ended."""
    failures = [name for name in backfill.open if ends.get(name) is False]
    settled = backfill.changed(
        open=tuple(name for name in backfill.open if name not in ends),
        succeeded=backfill.succeeded + sum(ends.get(name, False) for name in backfill.open),
        failed=backfill.failed + len(failures),
        failures=(*backfill.failures, *failures)[-MOST_FAILURES:],
    )
    over = settled.cancelled is not None or settled.after >= settled.last
    return settled.changed(ended_at=now) if over and not settled.open and settled.ended_at is None else settled
