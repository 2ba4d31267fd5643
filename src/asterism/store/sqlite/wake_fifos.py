"""Wake-ups between the processes that share a SQLite file: after a commit, other processes look at the file at once.

While a process watches, it has a FIFO of its own in the directory ``<file>.wake`` beside the store. A commit that
concerns a topic writes a byte to the FIFOs of all other processes, without waiting, and they check the version of the
file, as they do at intervals in any case (``group_commit``). A process sends and follows at most one such message per
INTERVAL, so that a busy writer costs the others little.

This is a hint and no more. A message that is missing costs a moment: where there are no FIFOs or they cannot be made,
where another user owns the directory, or where an older version of this program writes, the next poll finds the commit.

Only processes of the owner of the store take part; nobody else can write to the directory and the FIFOs. A process that
was killed leaves its FIFO; nobody reads it, and a writer removes it later. The last process that closes the store
removes the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
import uuid
from collections.abc import Callable
from pathlib import Path

INTERVAL = 0.003
"""The least time between two messages that a process sends, and between two that it follows, in seconds."""

ABANDONED = 10.0
"""A FIFO that nobody reads is removed at this age, in seconds: a younger one may be about to be opened."""

TRIES = 3
"""How often to try to make a FIFO: another process may remove the empty directory meanwhile."""

SUFFIX = ".wake"

SUPPORTED = hasattr(os, "mkfifo")
"""Windows has no FIFOs."""


class _Paced:
    """Calls a function at once, or INTERVAL after its last call; calls that are asked for meanwhile are one."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._loop = asyncio.get_running_loop()
        self._called_at = float("-inf")
        self._later: asyncio.TimerHandle | None = None

    def call(self) -> None:
        if self._later is None:
            pause = self._called_at + INTERVAL - self._loop.time()
            if pause <= 0:
                self._call()
            else:
                self._later = self._loop.call_later(pause, self._call)

    def _call(self) -> None:
        self._later = None
        self._called_at = self._loop.time()
        self._action()

    def close(self, *, finish: bool) -> None:
        if self._later is not None:
            self._later.cancel()
            if finish:
                self._call()


class WakeFifos:
    """The FIFO of one open store, and those of the other processes. ``wake`` is called in the event loop when another
    process has committed."""

    def __init__(self, store: Path, wake: Callable[[], None]) -> None:
        self._store = store
        self._folder = os.fspath(store.with_name(f"{store.name}{SUFFIX}"))
        self._loop = asyncio.get_running_loop()
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._reading: int | None = None
        self._tried = not SUPPORTED
        self._sender, self._receiver = _Paced(self._send), _Paced(wake)

    # -- being woken -------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Be woken from now on. Tried once: without it, watches are woken by polling."""
        if self._tried:
            return
        self._tried = True
        for _ in range(TRIES):
            try:
                reading = self._make_fifo()
            except FileNotFoundError:
                continue
            except OSError:
                return
            try:
                self._loop.add_reader(reading, self._received)
            except NotImplementedError:  # such an event loop only polls
                os.close(reading)
                return
            self._reading = reading
            return

    def _make_fifo(self) -> int:
        if self._store.stat().st_uid != os.geteuid():
            raise PermissionError(errno.EACCES, "the store belongs to another user", str(self._store))
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        folder = self._open_folder()
        try:
            os.mkfifo(self._name, 0o600, dir_fd=folder)
            # for writing too: otherwise the end of each writer would be the end of the file
            return os.open(self._name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)

    def _received(self) -> None:
        assert self._reading is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._reading, 1 << 16)
        self._receiver.call()

    # -- waking others -----------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Wake other processes: now, or in a moment."""
        if SUPPORTED:
            self._sender.call()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # usually there is no directory, since no process watches
            folder = self._open_folder()
            try:
                for name in os.listdir(folder):
                    if name != self._name:
                        _write(folder, name)
            finally:
                os.close(folder)

    def close(self) -> None:
        """Send what is left, and remove our FIFO, and the directory if no other process has one there."""
        self._sender.close(finish=True)
        self._receiver.close(finish=False)
        if self._reading is None:
            return
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        self._reading = None
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder, self._name))
            os.rmdir(self._folder)

    def _open_folder(self) -> int:
        """Open the directory. Raises OSError if there is none, or if anybody else can write there."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            os.close(folder)
            raise PermissionError(errno.EACCES, "it is not ours alone", self._folder)
        return folder


def _write(folder: int, name: str) -> None:
    """Write to the FIFO of a process. One that nobody reads any more is removed."""
    try:
        fifo = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:  # its process was killed, or has not opened it yet
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < time.time() - ABANDONED:
                    os.unlink(name, dir_fd=folder)
        return
    try:
        if stat.S_ISFIFO(os.fstat(fifo).st_mode):
            with contextlib.suppress(OSError):  # full: its process has been woken, and has not looked yet
                os.write(fifo, b"\n")
    finally:
        os.close(fifo)
