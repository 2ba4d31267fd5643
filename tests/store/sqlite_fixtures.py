"""Shared by tests of the SQLite engine: runs to write, stores, and access to the writer thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.store.protocol import PutRun, Query
from asterism.store.sqlite import SqliteStore
from asterism.store.sqlite.write_jobs import Job

Result = TypeVar("Result")

FLOW = Workflow("transcode", argv=("true",), version=1)
KIND = f"transcode@{FLOW.work.digest}"
KITCHEN = Session("kitchen-1", "kitchen", 1.0, slots=4)
ME = Owner("kitchen", "kitchen-1")


def run(number: int, **more: Any) -> Run:
    return transitions.create(f"run-{number:05}", FLOW, {"number": number}, by="laptop", now=100.0 + number, **more)


def completed(run: Run, now: float = 1000.0) -> Run:
    taken = transitions.take(run, ME, now)
    grant = taken.grant
    assert grant is not None
    return transitions.complete(transitions.start(taken, grant, now), grant, {"done": True}, now)


@contextlib.asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    # long, since another process may hold the lock for long on a busy machine
    store = await SqliteStore.open(path, **{"busy_timeout": 120.0, **options})
    try:
        yield store
    finally:
        await store.close()


async def filled(path: Path, number: int, **options: Any) -> None:
    """Create a store with so many runs, and close it."""
    async with opened(path, **options) as store:
        await store.commit([PutRun(run(index), None) for index in range(number)])


async def ids(store: SqliteStore) -> list[str]:
    return [run.id for run in await store.find(Query())]


class Doing(Job):
    """A job for the writer thread: any function of its cursor."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[sqlite3.Cursor], Any]) -> None:
        super().__init__()
        self.action = action

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        self.result = self.action(cursor)


async def in_the_writer(store: SqliteStore, action: Callable[[sqlite3.Cursor], Result]) -> Result:
    result: Result = await store._writer.submit(Doing(action))
    return result


@contextlib.asynccontextmanager
async def held_up(store: SqliteStore) -> AsyncIterator[None]:
    """Block the writer thread for the block, so that jobs gather in its queue."""
    loop = asyncio.get_running_loop()
    begun, go_on = asyncio.Event(), threading.Event()

    def wait(cursor: sqlite3.Cursor) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()

    held = Doing(wait)
    held.future = loop.create_future()
    store._writer._queue.put(held)  # for the thread, even on a fast disk
    await begun.wait()
    try:
        yield
        for _ in range(2):  # tasks created meanwhile submit their jobs, which go into the queue
            await asyncio.sleep(0)
    finally:
        go_on.set()
        await held.future


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Run the block as a user without special rights: root may write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
