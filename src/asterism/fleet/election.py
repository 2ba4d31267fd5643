"""Election of the coordinator and its deputy: leases in the store, with a growing epoch.

Correctness does not depend on there being only one coordinator; the lease saves work. A holder that cannot renew stops
a little before the lease runs out, by its own clock.

There are two offices, and a device has at most one of them. The *deputy* observes what the coordinator observes, so
that it can act for a coordinator that dies (monitor.py).
"""

from __future__ import annotations

from asterism.base.clock import Clock
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import PutRegister, Store

COORDINATOR = "coordinator"
DEPUTY = "deputy"
OFFICES = (COORDINATOR, DEPUTY)
"""The registers of the leases."""

LEASE = 15.0
"""How long an office lasts by default without being renewed, in seconds."""


class Election:
    """``lease`` is how long the office lasts without being renewed, in seconds. ``holder`` is the session that had the
    office at the last look."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        device: str,
        session: str,
        lease: float = LEASE,
        *,
        office: str = COORDINATOR,
    ) -> None:
        self._store, self._clock, self._office = store, clock, office
        self._device, self._session, self.lease = device, session, lease
        self.holder: str | None = None
        self.epoch = 0
        self._until = 0.0

    @property
    def elected(self) -> bool:
        return self._clock.time() < self._until

    async def campaign(self) -> bool:
        """Renew the lease, or take it if it is free. Returns whether this session has the office now."""
        sent = self._clock.time()
        found = await self._store.register(self._office)
        now = self._store.clock()
        ours = found is not None and found.value["session"] == self._session
        # a lease that ends later than possible was written before the store's clock was set back
        free = found is None or not now <= found.value["until"] <= now + 2 * found.value.get("lease", self.lease)
        self.holder = None if found is None else found.value["session"]
        if not ours and not free:
            self._until = 0.0
            return False
        epoch = found.value["epoch"] + (not ours) if found is not None else 1
        value = {"device": self._device, "session": self._session, "epoch": epoch}
        value |= {"until": now + self.lease, "lease": self.lease}
        if not await try_commit(self._store, [PutRegister(self._office, value, found and found.revision)]):
            self._until = 0.0
            return False
        self.holder = self._session
        self.epoch, self._until = epoch, sent + 0.8 * self.lease
        return True

    async def resign(self) -> None:
        """Give up the office, so that another device can take it now."""
        found = await self._store.register(self._office)
        if found is not None and found.value["session"] == self._session:
            await try_commit(self._store, [PutRegister(self._office, {**found.value, "until": 0.0}, found.revision)])
        self._until = 0.0
