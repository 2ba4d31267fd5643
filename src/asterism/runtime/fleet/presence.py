"""What a device knows of its own machine: which one it is, and that no other process here is the same device."""

from __future__ import annotations

import socket
from pathlib import Path

from asterism.runtime.fleet.strays import DeviceLock, end_strays


class OwnPresence:
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
    """The machine's name and its id, if it has one: two machines may share a name, and containers an id."""
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return f"{socket.gethostname()} {machine}".strip()
