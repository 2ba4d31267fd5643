"""Both ways to start a child, with the same outcome: by the guard, and by a fork while the guard is being started."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.core.errors import AsterismError, DeviceTrouble
from asterism.core.json_values import RESULT_LIMIT, SizeLimit
from asterism.execution import guard_main, process_guard
from asterism.execution.process_guard import Admission, Guard, Launch
from asterism.execution.processes import Commands
from tests.process_scenes import PATIENCE, alive, soon

STATE = """
import json, os, signal
files = [name for name in os.listdir("/proc/self/fd") if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}")]
print(json.dumps({
    "parent": os.getppid(), "leads": os.getpgrp() == os.getpid(), "session": os.getsid(0), "cwd": os.getcwd(),
    "environment": dict(os.environ), "files": files, "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "ignored": open("/proc/self/status").read().partition("SigIgn:")[2].split()[0],
}))
"""

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has this clone")
pytestmark = LINUX


def wait_ready(guard: Guard) -> None:
    guard.pipe()
    soon(lambda: guard._read_lines(1.0) and guard._ready)


@pytest.fixture(params=["forked", "cloned"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    guard = Guard()
    if request.param == "cloned":
        wait_ready(guard)
        monkeypatch.setattr(process_guard, "_fork", lambda *words: pytest.fail("this process was forked"))
    else:
        monkeypatch.setattr(Guard, "_order", lambda self, *words: process_guard._fork(self.pipe(), *words))
    yield guard
    guard.close()


def run(guard: Guard, *argv: str, environment: dict[str, str] | None = None, **options: Any) -> Any:
    """The output of a command or its error."""

    async def main() -> Any:
        commands = Commands()
        commands._guard = guard
        async with asyncio.timeout(PATIENCE):
            limit = SizeLimit(RESULT_LIMIT, "")
            return await commands.run(argv, environment or os.environ, result_limit=limit, **options)

    return asyncio.run(main())


def test_a_child_has_the_state_of_this_process(guard: Guard, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        state = run(guard, sys.executable, "-I", "-S", "-c", STATE, environment={"A-B": "ä\udcff"}, cwd=str(tmp_path))
    finally:
        signal.signal(signal.SIGUSR2, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert state["parent"] == os.getpid()
    assert state["leads"]
    assert state["session"] == os.getsid(0)
    assert state["cwd"] == os.path.realpath(tmp_path)
    assert state["environment"]["A-B"] == "ä\udcff"
    assert state["files"] == []
    assert state["mask"] == sorted({*blocked, signal.SIGUSR1})
    ignored = int(state["ignored"], 16)
    assert ignored >> (signal.SIGUSR2 - 1) & 1
    for number in (signal.SIGINT, signal.SIGTERM):
        assert bool(ignored >> (number - 1) & 1) == (signal.getsignal(number) is signal.SIG_IGN)


def test_a_child_starts_in_the_current_directory_of_this_process(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert run(guard, "pwd", "-P") == os.path.realpath(tmp_path)
    assert run(guard, "pwd", "-P", cwd="folder") == os.path.realpath(tmp_path / "folder")
    assert run(guard, "name", "-c", "echo $0", executable="/bin/sh") == "name"


@pytest.mark.parametrize(
    ("argv", "options", "error", "file"),
    [
        (["no-such-command"], {}, FileNotFoundError, "no-such-command"),
        (["/"], {}, PermissionError, "/"),
        (["true"], {"cwd": "/no/such/folder"}, FileNotFoundError, "/no/such/folder"),
        (["true", "x" * (8 << 20)], {}, OSError, "true"),
    ],
)
def test_a_program_that_cannot_be_executed(guard: Guard, argv: list[str], options: Any, error: Any, file: str) -> None:
    with pytest.raises(error) as raised:
        run(guard, *argv, **options)
    assert raised.value.filename == file
    assert raised.value.strerror == os.strerror(raised.value.errno)
    with pytest.raises(ChildProcessError):
        os.waitpid(guard._groups.get(guard._tickets, 2**22 - 1), os.WNOHANG)


def test_a_text_with_a_null_byte_is_refused(guard: Guard) -> None:
    with pytest.raises(ValueError, match="null byte"):
        run(guard, "echo", "a\0b")
    with pytest.raises(ValueError, match="illegal environment variable name"):
        run(guard, "echo", environment={"A=B": "c"})


def test_a_directory_that_was_replaced_is_noticed_by_the_child(guard: Guard, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "judged").symlink_to("real")
    records = os.open(tmp_path / "groups", os.O_RDWR | os.O_CREAT)
    admission = Admission(1, records, b"/proc/self/stat", os.getpid(), str(tmp_path / "judged"))
    try:
        with pytest.raises(AsterismError, match="its directory was replaced"):
            run(guard, "touch", "never", cwd=str(tmp_path / "judged"), admission=admission)
    finally:
        os.close(records)
    assert not (tmp_path / "real" / "never").exists()
    assert (tmp_path / "groups").read_text().startswith("+1 ")


def order(guard: Guard, admission: Admission | None = None) -> int:
    """Start a long command."""
    with open(os.devnull, "r+b") as null:
        launch = Launch(["sleep", "1000"], os.environ, [null.fileno()] * 3, admission=admission)
        return guard.spawn(guard.admit(), launch)


@pytest.fixture
def ready() -> Iterator[Guard]:
    guard = Guard()
    wait_ready(guard)
    yield guard
    guard.close()


def test_a_guard_that_is_killed_with_an_order_starts_nothing(ready: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    send, process = socket.send_fds, ready._process
    assert process is not None

    def killing(*words: Any) -> int:
        sent = send(*words)
        process.kill()
        return sent

    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(socket, "send_fds", killing)
    with pytest.raises(DeviceTrouble, match="its guard was killed"):
        order(ready)
    monkeypatch.undo()
    assert run(ready, "echo", "again") == "again"  # with another guard


def test_a_child_of_a_guard_that_was_killed_is_killed_before_its_program(
    ready: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child waits before it becomes its program, since it cannot write its record: the pipe is full."""
    reading, writing = os.pipe()
    with contextlib.suppress(BlockingIOError):
        os.set_blocking(writing, False)
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    read = Guard._read_lines
    children: list[int] = []

    def killing(guard: Guard, timeout: float = 0.0) -> bool:
        answer = read(guard, timeout)
        if guard._children and not children:
            assert guard._process is not None
            guard._process.kill()
            children.extend(guard._children.values())
        return answer

    monkeypatch.setattr(Guard, "_read_lines", killing)
    with pytest.raises(DeviceTrouble, match="its guard was killed"):
        order(ready, Admission(1, writing, b"/proc/self/stat", 0, None))
    os.close(reading)
    os.close(writing)
    assert len(children) == 1
    assert not alive(children[0])


def test_a_guard_that_is_frozen_is_given_up(ready: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ready._process is not None
    monkeypatch.setattr(process_guard, "ANSWER_TIMEOUT", 0.05)
    ready._process.send_signal(signal.SIGSTOP)
    with pytest.raises(DeviceTrouble, match="its guard was killed"):
        order(ready)


def test_a_process_with_many_open_files_starts_commands() -> None:
    """``select()`` refuses a descriptor above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1500:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    with contextlib.ExitStack() as undo:
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while (file := os.open(os.devnull, os.O_RDONLY)) < 1100:
            undo.callback(os.close, file)
        undo.callback(os.close, file)
        guard = Guard()
        undo.callback(guard.close)
        wait_ready(guard)
        assert run(guard, "echo", "hello") == "hello"


def test_a_forked_process_has_a_guard_of_its_own(ready: Guard) -> None:
    """The guard would make its children those of this process."""
    child = order(ready)
    reading, writing = os.pipe()
    if (forked := os.fork()) == 0:
        try:
            own = order(ready)
            stat = Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()
            os.write(writing, json.dumps([own, int(stat[1]) == os.getpid()]).encode())
            ready.close()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        own, is_its_child = json.loads(file.read())
    os.waitpid(forked, 0)
    assert is_its_child
    soon(lambda: not alive(own))
    assert alive(child)


@pytest.mark.parametrize(("number", "once"), [(errno.EPERM, False), (errno.EAGAIN, True)])
def test_where_clone_is_refused_the_process_forks(
    ready: Guard, monkeypatch: pytest.MonkeyPatch, number: int, once: bool
) -> None:
    """A sandbox refuses it for ever, a machine without room only now."""
    refused = [b"-1", b"clone", b"%d" % number]
    read = Guard._read_lines

    def refusing(guard: Guard, timeout: float = 0.0) -> bool:
        answer = read(guard, timeout)
        for ticket, child in guard._children.items():
            os.killpg(child, signal.SIGKILL)
            guard._answers[ticket] = list(refused)
        return answer

    monkeypatch.setattr(Guard, "_read_lines", refusing)
    child = order(ready)
    assert alive(child)
    assert ready._ready is once


def test_a_child_has_the_umask_and_limits_of_this_process(guard: Guard) -> None:
    umask, limits = os.umask(0o027), resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, limits[1]))
        assert run(guard, "sh", "-c", "umask; ulimit -c") == "0027\n0"
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_CORE, limits)


def test_a_process_that_may_not_open_its_directory_forks(ready: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refused(path: Any, *words: Any, **options: Any) -> int:
        if path == ".":
            raise PermissionError(13, "Permission denied", ".")
        return opened(path, *words, **options)

    monkeypatch.setattr(os, "open", refused)
    assert run(ready, "echo", "hello") == "hello"


def test_a_guard_does_not_need_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_main, "__file__", "/nowhere/guard_main.py")
    guard = Guard()
    wait_ready(guard)
    guard.close()


def test_an_interrupt_while_a_child_starts_leaves_no_process(
    ready: Guard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted, wait = tmp_path / "pid", Guard._wait_for_answer

    def interrupted(self: Guard, ticket: int) -> bool:
        wait(self, ticket)
        soon(noted.exists)
        raise KeyboardInterrupt

    monkeypatch.setattr(Guard, "_wait_for_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(ready, "sh", "-c", f"echo $$ > {noted}.new; mv {noted}.new {noted}; exec sleep 1000")
    assert not alive(int(noted.read_text()))
