"""A device in one of its lives, as the store knows it: each start of a device is another session.

Work is granted to a session, never to a name, so a device that starts anew inherits nothing. A session is ``open``
while it sends heartbeats; ``replaced`` once another took its name: its heartbeats are refused from then on, and its
grants run out by the clock, since it may still be at work somewhere; ``ended`` when it is known to do nothing any more.
A session is ``abroad`` if it is one of a peer's store, as that peer announced it: work can be given to it, and nothing
else about it is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from asterism.core.plan.task import NOTHING
from asterism.core.run.run import Owner

OPEN, REPLACED, ENDED, ABROAD = "open", "replaced", "ended", "abroad"
REACHABLE_STATES = (OPEN, ABROAD)
"""The states of those that may be given work."""

VIA = "via "
"""How the host of a session begins that a peer announced; the name of the peer follows."""

RESTING = "resting"
"""The name in the profile under which a device says why it would hand work back."""


@dataclass(frozen=True, slots=True)
class Session:
    """``beat_at`` is when the store last heard of it, by the store's clock; ``timeout`` is how long it counts as
    reachable after that. ``used`` is how many runs it owns. ``profile`` is what it says of itself: os, cpu, battery,
    labels and so on, and whether it is resting. ``accepts`` is its own rule about the runs it will have, an
    expression."""

    id: str
    device: str
    joined_at: float
    host: str = ""
    can: frozenset[str] = frozenset()
    slots: int = 1
    backlog: int = 0
    accepts: str | None = None
    timeout: float = 90.0
    profile: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    revision: int = 1
    state: str = OPEN
    draining: bool = False
    beat_at: float = 0.0
    used: int = 0

    @property
    def owner(self) -> Owner:
        return Owner(self.device, self.id)

    @property
    def peer(self) -> str | None:
        """The name of the peer that announced it, even if it has ended since; None for a device of this store."""
        return self.host.removeprefix(VIA) if self.host.startswith(VIA) else None

    @property
    def room(self) -> int:
        """How many more runs it may be given."""
        return max(0, self.slots + self.backlog - self.used) if self._takes_work else 0

    @property
    def idle(self) -> int:
        """How many more it could begin at once."""
        return max(0, self.slots - self.used) if self._takes_work else 0

    @property
    def _takes_work(self) -> bool:
        """A backlog is of no use to a device without a slot: nothing in it would ever begin."""
        return self.state in REACHABLE_STATES and not self.draining and self.slots > 0 and self.resting is None

    @property
    def resting(self) -> str | None:
        """Why it would hand work back, such as "'battery < 0.2' holds"; None if it would not. The device says so with
        each heartbeat, in its profile."""
        told = self.profile.get(RESTING)
        return told if isinstance(told, str) and told else None

    def reachable(self, now: float) -> bool:
        """One of a peer that was heard of in the future is not: the store's clock was set back since."""
        return self.state in REACHABLE_STATES and now - self.beat_at <= self.timeout and not self._in_the_future(now)

    def _in_the_future(self, now: float) -> bool:
        return self.state == ABROAD and self.beat_at > now + 60.0

    def changed(self, **changes: Any) -> Session:
        return replace(self, **changes, revision=self.revision + 1)

    def expression_names(self, rank: float = 0.0) -> dict[str, Any]:
        """The profile as expressions see it. What the device says of itself does not hide what the store knows."""
        load = self.used / self.slots if self.slots else 1.0
        # no battery: always full
        known_of = {name: value for name, value in self.profile.items() if value is not None and name != RESTING}
        told = {"os": "", "cpu": 0.0, "battery": 1.0, "plugged": True, "labels": {}, **known_of}
        own = {"name": self.device, "host": self.host, "can": sorted(self.can), "slots": self.slots}
        known = {"used": self.used, "load": min(load, 1.0), "quality": self.quality, "rank": rank}
        return {**told, **own, **known}

    @property
    def quality(self) -> float:
        """That of its connection, in 0…1. A profile may say anything; what is no number counts as the worst."""
        told = self.profile.get("quality", 1.0)
        return min(1.0, max(0.0, told)) if isinstance(told, int | float) else 0.0

    @property
    def suspended(self) -> str | None:
        """Why it takes no work for now, of which it has lost or failed too much at once (circuit_breaker.py); None if
        it does."""
        told = self.profile.get("suspended")
        return told if isinstance(told, str) else None

    def resumed(self) -> Session:
        """The same as it will be when it takes work again."""
        if self.suspended is None:
            return self
        return replace(self, profile={name: value for name, value in self.profile.items() if name != "suspended"})


def election_ranks(sessions: Sequence[Session], coordinator: str | None) -> dict[str, float]:
    """The election rank of each device in 0…1: 1 for the coordinator, then falling linearly in the order in which they
    would be elected, which is the order in which they joined. A device that is there in two lives counts once, by the
    later one."""
    lives = sorted(sessions, key=lambda session: session.joined_at)
    joined = {session.device: session.joined_at for session in lives}
    order = sorted(joined, key=lambda device: (device != coordinator, joined[device], device))
    return {device: 1.0 - place / len(order) for place, device in enumerate(order)}
