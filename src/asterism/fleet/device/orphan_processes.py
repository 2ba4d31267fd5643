"""What a device left running when it died suddenly, and its guard with it: ended when the device starts again.

A stray is known by its marks: the same device, the same store, another session, and an agent that is not alive. It is
looked for in the environment of every process of this user (Linux), which also finds what has left its process group,
and in the files of earlier lives (anywhere), which also finds what has thrown its environment away. No other process is
ever touched: none of another user, of another device, of a session whose agent is alive, or in doubt. The file of
another device's dead life is removed if nothing that it names is running.

``DeviceLock`` says whether a device is alive on this machine; ``kill_orphans`` is for whoever holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.fleet.device.process_records import PROC, boot, is_same, machine, mark, space_of, stat_of, state_directory

ROUNDS = 10
"""How often it is looked again for what was started while the rest was being ended."""


class DeviceLock:
    """Held by the one living agent of a device on this machine, for this user. It goes with the process, however that
    ends, and no child keeps it."""

    def __init__(self, store: str, device: str) -> None:
        words = "\0".join((store, device, socket.gethostname()))
        self._key = hashlib.sha256(words.encode()).hexdigest()[:24]
        self._file = -1

    def acquire(self) -> bool:
        """Whether no other living agent has it. Ours from then on."""
        if self._file >= 0:
            return True
        self._path = self._place()
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is(file, self._path):
                    break
            except BlockingIOError:
                os.close(file)
                return False
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # whoever had it has removed it just now, and the next one makes another
        os.ftruncate(file, 0)
        os.write(file, b"%d\n" % os.getpid())
        self._file = file
        # a child that is forked without becoming another program would keep the lock after our death
        os.register_at_fork(after_in_child=_Forgetting(self))
        return True

    def holder(self) -> int | None:
        """The process number of whoever had it last."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._place().read_text())
        return None

    def _place(self) -> Path:
        return state_directory() / "devices" / f"{self._key}.lock"

    def close(self) -> None:
        """Nothing is left of it, unless its file cannot be removed or is another's: somebody may have cleaned up."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                if _is(self._file, self._path):
                    self._path.unlink()
            self.forget()

    def forget(self) -> None:
        """It is not ours any more, but may be another's."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class _Forgetting:
    """Closes a lock's file in a forked child, without keeping the lock alive for that."""

    def __init__(self, lock: DeviceLock) -> None:
        self._lock = weakref.ref(lock)

    def __call__(self) -> None:
        lock = self._lock()
        if lock is not None:
            lock.forget()


def _is(file: int, path: Path) -> bool:
    """Whether an open file is the one of that name."""
    found = os.fstat(file)
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (named.st_dev, named.st_ino)


def kill_orphans(device: str, store: str, alive: str, *, proc: Path = PROC, user: int | None = None) -> list[int]:
    """End what earlier lives of this device left running, but nothing of the session ``alive``. Returns the numbers of
    the process groups that were ended, or of single processes that had joined somebody else's."""
    ended: set[int] = set()
    for _ in range(ROUNDS):
        found = dict(_marked(device, mark(store), alive, proc, os.getuid() if user is None else user))
        new = _end(found, proc)
        ended |= new
        if not new:
            break
    for life, whose, running in _dead_lives(proc):
        ours = whose["device"] == device and whose["store"] in (mark(store), "") and whose["session"] != alive
        if ours:
            ended.update(filter(_kill_group, running))
        if ours or (not running and _was_here(whose, proc)):
            shutil.rmtree(life, ignore_errors=True)
    return sorted(ended)


# -- by the environment ------------------------------------------------------------------------------------------------


def _marked(device: str, store: str, alive: str, proc: Path, user: int) -> Iterator[tuple[int, int]]:
    """(process, group) of everything that carries the marks of a dead session of this device."""
    space, spared = space_of("self", proc), set(_forebears(proc))
    for entry in sorted(proc.glob("[0-9]*")):
        number = int(entry.name)
        if number in spared or _owner(entry) != user:
            continue
        marks = _environment(entry)
        if (
            marks.get("ASTERISM_DEVICE") == device
            and space_of(entry.name, proc) == space
            and marks.get("ASTERISM_FLEET") in (store, "")
            and marks.get("ASTERISM_SESSION") not in (None, alive)
            and not _lives_on(marks.get("ASTERISM_AGENT", ""), proc)
        ):
            stat = stat_of(number, proc)
            if stat is not None and stat[0] not in "ZX":
                yield number, int(stat[2])


def _end(found: Mapping[int, int], proc: Path) -> set[int]:
    """End whole groups, but only groups that are theirs: those whose leader is among them, or gone."""
    ended = set()
    for number, group in found.items():
        leader = stat_of(group, proc)
        if group != os.getpgrp() and (group in found or leader is None or leader[0] in "ZX"):
            if group not in ended and _kill_group(group):
                ended.add(group)
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
                ended.add(number)
    return ended


def _kill_group(group: int) -> bool:
    if group <= 1 or group == os.getpgrp():
        return False
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _forebears(proc: Path) -> Iterator[int]:
    """We and those we descend from: a device may be started by a run of its own earlier life."""
    number = os.getpid()
    while number > 0:
        yield number
        stat = stat_of(number, proc)
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
    if b"ASTERISM_DEVICE=" not in data:  # so it is with almost all of them
        return {}
    lines = data.decode(errors="surrogateescape").split("\0")
    return dict(line.split("=", 1) for line in lines if line.startswith("ASTERISM_") and "=" in line)


def _lives_on(agent: str, proc: Path) -> bool:
    """Whether an agent is alive; in doubt it is."""
    try:
        number, noted = agent.split()
        return is_same(int(number), float(noted), proc)
    except ValueError:
        return True


# -- by the files ------------------------------------------------------------------------------------------------------


def _dead_lives(proc: Path) -> Iterator[tuple[Path, dict[str, Any], list[int]]]:
    """The lives of devices on this machine that have ended, with the process groups of theirs that have not."""
    host, now = socket.gethostname(), boot(proc)
    for life in sorted((state_directory() / "lives").glob("*")):
        try:
            first, *lines = (life / "groups").read_text(errors="replace").split("\n")
            whose = json.loads(first)
            named = {"device", "session", "store"} <= whose.keys() and whose["host"] == host
            before = whose["boot"] != now
            dead = before or not is_same(int(whose["agent"]), float(whose["began"]), proc)
            running = [] if before else [one for one, noted in _noted(lines[:-1]) if is_same(one, noted, proc)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not one of ours, or not whole: nothing is known of it
        if named and dead:
            yield life, whose, running


def _was_here(whose: Mapping[str, Any], proc: Path) -> bool:
    """Whether a life was one among our process numbers, on this very machine: homes may be shared, and names, too."""
    same_machine = whose["boot"] == boot(proc) or whose.get("machine") == machine() != ""
    return same_machine and whose.get("space") == space_of("self", proc)


def _noted(lines: Sequence[str]) -> Iterator[tuple[int, float]]:
    """The process groups that a life has noted and not crossed out, with when their leaders began."""
    found: dict[str, tuple[int, float]] = {}
    for line in lines:
        ticket, *rest = line[1:].split()
        if line[0] == "+" and len(rest) == 2:
            found[ticket] = (int(rest[0]), float(rest[1]))
        else:
            found.pop(ticket, None)
    yield from found.values()
