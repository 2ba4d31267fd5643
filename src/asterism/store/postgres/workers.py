"""Calls that wait in a queue, and the tasks that perform them in groups, each group in a transaction.

A task is started when a call comes and fewer than ``most`` are at work; it ends when the queue is empty.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Generic, TypeVar

from asterism.store.postgres.connection import ConnectionPool
from asterism.store.postgres.error_mapping import own_copy
from asterism.store.store_errors import StoreUnavailable


class Call:
    """``future`` receives the result, or the error."""

    __slots__ = ("future",)

    future: asyncio.Future[Any]

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


AnyCall = TypeVar("AnyCall", bound=Call)


class Workers(ABC, Generic[AnyCall]):
    """A queue of calls, and up to ``most`` tasks that perform them at the same time."""

    def __init__(self, connections: ConnectionPool, most: int) -> None:
        self._connections = connections
        self._most = most
        self._queue: deque[AnyCall] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = 0

    @abstractmethod
    def _next_group(self) -> list[AnyCall]:
        """Remove calls from the queue that are performed together, at least one."""

    @abstractmethod
    async def _perform(self, group: list[AnyCall], /) -> None:
        """Perform calls and end each. If it raises, those that have not ended fail with that error."""

    async def close(self) -> None:
        """Perform the calls in the queue, and stop."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _enqueue(self, call: AnyCall) -> None:
        self._queue.append(call)
        if self._working < self._most:
            self._working += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            while self._queue:
                group = self._next_group()
                try:
                    await self._perform(group)
                except BaseException as error:
                    for call in group:
                        call.fail(own_copy(error) if isinstance(error, Exception) else StoreUnavailable("interrupted"))
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._working -= 1  # in the step that found the queue empty: no call is left behind
