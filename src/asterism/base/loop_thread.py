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
