"""Orders of devices for offered runs, as a gateway executes them; and the watch of a device that waits for work.

Election ranks for the devices of a gateway: read once for all of them.

Each device asks for its rank when it joins and from time to time. The ranks depend on all sessions, so to read them for
each device would cost the square of their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from asterism.base.clock import first_of
from asterism.base.expressions import holds
from asterism.core.run import transitions
from asterism.core.run.placement import Weights, mismatch_reason, unmet_reason
from asterism.core.run.run import Run
from asterism.core.run.session import Session
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.store_connection import election_standings
from asterism.fleet.device.take_order import LOOK_INTERVAL, SAME_TIME
from asterism.fleet.fleet import Fleet
from asterism.gateway.enrolment import Identity
from asterism.gateway.gateway_messages import MOST_TAKEN, count_in, object_in, texts_in
from asterism.store.protocol import Watch

LARGEST_SCORE = 1e300
"""The largest score of a device for a workflow; one beyond it counts as none."""


class EnoughUnseen(Exception):
    """Ends the search of the store: the device has to read a workflow first."""


class GatewayOrder:
    """An order of a device, as data; see ``TakeOrder``, whose rules these are."""

    def __init__(self, fleet: Fleet, who: Identity, session: Session, body: Mapping[str, Any]) -> None:
        self._workflows, self._clock, self._owner = fleet.workflows, fleet.store.clock, who.owner
        self._session, self._names = session, session.expression_names()
        self.limit, self.free = count_in(body, "limit", MOST_TAKEN), count_in(body, "free", MOST_TAKEN)
        self.above = None if body.get("above") is None else count_in(body, "above", 10**6, least=-(10**6))
        self.not_kinds = frozenset(texts_in(body, "not_kinds", 10_000))
        self._kinds = object_in(body, "kinds")
        self._stale = frozenset(texts_in(body, "stale", 10_000))
        self._held = frozenset(texts_in(body, "held", 20_000, 100))
        self._vain_waits = frozenset(texts_in(body, "vain_waits", 1000, 100))
        self.unseen: set[tuple[str, int]] = set()
        self.met_stale: set[str] = set()
        self._starts, self._moment = 0, float("-inf")

    def take(self, run: Run) -> Run | None:
        kind = run.kind
        if kind in self._stale:
            self.met_stale.add(kind)
            return None
        flow = self._workflows.remembered(run.workflow, run.version)
        if kind not in self._kinds or flow is None:
            if (run.workflow, run.version) in self.unseen:
                raise EnoughUnseen  # the whole queue may be of that kind
            self.unseen.add((run.workflow, run.version))
            return None
        if run.id in self._held or (self._starts >= self.free and run.id in self._vain_waits):
            return None
        now = self._clock()
        if self._leaves_to_others(run, flow, now) or mismatch_reason(self._session, run, flow, self._names, holds):
            return None
        if run.uses is not None and self._starts >= self.free:
            return None  # it would hold its limits while it waits for a slot
        self._starts += 1
        score = self._kinds[kind]
        known = isinstance(score, int | float) and not isinstance(score, bool) and abs(score) <= LARGEST_SCORE
        scores = {self._owner.device: float(score)} if known else {}
        if not (run.waiting_since or 0.0) <= self._moment <= now < self._moment + SAME_TIME:
            self._moment = now
        return transitions.take(run, self._owner, flow, self._moment, starts=self._starts <= self.free, scores=scores)

    def _leaves_to_others(self, run: Run, flow: Workflow, now: float) -> bool:
        if not flow.orchestration and flow.prefers is None:
            return False
        if now - (run.waiting_since or 0.0) > 2 * LOOK_INTERVAL:
            return False
        return flow.orchestration or (
            flow.prefers is not None and unmet_reason(flow.prefers, self._names, holds) is not None
        )


class DeviceWatch:
    """The watch of a device, which outlives its requests."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._extra = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        if self._extra.is_set():
            self._extra.clear()
            return True
        woken = await first_of(self._watch.wait(seconds), self._extra.wait())
        self._extra.clear()
        return any(woken)

    def wake(self) -> None:
        self._extra.set()

    def close(self) -> None:
        self._watch.close()


# -- gateway standings -------------------------------------------------------------------------------------------------


KNOWN_FOR = 5.0
"""How long ranks are used after they were read, in seconds."""

PAUSE = 9.0
"""How long after that they are not read again for a device that is new: so many times as long as the reading took."""


class Standings:
    """The ranks of all devices, and the weights of scores."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._clock = fleet, fleet.clock
        self._read_at = self._next_read = float("-inf")
        self._known: tuple[Mapping[str, float], Weights] | None = None
        self._reading = asyncio.Lock()

    async def of(self, device: str) -> tuple[Mapping[str, float], Weights]:
        """The ranks, with that of this device if it can be reached. Raises StoreError."""
        async with self._reading:
            known, began = self._known, self._clock.time()
            if known is not None and began - self._read_at < KNOWN_FOR and device in known[0]:
                return known
            if began < self._next_read:
                await self._clock.sleep(self._next_read - began)
                began = self._clock.time()
            self._known = known = await election_standings(self._fleet)
            self._read_at = self._clock.time()
            self._next_read = self._read_at + PAUSE * (self._read_at - began)
            return known
