"""Watches within one process: a commit wakes the waiters of its topics.

A commit costs time for the watches that it wakes, not for those of other topics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable


class LocalWatch:
    """An event of one event loop, woken from that loop. Once closed it is never woken again."""

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
        # of several waiters, the first to resume clears the event; the others rely on the result of their own wait
        woken = woken or self._event.is_set()
        self._event.clear()
        return woken

    def close(self) -> None:
        self._forget(self)


class Watches:
    """All watches on one store, by topic."""

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
        """Wake every watch: something changed, and the topics are unknown."""
        for watch in self._all:
            watch.wake()

    def __len__(self) -> int:
        return len(self._all)
