"""The process guard: a helper process that kills child processes if their parent dies or is frozen.

Each child leads a process group of its own, and writes its process id into the guard's pipe before it executes the
user's program. So no child is ever alive and unknown. When the parent dies, in whatever way, the pipe closes, and the
guard kills every group that was not reported finished. With a ``grace`` it sends SIGTERM first, so that they can remove
their locks, and kills the rest after so many seconds. It works on every system with pipes and process groups. A child
that starts its own session escapes it.

The lines are ``+ticket pid`` from the child, ``-ticket`` from the parent, ``/ticket hex`` for a folder that the guard
removes if the parent dies, and ``=ticket seconds`` for a lease: the child is killed after that time unless the line is
repeated. A frozen parent cannot stop work whose lease has expired, but its guard can. The parent chooses the ticket, so
it can take back the ticket of a child that failed before its process id was known; that id may then belong to another
process.

Before the guard kills a group whose lease has expired, it writes the ticket into a pipe to the parent. So a parent that
sees such a child end already finds the ticket there (``overdue``).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

_PROGRAM = """
import os, select, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.set_blocking(1, False)  # the parent may not read it
clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
groups, ends, folders, rest = {}, {}, {}, b""
def end(ticket, mark=b""):
    ends.pop(ticket, None)
    if ticket in groups:
        try:
            os.write(1, mark)
        except OSError:
            pass
        try:
            os.killpg(groups.pop(ticket), signal.SIGKILL)
        except OSError:
            pass
while True:
    wait = min((at for one, at in ends.items() if one in groups), default=None)  # one may be late to be born
    wait = None if wait is None else min(1.0, max(0.0, wait - time.clock_gettime(clock)))
    if not select.select([0], [], [], wait)[0]:  # what was said in time is heard before anything is ended
        for ticket in [one for one in groups if ends.get(one, float("inf")) <= time.clock_gettime(clock)]:
            end(ticket, ticket + b"\\n")
        continue
    data = os.read(0, 65536)
    if not data:
        break
    *lines, rest = (rest + data).split(b"\\n")
    for line in lines:
        ticket, *number = line[1:].split()
        if line[:1] == b"+":
            groups[ticket] = int(number[0])
        elif line[:1] == b"=":
            ends[ticket] = time.clock_gettime(clock) + float(number[0])
        elif line[:1] == b"/":
            folders[ticket] = bytes.fromhex(number[0].decode())
        else:
            for known in (groups, ends, folders):
                known.pop(ticket, None)
def ask(group, how):
    try:
        os.killpg(group, how)
    except OSError:
        return False
    return True
until = time.clock_gettime(clock) + float(sys.argv[1])
left = [group for group in groups.values() if float(sys.argv[1]) and ask(group, signal.SIGTERM)]
while left and time.clock_gettime(clock) < until:
    time.sleep(0.01)
    left = [group for group in left if ask(group, 0)]
for ticket in list(groups):
    end(ticket)
if folders:
    import shutil
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
"""


class Guard:
    """Starts the guard process with the first child. It ends when it is closed, or with this process. ``grace`` is how
    many seconds children have to stop then."""

    def __init__(self, grace: float = 0.0) -> None:
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._tickets = 0
        self._groups: dict[int, int] = {}
        self._ends: dict[int, float] = {}
        self._folders: dict[int, bytes] = {}
        self._overdue: set[int] = set()
        self._marks = b""  # an incomplete line

    def admit(self) -> int:
        """A ticket for a child that is about to be started."""
        self._tickets += 1
        return self._tickets

    def pipe(self) -> int:
        """The file descriptor to which children report. Starts the guard if it does not run. Raises OSError."""
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(self._grace)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C in the terminal must not reach it
            )
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)
            if self._groups or self._ends or self._folders:
                self._hand_over()
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def started(self, ticket: int, group: int) -> None:
        """Keep the process group of a child, for the next guard if this one is killed."""
        self._groups[ticket] = group

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
        self._write(b"-%d\n" % ticket)

    def overdue(self, ticket: int) -> bool:
        """Whether the guard killed a child because its lease expired. Known before the end of the child is seen."""
        self._read_marks()
        return ticket in self._overdue

    def _read_marks(self) -> None:
        if self._process is None:
            return
        assert self._process.stdout is not None
        try:
            while data := os.read(self._process.stdout.fileno(), 65536):
                *lines, self._marks = (self._marks + data).split(b"\n")
                self._overdue.update(map(int, lines))
        except BlockingIOError:
            pass

    def _write(self, line: bytes) -> None:
        try:
            os.write(self.pipe(), line)
        except OSError:  # the guard was killed: start another, which takes over the running children
            with contextlib.suppress(OSError):
                self.close()
                self.pipe()

    def _hand_over(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        lines = [b"+%d %d\n" % one for one in self._groups.items()]
        lines += [b"=%d %.3f\n" % (ticket, at - time.monotonic()) for ticket, at in self._ends.items()]
        lines += [b"/%d %s\n" % one for one in self._folders.items()]
        os.write(self._process.stdin.fileno(), b"".join(lines))

    def close(self) -> None:
        """End the guard, which kills all children that are not finished."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait()
            self._read_marks()
            self._process.stdout.close()
            self._process, self._marks = None, b""


def report(pipe: int, ticket: int) -> None:
    """Runs in the child, between fork and exec."""
    os.write(pipe, b"+%d %d\n" % (ticket, os.getpid()))
