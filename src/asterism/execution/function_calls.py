"""Calls of Python functions: their arguments, and threads for plain functions.

Tracebacks of functions that failed: the frames of their author, for the log of the attempt.

The frames above the function are those of Asterism and of the import system, and are left out. So an error that no
code of the author raised, such as a missing argument, has no traceback: its sentence says everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from itertools import dropwhile
from traceback import FrameSummary, StackSummary, TracebackException
from types import CodeType, FunctionType
from typing import Any, Protocol

from asterism.base.log_recorder import LogRecorder
from asterism.base.secret_mask import Mask
from asterism.core.attempt_log import LOGGER, STDERR, STDOUT, TRACEBACK
from asterism.core.errors import DeviceTrouble

MAX_CACHED_SIGNATURES = 4096
"""How many signatures are cached."""


class Signature:
    """The parameters of a function, computed once per function."""

    __slots__ = ("asynchronous", "everything", "names", "optional", "takes_anything", "takes_logger")

    def __init__(self, function: Callable[..., Any]) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function!r} is a generator function, whose call executes nothing")
        self.asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
        )
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # builtins without a signature take nothing
            parameters = ()  # type: ignore[assignment]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.names = tuple(p.name for p in named)
        self.optional = frozenset(p.name for p in named if p.default is not p.empty)
        self.everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.takes_anything = self.everything or bool(named)
        self.takes_logger = "logger" in self.names

    def arguments(self, task_id: str, results: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of one call. Raises TypeError for a parameter without a value."""
        arguments: dict[str, Any] = {}
        if self.everything:
            arguments = {**results, **inputs}
        for name in self.names:
            if name in inputs:
                arguments[name] = inputs[name]
            elif name in results:
                arguments[name] = results[name]
            elif name == "results":
                arguments[name] = results
            elif name not in self.optional:
                raise TypeError(
                    f"task {task_id!r}: the parameter {name!r} has no value; {task_id!r} has no input and no "
                    "dependency with this name"
                )
        return arguments


_cache: dict[int, tuple[CodeType, Signature]] = {}


def signature(function: Callable[..., Any]) -> Signature:
    """The signature of a function. It is cached by code object, which all closures of one ``def`` share."""
    if (
        type(function) is not FunctionType
        or function.__defaults__
        or function.__kwdefaults__
        or hasattr(function, "__wrapped__")
    ):
        return Signature(function)
    code = function.__code__
    cached = _cache.get(id(code))  # by id, since the hash of a code object is slow; the entry keeps the code alive
    if cached is None:
        if len(_cache) >= MAX_CACHED_SIGNATURES:
            _cache.clear()
        cached = _cache[id(code)] = (code, Signature(function))
    return cached[1]


async def call_in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Run a plain function in a thread of its own.

    The thread is a daemon, so that a function that hangs never keeps the interpreter alive; the standard pools join
    their threads. A thread cannot be stopped: when cancelled, this waits for its end, and the caller decides how long
    that may last. Raises DeviceTrouble if no thread can be started."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    future.add_done_callback(retrieve_exception)
    context = contextvars.copy_context()

    def body() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (context.run(function, **arguments), None)
        except BaseException as error:
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(_resolve, future, *outcome)

    thread = threading.Thread(target=body, name=f"asterism-{getattr(function, '__name__', 'call')}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the machine has no more threads
        raise DeviceTrouble(f"no thread could be started: {error}") from error
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an exception that was never retrieved, for the case that no caller waits any more."""
    if not future.cancelled():
        future.exception()


def _resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):  # a future refuses StopIteration and would never be resolved
        future.set_exception(RuntimeError(f"the function raised StopIteration: {error}"))
    else:
        future.set_exception(error)


# -- tracebacks --------------------------------------------------------------------------------------------------------


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


# -- attributes what python functions print to the attempt that they work for ------------------------------------------


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
