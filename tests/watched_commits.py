"""A process that tells of each of its commits, so that a test can kill it between any two."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def watched_process(work: Callable[[int], Coroutine[Any, Any, None]]) -> Iterator[tuple[int, int]]:
    """A process that does ``work``: its id, and the pipe into which that writes a byte before each commit. Leaving
    waits until the work is done, or the process was killed."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(told)
            asyncio.run(work(tell))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(tell)
    try:
        yield child, told
        while os.read(told, 4096):
            pass
    finally:
        os.close(told)
        status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the process ended with status {status}"


def commits(told: int, number: int) -> bool:
    """Wait until the process has begun so many commits. Returns False if it has ended before."""
    while number > 0:
        heard = os.read(told, number)
        if not heard:
            return False
        number -= len(heard)
    return True
