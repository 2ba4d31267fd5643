"""No test may leave anything behind: no orphaned task, no unseen exception, no unclosed resource."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """asyncio only logs a task that was destroyed and an exception that nobody saw. Here both fail the test."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(self.format(record))

    ear = Ear(logging.ERROR)
    logging.getLogger("asyncio").addHandler(ear)
    yield
    gc.collect()
    logging.getLogger("asyncio").removeHandler(ear)
    assert not said, "\n".join(said)
