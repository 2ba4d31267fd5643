"""The process guard: a small process that starts child processes, and kills them if their parent dies or is frozen.

Each child leads a process group of its own, and is known to the guard before it executes the user's program. So no
child is ever alive and unknown. When the parent dies, in whatever way, the guard's input closes, and the guard kills
every group that was not reported finished. With a ``grace`` it sends SIGTERM first, so that they can remove their
locks, and kills the rest after so many seconds. It works on every system with process groups. A child that starts its
own session escapes it.

``Guard.spawn`` starts a child. Once the guard has said that it is ``ready``, it makes the child (``guard_main``): the
line ``!ticket size`` is followed by an order of that size, with the files of the child as descriptors. The child writes
``+ticket pid`` to the parent, which knows it even if the guard is killed in that moment, and the guard answers
``!ticket pid`` when the child has become its program, followed by the step that failed and its errno if one did. A
guard that is just being started, or that runs where there is no such ``clone``, makes no child: the parent forks, and
the child writes ``+ticket pid`` to the guard.

The other lines from the parent are ``-ticket`` for a child that has ended, ``/ticket hex`` for a folder that the guard
removes if the parent dies, and ``=ticket seconds`` for a lease: the child is killed after that time unless the line is
repeated. A frozen parent cannot stop work whose lease has expired, but its guard can. The parent chooses the ticket, so
it can take back the ticket of a child that failed before its process id was known; that id may then belong to another
process.

Before the guard kills a group whose lease has expired, it writes the ticket into the pipe to the parent. So a parent
that sees such a child end already finds the ticket there (``overdue``).
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from asterism.base import operating_system
from asterism.core.errors import AsterismError, DeviceTrouble
from asterism.core.record import Record
from asterism.execution import guard_main

ANSWER_TIMEOUT = 60.0
"""How long a guard may take to start a child, in seconds. One that takes longer is frozen, and is killed."""

REFUSED = (errno.EPERM, errno.ENOSYS, errno.EINVAL)
"""How a sandbox or an old kernel refuses ``clone``: then and ever after. Else there was no room just now."""


class Admission(NamedTuple):
    """What a child does before it becomes its program: it writes ``+ticket pid start-time`` into the file ``groups``,
    asks to be killed with the process ``agent`` (0 for no), and checks that its directory is ``cwd``, if not None.
    ``own_stat`` is the file with its start time; None where there is none."""

    ticket: int
    groups: int
    own_stat: bytes | None
    agent: int
    cwd: str | None


_PROGRAM = guard_main.__loader__.get_source(guard_main.__name__)  # type: ignore[union-attr]
"""From memory: the file may be gone, or that of another version, when a guard starts."""


class Launch(Record):
    """A program to start. ``executable`` is the file to execute if it is not the first word; ``files`` are standard
    input, output and error. ``session`` gives it a session of its own, without a terminal."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    files: Sequence[int]
    cwd: str | None = None
    executable: str | None = None
    session: bool = False
    admission: Admission | None = None

    @property
    def file(self) -> str:
        return self.executable or self.argv[0]

    def order(self) -> guard_main.Order:
        """The launch as bytes, with the state of this process that a child inherits. Raises ValueError."""
        path = os.fsencode(self.file)
        folders = [] if os.path.dirname(path) else os.get_exec_path(self.environment)
        environment = {os.fsencode(name): os.fsencode(value) for name, value in self.environment.items()}
        argv = [os.fsencode(word) for word in self.argv]
        if any(b"=" in name for name in environment):
            raise ValueError("illegal environment variable name")
        if any(0 in text for text in (path, *argv, *environment, *environment.values())):
            raise ValueError("embedded null byte")
        admission = self.admission
        return {
            "argv": argv,
            "executables": [os.path.join(os.fsencode(folder), path) for folder in folders] or [path],
            "environment": environment,
            "cwd": None if self.cwd is None else os.fsencode(self.cwd),
            "session": self.session,
            "ignored": guard_main.ignored_signals(),
            "umask": guard_main.current_umask(),
            "limits": guard_main.current_limits(),
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            "admission": admission and (admission.ticket, admission.own_stat, admission.agent, admission.cwd),
            "files": 4 if admission is None else 5,
        }


class Guard:
    """Starts the guard process with the first child. It ends when it is closed, or with this process. ``grace`` is how
    many seconds children have to stop then."""

    def __init__(self, grace: float = 0.0) -> None:
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._input: socket.socket | None = None
        self._owner = 0
        self._ready = False
        self._tickets = 0
        self._groups: dict[int, int] = {}
        self._ends: dict[int, float] = {}
        self._folders: dict[int, bytes] = {}
        self._overdue: set[int] = set()
        self._rest = b""  # an incomplete line
        self._children: dict[int, int] = {}  # those that are being started
        self._answers: dict[int, list[bytes]] = {}

    def admit(self) -> int:
        """A ticket for a child that is about to be started."""
        self._tickets += 1
        return self._tickets

    def pipe(self) -> int:
        """The file descriptor to which children report. Starts the guard if it does not run. Raises OSError."""
        if self._process is not None and self._owner != os.getpid():
            self._forget()  # this process was forked: guard and children are those of its parent
            for children in (self._groups, self._ends, self._folders):
                children.clear()
        if self._is_dead():
            self.close()
            self._input, other = socket.socketpair()
            words = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(self._grace)]
            with other:
                # a group of its own: a Ctrl-C in the terminal must not reach it
                self._process = subprocess.Popen(words, stdin=other.fileno(), stdout=subprocess.PIPE, process_group=0)
            self._owner = os.getpid()
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)
            if self._groups or self._ends or self._folders:
                self._hand_over()
        assert self._input is not None
        return self._input.fileno()

    def spawn(self, ticket: int, launch: Launch) -> int:
        """Start a child and return its process id; it has become its program. Raises OSError if that cannot be
        executed, DeviceTrouble if the child could not be recorded, and AsterismError if its directory was replaced."""
        self.pipe()
        self._read_lines()
        child = self._order(ticket, launch) if self._ready else _fork(self.pipe(), ticket, launch)
        self._groups[ticket] = child
        return child

    def _order(self, ticket: int, launch: Launch) -> int:
        """Let the guard start a child."""
        assert self._input is not None
        admission = launch.admission
        order = marshal.dumps(dict(launch.order()))
        try:
            here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
        except OSError:  # this process may not search its directory; it can be inherited all the same
            return _fork(self.pipe(), ticket, launch)
        files = [*launch.files, here, *(() if admission is None else (admission.groups,))]
        message = b"!%d %d\n%s" % (ticket, len(order), order)
        try:
            sent = socket.send_fds(self._input, [message], files)
            self._input.sendall(message[sent:])
        except OSError:
            return self._lost(ticket)
        finally:
            os.close(here)
        try:
            answered = self._wait_for_answer(ticket)
        except BaseException:  # of a signal handler: the child would run, and nobody would know of it
            with contextlib.suppress(DeviceTrouble):
                self._lost(ticket)
            raise
        if not answered:
            return self._lost(ticket)
        number, *failure = self._answers.pop(ticket)
        self._children.pop(ticket, None)
        if not failure:
            return int(number)
        if failure[0] == b"clone":
            self._ready = int(failure[1]) not in REFUSED
            return _fork(self.pipe(), ticket, launch)
        operating_system.wait_for_child(int(number))
        raise _start_error(failure[0], int(failure[1]), launch)

    def _wait_for_answer(self, ticket: int) -> bool:
        until = time.monotonic() + ANSWER_TIMEOUT
        while ticket not in self._answers:
            # a child that waits holds the pipe, so its end does not tell that the guard was killed
            if not self._read_lines(0.1) and (self._is_dead() or time.monotonic() > until):
                return False
        return True

    def _is_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _lost(self, ticket: int) -> int:
        """The guard was killed or is frozen, and may have started a child. Raises DeviceTrouble."""
        if self._process is not None:
            self._process.kill()
        while ticket not in self._children and self._read_lines(ANSWER_TIMEOUT):
            pass  # a child that has not reported itself holds the pipe
        child = self._children.pop(ticket, 0)
        if child:
            operating_system.signal_group(child, operating_system.KILL)
            operating_system.wait_for_child(child)
        self.close()
        raise DeviceTrouble("the command could not be started: its guard was killed")

    def allow(self, ticket: int, seconds: float) -> None:
        """Set or renew the lease of a child: it is killed after so many seconds."""
        self._ends[ticket] = time.monotonic() + seconds
        self._write(b"=%d %.3f\n" % (ticket, seconds))

    def remove_later(self, ticket: int, folder: str) -> None:
        """Remove a folder of a child if this process dies before the child has finished."""
        self._folders[ticket] = os.fsencode(folder).hex().encode()
        self._write(b"/%d %s\n" % (ticket, self._folders[ticket]))

    def finished(self, ticket: int) -> None:
        """The group has ended or never began. Its id may be reused."""
        self._groups.pop(ticket, None)
        self._folders.pop(ticket, None)
        self._ends.pop(ticket, None)
        self._overdue.discard(ticket)
        if operating_system.HAS_PROCESS_GROUPS:
            self._write(b"-%d\n" % ticket)

    def overdue(self, ticket: int) -> bool:
        """Whether the guard killed a child because its lease expired. Known before the end of the child is seen."""
        self._read_lines()
        return ticket in self._overdue

    def _read_lines(self, timeout: float = 0.0) -> bool:
        """Read what the guard and new children have written, or wait for more. Returns whether there was something."""
        if self._process is None:
            return False
        assert self._process.stdout is not None
        file, data = self._process.stdout.fileno(), b""
        if timeout:
            waiting = select.poll()  # not select(), which refuses the descriptors of a large process
            waiting.register(file, select.POLLIN)
            waiting.poll(timeout * 1000)
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(file, 65536):
                data += piece
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            words = line[1:].split()
            if line == b"ready":
                self._ready = True
            elif line[:1] == b"+":
                self._children[int(words[0])] = int(words[1])
            elif line[:1] == b"!":
                self._answers[int(words[0])] = words[1:]
            else:
                self._overdue.add(int(line))
        return bool(data)

    def _write(self, line: bytes) -> None:
        try:
            os.write(self.pipe(), line)
        except OSError:  # the guard was killed: start another, which takes over the running children
            with contextlib.suppress(OSError):
                self.close()
                self.pipe()

    def _hand_over(self) -> None:
        assert self._input is not None
        lines = [b"+%d %d\n" % group for group in self._groups.items()]
        lines += [b"=%d %.3f\n" % (ticket, at - time.monotonic()) for ticket, at in self._ends.items()]
        lines += [b"/%d %s\n" % folder for folder in self._folders.items()]
        self._input.sendall(b"".join(lines))

    def close(self) -> None:
        """End the guard, which kills all children that are not finished."""
        if self._process is not None and self._input is not None and self._owner == os.getpid():
            self._input.close()
            self._process.wait()
            self._read_lines()
        self._forget()

    def _forget(self) -> None:
        if self._input is not None:
            self._input.close()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
            if self._owner != os.getpid():
                self._process.returncode = 0  # this process cannot wait for it
        self._process, self._input, self._rest, self._ready = None, None, b"", False


def _fork(pipe: int, ticket: int, launch: Launch) -> int:
    """Start a child by a fork of this process."""
    admission = launch.admission
    told, tell = os.pipe()

    def enter() -> None:
        try:
            if admission is None:
                guard_main.enter(pipe, ticket, None, -1)
            else:
                own, groups = (admission.ticket, *admission[2:]), admission.groups
                guard_main.enter(pipe, ticket, own, groups)
        except guard_main.EntryFailed as failed:
            os.write(tell, b"own %d" % failed.args[0])
            raise
        except guard_main.DirectoryReplaced:
            os.write(tell, b"directory 0")
            raise

    if admission is not None and admission.agent:
        guard_main.c_library()  # a child must not load it
    try:
        process = subprocess.Popen(
            launch.argv,
            executable=launch.executable,
            env=launch.environment,
            cwd=launch.cwd,
            stdin=launch.files[0],
            stdout=launch.files[1],
            stderr=launch.files[2],
            start_new_session=launch.session,
            process_group=None if launch.session else 0,
            preexec_fn=enter,
        )
    except subprocess.SubprocessError as error:
        os.set_blocking(told, False)
        with contextlib.suppress(BlockingIOError):
            step, code = os.read(told, 100).split()
            raise _start_error(step, int(code), launch) from None
        raise DeviceTrouble(f"the command could not be started: {error}") from error
    finally:
        os.close(told)
        os.close(tell)
    process.returncode = 0  # its end is awaited by its id
    return process.pid


def _start_error(step: bytes, code: int, launch: Launch) -> Exception:
    """What went wrong in a child before it became its program."""
    if step == b"directory":
        return AsterismError("the command was not started: its directory was replaced")
    if step == b"own":
        return DeviceTrouble(f"the command could not be started: {os.strerror(code)}")
    return OSError(code, os.strerror(code), launch.cwd if step == b"chdir" else launch.file)
