"""The score of a device for runs that it takes itself, by the same formula as that of placement.

The record of a run keeps the score with which its device got it, so that scores can be compared with outcomes
(``fleet/selection_metrics.py``). A run that a device takes was scored by nobody: the device does it, from what it knows
without asking the store. Its election rank and the weights change rarely and are read from time to time, beside the
work.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from asterism.core.json_values import NOTHING
from asterism.core.run.placement import DEFAULT_WEIGHTS, Candidate, score
from asterism.core.run.session import Session
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.connection import DeviceConnection

log = logging.getLogger("asterism.device")

REFRESH_INTERVAL = 60.0
"""How often rank and weights are read, in seconds."""


class OwnScore:
    """``connection`` is how well the store is reached, in 0…1: each heartbeat sets it."""

    def __init__(self, fleet: DeviceConnection, session: Session) -> None:
        self._fleet, self._session = fleet, session
        self._rank: float | None = None
        self._weights = DEFAULT_WEIGHTS
        self._connection = 1.0
        self._known: dict[tuple[frozenset[str], frozenset[str], int], Mapping[str, float]] = {}
        self._interval = REFRESH_INTERVAL

    @property
    def connection(self) -> float:
        return self._connection

    @connection.setter
    def connection(self, quality: float) -> None:
        if quality != self._connection:
            self._connection = quality
            self._known.clear()

    def scores(self, flow: Workflow, used: int) -> Mapping[str, float]:
        """The score for a run of this workflow while the device holds ``used`` runs, as ``Run.scores`` keeps it. Empty
        while its rank is not known."""
        key = (flow.needs, flow.wants, used)
        known = self._known.get(key)
        if known is None and self._rank is not None:
            session = self._session
            slots = max(session.slots, 1)
            here = Candidate(session.device, session.can, slots, min(used, slots), self._connection, self._rank)
            value = round(score(here, (None, flow.needs), self._weights, flow.wants), 2)
            known = self._known[key] = {session.device: value}
        return known or NOTHING

    async def refresh(self) -> None:
        """Read rank and weights. Raises StoreError, and anything for registers that are damaged."""
        self._rank, self._weights, devices = await self._fleet.standing()
        self._known.clear()
        # each device reads about one session a second at most, however many there are
        self._interval = max(REFRESH_INTERVAL, devices)

    async def refresh_until_cancelled(self) -> None:
        while True:
            await self.try_refresh()
            await self._fleet.clock.sleep(self._interval)

    async def try_refresh(self) -> None:
        """As ``refresh``. Without an answer the score stays as it was, or unknown: that must not end the work of this
        device, and heartbeat and coordinator report what is wrong with the store."""
        try:
            await self.refresh()
        except Exception as error:
            log.debug("cannot read the election rank: %s", error)
