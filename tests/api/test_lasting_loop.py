"""A loop in a thread: work is awaited from outside, and cancelled with its caller and at the end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import httpx
import pytest

from asterism.api.client import Client
from asterism.api.client_errors import ApiError
from asterism.base.loop_thread import LastingLoop
from asterism.core.errors import AsterismError
from tests.process_scenes import PATIENCE


async def name_of_thread() -> str:
    return threading.current_thread().name


async def test_work_is_done_in_the_thread_for_callers_that_block_and_that_wait() -> None:
    thread = LastingLoop("other")
    assert thread.wait_for(name_of_thread()) == await thread.call(name_of_thread()) == "other"
    thread.stop()
    assert "other" not in [thread.name for thread in threading.enumerate()]


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
    assert "never" not in [thread.name for thread in threading.enumerate()]


def test_work_begun_while_the_thread_stops_is_cancelled() -> None:
    """Each caller gets its answer or CancelledError: none waits for ever."""
    for _ in range(20):
        thread, ends = LastingLoop("other"), list[str]()

        def ask(thread: LastingLoop = thread, ends: list[str] = ends) -> None:
            try:
                ends.append(thread.wait_for(name_of_thread()))
            except concurrent.futures.CancelledError:
                ends.append("cancelled")

        callers = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for caller in callers:
            caller.start()
        thread.stop()
        for caller in callers:
            caller.join(PATIENCE)
        thread.stop()
        assert len(ends) == 4
        assert set(ends) <= {"other", "cancelled"}


def test_the_thread_does_not_wait_for_itself() -> None:
    thread, begun = LastingLoop("other"), threading.Event()

    async def note() -> None:
        begun.set()

    async def nested() -> None:
        with pytest.raises(RuntimeError, match="the thread 'other' cannot wait for its own work"):
            thread.wait_for(note())
        assert not begun.is_set()
        thread.finish(note())

    thread.wait_for(nested())
    assert begun.wait(PATIENCE)
    thread.stop()
    thread.finish(note())
    assert "other" not in [thread.name for thread in threading.enumerate()]


def refusing(request: httpx.Request) -> httpx.Response:
    return httpx.Response(404, text="nothing here")


def test_a_client_that_was_closed_says_so() -> None:
    client = Client("http://127.0.0.1:7420", "token", transport=httpx.MockTransport(refusing))
    with pytest.raises(ApiError):
        client.wait_plan("nightly")
    client.close()
    client.close()
    with pytest.raises(AsterismError, match="the client is closed"):
        client.wait_plan("nightly")


def test_a_forked_process_has_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of its parent would never answer."""
    client = Client("http://127.0.0.1:7420", "token", transport=httpx.MockTransport(refusing))
    with pytest.raises(ApiError):
        client.wait_plan("nightly")
    thread = client._thread
    with monkeypatch.context() as patch:
        patch.setattr("asterism.api.client.os.getpid", lambda: 1)
        with pytest.raises(ApiError):
            client.wait_plan("nightly")
        assert client._thread is not thread
        client.close()
    thread.stop()
