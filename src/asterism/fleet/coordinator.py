"""The coordinator: an elected device that monitors the others and delivers notices; and its deputy.

Every device stands for election (election.py). The coordinator runs the passes of the monitor (monitor.py) and delivers
notices to people (notifier.py); the deputy observes, so that it can act for a coordinator that dies.
"""

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
    """``every`` is the interval between two passes. ``lease`` is how long an office lasts without being renewed: that
    of the fleet's settings if it is None, and three passes at least. All in seconds. ``policy`` is the device policy,
    which says which command and which address may get notices."""

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
        """Stand for election and run passes, until it is cancelled."""
        trouble = RecurringError(log, "cannot watch", "watches again", self.fleet.clock.time)
        while True:
            self.monitor.due_in = float("inf")  # an earlier pass says nothing about the next one
            try:
                await self._run_pass()
                trouble.recovered()
            except Exception as error:  # no error of the coordinator may end the work of this device
                trouble.occurred(error)
            pause = self._every * self.fleet.chance.uniform(1.0 - JITTER, 1.0 + JITTER)
            await self.fleet.clock.sleep(min(pause, self.monitor.due_in))

    async def _run_pass(self) -> None:
        lease = self._lease if self._lease is not None else (await self.fleet.settings()).lease
        self.office.lease = self.deputy.lease = max(lease, 3 * self._every)
        if await self.office.campaign():
            if self.deputy.elected:
                await self.deputy.resign()
            await self.monitor.run_pass()
        elif await self.deputy.campaign():
            await self.monitor.run_deputy_pass(self.office.holder)

    async def deliver_notices(self) -> None:
        """Deliver notices while this device is the coordinator, until it is cancelled. A delivery may take long, so it
        runs beside the passes."""
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
        """Give up both offices, so that others can take them now."""
        await self.office.resign()
        await self.deputy.resign()

    def close(self) -> None:
        self._notifier.close()
