"""Watches within one process: whoever commits here wakes whoever waits here.

A commit costs what it wakes, however many others are waiting for something else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable


class LocalWatch:
    """An event that belongs to one event loop. It is woken from that loop. Once closed it is not woken any more."""

    def __init__(self, topics: frozenset[str], forget: Callable[[LocalWatch], None]) -> None:
        self.topics = topics
        self._event = asyncio.Event()
        self._forget = forget

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout: float) -> bool:
        woken = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                woken = await self._event.wait()
        # of several who wait, the first to go on clears the event: the others know from having waited, not from it
        woken = woken or self._event.is_set()
        self._event.clear()
        return woken

    def close(self) -> None:
        self._forget(self)


class Watches:
    """All watches on one store."""

    def __init__(self) -> None:
        self._all: set[LocalWatch] = set()
        self._by_topic: dict[str, set[LocalWatch]] = {}

    def add(self, topics: frozenset[str]) -> LocalWatch:
        watch = LocalWatch(topics, self._forget)
        self._all.add(watch)
        for topic in topics:
            self._by_topic.setdefault(topic, set()).add(watch)
        return watch

    def _forget(self, watch: LocalWatch) -> None:
        self._all.discard(watch)
        for topic in watch.topics:
            watching = self._by_topic.get(topic, set())
            watching.discard(watch)
            if not watching:
                self._by_topic.pop(topic, None)

    def wake(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for watch in self._by_topic.get(topic, ()):
                watch.wake()

    def wake_all(self) -> None:
        """Something has changed, and it is not known what."""
        for watch in self._all:
            watch.wake()

    def __len__(self) -> int:
        return len(self._all)
