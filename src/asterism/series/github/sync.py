"""Sync of all series of a repository: observe the issues, update the states, assign, show the result.

A sync may run as often as wanted, in any number of processes at once. If nothing changed it makes two requests, which
are usually answered from the cache, and writes nothing. The order of its steps makes it safe:

1. It lists the open issues, and reads those that are in a state but not in the list.
2. It changes the state by compare-and-swap, which alone decides about the active issue.
3. If the active issue is not assigned, or others are, it acquires the assignment lock of the series
   (``assignment_lock``) and reads the state, the assignments and the active issue again. It unassigns the others and
   verifies that, and only then assigns the active one and verifies that. The lock is held for a short time, so the
   list of all open issues is not read under it.
4. It writes the tracking issue, if that shows something else.

Modes: ``observe`` writes only tracking issues that show the state as it would be; ``enforce`` does all of the above;
``announce`` also comments on each promotion, once. The comment comes from the first process that finds the active issue
assigned, because the one that promoted it may have failed to assign it, or died.

``SyncService`` syncs all series; ``series_sync`` has the sync of one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from asterism.core.series.machine import Series
from asterism.series.github.assignment import Assigner
from asterism.series.github.assignment_lock import SeriesAssignmentLock
from asterism.series.github.discovery import Assignee, SeriesMatcher, similar_names
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.observed_state import IssueObserver
from asterism.series.github.place_labels import PlaceLabels
from asterism.series.github.series_sync import SeriesSync, SyncContext
from asterism.series.github.sync_report import SeriesReport, SyncReport, count_reports
from asterism.series.github.sync_settings import SyncSettings
from asterism.series.github.tracking_issue import TrackingIssues
from asterism.series.github.tracking_record import TrackingRecord
from asterism.series.register import RegisterUnavailable, Snapshot
from asterism.series.series_metrics import SeriesMetrics


class SyncService:
    """Syncs the series of one repository. ``metrics`` adds up over all its syncs."""

    def __init__(
        self,
        register: GitHubRegister,
        settings: SyncSettings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        client, assignee = register.client, Assignee(settings.assignee)
        self.register, self.settings = register, settings
        self.metrics = SeriesMetrics(facts={"repository": register.url, "mode": settings.mode})
        self.matcher = SeriesMatcher(settings.pattern, settings.label_pattern, assignee, settings.label)
        self.context = SyncContext(
            register,
            settings,
            self.metrics,
            self.matcher,
            assignee,
            IssueObserver(client, self.matcher),
            SeriesAssignmentLock(register),
            Assigner(client, assignee, settings.assign_with),
            TrackingIssues(register, self.matcher.rules if settings.acts else None),
            PlaceLabels(client, self.matcher, settings.active_label, settings.queued_label),
            sleep,
            clock,
        )

    async def sync(self, only: frozenset[str] | None = None) -> SyncReport:
        """Sync all series, or those of ``only`` that the settings include.

        A problem with one series is in its report, and does not affect the others. Raises RegisterUnavailable and
        RateLimited if GitHub cannot be used at all."""
        context, client = self.context, self.register.client
        client.begin_operation(cut_reads=True)
        context.begin_sync()
        before = client.calls.copy()
        wanted = self.settings.only
        if only is not None:
            wanted = only if wanted is None else only & wanted
        if wanted is not None and not wanted:
            return SyncReport(self.register.url, self.settings.mode, [], {})
        survey = await context.observer.survey()
        heads = await self.register.heads()
        names = {name for ref in heads if (name := self.register.name_of(ref)) is not None} | set(survey.series)
        names = {name for name in names if wanted is None or name in wanted}
        texts = await self.register.texts(self._tokens(names, heads))
        records = context.tracking.register
        reports = []
        for name in sorted(names):
            try:
                state = _snapshot(self.register, name, heads, texts)
                record = _snapshot(records, name, heads, texts)
            except RegisterUnavailable as error:
                report = SeriesReport(name, Series(name), observed=not self.settings.acts)
                report.status, report.problem = "unavailable", str(error)
            else:
                report = await SeriesSync(context, name, survey, state, record).run()
            reports.append(report)
        if not survey.series:
            kept = [TrackingRecord.parse(texts.get(heads.get(records.ref_of(name), "")), name).rules for name in names]
            if self.matcher.rules not in kept:
                _mark_unmatched(reports)
        calls = client.calls - before
        count_reports(self.metrics, reports, calls)
        result = SyncReport(self.register.url, self.settings.mode, reports, calls)
        if not self.settings.acts:
            result.near_misses, result.lookalikes = context.observer.near_misses(survey), similar_names(names)
        return result

    async def series_of(self, issue: int) -> str | None:
        """The series that an issue belongs to by its title or labels, whatever its state."""
        found = self.matcher.match(await self.register.client.get(f"issues/{issue}"))
        return found.series if found is not None else None

    def _tokens(self, names: set[str], heads: dict[str, str]) -> list[str]:
        """The commits to read, of states, records and locks, so that one query reads them all."""
        registers = (self.register, self.context.tracking.register, self.context.lock.register)
        refs = [register.ref_of(name) for name in names for register in registers]
        return [heads[ref] for ref in refs if ref in heads]


def _snapshot(register: GitHubRegister, name: str, heads: Mapping[str, str], texts: Mapping[str, str]) -> Snapshot:
    token = heads.get(register.ref_of(name))
    return Snapshot(register.text_of(token, texts) if token else None, token)


def _mark_unmatched(reports: Iterable[SeriesReport]) -> None:
    """A sync found no issue of any series, and never stored its rules, but others did: its pattern or label is likely
    mistyped."""
    reports = list(reports)
    if not all(report.left_alone for report in reports):
        return
    for report in reports:
        report.status, report.unknown = "unmatched", True
        report.problem = f"no open issue belongs to any series by these patterns and labels; {report.left_alone}"
