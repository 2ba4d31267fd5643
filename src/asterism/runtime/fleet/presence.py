"""What a device knows of its own machine: which one it is, and that no other process here is the same device."""

from __future__ import annotations

import os
import socket

from asterism.runtime.fleet.lives import machine, state_directory
from asterism.runtime.fleet.strays import DeviceLock, end_strays


class OwnPresence:
    """``store`` is the store's identity, not one of its addresses: a device is the same under each of them."""

    def __init__(self, store: str, device: str) -> None:
        self._store, self._device = store, device
        self._lock = DeviceLock(store, device)
        self.host = _host()

    def acquire(self) -> bool:
        return self._lock.acquire()

    def end_strays(self, session: str) -> None:
        end_strays(self._device, self._store, session)

    def close(self) -> None:
        self._lock.close()


def _host() -> str:
    """The machine's name, its id if it has one (two machines may share a name, and containers an id), and the place of
    our locks: who keeps them elsewhere, such as another user, cannot know from a free lock that we are dead."""
    place = os.stat(state_directory())
    return " ".join(filter(None, (socket.gethostname(), machine(), f"{place.st_dev:x}-{place.st_ino:x}")))
