"""Signals that this process ignores, without passing that on to the commands that tests start.

``nohup`` and background jobs of a shell ignore signals, and every process that is started inherits that: a command to
which a test sends SIGHUP would not hear it. A handler that does nothing protects this process as well, and is not
inherited: a new program has the default. The workers of pytest-xdist and the server of forked commands are new programs
too, so the environment tells them which signals to go on ignoring.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

VARIABLE = "PYTEST_IGNORED_SIGNALS"
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def keep_to_ourselves() -> None:
    """Handle what is ignored, here or by the process that started this one, by doing nothing."""
    before = os.environ.get(VARIABLE, "").split()
    ignored = [heard for heard in SIGNALS if heard.name in before or signal.getsignal(heard) is signal.SIG_IGN]
    for heard in ignored:
        signal.signal(heard, _do_nothing)
    if ignored:
        os.environ[VARIABLE] = " ".join(heard.name for heard in ignored)


def hear_again() -> None:
    """In a process that was forked to become a command: the default for what was ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass
