"""Calls that not every operating system has, each with what happens instead where it is missing.

Linux and macOS have all of them but a few, Windows lacks most. No other module uses such a call without asking first
whether it is there: ``tests/base/test_operating_system.py`` has the list. What Windows lacks costs safety, not
function: without process groups a command is stopped alone, and what it started may go on; without the guard it goes on
if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import asyncio

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

HAS_PROCESS_GROUPS = hasattr(os, "killpg") and hasattr(os, "fork")
"""Whether a process can lead a group that is signalled as a whole, and can run code of ours before its program."""

KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)
"""The signal that a process cannot ignore. On Windows every signal of ``os.kill`` ends it at once."""

CLOSE_ON_EXEC: int = getattr(os, "O_CLOEXEC", getattr(os, "O_NOINHERIT", 0))
PLAIN_FILE_ONLY: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags that neither follow a link nor wait for the writer of a FIFO."""

EMPTY_COMMAND = ("/bin/sh", "-c", ":") if os.name != "nt" else ("cmd", "/c", "exit 0")
"""A command that does nothing and succeeds."""


def user_id() -> int | None:
    """The id of the user of this process; None where users have none."""
    return os.getuid() if hasattr(os, "getuid") else None


def group_id() -> int | None:
    """The id of the group of this process; None where users have none."""
    return os.getgid() if hasattr(os, "getgid") else None


def argument_limit() -> int:
    """How many bytes of words and variables a command can get in all. Linux passes no more than 6 MiB, whatever
    its limits say."""
    try:
        limit = os.sysconf("SC_ARG_MAX")
    except (AttributeError, ValueError, OSError):  # not on this system
        limit = -1
    return min(limit, 6 << 20) if limit > 0 else 1 << 20


def own_group() -> int | None:
    """The process group of this process; None where there are none."""
    return os.getpgrp() if hasattr(os, "getpgrp") else None


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group, or to the one process where there are no groups. Returns whether it exists.
    Raises PermissionError."""
    if group <= 0:  # 0 would be our own group
        return False
    try:
        if HAS_PROCESS_GROUPS:
            os.killpg(group, number)
        elif number:  # on Windows, 0 would be a Ctrl-C
            os.kill(group, number)
    except ProcessLookupError:
        return False
    return True


def wait_for_child(child: int) -> int:
    """Wait for the end of a child process; returns its exit code, which is negative for a signal."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # somebody else has waited for it
        return 255


def call_after_child(loop: asyncio.AbstractEventLoop, child: int, ended: Callable[[int], None]) -> None:
    """Call ``ended`` on an event loop with the exit code of a child process, when it has ended. Raises RuntimeError if
    that takes a thread, and there is no other."""

    def exited(watch: int) -> None:
        loop.remove_reader(watch)
        os.close(watch)
        ended(wait_for_child(child))

    def wait() -> None:
        code = wait_for_child(child)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(ended, code)

    try:
        watch = os.pidfd_open(child)
    except (AttributeError, OSError):  # not on this system, or out of descriptors
        threading.Thread(target=wait, name=f"asterism-wait-{child}", daemon=True).start()
    else:
        loop.add_reader(watch, exited, watch)


def lock_file(file: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed. Raises BlockingIOError if another process holds the lock, unless it is to
    ``wait``."""
    if fcntl is not None:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        return
    import msvcrt  # a byte far behind the content, so that the file can be read and written

    locks: Any = msvcrt
    os.lseek(file, 1 << 30, os.SEEK_SET)
    try:
        locks.locking(file, locks.LK_LOCK if wait else locks.LK_NBLCK, 1)
    except OSError as error:
        raise BlockingIOError(error.errno, "the file is locked") from error
    finally:
        os.lseek(file, 0, os.SEEK_SET)


def discard_typed(stream: TextIO) -> None:
    """Discard what was typed into a terminal and is not read yet."""
    if not stream.isatty():
        return
    if termios is not None:
        termios.tcflush(stream.fileno(), termios.TCIFLUSH)
        return
    import msvcrt

    keys: Any = msvcrt
    while keys.kbhit():
        keys.getwch()


def open_folder(folder: Path) -> int:
    """Open a folder, to lock it or to make its entries durable; on Windows a file in it, since folders have neither."""
    if os.name != "nt":
        return os.open(folder, os.O_RDONLY | CLOSE_ON_EXEC)
    return os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC, 0o600)


def read_at(file: int, size: int, offset: int) -> bytes:
    """Read from a place of an open file."""
    if hasattr(os, "pread"):
        return os.pread(file, size, offset)
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, size)


def call_in_forked_children(function: Callable[[], None]) -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def load_average() -> float | None:
    """How many processes were ready to run in the last minute; None if that is not known."""
    if not hasattr(os, "getloadavg"):
        return None
    with contextlib.suppress(OSError):
        return os.getloadavg()[0]
    return None


def physical_memory() -> int | None:
    """The memory of this machine in bytes; None if it is not known."""
    if not hasattr(os, "sysconf"):
        return None
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


# -- signals of an event loop ------------------------------------------------------------------------------------------


def add_signal_handler(loop: Any, number: int, handler: Callable[[], Any]) -> None:
    """Call ``handler`` on an event loop when a signal comes. The loop of Windows has no such handlers."""
    try:
        loop.add_signal_handler(number, handler)
    except NotImplementedError:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(handler))


def remove_signal_handler(loop: Any, number: int) -> None:
    try:
        loop.remove_signal_handler(number)
    except NotImplementedError:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextlib.contextmanager
def on_signals(handler: Callable[[], Any]) -> Iterator[None]:
    """Call ``handler`` for each SIGINT and SIGTERM while the block runs, in place of ending the process."""
    import asyncio

    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        add_signal_handler(loop, number, handler)
    try:
        yield
    finally:
        for number in numbers:
            remove_signal_handler(loop, number)


@contextlib.contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set while the block runs."""
    import asyncio

    stop = asyncio.Event()
    with on_signals(stop.set):
        yield stop
