"""Reconcile: the step that brings the state of a series in line with its observed issues. Pure."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field

from asterism.core.series.machine import SCHEMA, Live, Series
from asterism.series.claims import signed
from asterism.series.github.observed_state import ObservedSeries
from asterism.series.github.tracking_record import NOTHING_KNOWN, LastKnown

MAX_NAMED = 10
"""Queued issues that a message names."""


@dataclass(frozen=True)
class Reconciliation:
    """A step for ``update``: gone issues leave, new ones are queued by micro number, and if no issue is active the head
    of the queue is promoted. A new series starts with the issues that are already assigned.

    ``observed.gone`` has only issues that were read, so an issue that was added to the state later stays.

    With ``repair`` an unreadable state is written anew; an assigned issue is being worked on, and takes precedence over
    a salvaged one. If another process repaired it first, the readable state is treated like any other.

    A new state continues from the ``last_known`` one: its revision is never below a known revision, and an issue that
    was active before keeps the time since when it is active."""

    observed: ObservedSeries
    by: str | None = None
    repair: bool = False
    last_known: LastKnown = NOTHING_KNOWN
    claim: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, series: Series, now: float) -> Series:
        salvaged = self.repair and series.updated_at == 0.0  # a salvaged state has no time
        new = salvaged or series.revision == 0
        base = current = series.counted_from(self.last_known.revision) if new else series
        if salvaged and series.active is not None:
            assigned = self.observed.assigned()
            if assigned and series.active not in assigned:
                current = current.release(series.active, now)
        if new:
            current = current.rebuild(self._live(), now)
        for number in self.observed.gone:
            current = current.release(number, now)
        current = current.expire(now)
        current = current.enqueue([(live.item, live.micro) for live in self._live()], now)
        current = current.promote(now, self.claim, self.by)
        if new:
            current = self.last_known.restore_since(current)
        current = current.as_one_change_of(base)
        if current is base:
            return base.stamped(now) if salvaged else series
        return current

    def _live(self) -> list[Live]:
        return [issue.live for issue in self.observed.open.values()]

    def message(self, before: Series, after: Series) -> str:
        """The message of the change."""
        gone = self.observed.gone
        parts = ["rebuild"] if self.repair else []
        parts += [f"{reason} #{number}" for number, reason in gone.items() if before.position(number) is not None]
        if before.active not in (None, after.active, *gone) and not self.repair:
            parts.append(f"end the lease of #{before.active}")
        if after.active != before.active and after.active is not None:
            parts.append(f"{'promote' if after.active in before.queue else 'claim'} #{after.active}")
        new = [f"#{item}" for item in after.queue if before.position(item) is None]
        if new:
            parts.append(f"queue {', '.join(new[:MAX_NAMED])}{' and more' if len(new) > MAX_NAMED else ''}")
        return signed("sync: " + ("; ".join(parts) or "in step"), self.by)


def is_newer_version(text: str | None) -> bool:
    """Whether a later version of Asterism wrote this state."""
    try:
        version = json.loads(text or "null")["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return type(version) is int and version > SCHEMA
