"""Reader threads, each with its own connection: a slow read blocks neither event loop nor writer."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from asterism.store.sqlite.connection import FileConnection
from asterism.store.sqlite.error_mapping import corrupt
from asterism.store.sqlite.group_commit import closed
from asterism.store.store_errors import StoreCorrupt, StoreUnavailable

Result = TypeVar("Result")
_Read = tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]


class ReaderThreads:
    """Up to ``number`` threads, started when they are needed. Belongs to the event loop in which it was created."""

    def __init__(self, leader: FileConnection, number: int, on_moved: Callable[[], None]) -> None:
        """``leader`` is the writer's connection. ``on_moved`` is called, in a thread, if the file is another one."""
        self._leader, self._number, self._on_moved = leader, number, on_moved
        self._path = leader.path
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Read | asyncio.Future[Any]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._reading = 0
        self._closed = False

    async def ask(self, read: Callable[..., Result], *arguments: Any) -> Result:
        """Return ``read(cursor, *arguments)``, called in a thread."""
        if self._closed:
            raise closed(self._path)
        self._reading += 1
        if self._reading > len(self._threads) < self._number:
            name = f"asterism reader of {self._path.name}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._queue.put((read, arguments, future))
        try:
            return await future
        finally:
            self._reading -= 1

    async def close(self) -> None:
        """Finish pending reads, and stop the threads."""
        if self._closed:
            return
        self._closed = True
        ends: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in self._threads]
        for end in ends:
            self._queue.put(end)
        for end in ends:
            await end
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        connection = FileConnection(self._path, self._leader.busy_timeout, self._leader)
        while isinstance(request := self._queue.get(), tuple):
            read, arguments, future = request
            answer, fault = None, None
            try:
                answer = read(connection.ready(), *arguments)
            except Exception as error:
                fault = self._fault(error, connection)
            self._tell(future, answer, fault)
            del request, read, arguments, future, answer, fault  # an idle thread keeps no objects alive
        connection.close()
        self._tell(request, None, None)

    def _fault(self, error: Exception, connection: FileConnection) -> Exception:
        fault = error
        if isinstance(error, sqlite3.Error | OSError):
            fault = connection.fault(error)
            connection.close()
        elif isinstance(error, StoreUnavailable):
            self._on_moved()
        elif type(error) is StoreCorrupt and str(self._path) not in str(error):
            fault = corrupt(self._path, error)
        if fault is not error:
            fault.__cause__ = error
        return fault

    def _tell(self, future: asyncio.Future[Any], answer: Any, fault: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_settle, future, answer, fault)


def _settle(future: asyncio.Future[Any], answer: Any, fault: Exception | None) -> None:
    if future.done():
        return
    if fault is None:
        future.set_result(answer)
    else:
        future.set_exception(fault)
