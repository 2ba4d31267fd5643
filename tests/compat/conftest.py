"""Each test gets its own process-wide bus, and must leave nothing behind."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from asterism.compat import event_bus
from tests.left_behind import what_is_there_before

__all__ = ["complaints", "what_is_there_before"]


@pytest.fixture(autouse=True)
def complaints(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """asyncio only logs destroyed tasks and unretrieved exceptions, and the bus failed observers (and assertions in
    them). Here all of these fail the test, unless it expects them and clears the list."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(self.format(record))

    ear = Ear(logging.ERROR)
    bus = event_bus.EventBus()
    monkeypatch.setattr(event_bus, "_process_wide", bus)
    for name in ("asyncio", "asterism.compat.events"):
        logging.getLogger(name).addHandler(ear)
    yield said
    gc.collect()
    for name in ("asyncio", "asterism.compat.events"):
        logging.getLogger(name).removeHandler(ear)
    assert not said, "\n".join(said)
    assert not event_bus._runs
