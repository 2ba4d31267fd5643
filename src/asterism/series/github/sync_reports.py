"""What a sync found and did, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asterism.core.series.machine import Series
from asterism.series.github.observed_state import Fate
from asterism.series.github.titles import NearMiss
from asterism.series.github.unassignment import Unassignment
from asterism.series.sync_metrics import Metrics

MOST_SHOWN = 20
"""Near misses that are told in sentences; as JSON they are all there."""


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
    unassigned: Unassignment | None = None
    """A person took the active issue away: it was assigned again, or the series paused."""

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
            "unassigned_by": self.unassigned.by if self.unassigned is not None else None,
        }

    def gauges(self) -> dict[str, Any]:
        return {
            "active": self.state.active is not None,
            "active_issue": self.state.active,
            "queue_length": len(self.state.queue),
            "duplicates": len(self.duplicates),
            "duplicate_issues": list(self.duplicates),
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
        if self.unassigned is not None:
            then = "the series is paused" if self.state.paused else "it was assigned again"
            told.append(f"{self.unassigned.by} unassigned #{self.unassigned.issue}: {then}")
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
    near_misses: list[NearMiss] = field(default_factory=list)
    """Only of who observes, as the next one."""
    lookalikes: list[list[str]] = field(default_factory=list)

    @property
    def preventable(self) -> int:
        """Assignments beside that of the active issue that enforcing would have prevented."""
        return sum(len(one.duplicates) for one in self.series if one.observed)

    def of(self, issue: int) -> SeriesReport | None:
        """The series that an issue is in."""
        return next((one for one in self.series if one.state.position(issue) is not None), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "mode": self.mode,
            "series": [one.to_json() for one in self.series],
            "api": dict(self.calls),
            "near_misses": [{"issue": one.number, "title": one.title, "why": one.why} for one in self.near_misses],
            "lookalikes": self.lookalikes,
            "preventable_duplicates": self.preventable,
        }

    def observations(self) -> list[str]:
        """What who only observes has to say beside its series, in sentences."""
        told = [f"#{one.number} belongs to no series: {one.why}: {one.title}" for one in self.near_misses[:MOST_SHOWN]]
        if len(self.near_misses) > MOST_SHOWN:
            told.append(f"and {len(self.near_misses) - MOST_SHOWN} more that look like issues of a series (--json)")
        told += [f"these series look alike, and may be meant for one: {', '.join(names)}" for names in self.lookalikes]
        if self.preventable:
            many = "assignments" if self.preventable > 1 else "assignment"
            told.append(f"enforcing would have prevented {self.preventable} {many} beside an active issue")
        return told


def count(metrics: Metrics, reports: list[SeriesReport], calls: Mapping[str, int]) -> None:
    """Only what was done, or every cycle that observes would count the same again; the gauges say what is found. What
    enforcing would have prevented is counted when it is found first."""
    add = metrics.add
    for report in reports:
        add("contended", report.status == "contended")
        add("problems", report.problem is not None)
        metrics.gauges[report.name] = report.gauges()
        if report.observed:
            add("duplicates_preventable", metrics.newly_observed(report.name, report.duplicates))
            continue
        fates = list(report.left.values())
        add("completed", fates.count(Fate.COMPLETED))
        add("abandoned", fates.count(Fate.ABANDONED))
        add("departed", sum(fate not in (Fate.COMPLETED, Fate.ABANDONED) for fate in fates))
        add("duplicate_prevented", len(report.queued) if report.state.active is not None else 0)
        add("duplicates_found", len(report.duplicates) + len(report.repaired))
        add("unassigned", len(report.repaired))
        add("rebuilt", report.rebuilt)
    add("api_requests", calls.get("requests", 0))
    add("api_not_modified", calls.get("not_modified", 0))
    add("rate_limited", calls.get("rate_limited", 0))
