"""A system in a thread with an event loop of its own: reading a large plan there does not delay a terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from asterism.api.system import System
from asterism.cli.cli_context import open_system

Value = TypeVar("Value")


class SystemThread:
    """Opens a store or a server on entry, and closes it on exit. Entry raises what ``open_system`` raises."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="system", daemon=True)
        self.system: System

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.system = self.wait_for(open_system(self._url))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait_for(self.system.__aexit__())
        finally:
            self._stop()

    def wait_for(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do work on the system in its thread, and block until it is done."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def call(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do work on the system in its thread. If the caller is cancelled, so is the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        await self._stopped.wait()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
