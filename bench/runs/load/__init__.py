"""The queues as the workloads see them, one module each with the same few names: a producer in the process that
measures, and workers in processes of their own, which may be killed.

``SETTINGS`` says how it is set up; each gives the jobs of a worker that is silent for ``DEAD_AFTER`` seconds
to another, in the way that its own documents recommend. ``DONE`` is a query of its own tables: how many jobs are done,
and how many are in any other state.

A job leaves a record of its beginning in a file, which survives the end of the process.
"""

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, cast

SLOTS = 10
"""How many jobs a worker executes at once."""

DEAD_AFTER = 5.0
HEARTBEAT = 1.0

# Name of the queue → the package that has to be installed for it.
QUEUES = {"asterism": "asterism", "pgqueuer": "pgqueuer", "procrastinate": "procrastinate"}

Put = Callable[[Sequence[int], float], Awaitable[object]]
"""Puts jobs with these numbers into the queue, durably; each takes so many seconds."""


class Queue(Protocol):
    SETTINGS: str
    DONE: str

    def producer(self, url: str) -> AbstractAsyncContextManager[Put]:
        """Prepares a new database."""

    async def serve(self, url: str, name: str, stop: asyncio.Event) -> None:
        """Works until it is told to stop, and then ends what it has begun."""


def load(name: str) -> Queue:
    """The module of a queue; importing it imports nothing of the queue itself."""
    return cast(Queue, import_module(f"bench.runs.load.{name}_load"))


class Begun(NamedTuple):
    """The beginning of a job, by the clock that all processes share."""

    number: int
    process: int
    at: float


_RECORD = struct.Struct("<QQd")
_file = -1


def record_in(path: Path) -> None:
    """Let the jobs of this process leave their records in this file."""
    global _file
    _file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def read_records(path: Path) -> list[Begun]:
    content = path.read_bytes() if path.exists() else b""
    return [Begun(*fields) for fields in _RECORD.iter_unpack(content)]


def count_records(path: Path) -> int:
    return path.stat().st_size // _RECORD.size if path.exists() else 0


async def job(number: int, seconds: float) -> None:
    os.write(_file, _RECORD.pack(number, os.getpid(), time.monotonic()))
    await asyncio.sleep(seconds)
