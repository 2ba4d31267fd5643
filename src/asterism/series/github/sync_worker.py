"""The sync worker: runs requested syncs one at a time, and merges requests that arrive during a sync.

A series with a problem is retried by itself after a growing pause, and does not delay the others. If GitHub cannot be
used at all, everything waits for a growing pause, or as long as a rate limit says. All series are synced at a regular
interval, however many requests there are, because a webhook delivery can get lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from asterism.series.github.sync import SyncService
from asterism.series.github.sync_report import SeriesReport, SyncReport
from asterism.series.register import RateLimited, SeriesError

log = logging.getLogger("asterism.series")

MAX_PAUSE = 60.0
"""The longest pause between two tries, in seconds."""
MAX_CONTENDED_PAUSE = 10.0
"""The same for a contended series: other processes release its lock soon."""
RETRIED_STATUSES = ("contended", "unavailable", "no view")


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
        pause = min(MAX_PAUSE, 2.0**self._failed)
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
                self._retries[report.name] = _Retry(now + min(longest, 2.0**failed), failed)
                log.warning("series %s: %s", report.name, report.problem)
