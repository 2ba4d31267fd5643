"""Watches within one process: whoever commits here wakes whoever waits here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable


class LocalWatch:
    """An event that belongs to one event loop. It is woken from that loop."""

    def __init__(self, topics: frozenset[str], forget: Callable[[LocalWatch], None]) -> None:
        self.topics = topics
        self._event = asyncio.Event()
        self._forget = forget

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        woken = self._event.is_set()
        self._event.clear()
        return woken

    def close(self) -> None:
        self._forget(self)


class Watches:
    """All watches on one store."""

    def __init__(self) -> None:
        self._all: set[LocalWatch] = set()

    def add(self, topics: frozenset[str]) -> LocalWatch:
        watch = LocalWatch(topics, self._all.discard)
        self._all.add(watch)
        return watch

    def wake(self, topics: Iterable[str]) -> None:
        named = set(topics)
        for watch in self._all:
            if not named.isdisjoint(watch.topics):
                watch.wake()

    def wake_all(self) -> None:
        """Something has changed, and it is not known what."""
        for watch in self._all:
            watch.wake()

    def __len__(self) -> int:
        return len(self._all)
