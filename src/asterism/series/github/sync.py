"""Sync of all series of a GitHub repository: one pass (``SyncService``), and passes on request (``SyncWorker``).

A sync may run as often as wanted, in any number of processes at once. If nothing changed it makes two requests, which
are usually answered from the cache, and writes nothing. The order of its steps makes it safe:

1. It reads the states, then lists the open issues, and reads those that are in a state but not in the list. An issue
   belongs to the series that it was forced into, otherwise to the one that its title or a label names.
2. It changes the state by compare-and-swap, which alone decides about the active issue. An issue that the list has and
   a newer state lacks may have been closed and released in between: before such an issue is queued, the state is read
   and the issues are listed again.
3. If the active issue is not assigned, or others are, it acquires the assignment lock of the series
   (``assignment``) and reads the state, the assignments and the active issue again. It unassigns the others and
   verifies that, and only then assigns the active one and verifies that. The lock is held for a short time, so the
   list of all open issues is not read under it.
4. It writes the tracking issue, if that shows something else.

Modes: ``observe`` writes only tracking issues that show the state as it would be; ``enforce`` does all of the above;
``announce`` also comments on each promotion, once. The comment comes from the first process that finds the active issue
assigned, because the one that promoted it may have failed to assign it, or died.

``SyncService`` syncs all series; ``series_sync`` has the sync of one.

``SyncWorker`` runs requested syncs one at a time, and merges requests that arrive during a sync. A series with a
problem is retried by itself after a growing pause, and does not delay the others. If GitHub cannot be used at all,
everything waits for a growing pause, or as long as a rate limit says. All series are synced at a regular interval,
however many requests there are, because a webhook delivery can get lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from asterism.core.backoff import retry_delay
from asterism.core.series.machine import Series
from asterism.series.github.discovery import similar_names
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.observed_state import IssueSurvey
from asterism.series.github.series_sync import SeriesSync, SyncContext
from asterism.series.github.sync_report import SeriesReport, SyncReport, count_reports
from asterism.series.github.tracking_issue import TrackingRecord
from asterism.series.register import RateLimited, RegisterUnavailable, SeriesError, Snapshot

log = logging.getLogger("asterism.series")

MAX_PAUSE = 60.0
"""The longest pause between two tries, in seconds."""
MAX_CONTENDED_PAUSE = 10.0
"""The same for a contended series: other processes release its lock soon."""
RETRIED_STATUSES = ("contended", "unavailable", "no view")


class SyncService(SyncContext):
    """Syncs the series of one repository."""

    async def sync(self, only: frozenset[str] | None = None) -> SyncReport:
        """Sync all series, or those of ``only`` that the settings include.

        A problem with one series is in its report, and does not affect the others. Raises RegisterUnavailable and
        RateLimited if GitHub cannot be used at all."""
        client = self.register.client
        client.begin_operation(cut_reads=True)
        self.begin_sync()
        before = client.calls.copy()
        wanted = self.settings.only
        if only is not None:
            wanted = only if wanted is None else only & wanted
        if wanted is not None and not wanted:
            return SyncReport(self.register.url, self.settings.mode, [], {})
        heads = await self.register.heads()
        stored_names = {name for ref in heads if (name := self.register.name_of(ref)) is not None}
        selected = {name for name in stored_names if wanted is None or name in wanted}
        states = [heads[self.register.ref_of(name)] for name in stored_names]
        texts = await self.register.texts([*states, *self._tokens(selected, heads)])
        # of every series: what one of them forces is of no other
        self.observer.note_forced(
            Series.salvaged(texts.get(heads[self.register.ref_of(name)]), name) for name in stored_names
        )
        survey = await self.observer.survey()
        names = selected | {name for name in survey.series if wanted is None or name in wanted}
        texts |= await self.register.texts(self._tokens(names - selected, heads))
        records = self.tracking.register
        reports = []
        for name in sorted(names):
            try:
                state = _snapshot(self.register, name, heads, texts)
                record = _snapshot(records, name, heads, texts)
            except RegisterUnavailable as error:
                report = SeriesReport(name, Series(name), observed=not self.settings.acts)
                report.status, report.problem = "unavailable", str(error)
            else:
                report = await SeriesSync(self, name, survey, state, record).run()
            reports.append(report)
        if not survey.series:
            stored = [TrackingRecord.parse(texts.get(heads.get(records.ref_of(name), "")), name) for name in names]
            if all(record.rules != self.matcher.rules for record in stored):
                _mark_unmatched(reports)
        calls = client.calls - before
        count_reports(self.metrics, reports, calls)
        result = SyncReport(self.register.url, self.settings.mode, reports, calls)
        if not self.settings.acts:
            result.near_misses, result.lookalikes = self.observer.near_misses(survey), similar_names(names)
        return result

    async def assign(self, name: str, issue: int) -> Series:
        """Assign the active issue of a series, if that is ``issue``, which belongs to it whatever its title is. Returns
        the state. Raises SeriesError, also AssignmentFailed and Contended."""
        self.register.client.begin_operation(cut_reads=True)
        self.begin_sync()
        seen = await self.register.read_all()
        self.observer.note_forced(Series.salvaged(snapshot.text, other) for other, snapshot in seen.items())
        self.observer.forced[issue] = name
        nothing = Snapshot(None, None)
        series_sync = SeriesSync(self, name, IssueSurvey({}, ()), seen.get(name, nothing), nothing)
        if series_sync.report.state.active == issue:
            await series_sync.assign()
        return series_sync.report.state

    async def series_of(self, issue: int) -> str | None:
        """The series that an issue belongs to by its title or labels, whatever its state."""
        member = self.matcher.match(await self.register.client.get(f"issues/{issue}"))
        return member.series if member is not None else None

    def _tokens(self, names: set[str], heads: dict[str, str]) -> list[str]:
        """The commits to read, of states, records and locks, so that one query reads them all."""
        registers = (self.register, self.tracking.register, self.lock.register)
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


# -- syncs on request -------------------------------------------------------------------------------------------------


class _Retry(NamedTuple):
    """When a series is tried again, and how often it failed in a row."""

    due: float
    failed: int


class SyncWorker:
    """Syncs with ``service``; all series every ``every`` seconds. ``after`` is called with each report."""

    def __init__(
        self, service: SyncService, every: float, after: Callable[[SyncReport], None] = lambda report: None
    ) -> None:
        self.service = service
        self._every, self._after = every, after
        self._pending: set[str] = set()
        self._all = True  # anything may have happened before
        self._requested = asyncio.Event()
        self._requested.set()
        self._retries: dict[str, _Retry] = {}
        self._problems: dict[str, str] = {}
        self._failure: str | None = None
        self._failed = 0

    @property
    def problem(self) -> str | None:
        """Why the last sync failed, or the problems of series; None if there are none."""
        return self._failure or "; ".join(self._problems[name] for name in sorted(self._problems)) or None

    def request(self, series: frozenset[str] | None) -> None:
        """Sync these series soon; None for all."""
        if series is None:
            self._all = True
        else:
            self._pending |= series
        self._requested.set()

    async def run(self) -> None:
        """Sync until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(min([due, *(retry.due for retry in self._retries.values())])):
                    await self._requested.wait()
            except TimeoutError:
                pass
            self._requested.clear()
            now = loop.time()
            wanted = self._pending | {name for name, retry in self._retries.items() if retry.due <= now}
            only = None if self._all or now >= due else frozenset(wanted)
            if only is None:
                due = now + self._every
            elif not only:
                continue
            self._all, self._pending = False, set()
            pause = await self._sync(only)
            if pause:
                await asyncio.sleep(pause)

    async def _sync(self, only: frozenset[str] | None) -> float:
        """Returns how long to pause before anything else; 0 after a sync that was possible."""
        pause = retry_delay(self._failed + 1, 1.0, MAX_PAUSE)
        try:
            report = await self.service.sync(only)
            self._after(report)
        except RateLimited as error:
            self._failure, pause = str(error), error.retry_after
        except SeriesError as error:
            self._failure = str(error)
        except Exception as error:
            # one malformed response must not end the service
            log.exception("a sync failed")
            self._failure = f"{type(error).__name__}: {error}"
        else:
            self._failure, self._failed = None, 0
            self._schedule_retries(only, report.series)
            return 0.0
        self._failed += 1
        log.warning("series: %s", self._failure)
        self.request(only)
        return pause

    def _schedule_retries(self, only: frozenset[str] | None, reports: list[SeriesReport]) -> None:
        now = asyncio.get_running_loop().time()
        before = self._retries
        synced = set(before) | set(self._problems) if only is None else only
        self._retries = {name: retry for name, retry in before.items() if name not in synced}
        self._problems = {name: problem for name, problem in self._problems.items() if name not in synced}
        for report in reports:
            if report.problem:
                self._problems[report.name] = report.problem
            if report.status in RETRIED_STATUSES:
                failed = before[report.name].failed + 1 if report.name in before else 0
                longest = MAX_CONTENDED_PAUSE if report.status == "contended" else MAX_PAUSE
                self._retries[report.name] = _Retry(now + retry_delay(failed + 1, 1.0, longest), failed)
                log.warning("series %s: %s", report.name, report.problem)
