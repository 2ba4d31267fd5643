"""Commands as child processes: output, exit codes, cancellation, leases; none outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from asterism.base import operating_system
from asterism.base.text import decode_whole
from asterism.core.errors import AsterismError, DeviceTrouble
from asterism.core.json_values import SizeLimit
from asterism.execution import process_guard
from asterism.execution.process_guard import Admission
from asterism.execution.task_inputs import call_apart

OUTPUT_LIMIT = 1 << 20
"""How many bytes of the end of a command's output are kept for its error."""

KILL_TIMEOUT = 10.0
"""How long a killed command may take to end, in seconds: it may have to finish a read, and a busy machine is slow."""

_NOT_TEXT = "write it to a file and pass on the name of the file, or encode it as text, for example with base64"

EXHAUSTED = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.ENOBUFS}
    | {errno.EAGAIN}  # no more processes
)
"""The errors of a machine that is out of a resource, whatever the call was."""


@contextlib.contextmanager
def own_part(what: str, codes: frozenset[int] | None = None) -> Iterator[None]:
    """For code that a device runs on its own behalf, not as the work: an OSError becomes DeviceTrouble. With ``codes``
    only these errors do, because the work itself may cause the others."""
    try:
        yield
    except OSError as error:
        if codes is not None and error.errno not in codes:
            raise
        raise DeviceTrouble(f"{what}: {error.strerror or error}") from error


class LeaseExpired(DeviceTrouble):
    """The guard killed a command: its device was frozen or cut off, and did not renew the lease."""

    def __init__(self) -> None:
        super().__init__("the command was killed because the device did not renew the lease in time")


class CommandFailed(AsterismError):
    """A command exited with another code than 0. ``code`` is negative for a signal; ``output`` is the end of its
    output."""

    def __init__(self, code: int, output: str) -> None:
        self.code, self.output = code, output
        ended = f"was ended by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
        last = output.strip().splitlines()[-1:]
        super().__init__(f"the command {ended}" + (f": {last[0]}" if last else ""))


class Listener(asyncio.SubprocessProtocol):
    """Keeps the standard output of a command whole, up to ``limit`` bytes, and beyond that only its end, as of its
    errors. It distinguishes the exit of the command from the end of its output: a process that the command left behind
    may hold the pipes open much longer."""

    def __init__(self, heard: Callable[[int, bytes], None] | None, limit: int) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.output_ended: asyncio.Future[None] = loop.create_future()
        self._kept = {1: bytearray(), 2: bytearray()}
        self._whole = {1: max(limit, 2 * OUTPUT_LIMIT), 2: 2 * OUTPUT_LIMIT}
        self._heard = heard
        self.size = 0
        """How many bytes came out of the standard output."""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self._heard is not None:
            self._heard(fd, data)
        if fd == 1:
            self.size += len(data)
        kept = self._kept[fd]
        kept += data
        if len(kept) > self._whole[fd]:
            del kept[:-OUTPUT_LIMIT]
            self._whole[fd] = 2 * OUTPUT_LIMIT  # it cannot be whole any more

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.output_ended.done():
            self.output_ended.set_result(None)

    def tail(self, fd: int) -> str:
        """The end of an output."""
        return bytes(self._kept[fd][-OUTPUT_LIMIT:]).decode(errors="replace")

    def output(self) -> bytearray:
        """The standard output; to be called once."""
        return self._kept.pop(1)

    async def value(self, limit: SizeLimit) -> Any:
        """The standard output, parsed if it is JSON; to be called once. Raises TooLarge, and NotJson for bytes that are
        not text."""
        limit.check(self.size, "the output of the command")
        return await call_apart(_parsed, self.output())


class _Child:
    """A child process on the event loop: passes its output and its end to the listener, as a transport of asyncio
    does. The start of asyncio's own can be cancelled half-way, and forks this process."""

    def __init__(self, pid: int, pipes: Mapping[int, int], listener: Listener) -> None:
        self._pid, self._listener = pid, listener
        self._loop = asyncio.get_running_loop()
        self._code: int | None = None
        self._pipes = dict(pipes)
        operating_system.call_after_child(self._loop, pid, self._exited)
        for number, file in pipes.items():
            os.set_blocking(file, False)
            self._loop.add_reader(file, self._read, number, file)

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._code

    def _read(self, number: int, file: int) -> None:
        try:
            data = os.read(file, 1 << 18)
        except BlockingIOError:
            return
        if data:
            self._listener.pipe_data_received(number, data)
        else:
            self._close_pipe(number)

    def _exited(self, code: int) -> None:
        self._code = code
        self._listener.process_exited()

    def _close_pipe(self, number: int) -> None:
        file = self._pipes.pop(number)
        self._loop.remove_reader(file)
        os.close(file)
        if not self._pipes:
            self._listener.connection_lost(None)

    def close(self) -> None:
        for number in list(self._pipes):
            self._close_pipe(number)


Transport = _Child | asyncio.SubprocessTransport


async def start_process(
    guard: process_guard.Guard,
    ticket: int,
    argv: Sequence[str],
    environment: Mapping[str, str],
    listener: Listener,
    *,
    cwd: str | None = None,
    executable: str | None = None,
    stdin: IO[bytes] | None = None,
    session: bool = False,
    admission: Admission | None = None,
) -> Transport:
    """Start a program under a guard, as the leader of its own process group, or of its own session. Raises OSError if
    it cannot be executed, DeviceTrouble if the machine is out of a resource, AsterismError if its directory was
    replaced."""
    if not operating_system.HAS_PROCESS_GROUPS:
        options: dict[str, Any] = {"env": dict(environment), "cwd": cwd, "executable": executable}
        options["stdin"] = asyncio.subprocess.DEVNULL if stdin is None else stdin
        pipe = asyncio.subprocess.PIPE
        start = asyncio.get_running_loop().subprocess_exec(lambda: listener, *argv, stdout=pipe, stderr=pipe, **options)
        return (await start)[0]
    with contextlib.ExitStack() as after, contextlib.ExitStack() as failed:
        source = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin.fileno()
        if stdin is None:
            after.callback(os.close, source)
        files, pipes = [source], {}
        for number in (1, 2):
            pipes[number], end = os.pipe()
            failed.callback(os.close, pipes[number])
            after.callback(os.close, end)
            files.append(end)
        launch = process_guard.Launch(argv, environment, files, cwd, executable, session, admission)
        child = guard.spawn(ticket, launch)
        failed.callback(_signal_group, child, operating_system.KILL)
        try:
            transport = _Child(child, pipes, listener)
        except RuntimeError as error:  # it takes a thread, and there may be none
            raise DeviceTrouble(f"the command could not be started: {error}") from error
        failed.pop_all()
    return transport


class Commands:
    """Runs the commands of one device."""

    def __init__(self, grace: float = 5.0) -> None:
        self.grace = grace
        self._guard = process_guard.Guard()
        self._running = 0
        self._closing = False
        self._keys: dict[str, int] = {}

    def allow(self, key: str, seconds: float) -> None:
        """Renew the lease of a command for so many seconds."""
        ticket = self._keys.get(key)
        if ticket is not None:
            self._guard.allow(ticket, seconds)

    async def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: str | None = None,
        *,
        executable: str | None = None,
        heard: Callable[[int, bytes], None] | None = None,
        admission: Admission | None = None,
        key: str | None = None,
        lease: float | None = None,
        stdin: IO[bytes] | None = None,
        result_limit: SizeLimit | None = None,
        folder: str | None = None,
    ) -> Any:
        """Run a command and return its output: parsed if it is JSON, text otherwise. Raises CommandFailed; OSError if
        the command cannot be executed; AsterismError if its directory was replaced; DeviceTrouble if the machine is out
        of a resource; LeaseExpired; TooLarge if the output is larger than ``result_limit``; NotJson if it is not UTF-8.
        Without a ``result_limit`` it returns None.

        When cancelled, its process group gets SIGTERM, and is killed after ``grace`` seconds. Processes that the
        command leaves in its group are killed with it.

        ``executable`` is the file to execute if it is not the first word. ``heard`` is called with each piece of output
        and its pipe (1 or 2). ``admission`` is what the child does before it becomes the command. With a ``lease`` the
        command is killed after so many seconds, even if this process is frozen, unless ``allow`` is called with its
        ``key``. ``stdin`` is a file for the command to read. ``folder`` has files of the command: the caller
        removes it, or the guard if this process is killed."""
        self._running += 1
        self._closing = False
        ticket = self._guard.admit()
        if key is not None:
            self._keys[key] = ticket
        try:
            self._guard_it(ticket, lease, folder)
            listener = Listener(heard, 0 if result_limit is None else result_limit.size)
            with own_part("the command could not be started", EXHAUSTED):
                options: dict[str, Any] = {"cwd": cwd, "executable": executable, "stdin": stdin, "admission": admission}
                transport = await start_process(self._guard, ticket, argv, environment, listener, **options)
            await self._wait(transport, listener, ticket)
        finally:
            if key is not None and self._keys.get(key) == ticket:
                del self._keys[key]
            self._guard.finished(ticket)
            self._running -= 1
            if self._closing and not self._running:
                self._guard.close()
        return None if result_limit is None else await listener.value(result_limit)

    def _guard_it(self, ticket: int, lease: float | None, folder: str | None) -> None:
        if operating_system.HAS_PROCESS_GROUPS:
            with own_part("the guard of the command could not be started"):
                self._guard.pipe()
            if lease is not None:
                self._guard.allow(ticket, lease)
            if folder is not None:
                self._guard.remove_later(ticket, folder)

    async def _wait(self, transport: Transport, listener: Listener, ticket: int) -> None:
        """Wait for the end of a command."""
        try:
            await asyncio.shield(listener.exited)  # cancelling the wait must not cancel the future
        except asyncio.CancelledError:
            await self._stop(transport, listener)
            raise
        await self._end(transport, listener)
        code = transport.get_returncode() or 0
        if code != 0 and self._guard.overdue(ticket):
            raise LeaseExpired
        if code != 0:
            raise CommandFailed(code, listener.tail(2) or listener.tail(1))

    async def _stop(self, transport: Transport, listener: Listener) -> None:
        _signal_group(transport.get_pid(), signal.SIGTERM)
        try:
            await asyncio.wait([listener.exited], timeout=self.grace)
        except asyncio.CancelledError:  # the caller no longer waits, but the group must not outlive this process
            await self._kill(transport, listener)
            raise
        await self._end(transport, listener)

    async def _kill(self, transport: Transport, listener: Listener) -> None:
        _signal_group(transport.get_pid(), operating_system.KILL)
        try:
            await asyncio.wait([listener.exited], timeout=KILL_TIMEOUT)
        finally:
            transport.close()

    async def _end(self, transport: Transport, listener: Listener) -> None:
        """Kill the rest of the group, and read the rest of the output."""
        if operating_system.HAS_PROCESS_GROUPS or transport.get_returncode() is None:
            _signal_group(transport.get_pid(), operating_system.KILL)
        try:
            await asyncio.wait([listener.exited], timeout=KILL_TIMEOUT)
            # a process outside the group may hold the pipes
            await asyncio.wait([listener.output_ended], timeout=self.grace)
        finally:
            transport.close()

    def close(self) -> None:
        """End the guard as soon as no command runs. The next command starts another."""
        self._closing = True
        if not self._running:
            self._guard.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(PermissionError):
        operating_system.signal_group(group, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _parsed(output: bytearray) -> Any:
    text = decode_whole(output, "the output of the command", _NOT_TEXT).strip()
    output.clear()  # not two copies of what may be large, while a third is made
    if text[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text
