"""Attributes what Python functions print to the attempt that they work for.

While a process executes tasks, ``sys.stdout`` and ``sys.stderr`` pass everything on and give a copy to the attempt of
the current context (``log_source``), which asyncio copies to the tasks, and Asterism to the threads, of a function. A
thread that a function starts itself has no context: there, use the logger that a function gets as ``logger``.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextvars import ContextVar
from typing import Any, Protocol

from asterism.base.log_recorder import LogRecorder
from asterism.core.attempt_log import LOGGER, STDERR, STDOUT


class LogSource(Protocol):
    """An attempt. It makes its recorder when it prints for the first time: most attempts print nothing. None after its
    end, and if its output is not kept."""

    def recorder(self) -> LogRecorder | None: ...


def record_text(source: LogSource, stream: str, text: str) -> None:
    recorder = source.recorder()
    if recorder is not None:
        recorder.write(stream, text)


log_source: ContextVar[LogSource | None] = ContextVar("asterism_log_source", default=None)
"""The attempt for which the current code works."""


class CapturedStream:
    """A stream that gives a copy of what is written to the attempt of the current context.

    One thread at a time writes: CPython before 3.12.4 may crash if two threads write to one text stream
    (python/cpython#119506)."""

    def __init__(self, below: Any, name: str) -> None:
        self._below, self._name = below, name
        self._turn = threading.RLock()  # a signal handler may print while its thread prints

    def write(self, text: str) -> int:
        source = log_source.get()
        if source is not None and isinstance(text, str):
            record_text(source, self._name, text)
        with self._turn:
            return self._below.write(text)  # type: ignore[no-any-return]

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class _Capture:
    """The captured streams of this process, and how many ask for them. There is one, because there is one
    ``sys.stdout``."""

    def __init__(self) -> None:
        self._users = 0
        self._streams: tuple[CapturedStream | None, CapturedStream | None] = (None, None)

    def start(self) -> None:
        self._users += 1
        if self._users == 1:
            out, err = sys.stdout, sys.stderr  # a stream may be None: >&- closes it before the program begins
            self._streams = (
                None if out is None else CapturedStream(out, STDOUT),
                None if err is None else CapturedStream(err, STDERR),
            )
            sys.stdout, sys.stderr = (self._streams[0] or out, self._streams[1] or err)

    def stop(self) -> None:
        self._users -= 1
        if self._users:
            return
        (out, err), self._streams = self._streams, (None, None)
        # a stream that others have replaced since is theirs
        if out is not None and sys.stdout is out:
            sys.stdout = out._below
        if err is not None and sys.stderr is err:
            sys.stderr = err._below


_capture = _Capture()
start_capture = _capture.start
"""Capture what functions print, until ``stop_capture`` was called as often as this."""
stop_capture = _capture.stop


# -- the given logger --------------------------------------------------------------------------------------------------


class _RecorderHandler(logging.Handler):
    def __init__(self, source: LogSource | None) -> None:
        super().__init__()
        self._source = source
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._source is not None:
                record_text(self._source, LOGGER, f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def attempt_logger(name: str, source: LogSource | None) -> logging.Logger:
    """The logger of one attempt, usable in any thread. It writes to the log of the attempt and nowhere else; its level
    is INFO."""
    logger = logging.Logger(f"asterism.task.{name}", logging.INFO)
    logger.addHandler(_RecorderHandler(source))
    return logger
