"""A loop in a thread: work is awaited from outside, and cancelled with its caller and at the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from asterism.api.lasting_loop import LastingLoop


async def name_of_thread() -> str:
    return threading.current_thread().name


async def test_work_is_done_in_the_thread_for_callers_that_block_and_that_wait() -> None:
    thread = LastingLoop("other")
    assert thread.wait_for(name_of_thread()) == await thread.call(name_of_thread()) == "other"
    thread.stop()
    assert "other" not in [one.name for one in threading.enumerate()]


async def test_work_is_cancelled_with_its_caller_and_at_the_end() -> None:
    thread, ended = LastingLoop("other"), list[str]()

    async def endless(name: str, begun: threading.Event) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    begun = threading.Event(), threading.Event()
    caller = asyncio.create_task(thread.call(endless("first", begun[0])))
    await asyncio.to_thread(begun[0].wait)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    left = asyncio.create_task(thread.call(endless("second", begun[1])))
    await asyncio.to_thread(begun[1].wait)
    thread.stop()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert ended == ["first", "second"]


def test_a_thread_that_was_not_needed_was_not_started() -> None:
    LastingLoop("never").stop()
    assert "never" not in [one.name for one in threading.enumerate()]
