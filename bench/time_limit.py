"""The time limit of a measurement: a part that hangs is ended, with the processes that it started, and says so."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

LIMIT = 1800.0
"""Seconds that a part may take: several times what the longest takes on a slow machine."""

GRACE = 120.0
"""Seconds in which it may then end its processes; after that all of them are killed."""


class TimeLimitExceeded(SystemExit):
    """A part took too long. An event loop lets a SystemExit pass, where it would give any other exception of a signal
    to the task that happens to run; nobody catches it, so that the process ends with its text and the code 1."""


@contextmanager
def time_limit(what: str, seconds: float = LIMIT, grace: float = GRACE) -> Iterator[None]:
    """Raise TimeLimitExceeded in the main thread if the block takes longer than this. If the block does not end within
    ``grace`` even then, kill all processes that descend from this one, and this one."""
    text = f"{what} took longer than its limit of {seconds:g} s: nothing was measured"
    late = False

    def expired(number: int, frame: FrameType | None) -> None:
        nonlocal late
        if late:
            print(text, "(and what it had begun did not end)", file=sys.stderr, flush=True)
            _kill_descendants()
            os._exit(1)
        late = True
        raise TimeLimitExceeded(text)

    before = signal.signal(signal.SIGALRM, expired)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, grace)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _kill_descendants() -> None:
    import psutil  # type: ignore[import-not-found,import-untyped,unused-ignore]

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
