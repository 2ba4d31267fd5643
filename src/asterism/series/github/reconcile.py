"""What a series becomes when it is held against reality. Pure: nothing is asked here, and nothing done."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from asterism.core.series.machine import SCHEMA, Live, Series
from asterism.series.compare_and_swap import told
from asterism.series.github.discovery_rules import NOTHING, Remains
from asterism.series.github.observed_state import Reality


@dataclass(frozen=True)
class InStep:
    """Who is gone leaves, who is new is queued in the order of the micro numbers, and if nobody is active the head of
    the queue is promoted. A series that is new begins with what is assigned already.

    ``gone`` are only issues that were looked at: an issue that came into the state after that stays there.

    With ``mending`` a state that cannot be read is made anew: who is assigned is being worked on, and goes before what
    was salvaged. If another has mended it meanwhile there is a readable state, which is treated as any other.

    What is made anew goes on from what ``remains`` of it elsewhere: its revision never falls behind one that is known,
    and who was active before is so since then."""

    reality: Reality
    claim: str
    by: str | None = None
    mending: bool = False
    remains: Remains = NOTHING

    def __call__(self, series: Series, now: float) -> Series:
        salvaged = self.mending and series.updated_at == 0.0  # what could not be read does not know when it was written
        anew = salvaged or series.revision == 0
        base = current = series.counted_from(self.remains.revision) if anew else series
        if salvaged and series.active is not None:
            holders = self.reality.holders()
            if holders and series.active not in holders:
                current = current.release(series.active, now)
        if anew:
            current = current.rebuild(self._live(), now)
        for number in self.reality.gone:
            current = current.release(number, now)
        current = current.expire(now)
        current = current.enqueue([(one.item, one.micro) for one in self._live()], now)
        current = current.promote(now, self.claim, self.by)
        if anew:
            current = self.remains.dated(current)
        current = current.as_one_change_of(base)
        if current is base:
            return base.stamped(now) if salvaged else series
        return current

    def _live(self) -> list[Live]:
        return [found.live for found in self.reality.live.values()]

    def told(self, before: Series, after: Series) -> str:
        """The message of the change: what happened, in a few words."""
        parts = [
            f"{fate} #{number}" for number, fate in self.reality.gone.items() if before.position(number) is not None
        ]
        if before.active not in (None, after.active, *self.reality.gone) and not self.mending:
            parts.append(f"end the lease of #{before.active}")
        if after.active != before.active and after.active is not None:
            parts.append(f"{'promote' if after.active in before.queue else 'claim'} #{after.active}")
        new = [f"#{item}" for item in after.queue if before.position(item) is None]
        if new:
            parts.append(f"queue {', '.join(new[:10])}{' and more' if len(new) > 10 else ''}")
        if self.mending:
            parts.insert(0, "rebuild")
        return told("sync: " + ("; ".join(parts) or "in step"), self.by)


def in_step(reality: Reality, by: str | None, mending: bool = False, remains: Remains = NOTHING) -> InStep:
    return InStep(reality, uuid.uuid4().hex, by, mending, remains)


def is_newer(text: str | None) -> bool:
    """Whether a later version of Asterism wrote this."""
    try:
        version = json.loads(text or "null")["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return type(version) is int and version > SCHEMA
