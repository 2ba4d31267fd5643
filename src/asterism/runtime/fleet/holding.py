"""A run in the hands of a device, and how sure the device may be of it."""

from __future__ import annotations

import asyncio

from asterism.core.run import Grant, Progress, Run
from asterism.core.workflow import Workflow
from asterism.store.protocol import Report


class Holding:
    """``since`` is when it came, by the device's own clock. ``stopping`` is why its execution is being stopped."""

    __slots__ = ("changed", "grant", "progress", "run", "since", "started", "stopping", "tail", "task", "workflow")

    def __init__(self, run: Run, workflow: Workflow, since: float) -> None:
        assert run.session is not None
        self.run, self.workflow, self.since = run, workflow, since
        self.grant = Grant(run.id, run.session, run.epoch)
        self.started = run.started_at is not None
        self.progress: Progress | None = run.progress
        self.tail = ""
        self.changed = False
        self.stopping: str | None = None
        self.task: asyncio.Task[None] | None = None

    def report(self) -> Report:
        return Report(self.run.id, self.grant.epoch, self.progress, self.tail)

    def told_progress(self, progress: Progress) -> None:
        self.progress, self.changed = progress, True

    def told_output(self, tail: str) -> None:
        self.tail, self.changed = tail, True


def margin(timeout: float, grace: float) -> float:
    """How long before the store would take a run away its device stops working on it: time to stop, and a tenth for
    clocks that do not run alike, but never more than a third."""
    return min(timeout / 3, grace + timeout / 10)
