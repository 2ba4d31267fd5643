"""One life of a device on this machine, as it can be told from outside after a sudden death.

Everything a device starts carries marks in its environment, and the number of its process group stands in a file
(``lives/SESSION/groups`` in the user's state directory) before it becomes the user's program. Both name the agent by
its process number and the moment it began, since numbers are given again. ``strays`` reads them.

The lines of the file are ``+ticket number began`` from the child and ``-ticket`` from the agent, after a first line
that says whose they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

PROC = Path("/proc")
LARGEST = 1 << 16
"""From how many bytes on the file is rid of what has ended."""

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


# -- telling processes apart -------------------------------------------------------------------------------------------


def start_time(number: int, proc: Path = PROC) -> float | None:
    """When a process began; None if there is none. In ticks since the machine did where there is ``/proc``, and in
    seconds of the calendar elsewhere: good for comparing with what was noted on the same machine."""
    if proc.is_dir():
        stat = read_stat(number, proc)
        return None if stat is None or stat[0] in "ZX" else float(stat[19])
    told = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(number)],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split(None, 1)
    if len(told) < 2 or told[0].startswith("Z"):
        return None
    return time.mktime(time.strptime(told[1].strip(), "%a %b %d %H:%M:%S %Y"))


def read_stat(number: int | str, proc: Path = PROC) -> list[str] | None:
    """What the system says of a process, from its state on: state, parent, group, session …"""
    try:
        return (proc / str(number) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def is_same_process(number: int, noted: float, proc: Path = PROC) -> bool:
    """Whether a process is the one that was noted. Where only seconds are known, the moment of noting is as near as
    two of them."""
    found = start_time(number, proc)
    return found is not None and abs(found - noted) <= (0.0 if proc.is_dir() else 2.0)


def boot_id(proc: Path = PROC) -> str:
    """Which start of the machine this is, if it can be told: ticks are counted from there."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def machine_id() -> str:
    """Which machine this is, if it can be told: two may share a name, and containers an id."""
    try:
        return Path("/etc/machine-id").read_text().strip()[:12]
    except OSError:
        return ""


def pid_namespace(name: str, proc: Path = PROC) -> str:
    """Which set of process numbers a process lives among: those of a container mean nothing outside of it."""
    try:
        return os.readlink(proc / name / "ns" / "pid")
    except OSError:
        return ""


def store_mark(store: str) -> str:
    """A store in a few letters, without its address; nothing for a store that is not known."""
    return hashlib.sha256(store.encode()).hexdigest()[:16] if store else ""


def state_directory() -> Path:
    """Where this user's devices keep what they must find again: ``$XDG_STATE_HOME/asterism`` or
    ``~/.local/state/asterism``; where there is no home to write in, a directory for temporary files."""
    root = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    path = Path(root) / "asterism"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    path = Path(tempfile.gettempdir()) / f"asterism-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or path.is_symlink():
        raise PermissionError(f"{path} is not ours alone: somebody else has made it")
    return path


# -- a life ------------------------------------------------------------------------------------------------------------


class ProcessRecords:
    """Used on one event loop. Nothing is written before the first command."""

    def __init__(self, device: str, session: str, store: str = "", proc: Path = PROC) -> None:
        self.device, self.session, self.store = device, session, store_mark(store)
        self._proc = proc
        self._agent, self._began = 0, 0.0
        self._ask = _death_signal()
        self._corner: Path | None = None
        self._groups = -1
        self._tickets = 0
        self._open: set[int] = set()
        self._written = 0

    def marks(self) -> dict[str, str]:
        """What everything that is started carries in its environment."""
        agent, since = self._agent_and_began()
        return {
            "ASTERISM_DEVICE": self.device,
            "ASTERISM_SESSION": self.session,
            "ASTERISM_FLEET": self.store,
            "ASTERISM_AGENT": f"{agent} {since:.0f}",
        }

    def _agent_and_began(self) -> tuple[int, float]:
        """Looked up when it is needed: between its making and its first use a device may have gone to the background,
        which makes it another process."""
        if self._agent != os.getpid():
            self._agent = os.getpid()
            self._began = start_time(self._agent, self._proc) or 0.0
        return self._agent, self._began

    def make_directory(self) -> Path:
        """A new directory for the files of one execution."""
        return Path(tempfile.mkdtemp(prefix="run-", dir=self._settled()))

    def admit(self, cwd: str | None) -> tuple[int, Callable[[], None]]:
        """A ticket for a child, and what it does before it becomes the command: it notes itself, asks to die with us,
        and looks where it is, for a link may have been changed since ``cwd`` was judged."""
        self._settled()
        self._tickets += 1
        ticket, groups, agent = self._tickets, self._groups, os.getpid()
        own_stat = str(self._proc / "self" / "stat").encode() if self._proc.is_dir() else None
        ask = self._ask

        def in_child() -> None:
            os.write(groups, b"+%d %d %s\n" % (ticket, os.getpid(), _own_beginning(own_stat)))
            if ask is not None:
                ask(_DEATH_SIGNAL, signal.SIGKILL)
                if os.getppid() != agent:  # it died before we had asked
                    os._exit(1)
            if cwd is not None and _directory() != cwd:
                raise PermissionError(f"{cwd} has become another directory")

        self._open.add(ticket)
        return ticket, in_child

    def finished(self, ticket: int) -> None:
        self._open.discard(ticket)
        if self._groups < 0:
            return
        with contextlib.suppress(OSError):  # a full disk costs a line, not the result
            self._written += os.write(self._groups, b"-%d\n" % ticket)
            if self._written > LARGEST // 4:  # a child's line is about three times as long as ours
                self._clear_out()

    def close(self) -> None:
        """Nothing is left of it. The next command begins it anew."""
        if self._groups >= 0:
            os.close(self._groups)
            self._groups = -1
        if self._corner is not None:
            shutil.rmtree(self._corner, ignore_errors=True)
            self._corner = None

    def _settled(self) -> Path:
        if self._corner is None:
            corner = state_directory() / "lives" / quote(self.session, safe="")
            corner.mkdir(mode=0o700, parents=True, exist_ok=True)
            whose = {"device": self.device, "session": self.session, "store": self.store, "host": socket.gethostname()}
            agent, since = self._agent_and_began()
            where = {"machine": machine_id(), "boot": boot_id(self._proc), "space": pid_namespace("self", self._proc)}
            which = {"agent": agent, "began": since}
            first = json.dumps({**whose, **where, **which}).encode() + b"\n"
            groups = os.open(corner / "groups", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                if os.write(groups, first) < len(first):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.close(groups)
                shutil.rmtree(corner, ignore_errors=True)
                raise
            self._groups, self._corner = groups, corner
        return self._corner

    def _clear_out(self) -> None:
        """No child writes meanwhile: each has become its command by the time the loop goes on."""
        os.lseek(self._groups, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._groups), "rb") as file:
            first, *lines = file.read().splitlines(keepends=True)
        kept = [line for line in lines if line[:1] == b"+" and int(line[1:].split()[0]) in self._open]
        os.ftruncate(self._groups, 0)
        os.write(self._groups, b"".join([first, *kept]))
        self._written = 0


def _own_beginning(stat: bytes | None) -> bytes:
    """``began`` of the process that asks, with nothing that a fork could have left in a bad state."""
    if stat is None:
        return b"%d" % int(time.time())
    file = os.open(stat, os.O_RDONLY)
    try:
        return os.read(file, 4096).rpartition(b")")[2].split()[19]
    finally:
        os.close(file)


def _directory() -> str | None:
    """Where the process is; None if that is nowhere any more."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def _death_signal() -> Callable[[int, int], int] | None:
    """Linux kills a child when the thread that made it ends; children are made by the thread of the event loop, and
    when that ends nobody is left to look after them."""
    if not sys.platform.startswith("linux"):
        return None
    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes, prctl.restype = (ctypes.c_int, ctypes.c_ulong), ctypes.c_int
        return prctl
    return None
