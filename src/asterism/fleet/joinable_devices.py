"""The devices that a store knows, their states and enrolments, and the names with which others may still join."""

from __future__ import annotations

import math

from asterism.core.plan.edit_rules import KnownDevices
from asterism.core.run.session import ENDED, REACHABLE_STATES, Session
from asterism.store.protocol import Store

CODES, DEVICES = "gateway/code/", "gateway/device/"
"""Prefixes of the keys of registers: codes of invitations, and enrolled devices."""


async def enrolment_of(store: Store, device: str, began_at: float = math.inf) -> str | None:
    """What tells an enrolment of a device from another one of the same name; empty for a device that has access to the
    store, None for one that was revoked, or enrolled after ``began_at``."""
    register = await store.register(f"{DEVICES}{device}")
    if register is None:
        return ""
    enrolled_at = register.value["enrolled_at"]
    if register.value["revoked_at"] is not None or enrolled_at > began_at:
        return None
    return f"{enrolled_at!r} {register.value['key']}"


async def known_devices(store: Store) -> KnownDevices:
    """The devices that are there, were there lately or are enrolled; and the invitations that are open."""
    from asterism.fleet.policy.rule_patterns import compile_pattern  # commands that only list need no policy

    seen = {session.device for session in await store.sessions(ended=True)}
    for register in await store.registers(DEVICES):
        if register.value["revoked_at"] is None:
            seen.add(register.key.removeprefix(DEVICES))
    now = store.clock()
    codes = [register.value for register in await store.registers(CODES)]
    invited = [compile_pattern(code["name"]) for code in codes if code["key"] is None and code["until"] >= now]
    return KnownDevices(frozenset(seen), lambda name: any(pattern.fullmatch(name) for pattern in invited))


def state_of(session: Session, now: float) -> str:
    """The state of a device, in one word."""
    if session.state not in REACHABLE_STATES:
        return "left" if session.state == ENDED else session.state
    if not session.reachable(now):
        return "silent"
    if session.draining:
        return "draining"
    if session.resting is not None:
        return "resting"
    if session.slots == 0:
        return "watching"
    if session.suspended is not None:
        return "suspended"
    return "busy" if session.used >= session.slots else "ready"
