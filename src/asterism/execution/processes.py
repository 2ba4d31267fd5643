"""Commands as child processes: output, exit codes, cancellation, leases; none outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import mmap
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

from asterism.base import operating_system
from asterism.base.text import decode_whole
from asterism.core.errors import AsterismError, DeviceTrouble
from asterism.core.json_values import SizeLimit
from asterism.execution import process_guard
from asterism.execution.large_values import call_apart

OUTPUT_LIMIT = 1 << 20
"""How many bytes of the end of a command's output are kept for its error."""


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


class _Listener(asyncio.SubprocessProtocol):
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

    async def value(self, limit: SizeLimit) -> Any:
        """The standard output, parsed if it is JSON; to be called once. Raises TooLarge, and NotJson for bytes that are
        not text."""
        limit.check(self.size, "the output of the command")
        return await call_apart(_parsed, self._kept.pop(1))


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
        in_child: Callable[[], None] | None = None,
        key: str | None = None,
        lease: float | None = None,
        stdin: IO[bytes] | None = None,
        result_limit: SizeLimit | None = None,
        folder: str | None = None,
    ) -> Any:
        """Run a command and return its output: parsed if it is JSON, text otherwise. Raises CommandFailed; OSError if
        the command cannot be executed; DeviceTrouble if the machine is out of a resource; LeaseExpired; TooLarge if the
        output is larger than ``result_limit``; NotJson if it is not UTF-8. Without a ``result_limit`` it returns None.

        When cancelled, its process group gets SIGTERM, and is killed after ``grace`` seconds. Processes that the
        command leaves in its group are killed with it.

        ``executable`` is the file to execute if it is not the first word. ``heard`` is called with each piece of output
        and its pipe (1 or 2). ``in_child`` runs in the child just before it executes the command. With a ``lease`` the
        command is killed after so many seconds, even if this process is frozen, unless ``allow`` is called with its
        ``key``. ``stdin`` is a file for the command to read. ``folder`` has files of the command: the caller
        removes it, or the guard if this process is killed."""
        self._running += 1
        self._closing = False
        ticket = self._guard.admit()
        if key is not None:
            self._keys[key] = ticket
        try:
            terms: dict[str, Any] = {"env": dict(environment), "cwd": cwd, "executable": executable}
            terms["stdin"] = asyncio.subprocess.DEVNULL if stdin is None else stdin
            with own_part("the guard of the command could not be started"):
                pipe = self._guard.pipe() if operating_system.HAS_PROCESS_GROUPS else -1
                shared = mmap.mmap(-1, 16)  # shared with the child: its process id, and the errno of its failure
            if lease is not None:
                self._guard.allow(ticket, lease)
            if folder is not None and operating_system.HAS_PROCESS_GROUPS:
                self._guard.remove_later(ticket, folder)
            with shared:
                if operating_system.HAS_PROCESS_GROUPS:
                    terms["process_group"] = 0
                    terms["preexec_fn"] = partial(_report_to_guard, pipe, ticket, shared, in_child)
                whole = 0 if result_limit is None else result_limit.size
                listener = await self._run(argv, terms, partial(_Listener, heard, whole), shared, ticket)
        finally:
            if key is not None and self._keys.get(key) == ticket:
                del self._keys[key]
            self._guard.finished(ticket)
            self._running -= 1
            if self._closing and not self._running:
                self._guard.close()
        return None if result_limit is None else await listener.value(result_limit)

    async def _run(
        self,
        argv: Sequence[str],
        terms: Mapping[str, Any],
        listener_of: Callable[[], _Listener],
        shared: mmap.mmap,
        ticket: int,
    ) -> _Listener:
        """Run a command to its end; returns its output."""
        # not cancelled half-way: a forked process must be stopped as a whole group
        spawning = asyncio.create_task(self._spawn(argv, terms, listener_of))
        try:
            with own_part("the command could not be started", EXHAUSTED):
                transport, listener = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            await self._stop_starting(spawning, shared)
            raise
        except (DeviceTrouble, RuntimeError) as error:  # asyncio needs a thread, and there may be none
            # it may have been forked before the resource ran out
            _signal_group(_child_pid(shared), operating_system.KILL)
            raise DeviceTrouble(str(error)) from error
        except subprocess.SubprocessError:
            with own_part("the command could not be started"):
                _raise_child_error(shared)
            raise
        self._guard.started(ticket, transport.get_pid())
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
        return listener

    async def _spawn(
        self, argv: Sequence[str], terms: Mapping[str, Any], listener_of: Callable[[], _Listener]
    ) -> tuple[asyncio.SubprocessTransport, _Listener]:
        return await asyncio.get_running_loop().subprocess_exec(
            listener_of,
            *argv,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            **terms,
        )

    async def _stop_starting(
        self, spawning: asyncio.Task[tuple[asyncio.SubprocessTransport, _Listener]], shared: mmap.mmap
    ) -> None:
        """Stop a command that is still being started. The start must be awaited; it takes a few turns of the loop.

        If the start itself was cancelled, as at the end of a program, asyncio kills only the process and not its group,
        and may wait for its pipes forever, until it is cancelled again."""
        waiting = True
        while not spawning.done():
            if spawning.cancelling():
                _signal_group(_child_pid(shared), operating_system.KILL)
                spawning.cancel()
            try:
                await asyncio.wait([spawning], timeout=0.1)
            except asyncio.CancelledError:
                waiting = False
        if spawning.cancelled():
            _signal_group(_child_pid(shared), operating_system.KILL)
        elif spawning.exception() is None:
            transport, listener = spawning.result()
            await (self._stop(transport, listener) if waiting else self._kill(transport, listener))

    async def _stop(self, transport: asyncio.SubprocessTransport, listener: _Listener) -> None:
        _signal_group(transport.get_pid(), signal.SIGTERM)
        try:
            await asyncio.wait([listener.exited], timeout=self.grace)
        except asyncio.CancelledError:  # the caller no longer waits, but the group must not outlive this process
            await self._kill(transport, listener)
            raise
        await self._end(transport, listener)

    async def _kill(self, transport: asyncio.SubprocessTransport, listener: _Listener) -> None:
        _signal_group(transport.get_pid(), operating_system.KILL)
        try:
            await asyncio.wait([listener.exited], timeout=self.grace)  # short, but it may have to finish a read
        finally:
            transport.close()

    async def _end(self, transport: asyncio.SubprocessTransport, listener: _Listener) -> None:
        """Kill the rest of the group, and read the rest of the output."""
        if operating_system.HAS_PROCESS_GROUPS or transport.get_returncode() is None:
            _signal_group(transport.get_pid(), operating_system.KILL)
        try:
            # a process outside the group may hold the pipes
            await asyncio.wait([listener.output_ended], timeout=self.grace)
        finally:
            transport.close()

    def close(self) -> None:
        """End the guard as soon as no command runs. The next command starts another."""
        self._closing = True
        if not self._running:
            self._guard.close()


def _report_to_guard(pipe: int, ticket: int, shared: mmap.mmap, in_child: Callable[[], None] | None) -> None:
    """Runs in the child, between fork and exec. The guard's pipe is closed after it. Python reports to the parent that
    this raised, but not what: so the errno is left in shared memory."""
    shared[:8] = os.getpid().to_bytes(8, "little")
    try:
        process_guard.report(pipe, ticket)
        if in_child is not None:
            in_child()
    except OSError as error:
        shared[8:] = (error.errno or 0).to_bytes(8, "little")
        raise


def _child_pid(shared: mmap.mmap) -> int:
    """The process id of a child that has reported it; 0 otherwise."""
    return int.from_bytes(shared[:8], "little")


def _raise_child_error(shared: mmap.mmap) -> None:
    """Raise the OSError that the child got, if it did."""
    code = int.from_bytes(shared[8:], "little")
    if code:
        raise OSError(code, os.strerror(code))


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
