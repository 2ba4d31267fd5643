"""Commands: argv lists and shell lines, as child processes that never outlive their orchestrator."""

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

from asterism.base import process_guard
from asterism.core.errors import AsterismError, DeviceTrouble

OUTPUT_LIMIT = 1 << 20
"""How much of a command's output is kept, in bytes: the tail."""


EXHAUSTED = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.ENOBUFS}
    | {errno.EAGAIN}  # no more processes
)
"""What the system answers when the machine is at its end, whatever was asked of it."""


@contextlib.contextmanager
def own_part(what: str, codes: frozenset[int] | None = None) -> Iterator[None]:
    """Around what a device does for the work rather than as the work: an OSError in here is a DeviceTrouble. With
    ``codes`` only one of these: where the work itself may be the reason for the others."""
    try:
        yield
    except OSError as error:
        if codes is not None and error.errno not in codes:
            raise
        raise DeviceTrouble(f"{what}: {error.strerror or error}") from error


class LeaseExpired(DeviceTrouble):
    """A command that the guard ended: its device was not able to renew the lease, being frozen or cut off."""

    def __init__(self) -> None:
        super().__init__("its command was ended when the lease ran out, which the device had not renewed in time")


class CommandFailed(AsterismError):
    """A command that ended with another code than 0. ``code`` is negative for a signal; ``output`` is the tail of what
    it said."""

    def __init__(self, code: int, output: str) -> None:
        self.code, self.output = code, output
        ended = f"was ended by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
        last = output.strip().splitlines()[-1:]
        super().__init__(f"the command {ended}" + (f": {last[0]}" if last else ""))


class _Listener(asyncio.SubprocessProtocol):
    """Keeps the tail of what a command says, and tells its exit from the end of its output: a process that the command
    left behind may hold the pipes open long after."""

    def __init__(self, heard: Callable[[int, bytes], None] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.silent: asyncio.Future[None] = loop.create_future()
        self._kept = {1: bytearray(), 2: bytearray()}
        self._heard = heard

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self._heard is not None:
            self._heard(fd, data)
        kept = self._kept[fd]
        kept += data
        if len(kept) > 2 * OUTPUT_LIMIT:
            del kept[:-OUTPUT_LIMIT]

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.silent.done():
            self.silent.set_result(None)

    def said(self, fd: int) -> str:
        return bytes(self._kept[fd][-OUTPUT_LIMIT:]).decode(errors="replace")


class Commands:
    """Runs commands for one device."""

    def __init__(self, grace: float = 5.0) -> None:
        self.grace = grace
        self._guard = process_guard.Guard()
        self._running = 0
        self._closing = False
        self._keys: dict[str, int] = {}

    def allow(self, key: str, seconds: float) -> None:
        """A command with a lease may go on for so long, counted from now."""
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
    ) -> Any:
        """Run a command and return what it printed: parsed if it is JSON, text otherwise. Raises CommandFailed; OSError
        if the command cannot be executed, DeviceTrouble if the machine is at its end, and LeaseExpired.

        When cancelled, its whole group is asked to stop (SIGTERM), and killed after ``grace`` seconds. What the command
        leaves behind in its group ends with it.

        ``executable`` is the file to execute if it is not the first word; ``heard`` is told what comes out of which
        pipe (1 or 2) as it comes; ``in_child`` runs in the child just before it becomes the command. With a
        ``lease`` it is killed after so many seconds, even if we are frozen, unless ``allow`` is called with its
        ``key``. ``stdin`` is a file that it reads, if it has anything to read."""
        self._running += 1
        self._closing = False
        ticket = self._guard.admit()
        if key is not None:
            self._keys[key] = ticket
        try:
            terms: dict[str, Any] = {"env": dict(environment), "cwd": cwd, "executable": executable}
            terms["stdin"] = asyncio.subprocess.DEVNULL if stdin is None else stdin
            with own_part("the guard of its command could not be started"):
                pipe = self._guard.pipe()
                born = mmap.mmap(-1, 16)  # shared with the child
            if lease is not None:
                self._guard.allow(ticket, lease)
            with born:
                terms["preexec_fn"] = partial(_enter, pipe, ticket, born, in_child)
                return await self._run(argv, terms, partial(_Listener, heard), born, ticket)
        finally:
            if key is not None and self._keys.get(key) == ticket:
                del self._keys[key]
            self._guard.finished(ticket)
            self._running -= 1
            if self._closing and not self._running:
                self._guard.close()

    async def _run(
        self,
        argv: Sequence[str],
        terms: Mapping[str, Any],
        listener_of: Callable[[], _Listener],
        born: mmap.mmap,
        ticket: int,
    ) -> Any:
        # not cancelled half-way: a process that has been forked has to be stopped as a whole group
        spawning = asyncio.create_task(self._spawn(argv, terms, listener_of))
        try:
            with own_part("its command could not be started", EXHAUSTED):
                transport, listener = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            await self._never_mind(spawning, born)
            raise
        except (DeviceTrouble, RuntimeError) as error:  # asyncio needs a thread for it, and there may be no more
            _signal_group(_number(born), signal.SIGKILL)  # it may have been born before we ran out of something
            raise DeviceTrouble(str(error)) from error
        except subprocess.SubprocessError:
            with own_part("its command could not be started"):
                _raise_as_in(born)
            raise
        self._guard.started(ticket, transport.get_pid())
        try:
            await asyncio.shield(listener.exited)  # a cancelled wait would cancel the future it waits for
        except asyncio.CancelledError:
            await self._stop(transport, listener)
            raise
        await self._end(transport, listener)
        code = transport.get_returncode() or 0
        if code != 0 and self._guard.overdue(ticket):
            raise LeaseExpired
        if code != 0:
            raise CommandFailed(code, listener.said(2) or listener.said(1))
        return _parsed(listener.said(1))

    async def _spawn(
        self, argv: Sequence[str], terms: Mapping[str, Any], listener_of: Callable[[], _Listener]
    ) -> tuple[asyncio.SubprocessTransport, _Listener]:
        return await asyncio.get_running_loop().subprocess_exec(
            listener_of,
            *argv,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,
            **terms,
        )

    async def _never_mind(
        self, spawning: asyncio.Task[tuple[asyncio.SubprocessTransport, _Listener]], born: mmap.mmap
    ) -> None:
        """Stop a command that is still being started. That has to be awaited; it takes a few turns of the loop.

        If the starting itself was cancelled, as at the end of a program, asyncio ends only the process and not its
        group, and may wait for ever for its pipes until it is cancelled again."""
        patient = True
        while not spawning.done():
            if spawning.cancelling():
                _signal_group(_number(born), signal.SIGKILL)
                spawning.cancel()
            try:
                await asyncio.wait([spawning], timeout=0.1)
            except asyncio.CancelledError:
                patient = False
        if spawning.cancelled():
            _signal_group(_number(born), signal.SIGKILL)
        elif spawning.exception() is None:
            transport, listener = spawning.result()
            await (self._stop(transport, listener) if patient else self._kill(transport, listener))

    async def _stop(self, transport: asyncio.SubprocessTransport, listener: _Listener) -> None:
        _signal_group(transport.get_pid(), signal.SIGTERM)
        try:
            await asyncio.wait([listener.exited], timeout=self.grace)
        except asyncio.CancelledError:  # the patience of the caller has run out, but the group must not outlive us
            await self._kill(transport, listener)
            raise
        await self._end(transport, listener)

    async def _kill(self, transport: asyncio.SubprocessTransport, listener: _Listener) -> None:
        _signal_group(transport.get_pid(), signal.SIGKILL)
        try:
            await asyncio.wait([listener.exited], timeout=self.grace)  # a moment, but it may have to finish reading
        finally:
            transport.close()

    async def _end(self, transport: asyncio.SubprocessTransport, listener: _Listener) -> None:
        """End what is left of the group, and read what is left of the output."""
        _signal_group(transport.get_pid(), signal.SIGKILL)
        try:
            await asyncio.wait([listener.silent], timeout=self.grace)  # somebody outside the group may hold the pipes
        finally:
            transport.close()

    def close(self) -> None:
        """End the guard as soon as no command runs; the next command starts another."""
        self._closing = True
        if not self._running:
            self._guard.close()


def _enter(pipe: int, ticket: int, born: mmap.mmap, in_child: Callable[[], None] | None) -> None:
    """Runs in the child, between fork and exec. The guard's pipe is closed right after: it is not passed on. Python
    tells the parent that something was raised in here, and not what: so that is left where it can be read."""
    born[:8] = os.getpid().to_bytes(8, "little")
    try:
        process_guard.report(pipe, ticket)
        if in_child is not None:
            in_child()
    except OSError as error:
        born[8:] = (error.errno or 0).to_bytes(8, "little")
        raise


def _number(born: mmap.mmap) -> int:
    """The process number of a child that has got as far as saying it; 0 otherwise."""
    return int.from_bytes(born[:8], "little")


def _raise_as_in(born: mmap.mmap) -> None:
    """Raises the OSError with which the system refused something to a child, if it did."""
    code = int.from_bytes(born[8:], "little")
    if code:
        raise OSError(code, os.strerror(code))


def _signal_group(group: int, number: signal.Signals) -> None:
    if group <= 0:  # that would be our own
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _parsed(output: str) -> Any:
    text = output.strip()
    if text[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text
