"""Membership of a device in a fleet: join, leave, drain; its host; one living session per name.

A name that is in use is refused, unless its device is known to be dead: then its session is ended and its runs are free
at once. A device that is merely silent, or that is to be replaced, may still be at work: its heartbeats are refused
from now on, and its runs are free when its time has run out.

A lock per name on each machine (``DeviceLock``) tells a dead device from a silent one.

The profile of a device, as its machine measures it: system, cores and load, memory, battery.

It is sent with each heartbeat. Rules of devices and workflows are expressions over it (take_order.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import socket
import uuid
import weakref
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from asterism.base import operating_system
from asterism.base.clock import Clock
from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.run.session import ABROAD, ENDED, OPEN, REPLACED, Session
from asterism.fleet.device.process_records import kill_orphans, machine_id, start_time, state_directory
from asterism.fleet.role_lease import put_lease, read_lease
from asterism.fleet.settings import ELECTED_ROLES
from asterism.store.optimistic_update import retried, retry_on_conflict
from asterism.store.protocol import Notice, PutRegister, PutSession, Store, Write, read_slot
from asterism.store.store_errors import Conflict

JOINED = "device/"
"""Prefix of registers with the newest session of each device that ever joined."""

JOIN_TIMEOUT = 60.0
"""How long to try to join while the store is unavailable, in seconds."""

JOIN_PAUSE = (1.0, 1.0)
"""The first and the longest pause between these tries, in seconds."""


class DeviceNameTaken(AsterismError):
    """Another device with this name is alive."""


class DeviceHost(Protocol):
    """The machine of a device, as membership uses it; ``LocalHost`` is this machine."""

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
    prepare_host(session, host)
    return await enter(store, clock, session, replace=replace)


def prepare_host(session: Session, host: DeviceHost) -> None:
    """Take the lock of the device on its machine, and end what earlier processes of it left running. Raises
    DeviceNameTaken."""
    if not host.acquire():
        raise DeviceNameTaken(f"a device {session.device!r} of this store is running on this machine already")
    host.kill_orphans(session.id)


async def enter(
    store: Store, clock: Clock, session: Session, *, replace: bool = False, patience: float = JOIN_TIMEOUT
) -> Session:
    """As ``join``, for a device on any machine."""
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
            # our own earlier commit, whose answer was lost
            entered = entered or conflict.concerns("session", session.id)
            raise
        return session

    return await retry_on_conflict(attempt, patience=patience, outage_pause=JOIN_PAUSE, clock=clock)


async def _entry(store: Store, session: Session, replace: bool) -> list[Write]:
    """The writes that enter a session; none if it is entered already and the answer was lost."""
    now = store.clock()
    current = await read_slot(store, f"{JOINED}{session.device}", {"session": None})
    if current.value["session"] == session.id:
        return []
    writes: list[Write] = [
        current.put({"session": session.id}),
        PutSession(session, None),
    ]
    for old in await store.sessions(device=session.device):
        if old.state == ABROAD and old.reachable(now) and not replace:
            raise DeviceNameTaken(
                f"a peer has a device {session.device!r} ({old.host}): choose another name, or each store takes the "
                "other's device for an impostor"
            )
        if old.state != OPEN:
            continue
        if old.host == session.host:  # we hold the lock of this device here, so its process is dead
            writes.append(PutSession(old.changed(state=ENDED), old.revision))
            for role in ELECTED_ROLES:  # a dead coordinator is one no longer
                lease, revision = await read_lease(store, role)
                if lease is not None and lease.session == old.id:
                    writes.append(put_lease(role, lease.over(), revision))
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


async def leave(store: Store, session_id: str, device: str | None = None) -> None:
    """End a session: the device executes nothing any more. To know the device saves reading all sessions."""
    await _change_session(store, session_id, device, state=ENDED)


async def mark_draining(store: Store, session_id: str, device: str | None = None) -> None:
    """Say that a session takes nothing more."""
    await _change_session(store, session_id, device, draining=True)


@retried
async def _change_session(store: Store, session_id: str, device: str | None, **changes: Any) -> None:
    for session in await store.sessions(device=device):
        if session.id == session_id and any(getattr(session, name) != new for name, new in changes.items()):
            await store.commit([PutSession(session.changed(**changes), session.revision)])


async def store_identity(store: Store, clock: Clock) -> str:
    """What tells a store from every other, under whatever URL: written once, by the first process that asks."""

    async def attempt() -> str:
        register = await store.register("store/id")
        if register is not None:
            return str(register.value["id"])
        new = uuid.uuid4().hex
        await store.commit([PutRegister("store/id", {"id": new}, None)])
        return new

    return await retry_on_conflict(attempt, patience=JOIN_TIMEOUT, outage_pause=JOIN_PAUSE, clock=clock)


# -- this machine ------------------------------------------------------------------------------------------------------


class LocalHost:
    """This machine, for one device. ``store`` is the identity of the store, not one of its URLs: a device is the same
    under each of them."""

    def __init__(self, store: str, device: str) -> None:
        self._store, self._device = store, device
        self._lock = DeviceLock(store, device)
        self.host = _host()

    def acquire(self) -> bool:
        return self._lock.acquire()

    def kill_orphans(self, session: str) -> None:
        kill_orphans(self._device, self._store, session)

    def close(self) -> None:
        self._lock.close()


def _host() -> str:
    """The name of the machine, its id if it has one (two machines may share a name, and containers an id), and the
    directory of the locks: a process that keeps its locks elsewhere, such as that of another user, cannot conclude from
    a free lock that a device is dead."""
    place = os.stat(state_directory())
    return " ".join(filter(None, (socket.gethostname(), machine_id(), f"{place.st_dev:x}-{place.st_ino:x}")))


def devices_here(store: str, sessions: Iterable[Session]) -> frozenset[str]:
    """The devices among the sessions of a store that live on this machine and belong to this user. The session must
    name this host, and the process that holds the lock of the device must be alive: the store still counts a device
    that was killed a moment ago. In doubt a device is not included."""
    try:
        host = _host()
        return frozenset(
            session.device
            for session in sessions
            if session.state == OPEN
            and session.host == host
            and (holder := lock_holder(store, session.device)) is not None
            and start_time(holder) is not None
        )
    except OSError:  # there is no directory for locks of this user, and so no device
        return frozenset()


def died_here(store: str, session: Session) -> bool:
    """Whether the process of a session is known to be dead: it was on this machine and of this user, its process id is
    free, and no process holds the lock of its device. False in doubt."""
    try:
        holder = lock_holder(store, session.device) if session.host == _host() else None
        return holder is not None and start_time(holder) is None and not _is_locked(_lock_path(store, session.device))
    except OSError:
        return False


def _is_locked(path: Path) -> bool:
    """Whether a process holds the lock on a file."""
    file = os.open(path, os.O_RDONLY | operating_system.CLOSE_ON_EXEC)
    try:
        operating_system.lock_file(file, shared=True)
        return not _is_file_at(file, path)  # another file is there by now, and so another holder
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def lock_holder(store: str, device: str) -> int | None:
    """The process id of the last holder of a device's lock; None if there is none."""
    try:
        return int(_lock_path(store, device).read_text())
    except (OSError, ValueError):
        return None


class DeviceLock:
    """A lock file, held by the one living agent of a device on this machine, for this user. The lock ends with the
    process, however that ends, and no child inherits it."""

    def __init__(self, store: str, device: str) -> None:
        self._store, self._device = store, device
        self._file = -1

    def acquire(self) -> bool:
        """Take the lock. Returns False if another living agent holds it."""
        if self._file >= 0:
            return True
        self._path = _lock_path(self._store, self._device)
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | operating_system.CLOSE_ON_EXEC, 0o600)
            try:
                operating_system.lock_file(file)
                if _is_file_at(file, self._path):
                    break
            except BlockingIOError:
                os.close(file)
                return False
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # the last holder has removed it just now, and the next one makes another
        os.ftruncate(file, 0)
        os.write(file, b"%d\n" % os.getpid())
        self._file = file
        _acquired.add(self)
        return True

    def close(self) -> None:
        """Release the lock and unlink its file, unless the file at its path is another process's by now."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                if _is_file_at(self._file, self._path):
                    self._path.unlink()
            self.forget()

    def forget(self) -> None:
        """Close the file without unlinking it: it may be the parent's."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _lock_path(store: str, device: str) -> Path:
    """The lock file; it holds the process id of its last holder."""
    words = "\0".join((store, device, socket.gethostname()))
    return state_directory() / "devices" / f"{hashlib.sha256(words.encode()).hexdigest()[:24]}.lock"


_acquired: weakref.WeakSet[DeviceLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child that does not become another program would keep the locks after our death."""
    for lock in list(_acquired):
        lock.forget()


operating_system.call_in_forked_children(_forget_in_child)  # once: a function is never taken back


def _is_file_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at this path."""
    opened = os.fstat(file)
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)


# -- profile -----------------------------------------------------------------------------------------------------------


POWER = Path("/sys/class/power_supply")


def measure(power: Path = POWER) -> JsonObject:
    """Measure the profile: ``os``, ``arch``, ``python``; ``cores`` that this process may use, and ``cpu``, the share of
    them in use in 0…1; ``memory`` in bytes; ``battery`` in 0…1, None if there is none or it is not known; ``plugged``,
    whether it is connected to power."""
    battery, plugged = _energy(power)
    constants = _constants()
    cpu = min(1.0, (operating_system.load_average() or 0.0) / constants["cores"])
    return {**constants, "cpu": round(cpu, 3), "battery": battery, "plugged": plugged}


@lru_cache(maxsize=1)
def _constants() -> JsonObject:
    """The part that does not change."""
    return {
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "cores": _cores(),
        "memory": operating_system.physical_memory(),
    }


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def _energy(power: Path) -> tuple[float | None, bool]:
    """How full the batteries are, and whether the machine is plugged in. A machine without a battery of its own is
    plugged in; the battery of a mouse does not count."""
    charges, lines, draining = [], [], False
    try:
        supplies = sorted(power.iterdir())
    except OSError:
        supplies = []
    for supply in supplies:
        kind = _word(supply, "type")
        if kind == "Battery" and _word(supply, "scope") != "Device":
            charge = _word(supply, "capacity")
            if charge.isdigit():
                charges.append(min(int(charge), 100) / 100)
                draining = draining or _word(supply, "status") == "Discharging"
        elif kind in ("Mains", "USB", "Wireless"):
            lines.append(_word(supply, "online") not in ("", "0"))
    if not charges:
        return None, True
    return round(sum(charges) / len(charges), 3), any(lines) if lines else not draining


def _word(supply: Path, name: str) -> str:
    try:
        return (supply / name).read_text(errors="replace").strip()
    except OSError:
        return ""
