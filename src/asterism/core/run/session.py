"""A session: one life of a device process, with its capacity, profile and heartbeat, as the store knows it.

Work is granted to a session, never to a device name, so a restarted device inherits nothing. A session is

- ``open`` while it sends heartbeats;
- ``replaced`` once another session has its name: its heartbeats are refused, and its grants expire by the clock, since
  it may still work somewhere;
- ``revoked`` once the key of its device was revoked, and otherwise as if it were replaced;
- ``ended`` when it is known to have stopped all work;
- ``abroad`` if it belongs to the store of a peer, which announced it: runs may be assigned to it, and its own store
  decides everything else.

Names of devices have a plain alphabet and a length, so that no two look alike and none is a sentence. People choose
devices by their names, in plans, in scopes and on the page. A name with a blank at its end, or with a letter of another
script, looks like the name of another device; ``skeleton`` finds those that the plain alphabet still allows. The
process that runs a plan is a device of its own, ``PLAN@HOST``: nobody enrols or joins under such a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from asterism.core.json_values import NOTHING
from asterism.core.record import Record, replace
from asterism.core.run.run import Owner

OPEN, REPLACED, REVOKED, ENDED, ABROAD = "open", "replaced", "revoked", "ended", "abroad"
REACHABLE_STATES = (OPEN, ABROAD)
"""The states in which a session may be assigned work."""

DEFAULT_TIMEOUT = 90.0
"""After how many seconds without a heartbeat a device counts as gone that names no time of its own."""

VIA = "via "
"""How the host of a session begins that a peer announced; the name of the peer follows."""

PLAN = "plan"
"""The key of the profile under which the process of a plan names its plan."""

OWN_TASKS = "own tasks"
"""The key of the profile under which it says how many of its slots tasks of the plan use: they are no runs."""

SILENT_SHOWN = 3600.0
"""How long a silent device without runs stays a member of the fleet after its timeout, in seconds."""

RESTING = "resting"
"""The key of the profile under which a device reports why it would hand work back."""

PATH = "path of peers"
"""The key of the profile under which a store keeps the path to a device that a peer relayed: the ids of the stores from
that of the device to the last one before the peer."""


class Session(Record):
    """``beat_at`` is the time of its last heartbeat, by the store's clock; it counts as reachable for ``timeout``
    seconds after that. ``used`` is how many runs it owns. ``profile`` is what the device reports about itself: os, cpu,
    battery, labels, whether it is resting, …. ``accepts`` is its own rule about the runs that it takes, an
    expression."""

    id: str
    device: str
    joined_at: float
    host: str = ""
    can: frozenset[str] = frozenset()
    slots: int = 1
    backlog: int = 0
    accepts: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    profile: Mapping[str, Any] = NOTHING
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
    def path(self) -> tuple[str, ...]:
        """The ids of the stores between its own, which is the first, and the peer that relayed it; none for a device of
        this store or of a peer."""
        return tuple(self.profile.get(PATH, ())) if self.peer is not None else ()

    @property
    def is_past_process(self) -> bool:
        """Whether it was the process of a plan, and has left: unlike a device it does not come back."""
        return self.state == ENDED and self.runs_plan

    @property
    def runs_plan(self) -> bool:
        """Whether it is the process of a plan."""
        return PLAN in self.profile

    @property
    def only_runs_plan(self) -> bool:
        """Whether it is the process of a plan that executes no work: no device for people."""
        return not self.slots and self.runs_plan

    def loses_after(self, timeout: float) -> float:
        """After how many seconds without a heartbeat it loses a run with this timeout: the shorter one counts. The
        default of a device shortens nothing. The timeout of the process of a plan is about the plan: another process
        may take that over, and its work lasts."""
        return timeout if "@" in self.device or self.timeout == DEFAULT_TIMEOUT else min(timeout, self.timeout)

    @property
    def _own_tasks(self) -> int:
        """How many of its slots the tasks of the plan use that it runs, as of its last heartbeat: these are no runs."""
        tasks = self.profile.get(OWN_TASKS)
        return tasks if type(tasks) is int else 0

    @property
    def room(self) -> int:
        """How many more runs may be assigned to it."""
        return max(0, self.slots + self.backlog - self.used - self._own_tasks) if self._takes_work else 0

    @property
    def idle(self) -> int:
        """How many more runs it could start now."""
        return max(0, self.slots - self.used - self._own_tasks) if self._takes_work else 0

    @property
    def _takes_work(self) -> bool:
        """A device without slots takes no work, whatever its backlog: no run in it would ever start."""
        return self.state in REACHABLE_STATES and not self.draining and self.slots > 0 and self.resting is None

    @property
    def resting(self) -> str | None:
        """Why it would hand work back, such as "'battery < 0.2' holds"; None if it would not. The device reports it in
        its profile, with each heartbeat."""
        reason = self.profile.get(RESTING)
        return reason if isinstance(reason, str) and reason else None

    def reachable(self, now: float) -> bool:
        """Whether its last heartbeat is recent. A peer's session with a heartbeat in the future is not reachable: the
        store's clock was set back since."""
        in_the_future = self.state == ABROAD and self.beat_at > now + 60.0
        return self.state in REACHABLE_STATES and now - self.beat_at <= self.timeout and not in_the_future

    def changed(self, **changes: Any) -> Session:
        return replace(self, **changes, revision=self.revision + 1)

    def expression_names(self, rank: float = 0.0) -> dict[str, Any]:
        """The names that expressions over a device see. What the store knows overrides what the device reports."""
        load = self.used / self.slots if self.slots else 1.0
        hidden = (PLAN, RESTING, PATH, OWN_TASKS)
        reported = {name: value for name, value in self.profile.items() if value is not None and name not in hidden}
        # without a battery it counts as full
        defaults = {"os": "", "cpu": 0.0, "battery": 1.0, "plugged": True, "labels": {}}
        own = {"name": self.device, "host": self.host, "can": sorted(self.can), "slots": self.slots}
        known = {"used": self.used, "load": min(load, 1.0), "quality": self.quality, "rank": rank}
        return {**defaults, **reported, **own, **known}

    @property
    def quality(self) -> float:
        """The quality of its connection, 0 to 1. A profile may contain anything: a value that is not a number counts as
        0."""
        quality = self.profile.get("quality", 1.0)
        return min(1.0, max(0.0, quality)) if isinstance(quality, int | float) else 0.0

    @property
    def suspended(self) -> str | None:
        """Why it takes no work for now, because its circuit breaker is open (circuit_breaker.py); None if it does."""
        reason = self.profile.get("suspended")
        return reason if isinstance(reason, str) else None

    def resumed(self) -> Session:
        """The session as it will be when it takes work again."""
        if self.suspended is None:
            return self
        return replace(self, profile={name: value for name, value in self.profile.items() if name != "suspended"})


def election_ranks(sessions: Sequence[Session], coordinator: str | None) -> dict[str, float]:
    """The election rank of each device, 0 to 1: 1 for the coordinator, then falling linearly in the order of election,
    which is the order in which they joined. A device with two sessions counts once, by the later one."""
    joined = {session.device: session.joined_at for session in sorted(sessions, key=attrgetter("joined_at"))}
    order = sorted((device != coordinator, joined_at, device) for device, joined_at in joined.items())
    return {device: 1.0 - place / len(order) for place, (_, _, device) in enumerate(order)}


# -- device name -------------------------------------------------------------------------------------------------------


LONGEST = 100

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}}")
_OTHER = re.compile(r"[^A-Za-z0-9._-]")
_ALIKE = str.maketrans("I01", "lol")

RULE = f"must have 1 to {LONGEST} characters: letters (a-z, A-Z), digits, '.', '_' and '-', the first a letter or digit"


def device_name_problem(name: str) -> str | None:
    """Why a name cannot be that of a device; None if it can."""
    return None if _NAME.fullmatch(name) else f"the name of a device {RULE}, not {name!r}"


def is_reserved(name: str) -> bool:
    """Whether only processes of the fleet's own side have such a name: the one that runs plan P is ``P@HOST``, a server
    ``server-HOST``."""
    return "@" in name or name.startswith("server-")


def plain_device_name(text: str) -> str:
    """A name made of a text, such as that of a host, with ``-`` for what cannot be part of it."""
    return _OTHER.sub("-", text).lstrip("._-")[:LONGEST] or "device"


def skeleton(name: str) -> str:
    """What names that look alike have in common: ``Lab-1``, ``lab-l`` and ``LAB-I``."""
    return name.translate(_ALIKE).lower()
