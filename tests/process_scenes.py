"""Processes that others have started: whether they run, and waiting for what they do. Nothing announces the end of
another's child, or that it has written something: one looks again and again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PATIENCE = 300.0
"""How long a test waits for something that is about to happen, in seconds."""


def alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and that nobody has buried yet does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return not Path("/proc/self").exists()


def soon(condition: Callable[[], Any]) -> Any:
    """What the condition is once it is something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if outcome := condition():
            return outcome
        time.sleep(0.01)
    raise AssertionError("it never happened")


async def soon_async(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not (outcome := condition()):  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.01)
        return outcome


def gone(pids: Iterable[int]) -> bool:
    """True once none of these processes runs any more."""
    numbers = list(pids)
    return bool(soon(lambda: not any(map(alive, numbers))))


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code of a process, and what it said since it was last read from. By the streams that were read from
    before: ``communicate`` goes round them, and what they had fetched ahead of the last line would be lost."""
    streams = [process.stdout, process.stderr]
    with ThreadPoolExecutor(len(streams)) as readers:
        rest = [readers.submit(stream.read) if stream is not None else None for stream in streams]
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()  # or its streams would be read for ever
        output, errors = (reading.result() if reading is not None else "" for reading in rest)
    return code, output, errors
