"""The guard: a small process that ends every child process if its orchestrator dies, however it dies.

Each child is the leader of a process group of its own, and writes its number into the guard's pipe before it becomes
the user's program, so there is no instant at which it is alive and unknown. When the orchestrator is gone the pipe
closes, and the guard kills every group that was not reported finished. It works wherever there are pipes and process
groups; what a child puts into a session of its own is out of its reach.

The lines are ``+ticket number`` from the child and ``-ticket`` from us. The ticket is ours: it can be taken back even
for a child that failed before we learned its number, which may then belong to somebody else.
"""

from __future__ import annotations

import os
import subprocess
import sys

_PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
groups = {}
for line in sys.stdin:
    ticket, *number = line[1:].split()
    if number:
        groups[ticket] = int(number[0])
    else:
        groups.pop(ticket, None)
for group in groups.values():
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Guard:
    """Starts with the first child, ends when it is closed or with the orchestrator's process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._tickets = 0

    def admit(self) -> int:
        """A ticket for a child that is about to be started."""
        self._tickets += 1
        return self._tickets

    def pipe(self) -> int:
        """The file descriptor children report to; the guard is started if it is not there."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal must not reach it
            )
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def finished(self, ticket: int) -> None:
        """The group has ended, or never began; its number may be given to somebody else."""
        try:
            os.write(self.pipe(), b"-%d\n" % ticket)
        except BrokenPipeError:  # the guard was killed; the next child starts another
            self.close()

    def close(self) -> None:
        """End the guard; whatever it still knows of is killed."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None


def report(pipe: int, ticket: int) -> None:
    """Runs in the child, between fork and exec."""
    os.write(pipe, b"+%d %d\n" % (ticket, os.getpid()))
