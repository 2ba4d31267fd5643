"""The program of the process guard, and what a child does before it becomes the user's program.

``process_guard`` starts this text with ``python -I -S -c``, and explains the lines that it reads. It imports little, so
that it starts fast and stays small. Where it can, it starts the children of its parent: a fork copies the page tables
of the forking process, which takes tens of milliseconds in a large process and less than one here. ``clone`` with
``CLONE_PARENT`` makes the new process a child of the guard's parent, which can wait for it as for any other. A guard
that can do this writes ``ready``.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
import time
from contextlib import suppress
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypedDict

    class Order(TypedDict):
        """What a child becomes, with the state of the parent that it inherits. ``files`` is how many descriptors come
        with it."""

        argv: list[bytes]
        executables: list[bytes]
        environment: dict[bytes, bytes]
        cwd: bytes | None
        session: bool
        ignored: list[int]
        umask: int | None
        limits: dict[int, tuple[int, int]]
        blocked: list[int]
        admission: tuple[int, bytes | None, int, str | None] | None
        files: int


CLONE_PARENT = 0x8000
CLONE_CALLS = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "loongarch64": 220}
"""The number of the system call ``clone`` on machines where the flags are its first argument."""

DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
FD = 4  # bytes of a descriptor in a message
_NOTHING_THERE = (2, 20)  # ENOENT, ENOTDIR
_UNKNOWN = 5  # EIO


class DirectoryReplaced(Exception):
    """The working directory is not the one that was judged."""


class EntryFailed(Exception):
    """A child could not report or record itself. Its argument is an errno."""


# -- in the child ------------------------------------------------------------------------------------------------------


def enter(pipe: int, ticket: int, admission: tuple[int, bytes | None, int, str | None] | None, groups: int) -> None:
    """Runs in a child before it becomes its program. Report it to the other side of ``pipe``. With an ``admission``
    (see ``process_records``) record it in the file ``groups``, ask to be killed with the agent, and check the
    directory, since a link may have changed after it was judged. Raises EntryFailed and DirectoryReplaced."""
    number, own_stat, agent, cwd = admission or (0, None, 0, None)
    try:
        os.write(pipe, b"+%d %d\n" % (ticket, os.getpid()))
        if admission is not None:
            os.write(groups, b"+%d %d %s\n" % (number, os.getpid(), own_start_time(own_stat)))
    except OSError as error:
        raise EntryFailed(error.errno) from None
    if agent:
        c_library().prctl(DEATH_SIGNAL, int(signal.SIGKILL))
        if os.getppid() != agent:  # the agent died before the request
            os._exit(1)
    if cwd is not None and working_directory() != cwd:
        raise DirectoryReplaced


def own_start_time(stat: bytes | None) -> bytes:
    """``start_time`` of the calling process, without anything that a fork may have left in a bad state."""
    if stat is None:
        return b"%d" % int(time.time())
    file = os.open(stat, os.O_RDONLY)
    try:
        return os.read(file, 4096).rpartition(b")")[2].split()[19]
    finally:
        os.close(file)


def working_directory() -> str | None:
    """The working directory; None if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


@cache
def c_library() -> Any:
    """The C library, loaded once: a child must not load anything."""
    import ctypes

    library = ctypes.PyDLL(None, use_errno=True)
    library.prctl.argtypes, library.prctl.restype = (ctypes.c_int, ctypes.c_ulong), ctypes.c_int
    return library


def clone_call() -> Callable[[], int] | None:
    """What forks this process with a child of its parent as the result: its process id, 0 in the child, or a negative
    errno. None if this machine cannot."""
    number = CLONE_CALLS.get(os.uname().machine) if sys.platform.startswith("linux") else None
    if number is None or sys.maxsize < 1 << 32:
        return None
    try:
        from ctypes import get_errno

        library, flags = c_library(), CLONE_PARENT | int(signal.SIGCHLD)
    except (ImportError, OSError, AttributeError):
        return None

    def clone() -> int:
        child = int(library.syscall(number, flags, 0, 0, 0, 0))
        return -get_errno() if child < 0 else child

    return clone


def ignored_signals() -> list[int]:
    """The signals that this process ignores and a child would, too. Python resets the two that it ignores itself."""
    numbers = signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}
    return [int(number) for number in numbers if signal.getsignal(number) is signal.SIG_IGN]


def current_umask() -> int | None:
    """The umask of this process; None if it is not known. To ask the system for it is to change it."""
    try:
        with open("/proc/self/status", "rb") as status:
            return next((int(line.split()[1], 8) for line in status if line.startswith(b"Umask:")), None)
    except OSError:
        return None


def current_limits() -> dict[int, tuple[int, int]]:
    """The limits of resources of this process: soft and hard, by number."""
    import resource

    numbers = {number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}
    return {number: resource.getrlimit(number) for number in numbers}


def _adopt(order: Order) -> None:
    """Take over what the parent has changed of itself since the guard began."""
    import resource

    if order["umask"] is not None:
        os.umask(order["umask"])
    for number, limits in order["limits"].items():
        if resource.getrlimit(number) != limits:
            with suppress(OSError, ValueError):  # a hard limit that only the parent could raise
                resource.setrlimit(number, limits)


def _become(ticket: int, order: Order, files: list[int]) -> None:
    """Become the program of an order. The parent's state that a child inherits is in the order, since the guard has its
    own."""
    _adopt(order)
    os.fchdir(files[3])
    if order["cwd"] is not None:
        os.chdir(order["cwd"])
    if order["session"]:
        os.setsid()
    else:
        os.setpgid(0, 0)
    enter(1, ticket, order["admission"], files[4] if len(files) > 4 else -1)
    for number in {*order["ignored"], *ignored_signals(), signal.SIGPIPE, signal.SIGXFSZ}:
        signal.signal(number, signal.SIG_IGN if number in order["ignored"] else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    first: OSError | None = None
    for path in order["executables"]:
        try:
            os.execve(path, order["argv"], order["environment"])
        except OSError as error:
            if first is None or first.errno in _NOTHING_THERE:
                first = error
    assert first is not None
    raise first


# -- the guard ---------------------------------------------------------------------------------------------------------


class Guarded:
    """What the guard knows of the children of its parent."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.clone = clone_call()
        self.clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        self.groups: dict[bytes, int] = {}
        self.ends: dict[bytes, float] = {}
        self.folders: dict[bytes, bytes] = {}
        self.rest = bytearray()
        self.needed = 0  # how long it must be before there is something to do
        self.files: list[int] = []

    def now(self) -> float:
        return time.clock_gettime(self.clock)

    def watch(self) -> None:
        """Read lines until the parent is gone, and end children whose lease expires."""
        while True:
            ends = [end for ticket, end in self.ends.items() if ticket in self.groups]  # others are not born yet
            wait = min(1.0, max(0.0, min(ends) - self.now())) if ends else None
            if select.select([0], [], [], wait)[0]:  # what was said in time is heard before anything is ended
                data = self._receive()
                if not data:
                    return
                self.rest += data
                self._read_lines()
                continue
            for ticket in [ticket for ticket in self.groups if self.ends.get(ticket, float("inf")) <= self.now()]:
                self.end(ticket, ticket + b"\n")

    def _receive(self) -> bytes:
        if self.clone is None:
            return os.read(0, 65536)
        data, controls, _, _ = self.socket.recvmsg(65536, self.space, self.flags)
        for _, _, numbers in controls:
            whole = len(numbers) - len(numbers) % FD
            self.files += [int.from_bytes(numbers[at : at + FD], sys.byteorder) for at in range(0, whole, FD)]
        return bytes(data)

    def get_ready(self) -> None:
        """Say that this guard starts children."""
        if self.clone is not None:
            import _socket

            self.socket = _socket.socket(fileno=0)
            self.space, self.flags = _socket.CMSG_SPACE(8 * FD), _socket.MSG_CMSG_CLOEXEC
            _write(b"ready\n")

    def _read_lines(self) -> None:
        while len(self.rest) >= self.needed and (end := self.rest.find(b"\n") + 1):
            line = bytes(self.rest[:end])
            ticket, *words = line[1:].split()
            if line[:1] == b"!":
                self.needed = end + int(words[0])
                if len(self.rest) < self.needed:
                    return  # until the whole order is here
                order = marshal.loads(self.rest[end : self.needed])
                end, self.needed = self.needed, 0
                self._start(ticket, order)
            elif line[:1] == b"+":
                self.groups[ticket] = int(words[0])
            elif line[:1] == b"=":
                self.ends[ticket] = self.now() + float(words[0])
            elif line[:1] == b"/":
                self.folders[ticket] = bytes.fromhex(words[0].decode())
            else:
                for known in (self.groups, self.ends, self.folders):
                    known.pop(ticket, None)
            del self.rest[:end]

    def _start(self, ticket: bytes, order: Order) -> None:
        """Start a child and tell how that went, when it has become its program."""
        assert self.clone is not None
        files, self.files = self.files[: order["files"]], self.files[order["files"] :]
        told, tell = os.pipe()
        child = self.clone()
        if child == 0:
            try:
                _become(int(ticket), order, files)
            except DirectoryReplaced:
                os.write(tell, b"directory 0")
            except EntryFailed as failed:
                os.write(tell, b"own %d" % failed.args[0])
            except OSError as error:
                step = b"chdir" if error.filename == order["cwd"] else b"exec"
                os.write(tell, b"%s %d" % (step, error.errno or 0))
            except BaseException:  # such as descriptors that did not arrive
                os.write(tell, b"own %d" % _UNKNOWN)
            finally:
                os._exit(255)
        os.close(tell)
        if child > 0:
            self.groups[ticket] = child
        failure = os.read(told, 100) if child > 0 else b"clone %d" % -child
        for file in (told, *files):
            os.close(file)
        if failure:
            self.groups.pop(ticket, None)
        _write(b"!%s %d %s\n" % (ticket, child, failure))

    def end(self, ticket: bytes, mark: bytes = b"") -> None:
        self.ends.pop(ticket, None)
        if ticket in self.groups:
            _write(mark)
            _signal(self.groups.pop(ticket), signal.SIGKILL)
            if ticket in self.folders:
                undo(self.folders[ticket])

    def end_all(self) -> None:
        """The parent is gone: end every group, and remove the folders."""
        until = self.now() + self.grace
        left = [group for group in self.groups.values() if self.grace and _signal(group, signal.SIGTERM)]
        while left and self.now() < until:
            time.sleep(0.01)
            left = [group for group in left if _signal(group, 0)]
        for ticket in list(self.groups):
            self.end(ticket)
        if self.folders:
            import shutil

            for folder in self.folders.values():
                shutil.rmtree(folder, ignore_errors=True)


def undo(folder: bytes) -> None:
    """Run the command in the file ``undo`` of a folder, without waiting: it ends what killed processes leave outside of
    themselves."""
    try:
        with open(os.path.join(folder, b"undo"), "rb") as file:
            argv = file.read().split(b"\0")
        null = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)]
        os.posix_spawn(argv[0], argv, os.environb, file_actions=actions, setpgroup=0)
    except OSError:
        return
    os.close(null)


def _write(line: bytes) -> None:
    """The pipe does not block: the parent may not read it."""
    try:
        os.write(1, line)
    except OSError:
        return


def _signal(group: int, number: int) -> bool:
    """Whether the group exists."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(1, False)
    guarded = Guarded(float(sys.argv[1]))
    guarded.get_ready()
    guarded.watch()
    guarded.end_all()


if __name__ == "__main__":
    main()
