"""Syncs what is asked for, one sync at a time: what comes in while one is under way is done together in the next.

A series that is in trouble is tried again by itself, later each time, and holds up no other. When GitHub cannot be
asked at all everything waits, also later each time, and as long as a limit says. From time to time everything is
brought in step without having been asked for, however much is asked for meanwhile: a delivery can get lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from asterism.series.github.sync import GitHubSeries
from asterism.series.github.sync_reports import SeriesReport, SyncReport
from asterism.series.register import RateLimited, SeriesError

log = logging.getLogger("asterism.series")

LONGEST_PAUSE = 60.0
"""Between two tries, in seconds."""
WHILE_OTHERS_HAVE_IT = 10.0
"""The same, if others were first: their turn ends soon."""
UNDONE = ("contended", "unavailable", "no view")


class _Late(NamedTuple):
    """A series that is to be tried again: when, and how often it failed in a row."""

    due: float
    failed: int


class Worker:
    """``every`` is how often everything is brought in step, in seconds. ``after`` is called with each report."""

    def __init__(
        self, service: GitHubSeries, every: float, after: Callable[[SyncReport], None] = lambda report: None
    ) -> None:
        self.service = service
        self._every, self._after = every, after
        self._pending: set[str] = set()
        self._all = True  # nobody knows what happened before
        self._asked = asyncio.Event()
        self._asked.set()
        self._late: dict[str, _Late] = {}
        self._problems: dict[str, str] = {}
        self._failure: str | None = None
        self._failed = 0

    @property
    def trouble(self) -> str | None:
        """Why the last sync failed, or what is wrong with series, if anything is."""
        return self._failure or "; ".join(self._problems[name] for name in sorted(self._problems)) or None

    def ask(self, series: frozenset[str] | None) -> None:
        """Bring these in step soon; all of them if it is None."""
        if series is None:
            self._all = True
        else:
            self._pending |= series
        self._asked.set()

    async def work(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(min([due, *(late.due for late in self._late.values())])):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            now = loop.time()
            wanted = self._pending | {name for name, late in self._late.items() if late.due <= now}
            only = None if self._all or now >= due else frozenset(wanted)
            if only is None:
                due = now + self._every
            elif not only:
                continue
            self._all, self._pending = False, set()
            pause = await self._synced(only)
            if pause:
                await asyncio.sleep(pause)

    async def _synced(self, only: frozenset[str] | None) -> float:
        """How long nothing is to be asked at all; 0 if it could be."""
        pause = min(LONGEST_PAUSE, 2.0**self._failed)
        try:
            report = await self.service.sync(only)
            self._after(report)
        except RateLimited as error:
            self._failure, pause = str(error), error.retry_after
        except SeriesError as error:
            self._failure = str(error)
        except Exception as error:
            # one malformed answer must not end the service: it is told, and tried again
            log.exception("a sync failed")
            self._failure = f"{type(error).__name__}: {error}"
        else:
            self._failure, self._failed = None, 0
            self._judge(only, report.series)
            return 0.0
        self._failed += 1
        log.warning("series: %s", self._failure)
        self.ask(only)
        return pause

    def _judge(self, only: frozenset[str] | None, reports: list[SeriesReport]) -> None:
        """Which series are to be tried again, and when."""
        now = asyncio.get_running_loop().time()
        before = self._late
        synced = set(before) | set(self._problems) if only is None else only
        self._late = {name: late for name, late in before.items() if name not in synced}
        self._problems = {name: said for name, said in self._problems.items() if name not in synced}
        for one in reports:
            if one.problem:
                self._problems[one.name] = one.problem
            if one.status in UNDONE:
                failed = before[one.name].failed + 1 if one.name in before else 0
                longest = WHILE_OTHERS_HAVE_IT if one.status == "contended" else LONGEST_PAUSE
                self._late[one.name] = _Late(now + min(longest, 2.0**failed), failed)
                log.warning("series %s: %s", one.name, one.problem)
