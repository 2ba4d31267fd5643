"""The connection of a device to its fleet: all that a device asks of it, as named operations.

Who a device is belongs to the connection: no operation says who sends it. There are two implementations. A device that
shares the store of the fleet has a ``StoreConnection``, which commits each step itself. A device that has only an
address and a key has a ``GatewayConnection``: the server makes each step, with the identity of the credential.

The agent of a device is the same with both. Errors are those of a store: StoreUnavailable if there was no answer, so
that it is unknown whether anything happened; RunRefused and Fenced if a step is not possible any more.

A step of an owner names what a device wants to happen to a run, with all the data that takes. Who has the store applies
it: the connection of a device that shares the store, or the gateway for a device that does not. A step shows its grant;
what it may do is decided by the transition (core/run/transitions.py), which fences old epochs. ``was_applied``
recognises a step in the record of a run, so that a step whose answer was lost can be sent again: an epoch has one
owner, so whatever ended it in the same way was this step.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from asterism.base.clock import Clock
from asterism.base.content_store import ContentAccess
from asterism.core.json_values import SizeLimit
from asterism.core.run import transitions
from asterism.core.run.circuit_breaker import Completion
from asterism.core.run.placement import Weights
from asterism.core.run.run import CLAIMED, COMPLETED, PROCESSING, Grant, Owner, Progress, Run
from asterism.core.run.session import Session
from asterism.fleet.fleet import InProcessDevice
from asterism.store.protocol import HeartbeatReply, ProgressReport, PutLog, Watch

if TYPE_CHECKING:
    from asterism.fleet.device.membership import DeviceHost
    from asterism.fleet.device.take_order import TakeOrder

# -- steps -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim an assigned run; with ``starts`` it also starts."""

    grant: Grant
    starts: bool

    def apply(self, run: Run, now: float) -> Run:
        claimed = transitions.claim(run, self.grant, now)
        return transitions.start(claimed, self.grant, now) if self.starts else claimed

    def was_applied(self, run: Run) -> bool:
        return run.grant == self.grant and run.status in (CLAIMED, PROCESSING)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a run that was claimed."""

    grant: Grant

    def apply(self, run: Run, now: float) -> Run:
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

    def apply(self, run: Run, now: float) -> Run:
        run = run if self.progress is None else _with_progress(run, self.progress)
        return transitions.complete(run, self.grant, self.output, now, self.files)

    def was_applied(self, run: Run) -> bool:
        return run.status is COMPLETED and run.epoch == self.grant.epoch


@dataclass(frozen=True, slots=True)
class Fail:
    """The work failed; ``final`` means that it is not tried again. ``files`` is the manifest of the files that it has
    made all the same."""

    grant: Grant
    error: str
    progress: Progress | None = None
    final: bool = False
    files: str | None = None

    def apply(self, run: Run, now: float) -> Run:
        run = _with_progress(run, self.progress)
        return transitions.fail(run, self.grant, self.error, now, final=self.final, files=self.files)

    def was_applied(self, run: Run) -> bool:
        return _ended_by(run, self.grant, "failed")


@dataclass(frozen=True, slots=True)
class Decline:
    """Nothing was executed. ``for_now`` means that the device may be tried again in this round."""

    grant: Grant
    reason: str
    for_now: bool = False

    def apply(self, run: Run, now: float) -> Run:
        return transitions.decline(run, self.grant, self.reason, now, for_now=self.for_now)

    def was_applied(self, run: Run) -> bool:
        return _ended_by(run, self.grant, "declined")


@dataclass(frozen=True, slots=True)
class BreakOff:
    """The device could not continue, through no fault of the work."""

    grant: Grant
    error: str
    progress: Progress | None = None

    def apply(self, run: Run, now: float) -> Run:
        return transitions.abandon(_with_progress(run, self.progress), self.grant, self.error, now)

    def was_applied(self, run: Run) -> bool:
        return _ended_by(run, self.grant, "timeout")


@dataclass(frozen=True, slots=True)
class Release:
    """Hand the run back; ``reason`` is ``released`` or ``preempted``."""

    grant: Grant
    reason: str
    detail: str
    progress: Progress | None = None

    def apply(self, run: Run, now: float) -> Run:
        return transitions.release(run, self.grant, self.reason, self.detail, now, self.progress)

    def was_applied(self, run: Run) -> bool:
        return _ended_by(run, self.grant, self.reason)


@dataclass(frozen=True, slots=True)
class Disown:
    """The store believes that the device holds the run, and the device does not hold it any more."""

    grant: Grant
    device: str
    progress: Progress | None = None

    def apply(self, run: Run, now: float) -> Run:
        if run.grant != self.grant:
            return run
        run_so_far = run if self.progress is None else run.changed(progress=self.progress)
        return transitions.abandon(run_so_far, self.grant, f"{self.device} had to stop it", now)

    def was_applied(self, run: Run) -> bool:
        return run.grant != self.grant


@dataclass(frozen=True, slots=True)
class Refuse:
    """The device declines an offered run before it is assigned. It has no grant."""

    owner: Owner
    reason: str

    def apply(self, run: Run, now: float) -> Run:
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


# -- the connection ---------------------------------------------------------------------------------------------------


STEP_TIMEOUT = 10.0
"""How long a step is tried while the store is unavailable, in seconds."""


class Standing(NamedTuple):
    """The election rank of a device, the weights of scores, and how many devices there are."""

    rank: float
    weights: Weights
    devices: int


class End(NamedTuple):
    """The end of a run that a device holds: ``before`` is the record as the device has it, ``after`` what the step
    makes of it, ``log`` the last part of its log."""

    before: Run
    after: Run
    step: OwnerStep
    log: Sequence[PutLog]


class DeviceConnection(Protocol):
    """``clock`` is the device's own clock, ``url`` the address for messages, ``look_interval`` how often a device looks
    for work without being woken, in seconds; it does so if it ``looks_alone``, or else the server looks and wakes it.
    With ``commits_together`` the ends of several runs can be one commit of the device (``end_together``); without, the
    connection gathers them by itself.

    Every async method but ``end``, ``ends_under_way`` and ``value_limit`` may raise StoreUnavailable: there was no
    answer, and it is unknown whether anything happened. Through a gateway, all that ask it may raise DeviceRevoked. A
    method that is not async raises nothing."""

    clock: Clock
    url: str
    look_interval: float
    looks_alone: bool
    commits_together: bool

    def store_time(self) -> float:
        """Returns the time by the store's clock, or an estimate of it, in seconds since 1970."""

    def end_time(self) -> float:
        """Returns the time of a result that has just come, by the store's clock. Results that come together may share
        one."""

    def retry_pause(self) -> float:
        """Returns how long to wait before a question is repeated that was not answered, in seconds."""

    @property
    def log_limit(self) -> int:
        """How much of the output of an attempt is kept, in bytes, as far as the settings are known."""

    # -- the session -------------------------------------------------------------------------------------------------

    async def open(self) -> str:
        """Reach the fleet before joining; this is tried for a while. Returns the identity of its store, which tells the
        processes of this fleet from those of others. Raises StoreError for a store that cannot be used."""

    async def join(self, session: Session, host: DeviceHost, *, replace: bool) -> None:
        """Enter a session.

        ``session`` is its record, ``host`` the process and the machine behind it. With ``replace`` it takes the name
        from a session that is still there. Raises DeviceNameTaken if another device uses the name."""

    async def beat(self, profile: Mapping[str, Any], reports: Sequence[ProgressReport]) -> HeartbeatReply:
        """Send a heartbeat, which renews the leases of all runs of the session.

        ``profile`` is the profile of the device as it is now, ``reports`` the progress and the end of the output of its
        runs. Returns whether the session is still alive, and what is asked of it. Raises StoreUnavailable, also if the
        store does not know the device at all, and ValueError for a report that cannot be stored."""

    async def drain(self) -> None:
        """Say that the session takes nothing more. Nothing happens if it has ended."""

    async def leave(self) -> None:
        """End the session: the device executes nothing any more. Nothing happens if it has ended."""

    def close(self) -> None:
        """Stop what runs beside the operations. The connection is not used after it."""

    def watch(self) -> Watch:
        """Returns a watch that is woken when there is work: offered to all devices, or assigned to this one. The caller
        closes it."""

    def attach(self, device: InProcessDevice | None) -> None:
        """Let runs that are created in this process start on ``device`` at once; None if they may no longer."""

    # -- runs --------------------------------------------------------------------------------------------------------

    async def own_runs(self) -> list[Run]:
        """Returns the runs that the store records as owned by this session."""

    async def own_run(self, run_id: str) -> Run | None:
        """Returns the run of this id if this session owns it, otherwise None."""

    async def has_offers(self) -> bool:
        """Whether any run waits for a device."""

    async def take(self, order: TakeOrder) -> list[Run]:
        """Take offered runs.

        ``order`` has the number and the kinds of the runs, and judges each run; it collects what must be read or judged
        before another try. Returns the runs that were taken, which this session owns now; none if nothing fits."""

    async def change(
        self, run: str | Run, step: DeviceStep, *, patience: float = STEP_TIMEOUT, tries: int | None = None
    ) -> Run:
        """Make a step.

        ``run`` is the run or its id; a record saves a read. ``patience`` is how long the step is tried while the store
        is unavailable, in seconds, and ``tries`` how often it is tried after a conflict; None for no limit. Returns the
        run as it is then. Raises UnknownRun, RunRefused and Fenced if the step is not possible any more, Conflict after
        ``tries``."""

    async def end(self, run: Run, step: OwnerStep, log: Sequence[PutLog], *, tried: Run | None = None) -> None:
        """Make a step that ends the assignment of a run, for as long as it takes to know that it is made.

        ``log`` is the last part of the output, written with it. ``tried`` is what may have been written already. Raises
        UnknownRun, RunRefused and Fenced: the run belongs to others, and nothing was written."""

    async def ends_under_way(self) -> None:
        """Wait for the answer to the ends that are under way, if the connection gathers them: they free slots, and one
        order fills all of these."""

    async def end_together(self, ends: Sequence[End]) -> None:
        """Complete several runs in one commit: all or nothing. Raises Conflict if a record has changed, and nothing was
        written. Only for a connection that ``commits_together``."""

    async def notice_late_result(self, run_id: str, why: str) -> None:
        """Tell people that the result of a run came too late; ``why`` says what refused it."""

    async def progress_of(self, run_id: str, epoch: int) -> Progress | None:
        """Returns the progress that was last reported for a run in this epoch; None if there is none."""

    def ended(self, run: Run) -> None:
        """Say that a run has ended and its end was written here: waiters of this process need not read it."""

    # -- values ----------------------------------------------------------------------------------------------------

    async def fetch_input(self, run: Run) -> Any:
        """Returns the input of a run of this device, read from where it is stored if it is large. Raises StoreError if
        that is gone or damaged."""

    async def keep(self, value: Any, run: Run, what: str) -> Any:
        """Store a value of a run apart if it is large. ``what`` names it in messages. Returns the value, or the
        reference to it. Raises TooLarge and NotJson."""

    async def value_limit(self) -> SizeLimit:
        """Returns how large inputs and outputs may be, as far as the settings are known. Raises nothing."""

    async def artifacts(self, run: Run) -> ContentAccess:
        """Returns where the files of tasks are kept, as this device reaches them for a run that it owns. Content that
        is put there stays at least until the run ends. Raises ArtifactProblem if the fleet has no place for files, or
        this device does not reach it."""

    # -- the fleet ---------------------------------------------------------------------------------------------------

    async def standing(self) -> Standing:
        """Returns the rank of this device, and how its score is weighed."""

    async def recent_completions(self, workflow: str, limit: int) -> list[Completion]:
        """Returns the last ``limit`` completions of a workflow on any device, the newest first."""

    async def announce_health(self, why: str | None) -> None:
        """Tell people why the device has stopped taking work, or that it takes work again (None)."""


class DeviceAccess(Protocol):
    """What a device needs to connect to a fleet without its store."""

    clock: Clock
    chance: random.Random

    def store_time(self) -> float:
        """Returns the time by the store's clock, as far as it is known. Raises nothing."""

    def connect(self, owner: Owner) -> DeviceConnection:
        """Returns the connection of one session, ``owner``. Raises nothing: it is opened by ``open``."""
