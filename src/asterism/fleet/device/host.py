"""What a device knows of its own machine: which one it is, and that no other process here is the same device; and
what others on that machine can know of its devices."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from asterism.core.run.session import OPEN, Session
from asterism.fleet.device.orphan_processes import DeviceLock, kill_orphans
from asterism.fleet.device.process_records import began, machine, state_directory


class LocalHost:
    """``store`` is the store's identity, not one of its addresses: a device is the same under each of them."""

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
    """The machine's name, its id if it has one (two machines may share a name, and containers an id), and the place of
    our locks: who keeps them elsewhere, such as another user, cannot know from a free lock that we are dead."""
    place = os.stat(state_directory())
    return " ".join(filter(None, (socket.gethostname(), machine(), f"{place.st_dev:x}-{place.st_ino:x}")))


def devices_here(store: str, sessions: Iterable[Session]) -> frozenset[str]:
    """The devices among these sessions of a store that live on this machine and belong to this user. A session says
    that it is one of them, and the process that holds the device's lock has to be alive: one that was killed a moment
    ago is still heard of by the store. In doubt it is none."""
    try:
        host = _host()
        return frozenset(
            one.device for one in sessions if one.state == OPEN and one.host == host and _is_alive(store, one.device)
        )
    except OSError:  # there is no place for locks that is ours, and so no device
        return frozenset()


def _is_alive(store: str, device: str) -> bool:
    number = DeviceLock(store, device).holder()
    return number is not None and began(number) is not None
