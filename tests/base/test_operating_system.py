"""Calls that not every operating system has: who may use them, and a package that works where they are missing."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.base import operating_system
from tests.process_scenes import PATIENCE

SOURCE = Path(operating_system.__file__).parents[1]

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "msvcrt", "winreg", "posix", "nt"}
CALLS = {
    "os": {
        *("fork", "forkpty", "getuid", "geteuid", "getgid", "getegid", "getpgrp", "getpgid", "setsid", "setpgid"),
        *("killpg", "mkfifo", "mknod", "pread", "pwrite", "getloadavg", "sysconf", "sched_getaffinity", "statvfs"),
        *("chown", "fchown", "register_at_fork", "waitpid", "wait4", "pidfd_open", "memfd_create", "eventfd"),
        *("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "WNOHANG"),
    },
    "signal": {"SIGKILL", "SIGHUP", "SIGCHLD", "SIGSTOP", "SIGCONT", "SIGTSTP", "SIGUSR1", "SIGUSR2", "SIGALRM"},
    "time": {"CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime"},
    "loop": {"add_signal_handler", "remove_signal_handler"},
}
"""What Windows or macOS lacks."""

ALLOWED = {
    "base/operating_system.py": "this is the place for them",
    "base/clock.py": "asks for CLOCK_BOOTTIME with getattr",
    "base/http_limits.py": "catches the ImportError of resource",
    "execution/guard_main.py": "is imported and run only where there are process groups",
    "fleet/device/membership.py": "asks for sched_getaffinity with hasattr",
    "series/github/assignment.py": "asks for CLOCK_BOOTTIME with hasattr",
    "base/private_file.py": "asks for geteuid with hasattr",
    "store/sqlite/connection.py": "catches the ImportError of fcntl",
    "store/sqlite/wake_fifos.py": "does nothing unless SUPPORTED, which asks for mkfifo",
}
"""Modules that may use them, and how they make sure that the call is there."""


_MENTION = re.compile(rf"\b({'|'.join(sorted(MODULES.union(*CALLS.values())))})\b")


def uses(source: str) -> Iterator[str]:
    if not _MENTION.search(source):  # to parse all of the package takes seconds
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield node.module
        elif isinstance(node, ast.Attribute) and node.attr in CALLS.get(getattr(node.value, "id", ""), ()):
            yield ast.unparse(node)


def test_only_listed_modules_use_calls_that_a_system_may_lack() -> None:
    uses_of = {
        str(path.relative_to(SOURCE)): sorted(set(uses(path.read_text("utf-8"))))
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != "testing"  # the simulator runs where the tests run
    }
    assert {name: several for name, several in uses_of.items() if several and name not in ALLOWED} == {}
    assert [name for name in ALLOWED if not uses_of[name]] == []  # no exception that is not needed


def test_the_search_finds_what_it_should() -> None:
    source = "import fcntl\nos.killpg(1, signal.SIGKILL)\nloop.add_signal_handler(2, f)\nos.getpid()\n"
    assert sorted(uses(source)) == ["fcntl", "loop.add_signal_handler", "os.killpg", "signal.SIGKILL"]


# -- a system that lacks them ------------------------------------------------------------------------------------------

HIDDEN = f"""
import asyncio, os, signal, sys, time
asyncio.get_event_loop_policy()
import multiprocessing, subprocess, tempfile, selectors, socket, sqlite3, concurrent.futures.thread, random, uuid, ssl
import fcntl as real, types
for name in {sorted(MODULES - {"posix", "nt"})!r}:
    sys.modules[name] = None

def locking(file, mode, size):  # a stand-in for that of Windows
    real.lockf(file, real.LOCK_EX | (real.LOCK_NB if mode == 2 else 0), size, 0, os.SEEK_CUR)

sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_LOCK=1, LK_NBLCK=2)
for name in {sorted(CALLS["os"] - {"waitpid", "WNOHANG"})!r}:  # asyncio waits for children with these
    if hasattr(os, name):
        delattr(os, name)
for name in {sorted(CALLS["signal"] - {"SIGCHLD"})!r}:
    if hasattr(signal, name):
        delattr(signal, name)
del time.CLOCK_BOOTTIME

def refuse(*_): raise NotImplementedError
asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = refuse
asyncio.unix_events._UnixSelectorEventLoop.remove_signal_handler = refuse
"""

LIBRARIES = "import mcp.server.stdio, textual.app, textual.widgets"
"""They ask sys.platform which calls there are, so they are imported before the calls are hidden."""

IMPORTS = """
import importlib, pkgutil
import asterism
failed = []
for found in pkgutil.walk_packages(asterism.__path__, "asterism."):
    if found.name.startswith("asterism.testing") or found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except Exception as error:
        failed.append(f"{found.name}: {error!r}")
print(failed)
"""

WORK = """
from asterism import Constellation, DurableOrchestrator, Fleet, Task
from asterism.cli.cli_context import run_interruptible

async def main():
    plan = Constellation("plan")
    plan.add(Task("a", argv=[sys.executable, "-c", "print(1 + 1)"]))
    plan.add(Task("slow", argv=[sys.executable, "-c", "import time; time.sleep(600)"], timeout=1.0))
    async with await Fleet.open("sqlite:///" + sys.argv[1], by="ann", create=True) as fleet:
        result = await DurableOrchestrator(fleet, local=2).run(plan)
        print(result["a"].value, result["a"].status, result["slow"].status)

run_interruptible(main())
"""


def ended(program: str, *words: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.long
def test_every_module_can_be_imported_without_them() -> None:
    assert ended(LIBRARIES + HIDDEN + IMPORTS) == "[]"


@pytest.mark.long
def test_a_device_executes_and_stops_commands_without_them(tmp_path: Path) -> None:
    said = ended(HIDDEN + WORK, str(tmp_path / "fleet.db"), XDG_STATE_HOME=str(tmp_path / "state"))
    assert said == "2 completed failed"


# -- the calls themselves ----------------------------------------------------------------------------------------------


def test_a_lock_is_exclusive_and_a_shared_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    files = [os.open(tmp_path / "lock", os.O_RDWR) for _ in range(3)]
    operating_system.lock_file(files[0])
    with pytest.raises(BlockingIOError):
        operating_system.lock_file(files[1])
    os.close(files[0])
    operating_system.lock_file(files[1], shared=True)
    operating_system.lock_file(files[2], shared=True)
    for file in files[1:]:
        os.close(file)


def test_no_signal_goes_to_our_own_group() -> None:
    assert not operating_system.signal_group(0, signal.SIGTERM)
    assert not operating_system.signal_group(-1, signal.SIGTERM)


async def test_a_loop_without_signal_handlers_gets_the_signal_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, came = asyncio.get_running_loop(), asyncio.Event()

    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(type(loop), "add_signal_handler", refuse)
    monkeypatch.setattr(type(loop), "remove_signal_handler", refuse)
    before = signal.getsignal(signal.SIGTERM)
    try:
        operating_system.add_signal_handler(loop, signal.SIGTERM, came.set)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(came.wait(), PATIENCE)
        operating_system.remove_signal_handler(loop, signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
