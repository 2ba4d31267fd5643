"""Syncs what is asked for, one sync at a time: what comes in while one is under way is done together in the next.

What fails is tried again, later each time, and a limit is waited for. From time to time everything is brought in step
without having been asked for, however much is asked for meanwhile: a delivery can get lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from asterism.series.github.reports import SyncReport
from asterism.series.github.syncing import GitHubSeries
from asterism.series.register import RateLimited, SeriesError

log = logging.getLogger("asterism.series")

LONGEST_PAUSE = 60.0


class Worker:
    """``every`` is how often everything is brought in step, in seconds. ``after`` is called with each report."""

    def __init__(
        self, service: GitHubSeries, every: float, after: Callable[[SyncReport], None] = lambda report: None
    ) -> None:
        self.service = service
        self.trouble: str | None = None
        """Why the last sync failed, if it did."""
        self._every, self._after = every, after
        self._pending: set[str] = set()
        self._all = True  # nobody knows what happened before
        self._asked = asyncio.Event()
        self._asked.set()

    def ask(self, series: frozenset[str] | None) -> None:
        """Bring these in step soon; all of them if it is None."""
        if series is None:
            self._all = True
        else:
            self._pending |= series
        self._asked.set()

    async def work(self) -> None:
        """For ever."""
        failed = 0
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(due):
                    await self._asked.wait()
            except TimeoutError:
                self._all = True
            self._asked.clear()
            self._all = self._all or loop.time() >= due
            only = None if self._all else frozenset(self._pending)
            if only is None:
                due = loop.time() + self._every
            self._all, self._pending = False, set()
            pause = await self._synced(only, failed)
            failed = failed + 1 if pause else 0
            if pause:
                await asyncio.sleep(pause)

    async def _synced(self, only: frozenset[str] | None, failed: int) -> float:
        """How long to wait before it is tried again; 0 if it went well."""
        pause = min(LONGEST_PAUSE, 2.0**failed)
        try:
            report = await self.service.sync(only)
            self._after(report)
        except RateLimited as error:
            self.trouble, pause = str(error), error.retry_after
        except SeriesError as error:
            self.trouble = str(error)
        except Exception as error:
            # one malformed answer must not end the service: it is told, and tried again
            log.exception("a sync failed")
            self.trouble = f"{type(error).__name__}: {error}"
        else:
            again = frozenset(one.name for one in report.series if one.status in ("contended", "unavailable"))
            self.trouble = "; ".join(one.problem for one in report.series if one.problem) or None
            if not again:
                return 0.0
            only = again
        log.warning("series: %s", self.trouble)
        self.ask(only)
        return pause
