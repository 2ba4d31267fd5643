"""No test may leave anything behind: no orphaned task, no unseen exception, no unclosed resource."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from asterism.execution import function_calls


class Ear(logging.Handler):
    """Keeps what is said. It never formats a traceback: that parses source, and CPython 3.11 cannot parse while it
    parses, which happens when the garbage collector finds an orphaned task in the middle of a report."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.said.append(record.getMessage() + (f" ({error!r})" if error is not None else ""))


@pytest.fixture(scope="module", autouse=True)
def what_is_there_before() -> None:
    """The collector looks only at what the tests of this module made, not at every module and test of the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """asyncio only logs a task that was destroyed and an exception that nobody saw. Here both fail the test."""
    ear, logger = Ear(), logging.getLogger("asyncio")
    logger.addHandler(ear)
    logger.propagate = False
    yield
    forget = getattr(getattr(function_calls, "_remembered", None), "cache_clear", None)
    if forget is not None:  # a remembered function keeps alive what it closes over, also an orphaned task
        forget()
    gc.collect()
    logger.removeHandler(ear)
    logger.propagate = True
    assert not ear.said, "\n".join(ear.said)
