"""The lease of a device: how long it may still work on its runs, by its own clock.

The store judges by its own clock when it last heard of a device. The device counts on its own clock from *before* it
sent the last heartbeat that the store accepted, and stops work a margin before the store could take it away. The two
clocks are never mixed, so whatever either of them shows, two devices never work on one run at the same time.

Work asks for a heartbeat interval. The lease knows what the device works on, and so how often it has
to be renewed and whether a renewal is due at once. ``heartbeat.Heartbeat`` renews it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache
from itertools import takewhile

from asterism.base.clock import Clock
from asterism.core.run.run import Run
from asterism.core.run.session import Session
from asterism.core.run.work import Work

RENEWALS_REMEMBERED = 100
"""How many renewals are remembered: when the one before was sent, and when its own answer arrived."""

INTERVAL_REMEMBERED = 120.0
"""How long the heartbeat interval of some work is kept after its last run, in seconds."""


@lru_cache(64)
def margin(timeout: float, grace: float) -> float:
    """How long before the store could take a run away its device stops working on it, in seconds: the grace period to
    stop, and a tenth for clocks of different speed, but never more than a third of the timeout."""
    return min(timeout / 3, grace + timeout / 10)


class Lease:
    """``interval`` is that of the device itself, ``grace`` is how long its work has to stop, both in seconds."""

    def __init__(self, clock: Clock, session: Session, *, interval: float, grace: float) -> None:
        self._clock, self.timeout_of = clock, session.loses_after
        self._own_interval, self.timeout, self.grace = interval, session.timeout, grace
        self.renewed_at = clock.time()
        self._renewals: deque[tuple[float, float]] = deque(maxlen=RENEWALS_REMEMBERED)
        self._intervals: dict[float, float] = {}  # those that work asks for, and when they last did
        self.next_renewal_in = 0.0
        """How long the heartbeat waits before it renews the lease, in seconds."""
        self.renewal_due = asyncio.Event()
        """Set when the next heartbeat must be sent at once."""
        self.work_waits = False
        """Whether work waits for the next renewal: it was refused because the lease was not fresh."""

    @property
    def has_been_renewed(self) -> bool:
        """Whether a heartbeat was accepted since the device joined."""
        return bool(self._renewals)

    # -- how sure the device is of a run -----------------------------------------------------------------------------

    def remaining(self, run: Run, now: float | None = None) -> float:
        """In how many seconds the device must have stopped work on a run, unless the lease is renewed before. While
        this is positive, the run is certainly this device's. ``now`` is the time by our clock, for a caller that has
        just read it."""
        if now is None:
            now = self._clock.time()
        timeout = self.timeout_of(run.timeout)
        return self.renewed_at + timeout - margin(timeout, self.grace) - now

    def unbroken(self, run: Run, since: float) -> bool:
        """Whether the store could not have taken a run away at any moment since then."""
        return self.unbroken_for(self.timeout_of(run.timeout), since)

    def unbroken_for(self, timeout: float, since: float) -> bool:
        """Whether the store has heard of the device within every ``timeout`` seconds since then: else others may have
        taken its work, even if it has heard of the device again."""
        if not self._renewals or self._renewals[-1][1] < since:
            return True  # the usual case: everything that arrives between two heartbeats
        longest = timeout - margin(timeout, self.grace)
        if len(self._renewals) == RENEWALS_REMEMBERED and since < self._renewals[0][0]:
            return False
        lately = takewhile(lambda renewal: renewal[1] >= since, reversed(self._renewals))
        return all(answered - before < longest for before, answered in lately)

    # -- how fresh it has to be --------------------------------------------------------------------------------------

    def is_fresh(self, work: Work) -> bool:
        """Whether the lease is recent enough to begin this work. Any thread may ask."""
        # never after the device's own timeout, however patient the work: the store may have given it up
        timeout = min(work.heartbeat_timeout, self.timeout)
        spare = margin(timeout, self.grace) + min(work.heartbeat, self._own_interval) / 2
        return self._clock.time() - self.renewed_at <= timeout - spare

    def require(self, work: Work) -> bool:
        """Keep the lease fresh for some work from now on: it is here, or arrives after the next renewal. Returns
        whether it is fresh now; if not, a renewal is due at once, and ``work_waits`` for it."""
        self._intervals[work.heartbeat] = self._clock.time()
        fresh = self.is_fresh(work)
        if not fresh:
            self.work_waits = True
            self.renewal_due.set()
        elif work.heartbeat < self.next_renewal_in:  # the next heartbeat would come too late for it
            self.renewal_due.set()
        return fresh

    def interval(self, *held: float) -> float:
        """How often to renew, in seconds: as the most demanding work asks, of late or of the ``held`` runs."""
        now = self._clock.time()
        self._intervals = {interval: at for interval, at in self._intervals.items() if now - at < INTERVAL_REMEMBERED}
        return min((self._own_interval, *self._intervals, *held))

    def renewed(self, sent: float) -> None:
        """The store has accepted a heartbeat that was sent at this time, by our clock."""
        self._renewals.append((self.renewed_at, self._clock.time()))
        self.renewed_at = sent
