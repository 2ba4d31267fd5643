"""The lease of an elected role, in a register: which session is coordinator or deputy, and until when.

A value that is damaged, or that another program wrote, says nothing about who has the role: it counts as a lease that
is over, and the next election replaces it. Its epoch is then the revision of the register: the epoch grows at most once
with each revision, so no earlier one was larger.
"""

from __future__ import annotations

import logging
from typing import Any

from asterism.core.record import InvalidRecord, Record, replace
from asterism.store.protocol import PutRegister, Store
from asterism.store.store_errors import StoreCorrupt

log = logging.getLogger("asterism.fleet")

LONGEST_LEASE = 86_400.0
"""The longest lease, in seconds: a value with a longer one could keep a role from every device for ever."""

LARGEST = 1 << 53
"""The largest epoch or time: every integer up to it is a float."""


class RoleLease(Record):
    """``until`` is by the clock of the store, ``lease`` how long it lasts without being renewed, in seconds."""

    device: str
    session: str
    epoch: int
    until: float
    lease: float

    def over(self) -> RoleLease:
        """The same lease, given up."""
        return replace(self, until=0.0)


async def read_lease(store: Store, role: str) -> tuple[RoleLease | None, int | None]:
    """The lease of a role and the revision of its register; None for both if nobody ever had it."""
    try:
        register = await store.register(role)
        if register is None:
            return None, None
        value, revision = register.value, register.revision
    except StoreCorrupt as error:
        if error.revision is None:
            raise
        value, revision = None, error.revision
    lease = _parse(value)
    if lease is None:
        log.warning("register %r is not the lease of a role: the next election replaces it", role)
        lease = RoleLease("", "", revision, 0.0, 1.0)
    return lease, revision


def put_lease(role: str, lease: RoleLease, revision: int | None) -> PutRegister:
    return PutRegister(role, lease.to_json(), revision)


def _parse(value: Any) -> RoleLease | None:
    try:
        lease = RoleLease.from_json(value)
    except InvalidRecord:
        return None
    valid = 0 <= lease.epoch <= LARGEST and 0 <= lease.until <= LARGEST and 0 < lease.lease <= LONGEST_LEASE
    return lease if valid else None  # NaN is not valid
