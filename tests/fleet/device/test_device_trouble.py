"""An error in the device's own part of an execution is a DeviceTrouble; an error of the work stays as it is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.core.errors import DeviceTrouble
from asterism.core.run.work import Workflow
from asterism.execution.process_guard import Guard
from asterism.execution.processes import CommandFailed, Commands, LeaseExpired
from asterism.fleet.device.executor import DeviceExecutor
from tests.fleet.device.device_scenes import Reports, command, executors, shell
from tests.process_scenes import PATIENCE


def outcome(made: DeviceExecutor, workflow: Workflow) -> Any:
    """The result of an execution, or its exception."""

    async def main() -> Any:
        try:
            async with asyncio.timeout(PATIENCE):
                return await made.execute(Reports().work(workflow))
        except Exception as error:
            return error
        finally:
            made.close()

    return asyncio.run(main())


@contextlib.contextmanager
def no_descriptors(spare: int = 0) -> Iterator[None]:
    """The process has ``spare`` descriptors left."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 50, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(held[0]))
        for _ in range(spare):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for number in held:
            os.close(number)


def within_limits(workflow: Workflow, spare: int) -> Any:
    """The outcome of an execution while there are few descriptors left; the loop has its own already."""

    async def main() -> Any:
        made = executors()
        try:
            with no_descriptors(spare):
                async with asyncio.timeout(PATIENCE):
                    return await made.execute(Reports().work(workflow))
        except Exception as error:
            return error
        finally:
            made.close()

    return asyncio.run(main())


@pytest.mark.parametrize("spare", range(0, 14))
def test_however_many_descriptors_are_missing_it_is_trouble_or_it_works(spare: int) -> None:
    result = within_limits(shell("echo hello"), spare)
    assert result == "hello" or isinstance(result, DeviceTrouble), repr(result)


def test_without_any_descriptor_it_is_trouble_and_with_many_it_works() -> None:
    assert isinstance(within_limits(shell("echo hello"), 0), DeviceTrouble)
    assert within_limits(shell("echo hello"), 25) == "hello"


def test_a_child_that_cannot_note_its_start_is_the_devices_trouble() -> None:
    """Its disk is full: the child cannot record itself before it becomes the command."""
    made = executors()
    made._records._open_records()
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, made._records._groups, inheritable=False)
    os.close(full)
    result = outcome(made, shell("echo hello"))
    assert isinstance(result, DeviceTrouble)
    assert "No space left on device" in str(result)


def test_files_of_a_run_that_cannot_be_written_are_the_devices_trouble(state: Path) -> None:
    state.mkdir(parents=True)
    (state / "lives").write_text("not a directory")
    assert isinstance(outcome(executors(), shell("echo hello")), DeviceTrouble)


def test_a_device_whose_start_failed_leaves_nothing_open_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made = executors()
    real = os.write

    def full(number: int, data: bytes) -> int:
        if data.startswith(b'{"device"'):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(number, data)

    before = len(os.listdir("/dev/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(5):
            with pytest.raises(OSError, match="No space left"):
                made._records.make_directory()
    assert len(os.listdir("/dev/fd")) == before
    assert outcome(made, shell("echo hello")) == "hello"


async def test_a_machine_without_another_thread_is_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    def no_more(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> Any:
        made = executors()
        monkeypatch.setattr(threading.Thread, "start", no_more)
        try:
            return await made.execute(Reports().work(Workflow("work", call="os:getcwd")))
        finally:
            monkeypatch.undo()
            made.close()

    with pytest.raises(DeviceTrouble, match="can't start new thread"):
        await main()


def test_a_request_without_descriptors_is_trouble() -> None:
    pytest.importorskip("httpx", reason="httpx is not installed: make test")
    outcome(executors(), Workflow("warm", http={"url": "http://127.0.0.1:9/"}))  # its imports need descriptors
    result = within_limits(Workflow("ask", http={"url": "http://127.0.0.1:9/"}), 0)
    assert isinstance(result, DeviceTrouble), repr(result)


def test_the_probe_knows_whether_the_device_can_do_its_part(state: Path) -> None:
    async def probe(made: DeviceExecutor) -> None:
        try:
            await made.probe()
        finally:
            made.close()

    asyncio.run(probe(executors()))
    (state / "lives").rmdir()
    (state / "lives").write_text("not a directory")
    with pytest.raises(DeviceTrouble):
        asyncio.run(probe(executors()))


# -- the work's own faults ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workflow",
    [
        shell("exit 1"),
        shell("kill -9 $$"),
        command("/etc/hostname-that-is-nowhere"),
        command("/"),
        shell("true", cwd="/nowhere/at/all"),
        Workflow("work", call="os:no_such_function"),
        Workflow("work", call="builtins:open"),
        Workflow("work", http={"url": "http://127.0.0.1:9/"}),
    ],
    ids=["exit", "signal", "missing", "directory", "cwd", "function", "arguments", "refused"],
)
def test_a_failure_of_the_work_is_not_device_trouble(workflow: Workflow) -> None:
    result = outcome(executors(), workflow)
    assert isinstance(result, Exception)
    assert not isinstance(result, DeviceTrouble), repr(result)


def of_a_function() -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_an_exception_of_a_function_passes_through() -> None:
    result = outcome(executors(), Workflow("work", call=of_a_function))
    assert isinstance(result, OSError)
    assert not isinstance(result, DeviceTrouble)


# -- the guard ---------------------------------------------------------------------------------------------------------


def with_a_lease(line: str, lease: float, times: int = 1) -> list[Any]:
    """The outcomes of commands whose lease is not renewed."""

    async def main() -> list[Any]:
        commands = Commands(1.0)
        try:
            async with asyncio.timeout(PATIENCE):
                runs = [commands.run(["/bin/sh", "-c", line], os.environ, lease=lease) for _ in range(times)]
                return await asyncio.gather(*runs, return_exceptions=True)
        finally:
            commands.close()

    return asyncio.run(main())


def test_every_command_that_the_guard_ended_is_known_to_have_been_ended_by_it() -> None:
    assert {type(error) for error in with_a_lease("exec sleep 600", 0.5, times=30)} == {LeaseExpired}


def test_a_command_whose_lease_ends_before_its_start_is_killed() -> None:
    assert {type(error) for error in with_a_lease("exec sleep 600", 0.0, times=3)} == {LeaseExpired}


def test_a_command_killed_from_outside_has_failed() -> None:
    (result,) = with_a_lease("kill -9 $$", 600.0)
    assert isinstance(result, CommandFailed)
    assert result.code == -signal.SIGKILL


def test_a_command_that_ends_well_in_time_has_ended_well() -> None:
    assert with_a_lease("echo hello", 600.0) == [None]


def test_commands_ended_by_a_guard_are_remembered_by_the_next_guard() -> None:
    guard = Guard()
    ticket = guard.admit()
    child = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    os.write(guard.pipe(), b"+%d %d\n" % (ticket, child.pid))
    guard.allow(ticket, 0.0)
    assert child.wait(PATIENCE) == -signal.SIGKILL
    guard.close()
    assert guard.overdue(ticket)
    assert not guard.overdue(guard.admit())
