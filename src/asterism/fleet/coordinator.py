"""What a device does for the others: it is the coordinator, its deputy, or stands for election."""

from __future__ import annotations

import logging

from asterism.base.error_log import RecurringError
from asterism.fleet.election import DEPUTY, Election
from asterism.fleet.fleet import Fleet
from asterism.fleet.monitor import Monitor
from asterism.fleet.notifier import Notifier
from asterism.fleet.policy.policy import DevicePolicy

log = logging.getLogger("asterism.device")

JITTER = 0.2
"""By which share the time between two passes varies, so that those of many devices do not coincide."""


class Coordinator:
    """``every`` is how many seconds are between two passes, about. ``lease`` is how long an office lasts without being
    renewed, that of the fleet's settings if it is None, and three passes at least. ``policy`` says which command may
    tell people."""

    def __init__(
        self, fleet: Fleet, name: str, session: str, policy: DevicePolicy, *, every: float, lease: float | None
    ) -> None:
        self.fleet, self._every, self._lease = fleet, every, lease
        self.monitor = Monitor(fleet, name, every=every)
        self.office = Election(fleet.store, fleet.clock, name, session)
        self.deputy = Election(fleet.store, fleet.clock, name, session, office=DEPUTY)
        self._notifier = Notifier(fleet, policy)

    @property
    def elected(self) -> bool:
        return self.office.elected

    async def coordinate(self) -> None:
        trouble = RecurringError(log, "cannot watch", "watches again", self.fleet.clock.time)
        while True:
            self.monitor.due_in = float("inf")  # what an earlier pass has seen coming is none of a later one's
            try:
                await self._watch()
                trouble.recovered()
            except Exception as error:  # whatever it is, it must not end the work that is done here
                trouble.occurred(error)
            pause = self._every * self.fleet.chance.uniform(1.0 - JITTER, 1.0 + JITTER)
            await self.fleet.clock.sleep(min(pause, self.monitor.due_in))

    async def _watch(self) -> None:
        lease = self._lease if self._lease is not None else (await self.fleet.settings()).lease
        self.office.lease = self.deputy.lease = max(lease, 3 * self._every)
        if await self.office.campaign():
            if self.deputy.elected:
                await self.deputy.resign()
            await self.monitor.watch()
        elif await self.deputy.campaign():
            await self.monitor.stand_by(self.office.holder)

    async def deliver_notices(self) -> None:
        """Beside the watch, since whoever is told may take long to listen."""
        trouble = RecurringError(log, "cannot tell", "tells again", self.fleet.clock.time)
        while True:
            try:
                if self.elected:
                    await self._notifier.deliver()
                trouble.recovered()
            except Exception as error:
                trouble.occurred(error)
            await self.fleet.clock.sleep(self._every)

    async def resign(self) -> None:
        """Let somebody else do it now."""
        await self.office.resign()
        await self.deputy.resign()

    def close(self) -> None:
        self._notifier.close()
