"""What the traced tasks do: nothing, or say that they are about to end or to fail. Durable tasks are named by their
import paths."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTHING = "bench.call_paths.tasks:nothing"
MARKED = "bench.call_paths.tasks:marked"
FAILING = "bench.call_paths.tasks:failing"
ENDLESS = "bench.call_paths.tasks:endless"

_marks: list[Callable[[], None]] = []
"""What each of the next tasks does last."""


@contextmanager
def ending_with(mark: Callable[[], None], times: int) -> Iterator[None]:
    """Within this, ``marked`` calls ``mark`` as the last thing it does, so many times."""
    _marks.extend([mark] * times)
    try:
        yield
    finally:
        _marks.clear()


async def nothing() -> None:
    pass


async def marked() -> None:
    await asyncio.sleep(0.02)
    if _marks:
        _marks.pop()()


async def failing() -> None:
    await marked()
    raise ValueError("it fails")


async def endless() -> None:
    await asyncio.sleep(3600.0)
