"""Notifications between processes through PostgreSQL, also after the listening connection was lost."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, cast

import asyncpg
import pytest

from asterism.store.postgres import notifications
from asterism.store.postgres.notifications import LONGEST_PAYLOAD, payloads
from asterism.store.protocol import ENDED, OFFERED, PutRun, for_device
from asterism.store.watches import Watches
from tests.laboratory.store_conformance.sample_records import (
    a_run,
    a_session,
    added,
    assigned_to,
    completed,
    held_by,
    joined,
)
from tests.store.postgres_fixtures import looking, opened

PATIENCE = 300.0
KITCHEN = a_session()

COMMITS = """
import asyncio, sys
from asterism.store.postgres import PostgresStore
from asterism.store.protocol import PutRun
from tests.laboratory.store_conformance.sample_records import a_run

async def main():
    store = await PostgresStore.open(sys.argv[1])
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        await store.commit([PutRun(a_run(line.strip()), None)])
        print("done", flush=True)
    await store.close()

asyncio.run(main())
"""


async def _listening(store: Any, *topics: str) -> Any:
    """Open a watch, and wait for its first wake, which shows that the connection listens."""
    watch = store.watch(frozenset(topics))
    assert await watch.wait(PATIENCE)
    return watch


async def test_a_commit_of_another_process_wakes_a_watch(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        watch = await _listening(store, OFFERED)
        pipe = asyncio.subprocess.PIPE
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", COMMITS, postgres_url, stdin=pipe, stdout=pipe
        )
        assert other.stdin is not None
        assert other.stdout is not None
        assert await other.stdout.readline() == b"ready\n"
        for name in (b"one\n", b"two\n"):
            other.stdin.write(name)
            assert await watch.wait(PATIENCE)
            assert await other.stdout.readline() == b"done\n"
        other.stdin.close()
        assert await other.wait() == 0


async def test_pending_notifications_are_sent_before_closing(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        watch = await _listening(store, OFFERED)
        async with opened(postgres_url) as other:
            await other.commit([PutRun(a_run(1), None)])
        assert await watch.wait(PATIENCE)


async def test_only_watches_of_the_topic_are_woken(postgres_url: str) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        await joined(other, KITCHEN)
        offered = await _listening(store, OFFERED)
        kitchen = store.watch(frozenset({for_device("kitchen")}))
        garage = store.watch(frozenset({for_device("garage")}))
        ended = store.watch(frozenset({ENDED}))
        run = a_run(1)
        await added(other, assigned_to(run, KITCHEN))
        assert await kitchen.wait(PATIENCE)
        await added(other, completed(held_by(a_run(2), KITCHEN)))
        assert await ended.wait(PATIENCE)
        assert [await watch.wait(0.0) for watch in (kitchen, garage, offered)] == [False] * 3


async def test_a_process_ignores_its_own_notifications(postgres_url: str) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        mine, theirs = await _listening(store, OFFERED, "mark"), await _listening(other, OFFERED, "mark")
        await store.commit([PutRun(a_run(1), None)])
        assert await mine.wait(0.0)  # at once, without the server
        assert await theirs.wait(PATIENCE)
        other._committed({"mark"})  # when this arrives, our own message has arrived too
        mark = store.watch(frozenset({"mark"}))
        assert await mark.wait(PATIENCE)
        assert await mine.wait(0.0)  # for the mark
        assert not await mine.wait(0.0)


async def test_a_lost_listening_connection_wakes_all_watches_and_is_reopened(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other, looking(postgres_url) as server:
        watch = await _listening(store, "nothing in particular", OFFERED)
        for number in range(2):
            lost = asyncio.create_task(watch.wait(PATIENCE))  # before: two wakes without a waiter count as one
            assert await server.fetch(_END_THE_LISTENER)
            assert await lost
            assert await watch.wait(PATIENCE)  # it listens again
            await other.commit([PutRun(a_run(number), None)])
            assert await watch.wait(PATIENCE)


async def test_a_check_of_the_configuration_that_fails_does_not_end_the_listening(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_: object) -> list[str]:
        raise asyncpg.InsufficientPrivilegeError("permission denied for view pg_stat_replication")

    monkeypatch.setattr(notifications, "missing_standby", refused)
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        watch = await _listening(store, OFFERED)
        while not store._listener._warned:  # noqa: ASYNC110 - nothing else is awaited at the start
            await asyncio.sleep(0)
        await other.commit([PutRun(a_run(1), None)])
        assert await watch.wait(PATIENCE)
        assert len([line for line in caplog.messages if "cannot be told: permission denied" in line]) == 1


@pytest.mark.parametrize("longest", [3600.0, -1.0], ids=["fails soon", "lived long"])
async def test_a_listening_connection_that_fails_soon_is_not_replaced_at_once(
    monkeypatch: pytest.MonkeyPatch, longest: float
) -> None:
    opened_connections = 0

    class Factory:
        pooled = False

        async def connect(self, settings: object) -> Any:
            nonlocal opened_connections
            opened_connections += 1
            return type("", (), {"terminate": lambda self: None})()

    monkeypatch.setattr(notifications, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(notifications, "LONGEST_PAUSE", longest)
    listener = notifications.Listener(cast(Any, Factory()), "channel", "me", Watches())
    monkeypatch.setattr(listener, "_listen_on", _failing)
    listener.start()
    for _ in range(20):
        await asyncio.sleep(0)
    await listener.close()
    assert (opened_connections == 1) == (longest > 0)


async def _failing(connection: object) -> None:
    await asyncio.sleep(0)
    raise OSError("broken")


_END_THE_LISTENER = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'asterism listening'
"""


async def test_an_unknown_message_on_the_channel_is_ignored(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        watch = await _listening(store, OFFERED)
        channel = store._listener._channel
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        for nonsense in ("", "no JSON", "[]", "7", "{}", '[1, {"a": 2}]', '["a", [1]]', "null", "[" * 7000):
            await other.execute("SELECT pg_notify($1, $2)", channel, nonsense)
        await other.execute("SELECT pg_notify($1, $2)", channel, json.dumps(["another-process", OFFERED]))
        assert await watch.wait(PATIENCE)
        assert "ignored an unknown message on channel" in caplog.text
        assert errors == []


async def test_a_notification_is_not_part_of_the_commit(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(postgres_url) as store:
        store._sender._channel = "x" * 100  # which the server refuses
        await store.commit([PutRun(a_run(1), None)])
        await store._sender.close()
        assert "other processes were not notified" in caplog.text
        assert await store.run("r0001") is not None


async def test_topics_in_quick_succession_are_sent_together(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(postgres_url) as store:
        received: list[list[str]] = []

        async def noted(query: str, channel: str, payload: str) -> None:
            received.append(json.loads(payload)[1:])

        monkeypatch.setattr(notifications, "NOTIFY_INTERVAL", 3600.0)
        monkeypatch.setattr(store._sender, "_connections", type("", (), {"fetchrow": staticmethod(noted)})())
        store._committed({"a"})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number in range(100):
            store._committed({f"b{number % 3}"})
        assert received == [["a"]]
        assert store._sender._task is not None
        store._sender._task.cancel()


def test_many_topics_are_several_messages_that_the_server_can_carry() -> None:
    topics = {for_device(f"device-{number}-ü") for number in range(2000)}
    messages = list(payloads("me", topics))
    assert len(messages) > 1
    assert all(len(message.encode()) < 8000 for message in messages)
    assert {topic for message in messages for topic in json.loads(message)[1:]} == topics
    assert {json.loads(message)[0] for message in messages} == {"me"}


def test_a_topic_that_is_too_long_for_a_message_wakes_all_watches() -> None:
    assert list(payloads("me", {for_device("x" * LONGEST_PAYLOAD), "a"})) == ['["me"]']
