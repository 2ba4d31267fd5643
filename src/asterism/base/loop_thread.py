"""A coroutine on an event loop of its own, in a thread of its own.

For libraries that import or compute for long inside of a coroutine, such as one that parses what a stranger has sent:
the loop of the caller goes on with heartbeats and timeouts meanwhile.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

Value = TypeVar("Value")


async def run_in_thread(
    main: Callable[[], Coroutine[Any, Any, Value]], name: str, *, patience: float | None = None
) -> Value:
    """The result of ``main``, which runs in a thread with this name, in the context of the caller. If the caller is
    cancelled, ``main`` is cancelled, and the caller waits for its end, at most ``patience`` seconds."""
    outcome: concurrent.futures.Future[Value] = concurrent.futures.Future()
    begun: concurrent.futures.Future[Callable[[], object]] = concurrent.futures.Future()

    async def run() -> Value:
        task = asyncio.ensure_future(main())
        begun.set_result(partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel))
        return await task

    def run_loop() -> None:
        try:
            outcome.set_result(asyncio.run(run()))
        except BaseException as error:
            outcome.set_exception(error)

    # a daemon: a process that ends does not wait for it
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run_loop,), name=name, daemon=True)
    thread.start()
    ended = asyncio.wrap_future(outcome)
    try:
        await asyncio.wait([ended])
    except asyncio.CancelledError:
        cancel = await asyncio.wrap_future(begun)
        with contextlib.suppress(RuntimeError):  # its loop has ended by itself
            cancel()
        await asyncio.wait([ended], timeout=patience)
        if ended.done():
            thread.join()
            if not ended.cancelled():
                ended.exception()  # the caller has gone: nobody asks for it
        raise
    thread.join()
    return ended.result()


# -- an event loop that lasts, in a thread -----------------------------------------------------------------------------


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
