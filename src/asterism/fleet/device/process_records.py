"""Records of the processes that a device starts, and ``kill_orphans``, which kills those of a dead session.

Every process that a device starts carries marks in its environment, and its process group is recorded in a file
(``lives/SESSION/groups`` in the user's state directory) before the process becomes the user's program. Both name the
agent by its process id and its start time, since process ids are reused.

The first line of the file is a JSON object that names the device and the agent. After it the child writes
``+ticket pid start-time``, and the agent ``-ticket`` when the child has ended.

An orphan carries the marks of the same device, the same store, another session, and an agent that is not alive. It is
found in the environment of every process of this user (on Linux), which also finds processes that have left their
process group, and in the records of earlier sessions (on all systems), which also finds processes that have cleared
their environment. No other process is touched: none of another user, of another device, of a session whose agent is
alive, or in doubt. The records of another device's dead session are removed if none of its processes runs.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asterism.base import operating_system
from asterism.core.json_values import JsonObject
from asterism.execution import guard_main
from asterism.execution.process_guard import Admission

PROC = Path("/proc")
MACHINE_ID = Path("/etc/machine-id")
LARGEST = 1 << 16
"""The size of the file, in bytes, from which on the lines of ended processes are removed."""

ROUNDS = 10
"""How often to search again for processes that were started while others were being killed."""


# -- identity of processes ---------------------------------------------------------------------------------------------


def start_time(number: int, proc: Path = PROC) -> float | None:
    """When a process started; None if there is none. In clock ticks since the boot of the machine where there is
    ``/proc``, in seconds since 1970 elsewhere: to be compared only with a record of the same machine."""
    if proc.is_dir():
        stat = read_stat(number, proc)
        return None if stat is None or stat[0] in "ZX" else float(stat[19])
    fields = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(number)],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split(None, 1)
    if len(fields) < 2 or fields[0].startswith("Z"):
        return None
    return time.mktime(time.strptime(fields[1].strip(), "%a %b %d %H:%M:%S %Y"))


def read_stat(number: int | str, proc: Path = PROC) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` from the third on: state, parent, group, session …"""
    try:
        return (proc / str(number) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def is_same_process(number: int, noted: float, proc: Path = PROC) -> bool:
    """Whether a process is the recorded one. Where start times are in seconds, they may differ by two."""
    started = start_time(number, proc)
    return started is not None and abs(started - noted) <= (0.0 if proc.is_dir() else 2.0)


def boot_id(proc: Path = PROC) -> str:
    """The id of this boot of the machine, if it is known: clock ticks count from it."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def machine_id() -> str:
    """The id of this machine, if it is known. Two machines may share a name, and containers an id."""
    try:
        return _machine_id()
    except OSError:
        return ""


@functools.cache
def _machine_id() -> str:
    return MACHINE_ID.read_text().strip()[:12]


def pid_namespace(name: str, proc: Path = PROC) -> str:
    """The PID namespace of a process: process ids of a container mean nothing outside of it."""
    try:
        return os.readlink(proc / name / "ns" / "pid")
    except OSError:
        return ""


def store_mark(store: str) -> str:
    """A short hash of a store's identity; empty for a store that is not known."""
    return hashlib.sha256(store.encode()).hexdigest()[:16] if store else ""


def state_directory() -> Path:
    """The directory for locks and process records of this user's devices: ``$XDG_STATE_HOME/asterism`` or
    ``~/.local/state/asterism``; one for temporary files if the home directory is not writable."""
    root = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    path = Path(root) / "asterism"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    user = operating_system.user_id()
    path = Path(tempfile.gettempdir()) / f"asterism-{user}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if user is not None and (status.st_uid != user or status.st_mode & 0o077 or path.is_symlink()):
        raise PermissionError(f"{path} belongs to another user, or others have access to it: remove it, or set HOME")
    return path


# -- the records of one session ----------------------------------------------------------------------------------------


class ProcessRecords:
    """The records of one session of a device, used on one event loop. Nothing is written before the first command."""

    def __init__(self, device: str, session: str, store: str = "", proc: Path = PROC) -> None:
        self.device, self.session, self.store = device, session, store_mark(store)
        self._proc = proc
        self._agent, self._began = 0, 0.0
        # Linux kills them when the thread ends that started them, that of the event loop: nobody looks after them then
        self._dies_with_agent = sys.platform.startswith("linux")
        self._directory: Path | None = None
        self._groups = -1
        self._tickets = 0
        self._open: set[int] = set()
        self._written = 0

    def marks(self) -> dict[str, str]:
        """The variables that every started process gets."""
        agent, since = self._agent_and_began()
        return {
            "ASTERISM_DEVICE": self.device,
            "ASTERISM_SESSION": self.session,
            "ASTERISM_FLEET": self.store,
            "ASTERISM_AGENT": f"{agent} {since:.0f}",
        }

    def _agent_and_began(self) -> tuple[int, float]:
        """The process id and start time of this process. Looked up at each use: the device may have been forked into
        the background since it was made."""
        if self._agent != os.getpid():
            self._agent = os.getpid()
            self._began = start_time(self._agent, self._proc) or 0.0
        return self._agent, self._began

    def make_directory(self) -> Path:
        """A new directory for the files of one execution."""
        return Path(tempfile.mkdtemp(prefix="run-", dir=self._open_records()))

    def admit(self, cwd: str | None) -> Admission:
        """What a child does before it becomes the command: it records itself, asks to be killed with this process, and
        checks its directory, since a link may have changed after ``cwd`` was judged."""
        self._open_records()
        self._tickets += 1
        self._open.add(self._tickets)
        own_stat = str(self._proc / "self" / "stat").encode() if self._proc.is_dir() else None
        agent = os.getpid() if self._dies_with_agent else 0
        return Admission(self._tickets, self._groups, own_stat, agent, cwd)

    def finished(self, ticket: int) -> None:
        self._open.discard(ticket)
        if self._groups < 0:
            return
        with contextlib.suppress(OSError):  # a full disk must not cost the result
            self._written += os.write(self._groups, b"-%d\n" % ticket)
            if self._written > LARGEST // 4:  # the line of a child is about three times as long
                self._compact()

    def close(self) -> None:
        """Remove the records. The next command begins new ones."""
        if self._groups >= 0:
            os.close(self._groups)
            self._groups = -1
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _open_records(self) -> Path:
        if self._directory is None:
            directory = state_directory() / "lives" / quote(self.session, safe="")
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            whose = {"device": self.device, "session": self.session, "store": self.store, "host": socket.gethostname()}
            agent, since = self._agent_and_began()
            where = {"machine": machine_id(), "boot": boot_id(self._proc), "space": pid_namespace("self", self._proc)}
            which = {"agent": agent, "began": since}
            first = json.dumps({**whose, **where, **which}).encode() + b"\n"
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | operating_system.CLOSE_ON_EXEC
            groups = os.open(directory / "groups", flags, 0o600)
            try:
                if os.write(groups, first) < len(first):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.close(groups)
                shutil.rmtree(directory, ignore_errors=True)
                raise
            self._groups, self._directory = groups, directory
        return self._directory

    def _compact(self) -> None:
        """Remove the lines of ended processes. No child writes meanwhile: each has become its command before the event
        loop continues."""
        os.lseek(self._groups, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._groups), "rb") as file:
            first, *lines = file.read().splitlines(keepends=True)
        still_open = [line for line in lines if line[:1] == b"+" and int(line[1:].split()[0]) in self._open]
        os.ftruncate(self._groups, 0)
        os.write(self._groups, b"".join([first, *still_open]))
        self._written = 0


# -- orphans: what earlier sessions left running -----------------------------------------------------------------------


def kill_orphans(device: str, store: str, alive: str, *, proc: Path = PROC, user: int | None = None) -> list[int]:
    """Kill what earlier sessions of this device left running, but nothing of the session ``alive``. Returns the killed
    process groups, and the killed processes that had joined the group of another. Only the holder of the device's lock
    (``membership.DeviceLock``) may call this."""
    ended: set[int] = set()
    owner = operating_system.user_id() if user is None else user
    for _ in range(ROUNDS):
        orphans = dict(_marked(device, store_mark(store), alive, proc, owner))
        new = _end(orphans, proc)
        ended |= new
        if not new:
            break
    for records, agent, running in _dead_records(proc):
        ours = agent["device"] == device and agent["store"] in (store_mark(store), "") and agent["session"] != alive
        if ours:
            ended.update(filter(_kill_group, running))
            for folder in records.glob("run-*"):  # of executions whose guard was killed, too
                guard_main.undo(os.fsencode(folder))
        if ours or (not running and _was_here(agent, proc)):
            shutil.rmtree(records, ignore_errors=True)
    return sorted(ended)


def _marked(device: str, store: str, alive: str, proc: Path, user: int | None) -> Iterator[tuple[int, int]]:
    """The processes with the marks of a dead session of this device, each with its group."""
    namespace, spared = pid_namespace("self", proc), set(_ancestors(proc))
    for entry in sorted(proc.glob("[0-9]*")):
        number = int(entry.name)
        if number in spared or _owner(entry) != user:
            continue
        marks = _environment(entry)
        if (
            marks.get("ASTERISM_DEVICE") == device
            and pid_namespace(entry.name, proc) == namespace
            and marks.get("ASTERISM_FLEET") in (store, "")
            and marks.get("ASTERISM_SESSION") not in (None, alive)
            and not _is_alive(marks.get("ASTERISM_AGENT", ""), proc)
        ):
            stat = read_stat(number, proc)
            if stat is not None and stat[0] not in "ZX":
                yield number, int(stat[2])


def _end(orphans: Mapping[int, int], proc: Path) -> set[int]:
    """Kill whole groups whose leader is among the processes or gone, and single processes of other groups."""
    ended = set()
    for number, group in orphans.items():
        leader = read_stat(group, proc)
        if group != operating_system.own_group() and (group in orphans or leader is None or leader[0] in "ZX"):
            if group not in ended and _kill_group(group):
                ended.add(group)
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, operating_system.KILL)
                ended.add(number)
    return ended


def _kill_group(group: int) -> bool:
    if group <= 1 or group == operating_system.own_group():
        return False
    with contextlib.suppress(PermissionError):
        return operating_system.signal_group(group, operating_system.KILL)
    return False


def _ancestors(proc: Path) -> Iterator[int]:
    """This process and its ancestors: a device may be started by a run of its own earlier session."""
    number = os.getpid()
    while number > 0:
        yield number
        stat = read_stat(number, proc)
        number = int(stat[1]) if stat is not None else 0


def _owner(entry: Path) -> int | None:
    try:
        return entry.stat().st_uid
    except OSError:
        return None


def _environment(entry: Path) -> dict[str, str]:
    try:
        data = (entry / "environ").read_bytes()
    except OSError:
        return {}
    if b"ASTERISM_DEVICE=" not in data:  # the usual case
        return {}
    lines = data.decode(errors="surrogateescape").split("\0")
    return dict(line.split("=", 1) for line in lines if line.startswith("ASTERISM_") and "=" in line)


def _is_alive(agent: str, proc: Path) -> bool:
    """Whether the agent of these marks is alive; True in doubt."""
    try:
        number, noted = agent.split()
        return is_same_process(int(number), float(noted), proc)
    except ValueError:
        return True


def _dead_records(proc: Path) -> Iterator[tuple[Path, JsonObject, list[int]]]:
    """The records of sessions on this machine whose agent is dead: their directory, the agent, and the process groups
    that still run."""
    host, now = socket.gethostname(), boot_id(proc)
    for records in sorted((state_directory() / "lives").glob("*")):
        try:
            first, *lines = (records / "groups").read_text(errors="replace").split("\n")
            agent = json.loads(first)
            named = {"device", "session", "store"} <= agent.keys() and agent["host"] == host
            before = agent["boot"] != now
            dead = before or not is_same_process(int(agent["agent"]), float(agent["began"]), proc)
            groups = [] if before else _open_groups(lines[:-1])
            running = [group for group, started in groups if is_same_process(group, started, proc)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not a record of ours, or an incomplete one
        if named and dead:
            yield records, agent, running


def _was_here(agent: Mapping[str, Any], proc: Path) -> bool:
    """Whether an agent ran on this very machine and in this PID namespace: machines may share a home and a name."""
    same_machine = agent["boot"] == boot_id(proc) or agent.get("machine") == machine_id() != ""
    return same_machine and agent.get("space") == pid_namespace("self", proc)


def _open_groups(lines: Sequence[str]) -> list[tuple[int, float]]:
    """The recorded process groups that have not ended, each with the start time of its leader."""
    groups: dict[str, tuple[int, float]] = {}
    for line in lines:
        ticket, *rest = line[1:].split()
        if line[0] == "+" and len(rest) == 2:
            groups[ticket] = (int(rest[0]), float(rest[1]))
        else:
            groups.pop(ticket, None)
    return list(groups.values())
