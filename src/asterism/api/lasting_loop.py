"""An event loop that lasts, in a thread: code that blocks, or another loop, has coroutines executed there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


class LastingLoop:
    """The thread begins with the first coroutine, and ends with ``stop``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # the collector may call ``finish`` while this thread has it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def wait_for(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do work in the thread, and block until it is done. If the caller is interrupted, the work is cancelled.
        Raises CancelledError if the thread is stopped meanwhile, and RuntimeError in the thread itself, which would
        wait for itself."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(f"the thread {self._name!r} cannot wait for its own work")
        future = self._begin(work)
        try:
            return future.result()
        finally:
            future.cancel()

    async def call(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do work in the thread. If the caller is cancelled, so is the work."""
        return await asyncio.wrap_future(self._begin(work))

    def finish(self, work: Coroutine[Any, Any, object]) -> None:
        """Wait for the last work of an object. Python may collect the object in the thread itself: then the work is
        only begun. When the thread has stopped, nothing is left to do."""
        if self._loop is None:
            work.close()
        elif threading.current_thread() is self._thread:
            self._begin(work)
        else:
            self.wait_for(work)

    def stop(self) -> None:
        """Cancel what is left, and end the thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
            if loop is None or thread is None:
                return
            loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _begin(self, work: Coroutine[Any, Any, Value]) -> concurrent.futures.Future[Value]:
        with self._lock:  # work that is begun after the end of the loop would never be done
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # which cancels what is left at its end
            runner.get_loop().run_forever()
