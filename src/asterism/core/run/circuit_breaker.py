"""Circuit breakers: when a device stops taking runs, and when the monitor stops taking runs away.

**A device.** A device without file descriptors, or with a full disk, fails every run at once and is free for the next:
it would empty the queue of a whole fleet. Three kinds of ends are distinguished:

=============  =========================================================================================================
good           the work completed, or failed after it had run for a while: the device is able to work
trouble        the device could not do its own part (DeviceTrouble); this says nothing about the work
quick failure  the work itself failed within QUICK_FAILURE_SECONDS
=============  =========================================================================================================

MAX_TROUBLES in a row open the breaker. A quick failure alone proves nothing, since a command that exits with 1 does so
everywhere. After MAX_QUICK_FAILURES in a row the device compares itself with the others: the breaker opens only if
another device has completed a run of one of the same workflows since the row began (``contradicted_by``). So work that
fails everywhere stops no device, and work that fails on some devices never stops all of them: a device that completed
a run after all others had begun to fail is not stopped. A good end resets everything.

An open breaker takes no run for a pause. Then it is half-open and takes one run, if the device finds that it can do its
own part (fleet/device/health.py); otherwise this is one more trouble. A good end closes it. So does a quick failure, if
trouble had opened it, since the work did begin. Any other end opens it for twice as long.

**A fleet.** If most devices vanish at once, the cause is probably the network or a clock. To take all their work away
would start it a second time on the few devices that are left, and most owners come back a moment later. So for a while
no work is taken away (``mass_loss_hold_until``); after that it is, so that the hold always ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from asterism.core.backoff import retry_delay
from asterism.core.record import Record, replace
from asterism.core.run.session import OPEN, Session

MAX_TROUBLES = 3
"""How many troubles in a row open the breaker."""

MAX_QUICK_FAILURES = 5
"""After how many quick failures in a row a device compares itself with the others."""

QUICK_FAILURE_SECONDS = 5.0
"""A failure is quick if the work ran for less than this."""

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0
"""The pause of an open breaker, in seconds: at first, and at most."""


class Completion(NamedTuple):
    """Which device completed a run of a workflow, and when: all that another device may know of it."""

    workflow: str
    device: str
    ended_at: float


class Breaker(Record):
    """The state of the breaker of one device. Immutable: each event returns the next state.

    ``now`` is the device's own clock, ``at`` the store's. ``failing`` are the workflows of the current row of quick
    failures, ``failing_since`` is when the first of them ended. ``retry_at`` is None while the breaker is closed;
    ``why`` is what opened it, ``compared`` whether quick failures did. ``opened`` counts how often it has opened
    since the last good end."""

    troubles: int = 0
    failures: int = 0
    failing: frozenset[str] = frozenset()
    failing_since: float = 0.0
    opened: int = 0
    retry_at: float | None = None
    why: str = ""
    compared: bool = False

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.retry_at is None

    @property
    def suspicious(self) -> bool:
        """Whether the device should compare itself with the others."""
        return self.closed and self.failures >= MAX_QUICK_FAILURES

    def allowance(self, now: float, taken: int) -> int | None:
        """How many more runs may be taken; None for no limit. ``taken`` is how many of the held runs were taken since
        ``retry_at``."""
        if self.retry_at is None:
            return None
        return 0 if now < self.retry_at else max(0, 1 - taken)

    def contradicted_by(self, device: str, completions: Iterable[Completion]) -> Completion | None:
        """The completion of a workflow that fails here, by another device, since it began to fail."""
        for completion in completions:
            if (
                completion.device != device
                and completion.workflow in self.failing
                and completion.ended_at > self.failing_since
            ):
                return completion
        return None

    # -- events --------------------------------------------------------------------------------------------------------

    def good(self) -> Breaker:
        """The device is able to work."""
        return CLOSED

    def trouble(self, now: float, why: str) -> Breaker:
        """The device could not do its own part."""
        after = replace(self, troubles=self.troubles + 1)
        if self.retry_at is None and after.troubles < MAX_TROUBLES:
            return after
        times = f"{after.troubles} times in a row" if after.troubles > 1 else "again"
        return after._open(now, f"it could not begin work, {times}: {why}", compared=False)

    def failed(self, now: float, at: float, workflow: str) -> Breaker:
        """The work failed soon after it had begun."""
        after = replace(
            self,
            troubles=0,
            failures=self.failures + 1,
            failing=self.failing | {workflow},
            failing_since=self.failing_since if self.failures else at,
        )
        if self.retry_at is None or now < self.retry_at:
            return after
        return after._open(now, self.why, compared=True) if self.compared else replace(after, opened=0, retry_at=None)

    def contradicted(self, now: float, why: str) -> Breaker:
        """Another device has completed what fails here."""
        return self._open(now, why, compared=True) if self.suspicious else self

    def _open(self, now: float, why: str, *, compared: bool) -> Breaker:
        if self.retry_at is not None and now < self.retry_at:
            return self  # the end of a run that was taken before it opened
        pause = retry_delay(self.opened + 1, FIRST_PAUSE, LONGEST_PAUSE)
        return replace(self, opened=self.opened + 1, retry_at=now + pause, why=why, compared=compared)


CLOSED = Breaker()


# -- a fleet -----------------------------------------------------------------------------------------------------------

MASS_LOSS_MINIMUM = 3
"""The smallest number of vanished devices that counts as a mass loss."""


def mass_loss_hold_until(sessions: Sequence[Session], now: float, hold: float) -> float | None:
    """Until when no run is taken away, counted from when the last of the devices fell silent; None without a mass
    loss."""
    open_sessions = [session for session in sessions if session.state == OPEN]
    silent = [session for session in open_sessions if not session.reachable(now)]
    # devices that fell silent long ago are gone
    recent = [session for session in silent if now <= session.beat_at + session.timeout + hold]
    if len(recent) < MASS_LOSS_MINIMUM or 2 * len(recent) <= len(open_sessions) - (len(silent) - len(recent)):
        return None
    return max(session.beat_at + session.timeout for session in recent) + hold
