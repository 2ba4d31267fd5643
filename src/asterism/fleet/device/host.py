"""The machine that devices run on: its identity, its devices, and a lock per device name."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import weakref
from collections.abc import Iterable
from pathlib import Path

from asterism.core.run.session import OPEN, Session
from asterism.fleet.device.orphan_processes import kill_orphans
from asterism.fleet.device.process_records import machine_id, start_time, state_directory


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
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        # a forked child that does not become another program would keep the lock after our death
        os.register_at_fork(after_in_child=_ForgetInChild(self))
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


class _ForgetInChild:
    """Closes the file of a lock in a forked child, without keeping the lock object alive for that."""

    def __init__(self, lock: DeviceLock) -> None:
        self._lock = weakref.ref(lock)

    def __call__(self) -> None:
        lock = self._lock()
        if lock is not None:
            lock.forget()


def _is_file_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at this path."""
    found = os.fstat(file)
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (named.st_dev, named.st_ino)
