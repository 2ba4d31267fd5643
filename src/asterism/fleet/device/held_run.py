"""A run held by this device: its grant, its execution, and what is still to be reported of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from asterism.core.run.run import Grant, Progress, Run
from asterism.core.run.workflow import Workflow
from asterism.store.protocol import ProgressReport


class HeldRun:
    """A run that the device has claimed.

    ``since``      when it was received, by the device's own clock
    ``started``    whether its execution has begun; if not, it waits for a slot
    ``stopping``   why its execution is being stopped
    ``ending``     whether the execution is over and only the store has not been told yet
    ``slot_freed`` whether its slot was given away before the end was written
    ``lost``       whether the device gave the run up, so that there is no result
    ``on_report``  called when there is new progress or output to report
    """

    __slots__ = (
        "changed",
        "ending",
        "grant",
        "lost",
        "on_report",
        "progress",
        "run",
        "since",
        "slot_freed",
        "started",
        "stopping",
        "tail",
        "task",
        "workflow",
    )

    def __init__(self, run: Run, workflow: Workflow, since: float, on_report: Callable[[], None]) -> None:
        assert run.session is not None
        self.run, self.workflow, self.since, self.on_report = run, workflow, since, on_report
        self.grant = Grant(run.id, run.session, run.epoch)
        self.started = run.started_at is not None
        self.progress: Progress | None = run.progress
        self.tail = ""
        self.changed = self.ending = self.slot_freed = self.lost = False
        self.stopping: str | None = None
        self.task: asyncio.Task[None] | None = None

    def report(self) -> ProgressReport:
        return ProgressReport(self.run.id, self.grant.epoch, self.progress, self.tail)

    def set_progress(self, progress: Progress) -> None:
        self.progress, self.changed = progress, True
        self.on_report()

    def set_output(self, tail: str) -> None:
        self.tail, self.changed = tail, True
        self.on_report()


def preemption_order(held: HeldRun) -> tuple[int, bool, float]:
    """Sort key: the least urgent first; among equals what has not begun, then the most recent."""
    return (held.run.priority, held.started, -held.since)


class RecentSet:
    """A set that remembers the last ``size`` members, and up to as many before them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: set[Hashable] = set()
        self._older: set[Hashable] = set()

    def add(self, member: Hashable) -> None:
        self._recent.add(member)
        if len(self._recent) >= self._size:
            self._older, self._recent = self._recent, set()

    def __contains__(self, member: Hashable) -> bool:
        return member in self._recent or member in self._older
