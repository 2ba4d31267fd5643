"""Reasons of changes that no story tells, such as that of a workflow: each is left as a notice."""

from __future__ import annotations

from asterism.core.errors import truncate
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Notice


async def leave_reason(fleet: Fleet, action: str, reason: str, device: str | None = None) -> None:
    """Leave a notice of who did something and why, if a reason is given. ``action`` continues the name of the caller:
    ``removed workflow 'x'``."""
    if reason:
        message = truncate(f"{fleet.by} {action}: {reason}")
        await fleet.store.commit([Notice(fleet.store.clock(), "changed", message, None, device)])
