"""The work of the runs of a chaos test: it records its begin and its end.

Each line goes out in one write to a file that is opened for appending, so lines of different processes never mix."""

from __future__ import annotations

import os
import time
from typing import Any


def write_down(what: str, run: str, epoch: int) -> None:
    line = f"{what} {run} {epoch} {os.getpid()} {time.clock_gettime_ns(time.CLOCK_MONOTONIC)}\n"
    file = os.open(os.environ["CHAOS_DIARY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


async def work(seconds: float, run: Any) -> dict[str, int]:
    """A coroutine: unlike a thread, it has stopped when it is cancelled."""
    import asyncio

    write_down("begin", run.id, run.epoch)
    try:
        await asyncio.sleep(seconds)
    finally:
        write_down("end", run.id, run.epoch)
    return {"epoch": run.epoch}


COMMAND = (
    'd=$CHAOS_DIARY; t() { echo "$1 $ASTERISM_RUN $ASTERISM_EPOCH $$ 0" >> "$d"; }; t begin; sleep {seconds}; t end'
)
"""The same as a command; it cannot tell the time in nanoseconds, so only the number of beginnings is judged."""
