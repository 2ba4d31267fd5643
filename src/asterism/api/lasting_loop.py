"""An event loop that lasts, in a thread: code that blocks, or another loop, has coroutines executed there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


class LastingLoop:
    """The thread begins with the first coroutine, and ends with ``stop``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def wait_for(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do work in the thread, and block until it is done. If the caller is interrupted, the work is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        finally:
            future.cancel()

    async def call(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do work in the thread. If the caller is cancelled, so is the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running()))

    def stop(self) -> None:
        """Cancel what is left, and end the thread."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._begin:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # which cancels what is left at its end
            runner.get_loop().run_forever()
