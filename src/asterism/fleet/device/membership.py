"""Membership of a device in a fleet: join, leave, drain; one living session per name.

A name that is in use is refused, unless its device is known to be dead: then its session is ended and its runs are free
at once. A device that is merely silent, or that is to be replaced, may still be at work: its heartbeats are refused
from now on, and its runs are free when its time has run out.
"""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from asterism.base.clock import Clock
from asterism.core.errors import AsterismError
from asterism.core.run.session import ABROAD, ENDED, OPEN, REPLACED, Session
from asterism.fleet.election import OFFICES
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import Notice, PutRegister, PutSession, Store, Write
from asterism.store.store_errors import Conflict

JOIN_TIMEOUT = 60.0
"""How long to try to join while the store is unavailable, in seconds."""


class DeviceNameTaken(AsterismError):
    """Another device with this name is alive."""


class DeviceHost(Protocol):
    """The machine of a device, as membership uses it; ``host.LocalHost`` is this machine."""

    @property
    def host(self) -> str:
        """Which machine this is."""

    def acquire(self) -> bool:
        """Take the lock on the device's name, for the life of this process. Returns False if another living process on
        this machine is the same device."""

    def kill_orphans(self, session: str) -> None:
        """End processes that earlier lives of the device left running here, but none that ``session`` started."""

    def close(self) -> None: ...


async def join(store: Store, clock: Clock, session: Session, host: DeviceHost, *, replace: bool = False) -> Session:
    """Enter the session into the store. Raises DeviceNameTaken."""
    if not host.acquire():
        raise DeviceNameTaken(f"a device {session.device!r} of this store is running on this machine already")
    host.kill_orphans(session.id)
    entered = False

    async def attempt() -> Session:
        nonlocal entered
        writes = await _entry(store, session, replace)
        if not writes:
            return session
        if entered:
            raise DeviceNameTaken(f"the name {session.device!r} was taken by another device while we joined")
        try:
            await store.commit(writes)
        except Conflict as conflict:
            entered = entered or conflict.concerns(
                "session", session.id
            )  # our own earlier commit, whose answer was lost
            raise
        return session

    return await retry_on_conflict(attempt, patience=JOIN_TIMEOUT, clock=clock)


async def _entry(store: Store, session: Session, replace: bool) -> list[Write]:
    """The writes that enter a session; none if it is entered already and the answer was lost."""
    now = store.clock()
    key = f"device/{session.device}"
    current = await store.register(key)
    if current is not None and current.value["session"] == session.id:
        return []
    writes: list[Write] = [
        PutRegister(key, {"session": session.id}, current and current.revision),
        PutSession(session, None),
    ]
    for old in await store.sessions():
        if old.device == session.device and old.state == ABROAD and old.reachable(now) and not replace:
            raise DeviceNameTaken(
                f"a peer has a device {session.device!r} ({old.host}): choose another name, or each store takes the "
                "other's device for an impostor"
            )
        if old.device != session.device or old.state != OPEN:
            continue
        if old.host == session.host:  # we hold the lock of this device here, so its process is dead
            writes.append(PutSession(old.changed(state=ENDED), old.revision))
            for name in OFFICES:  # end the terms of a dead coordinator at once
                office = await store.register(name)
                if office is not None and office.value["session"] == old.id:
                    writes.append(PutRegister(name, {**office.value, "until": 0.0}, office.revision))
        elif old.reachable(now) and not replace:
            raise DeviceNameTaken(
                f"a device {session.device!r} is joined from {old.host} and was heard of {now - old.beat_at:.0f} s "
                "ago; choose another name, or replace it with --replace"
            )
        else:
            writes.append(PutSession(old.changed(state=REPLACED), old.revision))
            message = f"device {session.device} on {old.host} was replaced by one on {session.host}"
            writes.append(Notice(now, "replaced", message, None, session.device))
    return writes


async def leave(store: Store, session_id: str) -> None:
    """End a session: the device executes nothing any more."""
    await _change_session(store, session_id, state=ENDED)


async def mark_draining(store: Store, session_id: str) -> None:
    """Say that a session takes nothing more."""
    await _change_session(store, session_id, draining=True)


async def _change_session(store: Store, session_id: str, **changes: Any) -> None:
    async def attempt() -> None:
        for session in await store.sessions():
            if session.id == session_id and any(getattr(session, name) != new for name, new in changes.items()):
                await store.commit([PutSession(session.changed(**changes), session.revision)])

    await retry_on_conflict(attempt)


async def store_identity(store: Store, clock: Clock) -> str:
    """What tells a store from every other, under whatever URL: written once, by the first process that asks."""

    async def attempt() -> str:
        found = await store.register("store/id")
        if found is not None:
            return str(found.value["id"])
        new = uuid.uuid4().hex
        await store.commit([PutRegister("store/id", {"id": new}, None)])
        return new

    return await retry_on_conflict(attempt, patience=JOIN_TIMEOUT, clock=clock)
