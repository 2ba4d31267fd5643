"""What a sync found and did, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asterism.core.series import Series
from asterism.series.github.reality import Fate


@dataclass
class SeriesReport:
    """Of one series. ``duplicates`` are assigned beside the active one, ``repaired`` were; ``problem`` is a sentence,
    and ``status`` the word for it. If what its state holds is ``unknown``, nothing was done; nor if the series is left
    alone, as ``left_alone`` says why. If it was only ``observed``, all of this is what would be: nobody has been given
    anything."""

    name: str
    state: Series
    assigned: bool = False
    promoted: int | None = None
    left: dict[int, Fate] = field(default_factory=dict)
    queued: list[int] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)
    repaired: list[int] = field(default_factory=list)
    rebuilt: bool = False
    changed: bool = False
    observed: bool = False
    unknown: bool = False
    tracking: int | None = None
    status: str = "in step"
    problem: str | None = None
    left_alone: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "series": self.name,
            "status": self.status,
            "active": self.state.active,
            "assigned": self.assigned,
            "queue": list(self.state.queue),
            "paused": self.state.paused,
            "revision": self.state.revision,
            "promoted": self.promoted,
            "left": {str(number): str(fate) for number, fate in self.left.items()},
            "queued": self.queued,
            "duplicates": self.duplicates,
            "repaired": self.repaired,
            "rebuilt": self.rebuilt,
            "changed": self.changed,
            "observed": self.observed,
            "tracking_issue": self.tracking,
            "problem": self.problem,
            "left_alone": self.left_alone,
        }

    def gauges(self) -> dict[str, Any]:
        return {
            "active": self.state.active is not None,
            "active_issue": self.state.active,
            "queue_length": len(self.state.queue),
            "duplicates": len(self.duplicates),
            "paused": self.state.paused is not None,
            "revision": self.state.revision,
        }

    def lines(self, *, problem: bool = True) -> list[str]:
        """What happened, in sentences; with the ``problem``, unless that is told elsewhere. No line begins with what
        others wrote: a runner of GitHub Actions takes one that begins with ``::`` for a command."""
        if self.unknown:
            return [f"series {self.name}: left as it is", *([f"  {self.problem}"] if problem else [])]
        if self.left_alone:
            return [f"series {self.name}: left as it is, {self.left_alone}"]
        would = "would be " if self.observed else ""
        told = [f"#{number} {fate}" for number, fate in self.left.items()]
        if self.rebuilt:
            told.append("its state could not be read and was rebuilt from the open issues")
        if self.promoted is not None:
            told.append(f"#{self.promoted} {would}promoted")
        if self.queued:
            what = "would queue" if self.observed else "queued"
            told.append(f"{what} {', '.join(f'#{number}' for number in self.queued)}")
        if self.repaired:
            told.append(f"unassigned {', '.join(f'#{number}' for number in self.repaired)}, which was not their turn")
        if self.duplicates:
            told.append(f"assigned beside the active one: {', '.join(f'#{number}' for number in self.duplicates)}")
        if self.problem and problem:
            told.append(self.problem)
        is_active = f"{would or 'is '}active"
        active = f"nobody {is_active}" if self.state.active is None else f"#{self.state.active} {is_active}"
        if self.state.active is not None and not self.assigned and not self.observed:
            active += " but not assigned"
        waiting = f", {len(self.state.queue)} waiting" if self.state.queue else ""
        paused = f", paused {self.state.paused}" if self.state.paused else ""
        return [f"series {self.name}: {active}{waiting}{paused}", *(f"  {one}" for one in told)]


@dataclass
class SyncReport:
    """Of all of them."""

    repository: str
    mode: str
    series: list[SeriesReport]
    calls: Mapping[str, int]

    def of(self, issue: int) -> SeriesReport | None:
        """The series that an issue is in."""
        return next((one for one in self.series if one.state.position(issue) is not None), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "mode": self.mode,
            "series": [one.to_json() for one in self.series],
            "api": dict(self.calls),
        }
