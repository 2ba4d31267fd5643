"""A coroutine in a thread of its own: its result, its error, and its end when the caller is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from asterism.base.loop_thread import run_in_thread

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


async def test_it_runs_elsewhere_in_the_context_of_the_caller() -> None:
    WHO.set("caller")

    async def main() -> tuple[str, str, bool]:
        return WHO.get(), threading.current_thread().name, asyncio.get_running_loop() is not ours

    ours = asyncio.get_running_loop()
    assert await run_in_thread(main, "elsewhere") == ("caller", "elsewhere", True)


async def test_its_error_is_that_of_the_caller() -> None:
    async def main() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        await run_in_thread(main, "failing")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_waits_until_it_has_ended(fails: bool) -> None:
    waiting, ended = threading.Event(), []

    async def main() -> None:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")
            if fails:
                raise KeyError("in between")

    running = asyncio.create_task(run_in_thread(main, "cancelled"))
    await asyncio.to_thread(waiting.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["cleaned up"]
    assert "cancelled" not in [thread.name for thread in threading.enumerate()]


async def test_a_cancelled_caller_with_little_patience_leaves_what_does_not_end() -> None:
    waiting, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        waiting.set()
        go_on.wait()  # a library that computes inside of a coroutine cannot be cancelled

    running = asyncio.create_task(run_in_thread(main, "stubborn", patience=0.0))
    await asyncio.to_thread(waiting.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    left = [thread for thread in threading.enumerate() if thread.name == "stubborn"]
    go_on.set()
    assert len(left) == 1
    await asyncio.to_thread(left[0].join)
