"""Steps of an owner, as values: claim, start, complete, fail, decline, break off, release, disown; and refuse.

A step names what a device wants to happen to a run, with all the data that takes. Who has the store applies it: the
connection of a device that shares the store, or the gateway for a device that does not (``device_connection.py``). A
step shows its grant; what it may do is decided by the transition (core/run/transitions.py), which fences old epochs.

``was_applied`` recognises a step in the record of a run, so that a step whose answer was lost can be sent again: an
epoch has one owner, so whatever ended it in the same way was this step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asterism.core.run import transitions
from asterism.core.run.run import CLAIMED, COMPLETED, PROCESSING, Grant, Owner, Progress, Run
from asterism.core.run.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim an assigned run; with ``starts`` it also starts."""

    grant: Grant
    starts: bool

    def apply(self, run: Run, flow: Workflow, now: float) -> Run:
        claimed = transitions.claim(run, self.grant, flow, now)
        return transitions.start(claimed, self.grant, now) if self.starts else claimed

    def was_applied(self, run: Run) -> bool:
        return run.grant == self.grant and run.status in (CLAIMED, PROCESSING)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a run that was claimed."""

    grant: Grant

    def apply(self, run: Run, flow: Workflow, now: float) -> Run:
        if self.was_applied(run):
            return run  # our own earlier write, whose answer was lost
        return transitions.start(run, self.grant, now)

    def was_applied(self, run: Run) -> bool:
        return run.status is PROCESSING and run.grant == self.grant


@dataclass(frozen=True, slots=True)
class Complete:
    """The work is done; ``files`` is the manifest of the files that it has made."""

    grant: Grant
    output: Any
    progress: Progress | None = None
    files: str | None = None

    def apply(self, run: Run, flow: Workflow, now: float) -> Run:
        run = run if self.progress is None else _with_progress(run, self.progress)
        return transitions.complete(run, self.grant, self.output, now, self.files)

    def was_applied(self, run: Run) -> bool:
        return run.status is COMPLETED and run.epoch == self.grant.epoch


@dataclass(frozen=True, slots=True)
class Fail:
    """The work failed; ``final`` means that it is not tried again."""

    grant: Grant
    error: str
    progress: Progress | None = None
    final: bool = False

    def apply(self, run: Run, flow: Workflow, now: float) -> Run:
        run = _with_progress(run, self.progress)
        return transitions.fail(run, self.grant, self.error, flow, now, final=self.final)

    def was_applied(self, run: Run) -> bool:
        return _ended_by(run, self.grant, "failed")


@dataclass(frozen=True, slots=True)
class Decline:
    """Nothing was executed. ``for_now`` means that the device may be tried again in this round."""

    grant: Grant
    reason: str
    for_now: bool = False

    def apply(self, run: Run, flow: Workflow, now: float) -> Run:
        return transitions.decline(run, self.grant, self.reason, now, for_now=self.for_now)

    def was_applied(self, run: Run) -> bool:
        return _ended_by(run, self.grant, "declined")


@dataclass(frozen=True, slots=True)
class BreakOff:
    """The device could not continue, through no fault of the work."""

    grant: Grant
    error: str
    progress: Progress | None = None

    def apply(self, run: Run, flow: Workflow, now: float) -> Run:
        return transitions.abandon(_with_progress(run, self.progress), self.grant, self.error, flow, now)

    def was_applied(self, run: Run) -> bool:
        return _ended_by(run, self.grant, "timeout")


@dataclass(frozen=True, slots=True)
class Release:
    """Hand the run back; ``reason`` is ``released`` or ``preempted``."""

    grant: Grant
    reason: str
    detail: str
    progress: Progress | None = None

    def apply(self, run: Run, flow: Workflow, now: float) -> Run:
        return transitions.release(run, self.grant, self.reason, self.detail, now, self.progress)

    def was_applied(self, run: Run) -> bool:
        return _ended_by(run, self.grant, self.reason)


@dataclass(frozen=True, slots=True)
class Disown:
    """The store believes that the device holds the run, and the device does not hold it any more."""

    grant: Grant
    device: str
    progress: Progress | None = None

    def apply(self, run: Run, flow: Workflow, now: float) -> Run:
        if run.grant != self.grant:
            return run
        run_so_far = run if self.progress is None else run.changed(progress=self.progress)
        return transitions.abandon(run_so_far, self.grant, f"{self.device} had to stop it", flow, now)

    def was_applied(self, run: Run) -> bool:
        return run.grant != self.grant


@dataclass(frozen=True, slots=True)
class Refuse:
    """The device declines an offered run before it is assigned. It has no grant."""

    owner: Owner
    reason: str

    def apply(self, run: Run, flow: Workflow, now: float) -> Run:
        return transitions.refuse(run, self.owner.device, self.reason, now)


OwnerStep = Claim | Start | Complete | Fail | Decline | BreakOff | Release | Disown
"""A step that shows a grant."""

DeviceStep = OwnerStep | Refuse


def _with_progress(run: Run, progress: Progress | None) -> Run:
    """The run with the progress that was made, for the next attempt."""
    return run if progress is None or run.progress == progress else run.changed(progress=progress)


def _ended_by(run: Run, grant: Grant, reason: str) -> bool:
    """Whether the assignment of this grant has ended with this reason."""
    return any(assignment.epoch == grant.epoch and assignment.reason == reason for assignment in reversed(run.previous))
