"""Tracebacks of functions that failed: the frames of their author, for the log of the attempt.

The frames above the function are those of Asterism and of the import system, and are left out. So an error that no
code of the author raised, such as a missing argument, has no traceback: its sentence says everything.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from itertools import dropwhile
from traceback import FrameSummary, StackSummary, TracebackException

from asterism.base.secret_mask import Mask
from asterism.core.attempt_log import TRACEBACK
from asterism.execution.print_capture import LogSource

log = logging.getLogger("asterism.device")

MOST_FRAMES = 50
"""How many frames of each error are kept: the innermost ones."""

MOST_LINES = 200
LONGEST_LINE = 2_000
"""How many lines a traceback has, and how many letters each of them."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # asterism
_IMPORT_SYSTEM = ("<frozen importlib", os.path.dirname(os.path.abspath(os.__file__)) + f"{os.sep}importlib{os.sep}")


def record_traceback(source: LogSource, error: BaseException) -> None:
    """Record the traceback of a function as the last lines of its attempt."""
    if isinstance(error, asyncio.CancelledError):
        return
    recorder = source.recorder()
    if recorder is None:
        return
    try:
        lines = traceback_lines(error, recorder.mask())
    except Exception:  # the error is the author's, and so is the code that describes it
        log.warning("the traceback of a function cannot be printed", exc_info=True)
        return
    if lines:
        recorder.write_last(TRACEBACK, "".join(f"{line}\n" for line in lines))


def traceback_lines(error: BaseException, mask: Mask) -> list[str]:
    """The traceback with secrets masked; empty if the author of the function has no frame in it."""
    report = TracebackException.from_exception(error, limit=-MOST_FRAMES, compact=True)
    if not _author_frames(report.stack):
        return []
    _leave_out_machinery(report)
    lines = mask.text("".join(report.format())).splitlines()  # masked before anything is cut
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines[half:-half] = [f"… {len(lines) - 2 * half:,} lines left out …"]
    return [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in lines]


def _leave_out_machinery(report: TracebackException) -> None:
    for part in _parts(report):
        part.stack[:] = _author_frames(part.stack)


def _parts(report: TracebackException) -> Iterator[TracebackException]:
    """An error, those that caused it, and those of a group."""
    waiting, seen = [report], set()
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += [other for other in (part.__cause__, part.__context__, *(part.exceptions or ())) if other]


def _author_frames(stack: StackSummary) -> list[FrameSummary]:
    """The frames from the first one on that is neither Asterism's nor the import system's."""
    return list(dropwhile(_is_machinery, stack))


def _is_machinery(frame: FrameSummary) -> bool:
    return frame.filename.startswith((_PACKAGE, *_IMPORT_SYSTEM))
