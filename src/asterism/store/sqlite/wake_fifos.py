"""Wake-ups between the processes that share a SQLite file: a commit wakes the watches of other processes at once.

While a process watches, it has a FIFO of its own in the directory ``<file>.wake`` beside the store. After a commit, the
topics of the commit are written to the FIFOs of all other processes, without waiting. Topics that arrive within
INTERVAL go out together, so that a busy writer costs other processes at most a hundred wake-ups per second.

This is a hint and no more. Watches are also woken by polling the version of the file (``group_commit``), so a missing
message costs a moment, and nothing is lost: where FIFOs do not exist or cannot be made, where another user owns the
directory, where a FIFO is full, or where an older version of this program writes.

Only processes of the owner of the store take part; nobody else can write to the directory and the FIFOs. A process that
was killed leaves its FIFO; nobody reads it, and a writer removes it later. The last process that closes the store
removes the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from asterism.store.watches import Watches

INTERVAL = 0.01
"""The least time between two messages of one process, in seconds."""

LONGEST = 4096
"""The longest message, in bytes: writes of up to PIPE_BUF bytes are not mixed with those of other processes."""

ABANDONED = 10.0
"""A FIFO that nobody reads is removed at this age, in seconds: a younger one may be about to be opened."""

TRIES = 3
"""How often to try to make a FIFO: another process may remove the empty directory meanwhile."""

SUFFIX = ".wake"

SUPPORTED = hasattr(os, "mkfifo")
"""Windows has no FIFOs."""


class WakeFifos:
    """The FIFO of one open store, and those of the other processes. Belongs to an event loop."""

    def __init__(self, store: Path, watches: Watches) -> None:
        self._store = store
        self._folder = os.fspath(store.with_name(f"{store.name}{SUFFIX}"))
        self._watches = watches
        self._loop = asyncio.get_running_loop()
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._reading: int | None = None
        self._tried = False
        self._topics: set[str] = set()
        self._sent_at = float("-inf")
        self._later: asyncio.TimerHandle | None = None

    # -- being woken -------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Be woken from now on. Tried once: without it, watches are woken by polling."""
        if self._tried:
            return
        self._tried = True
        if not SUPPORTED:
            return
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
        try:
            data = os.read(self._reading, 1 << 16)
        except BlockingIOError:
            return
        topics: set[str] = set()
        for line in data.splitlines():
            try:
                topics.update(map(str, json.loads(line)))
            except (ValueError, TypeError):  # cut in two by the size of the read, or not written by us
                self._watches.wake_all()
                return
        self._watches.wake(topics)

    # -- waking others -----------------------------------------------------------------------------------------------

    def announce(self, topics: Iterable[str]) -> None:
        """Wake the watches of other processes on these topics: now, or a moment later with those that follow."""
        if not SUPPORTED:
            return
        self._topics.update(topics)
        if self._later is None:
            pause = self._sent_at + INTERVAL - self._loop.time()
            if pause <= 0:
                self._send()
            else:
                self._later = self._loop.call_later(pause, self._send)

    def _send(self) -> None:
        self._later = None
        topics, self._topics = self._topics, set()
        self._sent_at = self._loop.time()
        with contextlib.suppress(OSError):  # usually there is no directory, since no process watches
            folder = self._open_folder()
            try:
                others = [name for name in os.listdir(folder) if name != self._name]
                message = _message(topics) if others else b""
                for name in others:
                    _write(folder, name, message)
            finally:
                os.close(folder)

    def close(self) -> None:
        """Send what is left, and remove our FIFO, and the directory if no other process has one there."""
        if self._later is not None:
            self._later.cancel()
            self._send()
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
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            os.close(folder)
            raise PermissionError(errno.EACCES, "it is not ours alone", self._folder)
        return folder


def _message(topics: set[str]) -> bytes:
    """The topics on a line; a line that wakes all watches if they are too long."""
    line = json.dumps(sorted(topics)).encode() + b"\n"
    return line if len(line) <= LONGEST else b"null\n"


def _write(folder: int, name: str, message: bytes) -> None:
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
                os.write(fifo, message)
    finally:
        os.close(fifo)
