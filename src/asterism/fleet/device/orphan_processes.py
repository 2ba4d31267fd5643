"""Orphan processes: what a device left running when it died suddenly; killed at its next start.

An orphan carries the marks of the same device, the same store, another session, and an agent that is not alive. It is
found in the environment of every process of this user (on Linux), which also finds processes that have left their
process group, and in the process records of earlier sessions (on all systems), which also finds processes that have
cleared their environment. No other process is touched: none of another user, of another device, of a session whose
agent is alive, or in doubt. The records of another device's dead session are removed if none of its processes runs.

Only the holder of the device's lock (``host.DeviceLock``) may call ``kill_orphans``.
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
"""How often to look again for processes that were started while others were being killed."""


def kill_orphans(device: str, store: str, alive: str, *, proc: Path = PROC, user: int | None = None) -> list[int]:
    """Kill what earlier sessions of this device left running, but nothing of the session ``alive``. Returns the killed
    process groups, and the killed processes that had joined the group of another."""
    ended: set[int] = set()
    for _ in range(ROUNDS):
        found = dict(_marked(device, store_mark(store), alive, proc, os.getuid() if user is None else user))
        new = _end(found, proc)
        ended |= new
        if not new:
            break
    for records, agent, running in _dead_records(proc):
        ours = agent["device"] == device and agent["store"] in (store_mark(store), "") and agent["session"] != alive
        if ours:
            ended.update(filter(_kill_group, running))
        if ours or (not running and _was_here(agent, proc)):
            shutil.rmtree(records, ignore_errors=True)
    return sorted(ended)


# -- by the environment ------------------------------------------------------------------------------------------------


def _marked(device: str, store: str, alive: str, proc: Path, user: int) -> Iterator[tuple[int, int]]:
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


def _end(found: Mapping[int, int], proc: Path) -> set[int]:
    """Kill whole groups whose leader is among the processes or gone, and single processes of other groups."""
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


# -- by the process records --------------------------------------------------------------------------------------------


def _dead_records(proc: Path) -> Iterator[tuple[Path, dict[str, Any], list[int]]]:
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
    found: dict[str, tuple[int, float]] = {}
    for line in lines:
        ticket, *rest = line[1:].split()
        if line[0] == "+" and len(rest) == 2:
            found[ticket] = (int(rest[0]), float(rest[1]))
        else:
            found.pop(ticket, None)
    return list(found.values())
