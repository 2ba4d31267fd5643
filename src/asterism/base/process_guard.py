"""The guard: a small process that ends every child process if its orchestrator dies, however it dies, or is frozen for
longer than it may be.

Each child is the leader of a process group of its own, and writes its number into the guard's pipe before it becomes
the user's program, so there is no instant at which it is alive and unknown. When the orchestrator is gone the pipe
closes, and the guard kills every group that was not reported finished; with a grace it asks them to end first
(SIGTERM), so that they can remove their locks, and kills what is left after that many seconds. It works wherever there
are pipes and process groups; what a child puts into a session of its own is out of its reach.

The lines are ``+ticket number`` from the child, ``-ticket`` from us, and ``=ticket seconds`` if the child may only go
on for so long unless we say otherwise again: a process that is stopped in mid-air cannot end what it has lost the right
to, but its guard can. The ticket is ours: it can be taken back even for a child that failed before we learned its
number, which may then belong to somebody else.

Before the guard kills a group whose time is up it writes the ticket into a pipe of ours. So whoever sees such a child
end finds the ticket there already (``overdue``), and does not take the end for one of the child's own.
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
os.set_blocking(1, False)  # nobody may be there to read it
clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
groups, ends, rest = {}, {}, b""
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
        else:
            groups.pop(ticket, None)
            ends.pop(ticket, None)
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
"""


class Guard:
    """Starts with the first child, ends when it is closed or with the orchestrator's process. ``grace`` is how long
    children may take to end when it does, in seconds."""

    def __init__(self, grace: float = 0.0) -> None:
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._tickets = 0
        self._groups: dict[int, int] = {}
        self._ends: dict[int, float] = {}
        self._overdue: set[int] = set()
        self._marks = b""  # a line that has not come as a whole

    def admit(self) -> int:
        """A ticket for a child that is about to be started."""
        self._tickets += 1
        return self._tickets

    def pipe(self) -> int:
        """The file descriptor children report to; the guard is started if it is not there. Raises OSError if it cannot
        be."""
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
            if self._groups or self._ends:
                self._hand_over()
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def started(self, ticket: int, group: int) -> None:
        """We know the child's number too, so that another guard can be told if this one is killed."""
        self._groups[ticket] = group

    def allow(self, ticket: int, seconds: float) -> None:
        """The child may go on for so long, counted from now, unless this is said again."""
        self._ends[ticket] = time.monotonic() + seconds
        self._write(b"=%d %.3f\n" % (ticket, seconds))

    def finished(self, ticket: int) -> None:
        """The group has ended, or never began; its number may be given to somebody else."""
        self._groups.pop(ticket, None)
        self._ends.pop(ticket, None)
        self._overdue.discard(ticket)
        self._write(b"-%d\n" % ticket)

    def overdue(self, ticket: int) -> bool:
        """Whether the guard has ended a child because its time was up. True by the time the end can be seen."""
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
        except OSError:  # the guard was killed: another one takes over what still runs, as soon as one can be started
            with contextlib.suppress(OSError):
                self.close()
                self.pipe()

    def _hand_over(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        lines = [b"+%d %d\n" % one for one in self._groups.items()]
        lines += [b"=%d %.3f\n" % (ticket, at - time.monotonic()) for ticket, at in self._ends.items()]
        os.write(self._process.stdin.fileno(), b"".join(lines))

    def close(self) -> None:
        """End the guard; whatever it still knows of is killed."""
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
