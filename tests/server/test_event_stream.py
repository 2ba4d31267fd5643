"""Event streams of plans: nothing is lost and nothing comes twice, whenever a client connects again."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import weakref
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import pytest

from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.task import Task
from asterism.durable import compaction
from asterism.durable.journal_store import insert_plan
from asterism.durable.plan_actor import edit_plan
from asterism.durable.plan_history import PlanFollower, plan_events
from asterism.server import event_stream, request_guard
from asterism.server.event_stream import EventBuffer
from asterism.store.store_errors import StoreUnavailable
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, chain, left
from tests.durable.durable_work import gate
from tests.server.server_scenes import EventClient, ServerScene, ended, plan_server, plan_text

pytestmark = pytest.mark.virtual_time

EVENTS = "/api/v1/plans/nightly/events"


async def all_events(stage: Stage) -> list[str]:
    return [str(event.position) for event in (await plan_events(stage.store, "nightly")).events]


async def started(scene: ServerScene, *tasks: str, call: str = "work") -> None:
    async with scene.client() as client:
        answer = await client.post("/api/v1/plans", json={"text": plan_text(*tasks, call=call)})
        assert answer.status_code == 201


async def test_a_client_sees_every_event_of_a_plan() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await started(scene, "a", "b", call="wait")
        document = (await client.get("/api/v1/plans/nightly")).json()
        follower = EventClient(scene, f"{EVENTS}?after={document['position']}", await scene.token("observe"))
        await stage.until(gate("a begun").is_set)
        gate("a").set()
        await stage.until(gate("b begun").is_set)
        gate("b").set()
        await ended(client)
        expected = await all_events(stage)
        events = await follower.until(len(expected))
        assert [event["id"] for event in events] == expected
        assert {event["event"] for event in events} == {"task", "plan"}
        assert [event["status"] for event in events if event.get("task") == "b"][-1] == "completed"
        await follower.leave()
        assert not scene.state.plan_feeds._feeds


async def test_a_feed_that_nobody_follows_any_more_is_freed_at_once() -> None:
    """Not at the next search for cycles, which may come hours later: a feed has up to 10,000 events."""
    async with plan_server() as (scene, stage):
        await started(scene, "a")
        gc.disable()
        try:
            follower = EventClient(scene, EVENTS, await scene.token("observe"))
            await stage.until(lambda: "nightly" in scene.state.plan_feeds._feeds)
            feed = weakref.ref(scene.state.plan_feeds._feeds["nightly"])
            await follower.leave()
            await stage.until(lambda: feed() is None)
        finally:
            gc.enable()


@pytest.mark.parametrize("kept", [3, 10_000])
async def test_a_client_that_reconnects_anywhere_loses_nothing_and_gets_nothing_twice(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "KEPT_EVENTS", kept)
    chance = random.Random(7)
    async with plan_server() as (scene, stage):
        names = [f"t{number}" for number in range(12)]
        await started(scene, *names, call="slow")
        token = await scene.token("observe")
        seen: list[str] = []
        after = f"{EVENTS}?after={(await stage.load()).head.first}"
        headers: dict[str, str] = {}
        while True:
            follower = EventClient(scene, after, token, **headers)
            await stage.fleet().clock.sleep(chance.uniform(0.1, 9.0))
            await follower.leave()
            seen += [event["id"] for event in follower.events]
            if seen:
                headers = {"last_event_id": seen[-1]}
            if chance.random() < 0.3:
                await stage.fleet().clock.sleep(chance.uniform(0.0, 20.0))
            if (await stage.load()).head.ended and not follower.events:
                break
        assert seen == await all_events(stage)


async def test_a_client_gets_missed_events_from_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await started(scene, "a", "b")
        await ended(client)
        token, expected = await scene.token("observe"), await all_events(stage)
        others = EventClient(scene, EVENTS, token)
        for index in (0, len(expected) // 2, len(expected) - 1):
            follower = EventClient(scene, EVENTS, token, last_event_id=expected[index])
            await follower.until(len(expected) - index - 1)
            assert [event["id"] for event in follower.events] == expected[index + 1 :]
            await follower.leave()
        await others.leave()


async def test_a_position_of_another_plan_is_a_reset() -> None:
    async with plan_server() as (scene, _), scene.client() as client:
        await started(scene, "a")
        await ended(client)
        for position in ("1", "999999999999999999"):
            follower = EventClient(scene, EVENTS, await scene.token("observe"), last_event_id=position)
            [event] = await follower.until(1)
            assert event["event"] == "reset"
            document = (await client.get("/api/v1/plans/nightly")).json()
            assert event["position"] == document["position"]
            await follower.leave()


async def test_a_stream_ends_when_its_credential_is_revoked() -> None:
    async with plan_server() as (scene, stage):
        await started(scene, "a", call="wait")
        token = await scene.token("observe")
        follower = EventClient(scene, EVENTS, token)
        await stage.fleet().clock.sleep(3 * event_stream.HEARTBEAT + 1)
        assert follower.comments == 3
        then = asyncio.get_running_loop().time()
        await scene.credentials.revoke(token.split("_")[1])
        await stage.until(follower.task.done)
        assert follower.over
        assert asyncio.get_running_loop().time() - then < 1.0, "at once"


async def test_a_stream_ends_when_its_credential_expires() -> None:
    async with plan_server() as (scene, stage):
        await started(scene, "a", call="wait")
        follower = EventClient(scene, EVENTS, await scene.token("observe", valid_for=100.0))
        await stage.fleet().clock.sleep(99.0)
        assert not follower.task.done()
        await stage.fleet().clock.sleep(1.0 + request_guard.LOOK_INTERVAL)
        assert follower.over


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])
async def test_a_stream_that_is_never_quiet_ends_too_when_its_credential_is_revoked(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(request_guard.CredentialEnds, "_look", lambda self, watch: asyncio.sleep(1e9))
    async with plan_server() as (scene, stage):
        feed, number = scene.state.plan_feeds, itertools.count()

        async def busy(name: str, after: str | None) -> AsyncGenerator[bytes, None]:
            async def events() -> AsyncGenerator[bytes, None]:
                while True:
                    await stage.fleet().clock.sleep(0.5)
                    yield event_stream.encode_event(str(next(number)), "task", {})

            return events()

        monkeypatch.setattr(feed, "events", busy)
        await insert_plan(stage.store, chain("a"))
        token = await scene.token("observe")
        follower = EventClient(scene, EVENTS, token)
        await follower.until(3)
        await scene.credentials.revoke(token.split("_")[1])
        await stage.fleet().clock.sleep(20.0)
        assert follower.task.done() is guarded
        assert (len(follower.events) < 32) is guarded
        await follower.leave()


async def test_a_stream_that_was_never_read_leaves_nothing_behind() -> None:
    async with plan_server() as (scene, stage):
        await insert_plan(stage.store, chain("a"))
        feeds = scene.state.plan_feeds
        events = await feeds.events("nightly", None)
        assert feeds._feeds
        await events.aclose()
        assert not feeds._feeds


async def test_events_outlive_an_outage_of_the_store_and_a_change_of_the_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every third look at the journal fails, the journal is compacted all the time, and owners come and go."""
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 8)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    names = [f"t{number}" for number in range(10)]
    async with plan_server() as (scene, stage):
        looks, real = itertools.count(), PlanFollower._new_records

        async def unsteady(self: PlanFollower) -> Any:
            if next(looks) % 3 == 2:
                raise StoreUnavailable("gone for a moment")
            return await real(self)

        monkeypatch.setattr(PlanFollower, "_new_records", unsteady)
        await insert_plan(stage.store, chain(*names, call="slow"))
        follower = EventClient(scene, EVENTS, await scene.token("observe"))
        await stage.until(lambda: follower.status == 200)
        for done in (3, 6):
            running = stage.orchestrator(host=f"owner-{done}").run_stored("nightly")
            await left(running, lambda done=done: durable_work.DONE[f"t{done}"], stage)
        await stage.orchestrator(host="last").run_stored("nightly")
        assert (await stage.load()).head.snapshot is not None
        expected = await all_events(stage)
        await follower.until(len(expected))
        assert [event["id"] for event in follower.events] == expected
        await follower.leave()


async def test_a_stream_ends_when_the_server_stops() -> None:
    async with plan_server() as (scene, stage):
        await started(scene, "a", call="wait")
        follower = EventClient(scene, EVENTS, await scene.token("observe"))
        await stage.until(lambda: follower.status == 200)
        scene.state.stopping.set()
        await stage.until(follower.task.done)
        assert follower.over


async def test_streams_count_for_the_requests_of_their_credential() -> None:
    async with plan_server(requests_at_once=2) as (scene, stage):
        await started(scene, "a", call="wait")
        token = await scene.token("observe")
        two = [EventClient(scene, EVENTS, token) for _ in range(2)]
        await stage.until(lambda: all(stream.status == 200 for stream in two))
        third = EventClient(scene, EVENTS, token)
        await stage.until(third.task.done)
        assert third.status == 429
        await two[0].leave()
        fourth = EventClient(scene, EVENTS, token)
        await stage.until(lambda: fourth.status == 200)
        for stream in (two[1], fourth):
            await stream.leave()


async def test_a_page_of_another_origin_cannot_follow_a_plan() -> None:
    async with plan_server() as (scene, stage):
        await started(scene, "a", call="wait")
        token = await scene.token("observe")
        for headers in ({"origin": "https://evil.example"}, {"sec_fetch_site": "cross-site"}):
            follower = EventClient(scene, EVENTS, token, **headers)
            await stage.until(follower.task.done)
            assert follower.status == 403
            assert not follower.events


async def test_a_reader_that_falls_behind_the_buffer_is_sent_away() -> None:
    buffer = EventBuffer(0, most=3)
    buffer.add([(1, b"1"), (2, b"2")])
    reader = buffer.after(0)
    assert await anext(reader) == b"12"
    buffer.add([(number, b"x") for number in range(3, 9)])
    assert await anext(reader, None) is None
    assert not buffer.has_since(4)
    assert buffer.has_since(5)


async def test_all_readers_get_the_same_bytes_of_new_events() -> None:
    buffer = EventBuffer(0)
    readers = [buffer.after(0) for _ in range(3)]
    for first in (1, 3):
        waiting = [asyncio.create_task(anext(reader)) for reader in readers]
        await asyncio.sleep(0)
        buffer.add([(first, b"a"), (first + 1, b"b")])
        parts = await asyncio.gather(*waiting)
        assert parts[0] == b"ab"
        assert all(part is parts[0] for part in parts)


async def test_a_reader_that_is_ahead_of_the_source_gets_no_event_twice() -> None:
    buffer = EventBuffer(0)
    ahead = asyncio.create_task(anext(buffer.after(5)))
    await asyncio.sleep(0)
    buffer.add([(number, b"%d" % number) for number in range(4, 8)])
    assert await ahead == b"67"


async def test_the_events_of_a_plan_with_many_followers_come_in_larger_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plan_server() as (scene, stage):
        await insert_plan(stage.store, chain("a"))
        follower = EventClient(scene, EVENTS, await scene.token("observe"))
        await stage.until(lambda: follower.status == 200)
        fleet, times = stage.fleet(), list[float]()

        def more_than(seen: int) -> bool:
            return len(follower.events) > seen

        for listener in (0.0, 5.0):
            monkeypatch.setattr(event_stream, "LISTENER_INTERVAL", listener)
            for name in ("x", "y"):
                began, seen = stage.now(), len(follower.events)
                await edit_plan(fleet, "nightly", EditBatch((AddTask(Task(f"{name}{seen}", shell="true")),), "bob"))
                await stage.until(partial(more_than, seen))
                times.append(stage.now() - began)
        assert max(times[:3]) < 1.0
        assert times[3] > 4.0
        await follower.leave()


async def test_a_plan_that_is_stored_is_followed_from_now_on() -> None:
    async with plan_server() as (scene, stage):
        await insert_plan(stage.store, chain("a"))
        follower = EventClient(scene, EVENTS, await scene.token("edit:nightly"))
        await stage.until(lambda: follower.status == 200)
        await edit_plan(stage.fleet(), "nightly", EditBatch((AddTask(Task("x", shell="true")),), "bob"))
        [event] = await follower.until(1)
        assert (event["event"], event["version"], event["author"]) == ("edit", 1, "bob")
        await follower.leave()
