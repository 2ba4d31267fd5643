"""A run in the hands of a device, and how sure the device may be of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import lru_cache

from asterism.core.run.run import Grant, Progress, Run
from asterism.core.run.workflow import Workflow
from asterism.store.protocol import ProgressReport


class Holding:
    """``since`` is when it came, by the device's own clock. ``stopping`` is why its execution is being stopped;
    ``telling`` is that it is over, and only the store has not heard of it yet; ``done`` that its slot is given away
    already; ``lost`` that the device has given it up, so that there is no result. ``on_news`` is called when there is
    something to report."""

    __slots__ = (
        "changed",
        "done",
        "grant",
        "lost",
        "on_news",
        "progress",
        "run",
        "since",
        "started",
        "stopping",
        "tail",
        "task",
        "telling",
        "workflow",
    )

    def __init__(self, run: Run, workflow: Workflow, since: float, on_news: Callable[[], None]) -> None:
        assert run.session is not None
        self.run, self.workflow, self.since, self.on_news = run, workflow, since, on_news
        self.grant = Grant(run.id, run.session, run.epoch)
        self.started = run.started_at is not None
        self.progress: Progress | None = run.progress
        self.tail = ""
        self.changed = self.telling = self.done = self.lost = False
        self.stopping: str | None = None
        self.task: asyncio.Task[None] | None = None

    def report(self) -> ProgressReport:
        return ProgressReport(self.run.id, self.grant.epoch, self.progress, self.tail)

    def told_progress(self, progress: Progress) -> None:
        self.progress, self.changed = progress, True
        self.on_news()

    def told_output(self, tail: str) -> None:
        self.tail, self.changed = tail, True
        self.on_news()


def worth(holding: Holding) -> tuple[int, bool, float]:
    """The least urgent first; among them what has not begun, and then what came last."""
    return (holding.run.priority, holding.started, -holding.since)


class Past:
    """What is not here any more: the last ``most``, and up to as many before."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._late: set[Hashable] = set()
        self._early: set[Hashable] = set()

    def add(self, one: Hashable) -> None:
        self._late.add(one)
        if len(self._late) >= self._most:
            self._early, self._late = self._late, set()

    def __contains__(self, one: Hashable) -> bool:
        return one in self._late or one in self._early


@lru_cache(64)
def margin(timeout: float, grace: float) -> float:
    """How long before the store would take a run away its device stops working on it: time to stop, and a tenth for
    clocks that do not run alike, but never more than a third."""
    return min(timeout / 3, grace + timeout / 10)
