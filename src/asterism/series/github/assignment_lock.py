"""The assignment lock of a series: only its holder assigns issues of the series.

The state of a series changes by compare-and-swap, but an assignment on GitHub has no condition: a process that was
delayed between its decision and the assignment would add a second one. So all assignments of a series are made under a
lock. The lock is a ref, ``refs/asterism/turns/NAME``, acquired and released by compare-and-swap. Its holder reads the
state and the issues again before it assigns anything.

If the holder dies, the lock expires by GitHub's clock. A live holder stops well before that by its own clock, which
continues during suspend and counts from before the lock was requested: it sends no request that could arrive late. What
remains is a request that GitHub itself executes more than ``MARGIN`` seconds after its sender gave up.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from asterism.series.compare_and_swap import Contended
from asterism.series.github.github_client import RequestRejected
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.transport import TIMEOUT
from asterism.series.register import OutcomeUnknown, RateLimited, RegisterUnavailable, RevisionConflict, SeriesError

DURATION = 90.0
"""How long a lock may be held, in seconds."""
MARGIN = 15.0
"""The safety margin before the end of the lock, in seconds."""
RELEASE_TRIES = 5
GITHUB_CLOCK_TOLERANCE = 2.0
"""GitHub's clock is known to the second."""


class LockHeld(SeriesError):
    """Another process holds the assignment lock of this series."""


class LockExpired(SeriesError):
    """It took too long: another process may hold the lock by now. Nothing more was sent."""


class LockContended(Contended):
    """Other processes held the lock for as long as this one waited. The state is right; nothing was assigned."""

    def __init__(self, name: str, tries: int, seconds: float) -> None:
        super().__init__(name, tries, seconds)
        waited = f" for {seconds:.1f} s" if tries else " (this run did not wait)"
        self.args = (
            f"other processes held the assignment lock of series {name}{waited}: the state is up to date, but this run "
            "assigned nothing; the next run does",
        )


def suspend_aware_clock() -> float:
    """Seconds that continue during suspend, where the system offers that, as GitHub's clock does."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class HeldLock:
    """A lock that this process has acquired."""

    def __init__(self, name: str, token: str, ends: float, clock: Callable[[], float]) -> None:
        self.name, self.token = name, token
        self._ends, self._clock = ends, clock

    def check(self) -> None:
        """Raises LockExpired if a request that is sent now could arrive after the end of the lock."""
        if self._clock() + TIMEOUT + MARGIN > self._ends:
            raise LockExpired(f"the assignment lock of series {self.name} has expired: assigning took too long")


class _Entry(NamedTuple):
    holder: str | None
    until: float


class SeriesAssignmentLock:
    """The assignment locks of all series of a repository."""

    def __init__(self, register: GitHubRegister, clock: Callable[[], float] = suspend_aware_clock) -> None:
        self.register = GitHubRegister(register.client, "turns")
        self._clock = clock

    async def acquire(self, name: str) -> HeldLock:
        """Raises LockHeld if another process holds the lock, or was faster."""
        holder = uuid.uuid4().hex
        seen = await self.register.read(name)
        if seen.token is not None:
            entry = await self._entry(seen.text or "", seen.token)
            if entry.holder is not None and self.register.clock() < entry.until + GITHUB_CLOCK_TOLERANCE:
                raise LockHeld(f"another process holds the assignment lock of series {name}")
        started = self._clock()
        text = _text(name, holder, self.register.clock() + DURATION)
        try:
            token = await self.register.swap(name, seen.token, text, f"lock the assignments of {name}")
        except RevisionConflict:
            raise LockHeld(f"another process was faster to acquire the assignment lock of series {name}") from None
        except OutcomeUnknown:
            again = await self.register.read(name)
            if again.text != text or again.token is None:
                raise LockHeld(f"the assignment lock of series {name} was not acquired") from None
            token = again.token
        return HeldLock(name, token, started + DURATION, self._clock)

    async def release(self, lock: HeldLock) -> None:
        """Release the lock if it is still ours. After a lost reply it tries again, because other processes wait. A lock
        that cannot be released expires."""
        text = _text(lock.name, None, 0.0)
        for _ in range(RELEASE_TRIES):
            try:
                await self.register.swap(lock.name, lock.token, text, f"unlock the assignments of {lock.name}")
                return
            except (RevisionConflict, RateLimited):
                return
            except (OutcomeUnknown, RegisterUnavailable):
                continue

    async def _entry(self, text: str, token: str) -> _Entry:
        """The content of the ref. Content that Asterism did not write counts as a lock since the time of its commit."""
        try:
            data = json.loads(text)
            holder, until = data["holder"], float(data["until"])
            plausible = until <= self.register.clock() + DURATION + GITHUB_CLOCK_TOLERANCE
            if holder is None or (isinstance(holder, str) and plausible):
                return _Entry(holder, until)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        try:
            commit = await self.register.client.get(f"git/commits/{token}")
            at = datetime.fromisoformat(commit["committer"]["date"]).timestamp()
        except (RequestRejected, KeyError, TypeError, ValueError):
            return _Entry(None, 0.0)  # not a commit, so never a lock
        if at > self.register.clock() + DURATION:
            return _Entry(None, 0.0)  # a date in the future must not block the series until then
        return _Entry("unknown", at + DURATION)


def _text(name: str, holder: str | None, until: float) -> str:
    return json.dumps({"series": name, "holder": holder, "until": round(until, 3)}) + "\n"
