"""How a device enters the store and leaves it: one living session per name.

A name that is in use is refused, unless its user is known to be dead: then its session is ended and its work is free
at once. One that is merely silent, or that somebody insists on replacing, may still be at work somewhere: its
heartbeats are refused from now on, and its work is free when its time has run out.
"""

from __future__ import annotations

import uuid
from typing import Protocol

from asterism.base.clock import Clock
from asterism.core.errors import AsterismError
from asterism.core.run.session import ABROAD, ENDED, OPEN, REPLACED, Session
from asterism.fleet.election import OFFICES
from asterism.store.protocol import Notice, PutRegister, PutSession, Store, Write
from asterism.store.store_errors import Conflict, StoreUnavailable

PATIENCE = 60.0


class DeviceNameTaken(AsterismError):
    """Another device with this name is alive."""


class DeviceHost(Protocol):
    """What a device knows of its own machine."""

    @property
    def host(self) -> str:
        """Which machine this is."""
        ...

    def acquire(self) -> bool:
        """Whether no other living process on this machine is the same device; it then stays ours until we die."""
        ...

    def kill_orphans(self, session: str) -> None:
        """End what earlier lives of the device left running here, but not what ``session`` started."""
        ...

    def close(self) -> None: ...


async def join(store: Store, clock: Clock, session: Session, presence: DeviceHost, *, replace: bool = False) -> Session:
    """Enter. Raises DeviceNameTaken."""
    if not presence.acquire():
        raise DeviceNameTaken(f"a device {session.device!r} of this store is running on this machine already")
    presence.kill_orphans(session.id)
    until = clock.time() + PATIENCE
    entered = False
    while True:
        try:
            writes = await _entry(store, session, replace)
            if not writes:
                return session
            if entered:
                raise DeviceNameTaken(f"the name {session.device!r} was taken by another device while we joined")
            await store.commit(writes)
            return session
        except Conflict as conflict:
            entered = entered or conflict.what == f"session {session.id}"  # by ourselves, and we were not told
        except StoreUnavailable:
            if clock.time() >= until:
                raise
            await clock.sleep(1.0)


async def _entry(store: Store, session: Session, replace: bool) -> list[Write]:
    """What to write; nothing if it was written already and the answer got lost."""
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
                f"a peer has a device {session.device!r} ({old.host}): choose another name, or each is taken for an "
                "impostor by the other's store"
            )
        if old.device != session.device or old.state != OPEN:
            continue
        if old.host == session.host:  # we hold the lock of this device here, so its process is dead
            writes.append(PutSession(old.changed(state=ENDED), old.revision))
            for name in OFFICES:  # nobody has to wait for a dead coordinator
                office = await store.register(name)
                if office is not None and office.value["session"] == old.id:
                    writes.append(PutRegister(name, {**office.value, "until": 0.0}, office.revision))
        elif old.reachable(now) and not replace:
            raise DeviceNameTaken(
                f"a device {session.device!r} is joined from {old.host} and was heard of {now - old.beat_at:.0f} s "
                "ago; choose another name, or say that it is to be replaced"
            )
        else:
            writes.append(PutSession(old.changed(state=REPLACED), old.revision))
            message = f"device {session.device} on {old.host} was replaced by one on {session.host}"
            writes.append(Notice(now, "replaced", message, None, session.device))
    return writes


async def leave(store: Store, session_id: str) -> None:
    """Say that nothing is being done here any more."""
    while True:
        found = [one for one in await store.sessions() if one.id == session_id]
        if not found:
            return
        try:
            await store.commit([PutSession(found[0].changed(state=ENDED), found[0].revision)])
            return
        except Conflict:
            continue


async def say_draining(store: Store, session_id: str) -> None:
    """Say that a session takes nothing more."""
    while True:
        found = [one for one in await store.sessions() if one.id == session_id]
        if not found or found[0].draining:
            return
        try:
            await store.commit([PutSession(found[0].changed(draining=True), found[0].revision)])
            return
        except Conflict:
            continue


async def identity(store: Store, clock: Clock) -> str:
    """What tells a store from every other, however it is spelt: written once, by whoever asks first."""
    until = clock.time() + PATIENCE
    while True:
        try:
            found = await store.register("store/id")
            if found is not None:
                return str(found.value["id"])
            await store.commit([PutRegister("store/id", {"id": uuid.uuid4().hex}, None)])
        except Conflict:
            continue
        except StoreUnavailable:
            if clock.time() >= until:
                raise
            await clock.sleep(1.0)
