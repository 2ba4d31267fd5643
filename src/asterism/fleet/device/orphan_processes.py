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
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.fleet.device.process_records import (
    PROC,
    boot_id,
    is_same_process,
    machine_id,
    pid_namespace,
    read_stat,
    state_directory,
    store_mark,
)

ROUNDS = 10
"""How often it is looked again for what was started while the rest was being ended."""


def kill_orphans(device: str, store: str, alive: str, *, proc: Path = PROC, user: int | None = None) -> list[int]:
    """End what earlier lives of this device left running, but nothing of the session ``alive``. Returns the numbers of
    the process groups that were ended, or of single processes that had joined somebody else's."""
    ended: set[int] = set()
    for _ in range(ROUNDS):
        found = dict(_marked(device, store_mark(store), alive, proc, os.getuid() if user is None else user))
        new = _end(found, proc)
        ended |= new
        if not new:
            break
    for life, whose, running in _dead_lives(proc):
        ours = whose["device"] == device and whose["store"] in (store_mark(store), "") and whose["session"] != alive
        if ours:
            ended.update(filter(_kill_group, running))
        if ours or (not running and _was_here(whose, proc)):
            shutil.rmtree(life, ignore_errors=True)
    return sorted(ended)


# -- by the environment ------------------------------------------------------------------------------------------------


def _marked(device: str, store: str, alive: str, proc: Path, user: int) -> Iterator[tuple[int, int]]:
    """(process, group) of everything that carries the marks of a dead session of this device."""
    space, spared = pid_namespace("self", proc), set(_forebears(proc))
    for entry in sorted(proc.glob("[0-9]*")):
        number = int(entry.name)
        if number in spared or _owner(entry) != user:
            continue
        marks = _environment(entry)
        if (
            marks.get("ASTERISM_DEVICE") == device
            and pid_namespace(entry.name, proc) == space
            and marks.get("ASTERISM_FLEET") in (store, "")
            and marks.get("ASTERISM_SESSION") not in (None, alive)
            and not _lives_on(marks.get("ASTERISM_AGENT", ""), proc)
        ):
            stat = read_stat(number, proc)
            if stat is not None and stat[0] not in "ZX":
                yield number, int(stat[2])


def _end(found: Mapping[int, int], proc: Path) -> set[int]:
    """End whole groups, but only groups that are theirs: those whose leader is among them, or gone."""
    ended = set()
    for number, group in found.items():
        leader = read_stat(group, proc)
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
    if b"ASTERISM_DEVICE=" not in data:  # so it is with almost all of them
        return {}
    lines = data.decode(errors="surrogateescape").split("\0")
    return dict(line.split("=", 1) for line in lines if line.startswith("ASTERISM_") and "=" in line)


def _lives_on(agent: str, proc: Path) -> bool:
    """Whether an agent is alive; in doubt it is."""
    try:
        number, noted = agent.split()
        return is_same_process(int(number), float(noted), proc)
    except ValueError:
        return True


# -- by the files ------------------------------------------------------------------------------------------------------


def _dead_lives(proc: Path) -> Iterator[tuple[Path, dict[str, Any], list[int]]]:
    """The lives of devices on this machine that have ended, with the process groups of theirs that have not."""
    host, now = socket.gethostname(), boot_id(proc)
    for life in sorted((state_directory() / "lives").glob("*")):
        try:
            first, *lines = (life / "groups").read_text(errors="replace").split("\n")
            whose = json.loads(first)
            named = {"device", "session", "store"} <= whose.keys() and whose["host"] == host
            before = whose["boot"] != now
            dead = before or not is_same_process(int(whose["agent"]), float(whose["began"]), proc)
            running = [] if before else [one for one, noted in _noted(lines[:-1]) if is_same_process(one, noted, proc)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not one of ours, or not whole: nothing is known of it
        if named and dead:
            yield life, whose, running


def _was_here(whose: Mapping[str, Any], proc: Path) -> bool:
    """Whether a life was one among our process numbers, on this very machine: homes may be shared, and names, too."""
    same_machine = whose["boot"] == boot_id(proc) or whose.get("machine") == machine_id() != ""
    return same_machine and whose.get("space") == pid_namespace("self", proc)


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
