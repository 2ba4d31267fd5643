"""Reports of a sync: what it found and did, as sentences, JSON and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asterism.core.json_values import JsonObject
from asterism.core.series.machine import Series
from asterism.series.github.assignment import Unassignment
from asterism.series.github.discovery import NearMiss
from asterism.series.github.observed_state import Departure
from asterism.series.series_metrics import SeriesMetrics

MAX_NEAR_MISSES = 20
"""Near misses that are listed as sentences; the JSON has all."""


@dataclass
class SeriesReport:
    """The report of one series.

    ``duplicates`` are issues that are assigned besides the active one; ``repaired`` ones were, and are unassigned now.
    ``status`` is a keyword, and ``problem`` a sentence about it. If the state is ``unknown`` nothing was done, nor if
    the series was left alone; ``left_alone`` is the reason. If it was only ``observed``, the report says what a sync
    would do, and nothing was claimed or assigned."""

    name: str
    state: Series
    assigned: bool = False
    promoted: int | None = None
    left: dict[int, Departure] = field(default_factory=dict)
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
    """A person unassigned the active issue: it was assigned again, or the series was paused."""

    def to_json(self) -> JsonObject:
        return {
            "series": self.name,
            "status": self.status,
            "active": self.state.active,
            "assigned": self.assigned,
            "queue": list(self.state.queue),
            "paused": self.state.paused,
            "revision": self.state.revision,
            "promoted": self.promoted,
            "left": {str(number): str(reason) for number, reason in self.left.items()},
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

    def _departure(self, number: int, reason: Departure, would: str) -> str:
        if reason is not Departure.EVICTED:
            return f"#{number} {reason}"
        return (
            f"#{number} {would}evicted: neither its title nor a label puts it into {self.name} "
            "(`asterism series claim --force` would keep it)"
        )

    def gauges(self) -> JsonObject:
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
        """The report as sentences, with the ``problem`` unless that is reported elsewhere.

        No line begins with text from outside: a runner of GitHub Actions takes a line that begins with ``::`` for a
        command."""
        if self.unknown:
            return [f"series {self.name}: left unchanged", *([f"  {self.problem}"] if problem else [])]
        if self.left_alone:
            return [f"series {self.name}: left unchanged {self.left_alone}"]
        would = "would be " if self.observed else ""
        details = [self._departure(number, reason, would) for number, reason in self.left.items()]
        if self.rebuilt:
            details.append("its unreadable state was rebuilt from the open issues")
        if self.promoted is not None:
            details.append(f"#{self.promoted} {would}promoted")
        if self.queued:
            verb = "would queue" if self.observed else "queued"
            details.append(f"{verb} {', '.join(f'#{number}' for number in self.queued)}")
        if self.repaired:
            details.append(f"unassigned {', '.join(f'#{number}' for number in self.repaired)}: not the active issue")
        if self.unassigned is not None:
            then = "the series is paused" if self.state.paused else "it was assigned again"
            details.append(f"{self.unassigned.by} unassigned #{self.unassigned.issue}: {then}")
        if self.duplicates:
            details.append(
                f"assigned besides the active issue: {', '.join(f'#{number}' for number in self.duplicates)}"
            )
        if self.problem and problem:
            details.append(self.problem)
        is_active = f"{would or 'is '}active"
        active = f"no issue {is_active}" if self.state.active is None else f"#{self.state.active} {is_active}"
        if self.state.active is not None and not self.assigned and not self.observed:
            active += " but not assigned"
        waiting = f", {len(self.state.queue)} waiting" if self.state.queue else ""
        paused = f", paused {self.state.paused}" if self.state.paused else ""
        return [f"series {self.name}: {active}{waiting}{paused}", *(f"  {detail}" for detail in details)]


@dataclass
class SyncReport:
    """The report of all series. Only a sync that observes has ``near_misses`` and ``lookalikes``."""

    repository: str
    mode: str
    series: list[SeriesReport]
    calls: Mapping[str, int]
    near_misses: list[NearMiss] = field(default_factory=list)
    lookalikes: list[list[str]] = field(default_factory=list)

    @property
    def preventable(self) -> int:
        """The number of assignments besides that of the active issue, which enforcing would have prevented."""
        return sum(len(report.duplicates) for report in self.series if report.observed)

    def of(self, issue: int) -> SeriesReport | None:
        """The report of the series that has an issue."""
        return next((report for report in self.series if report.state.position(issue) is not None), None)

    def to_json(self) -> JsonObject:
        return {
            "repository": self.repository,
            "mode": self.mode,
            "series": [report.to_json() for report in self.series],
            "api": dict(self.calls),
            "near_misses": [{"issue": miss.number, "title": miss.title, "why": miss.why} for miss in self.near_misses],
            "lookalikes": self.lookalikes,
            "preventable_duplicates": self.preventable,
        }

    def observations(self) -> list[str]:
        """The near misses, similar names and preventable assignments, as sentences."""
        lines = [
            f"#{miss.number} belongs to no series: {miss.why}: {miss.title}"
            for miss in self.near_misses[:MAX_NEAR_MISSES]
        ]
        if len(self.near_misses) > MAX_NEAR_MISSES:
            lines.append(f"and {len(self.near_misses) - MAX_NEAR_MISSES} more similar issues (--json lists them)")
        lines += [f"these names are similar and may mean one series: {', '.join(names)}" for names in self.lookalikes]
        if self.preventable:
            many = "assignments" if self.preventable > 1 else "assignment"
            lines.append(f"enforcing would have prevented {self.preventable} {many} besides an active issue")
        return lines


def count_reports(metrics: SeriesMetrics, reports: list[SeriesReport], calls: Mapping[str, int]) -> None:
    """Add the reports of a sync to the metrics.

    Only actions are counted, because each observing sync would count the same findings again; the gauges show those. A
    preventable duplicate is counted when it is first found."""
    add = metrics.add
    for report in reports:
        add("contended", report.status == "contended")
        add("problems", report.problem is not None)
        metrics.gauges[report.name] = report.gauges()
        if report.observed:
            add("duplicates_preventable", metrics.newly_observed(report.name, report.duplicates))
            continue
        departures = list(report.left.values())
        add("completed", departures.count(Departure.COMPLETED))
        add("abandoned", departures.count(Departure.ABANDONED))
        add("departed", sum(reason not in (Departure.COMPLETED, Departure.ABANDONED) for reason in departures))
        add("duplicate_prevented", len(report.queued) if report.state.active is not None else 0)
        add("duplicates_found", len(report.duplicates) + len(report.repaired))
        add("unassigned", len(report.repaired))
        add("rebuilt", report.rebuilt)
    add("api_requests", calls.get("requests", 0))
    add("api_not_modified", calls.get("not_modified", 0))
    add("rate_limited", calls.get("rate_limited", 0))
