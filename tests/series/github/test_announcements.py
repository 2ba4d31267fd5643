"""Each promotion is announced once and counted once, wherever in a sync it happens."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from asterism.core.series.machine import Series
from asterism.series.compare_and_swap import update
from asterism.series.github.assignment import HeldLock
from asterism.series.github.tracking_issue import TrackingIssues
from asterism.series.register import STATE_FILE, OutcomeUnknown, Snapshot
from tests.series.github.github_fixtures import (
    QUICK,
    SERIES,
    assigned,
    merged,
    opened,
    service_of,
    state,
    sync,
    synced,
)
from tests.series.github.github_server import GitHubServer

TURN = f"refs/asterism/turns/{SERIES}"


def announced(server: GitHubServer) -> list[int]:
    """Of whom it was said that they are active now, in order."""
    notes = server.call(lambda world: [note["body"] for issue in world.listed() for note in issue.comments])
    return [int(note[1:].split(" is now the active issue of RFC-093")[0]) for note in notes]


def turn_of_another(server: GitHubServer, until: float) -> None:
    text = json.dumps({"series": SERIES, "holder": "another", "until": until})
    server.call(lambda world: world.write_document(TURN, text, STATE_FILE))


def test_a_promotion_is_announced_also_if_who_promoted_could_not_assign(server):
    sync(server, "announce")
    merged(server, 1)
    turn_of_another(server, time.time() + 60)
    late = sync(server, "announce", lock_deadline=0.05)
    assert (late.status, late.promoted, announced(server)) == ("contended", 2, [1])
    turn_of_another(server, time.time() - 60)
    for _ in range(2):
        sync(server, "announce")
        assert (assigned(server), announced(server)) == ([2], [1, 2])


def test_a_promotion_that_a_command_made_is_announced_too(server):
    sync(server, "announce")

    async def release() -> None:
        register = opened(server)
        await update(register, SERIES, lambda series, now: series.leave(1, now), "release", retry=QUICK)
        await register.close()

    asyncio.run(release())
    sync(server, "announce")
    assert announced(server) == [1, 2]


def test_of_many_who_find_it_one_announces(server):
    sync(server)

    async def many() -> None:
        await asyncio.gather(*(synced(server, "announce") for _ in range(8)))

    asyncio.run(many())
    assert announced(server) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        *(pytest.param(text, marks=pytest.mark.long) for text in ("[]", "7", '{"announced": 7}')),
        '{"announced": {"revision": "x"}}',
    ],
)
def test_a_mark_that_cannot_be_read_is_none(server, text):
    sync(server)
    ref = f"refs/asterism/tracking/{SERIES}"
    server.call(lambda world: world.write_document(ref, text, STATE_FILE))
    for _ in range(2):
        sync(server, "announce")
        assert announced(server) == [1]


def test_a_state_that_is_old_by_now_is_not_announced(server):
    number = sync(server).tracking

    async def scene() -> None:
        register = opened(server)
        before = Series.from_text((await register.read(SERIES)).text, SERIES)
        await update(register, SERIES, lambda series, now: series.leave(1, now), "release", retry=QUICK)
        after = Series.from_text((await register.read(SERIES)).text, SERIES)
        for series in (after, before):
            text = f"#{series.active} is now the active issue of RFC-093"
            await TrackingIssues(register).announce(series, number, text, Snapshot(None, None))
        await register.close()

    asyncio.run(scene())
    assert announced(server) == [2]


def test_what_was_announced_is_not_announced_again_in_another_issue(server):
    before = sync(server, "announce").tracking
    server.call(lambda world: world.delete(before))
    after = sync(server, "announce").tracking
    assert (after != before, announced(server)) == (True, [])
    merged(server, 1)
    sync(server, "announce")
    assert announced(server) == [2]


def test_a_mark_whose_reply_is_lost_is_followed_by_its_comment_once(server):
    number = sync(server).tracking

    async def scene() -> None:
        register = opened(server)
        tracking = TrackingIssues(register)
        swap = tracking.register.swap

        async def lost(*words: str) -> str:
            await swap(*words)
            raise OutcomeUnknown("the reply was lost")

        tracking.register.swap = lost  # type: ignore[method-assign]
        series = Series.from_text((await register.read(SERIES)).text, SERIES)
        for _ in range(2):
            await tracking.announce(series, number, "#1 is now the active issue of RFC-093", Snapshot(None, None))
        await register.close()

    asyncio.run(scene())
    assert announced(server) == [1]


async def test_a_promotion_within_the_turn_is_counted_as_any_other(server):
    """The active issue is closed after the state was held against reality, and before it is assigned."""
    register = opened(server)
    service = service_of(register)
    acquire, closed = service.lock.acquire, []

    async def late(name: str) -> HeldLock:
        if not closed:
            closed.append(1)
            await asyncio.to_thread(merged, server, 1)
        return await acquire(name)

    service.lock.acquire = late  # type: ignore[method-assign]
    await service.sync()
    await register.close()
    counts = service.metrics.counts
    assert state(server)["active_issue"] == 2
    assert (counts["promotion_events"], counts["completed"], counts["assigned"]) == (2, 1, 1)


async def test_who_was_assigned_before_the_first_sync_was_not_promoted_by_it(server):
    server.call(lambda world: world.assign(2, "robot", by_hand=True))
    register = opened(server)
    service = service_of(register)
    await service.sync()
    await register.close()
    assert service.metrics.counts["promotion_events"] == 0
    assert state(server)["active_issue"] == 2


# -- after a rebuild ---------------------------------------------------------------------------------------------------

STATE = f"refs/asterism/series/{SERIES}"


def lose(server: GitHubServer) -> None:
    server.call(lambda world: world.refs.pop(STATE))


def spoil(server: GitHubServer, text: str = "{") -> None:
    server.call(lambda world: world.write_document(STATE, text, STATE_FILE))


def forget(server: GitHubServer) -> None:
    """ResponseLost, and something else put in its place, which follows from nothing."""
    lose(server)
    spoil(server)


@pytest.mark.parametrize("break_it", [lose, *(pytest.param(way, marks=pytest.mark.long) for way in (spoil, forget))])
def test_a_promotion_after_a_rebuild_is_announced_exactly_once(server, break_it):
    for _ in range(3):
        sync(server, "announce")
    server.call(lambda world: [world.add_issue(f"RFC-093-1{micro}: more") for micro in range(4)])
    sync(server, "announce")
    merged(server, 1)
    sync(server, "announce")
    server.call(lambda world: world.add_issue("RFC-093-20: one that came later"))
    sync(server, "announce")
    before = state(server)["revision"]
    break_it(server)
    sync(server, "announce")
    assert announced(server) == [1, 2]  # who was active still is: that is nothing new
    assert state(server)["revision"] > before
    merged(server, 2)
    for _ in range(3):
        sync(server, "announce")
        assert announced(server) == [1, 2, 3]
    assert state(server)["active_issue"] == 3


def test_a_promotion_at_the_rebuild_itself_is_announced(server):
    sync(server, "announce")
    merged(server, 1)
    lose(server)
    for _ in range(2):
        sync(server, "announce")
        assert announced(server) == [1, 2]


def test_the_revision_of_what_was_announced_decides_nothing(server):
    """Also if it is far above that of the state, as after a rebuild by a command that knows nothing of it."""
    sync(server, "announce")
    ref = f"refs/asterism/tracking/{SERIES}"

    def raise_it(world) -> None:
        document = json.loads(world.documents("refs/asterism/tracking/")[SERIES])
        document["announced"]["revision"] = 10_000
        world.write_document(ref, json.dumps(document), STATE_FILE)

    server.call(raise_it)
    merged(server, 1)
    for _ in range(2):
        sync(server, "announce")
        assert announced(server) == [1, 2]


def test_a_copy_of_github_that_is_behind_does_not_announce_what_was_announced_before(server):
    number = sync(server, "announce").tracking
    before = server.call(lambda world: world.refs[STATE])
    merged(server, 1)
    sync(server, "announce")

    async def scene() -> None:
        register = opened(server)
        [old] = [change for change in await register.history(SERIES, 9) if change.token == before]
        series = Series.from_text(old.text, SERIES)

        async def behind(name: str) -> Snapshot:
            return Snapshot(old.text, old.token)

        register.read = behind  # type: ignore[method-assign]
        await TrackingIssues(register).announce(
            series, number, "#1 is now the active issue of RFC-093", Snapshot(None, None)
        )
        await register.close()

    asyncio.run(scene())
    assert announced(server) == [1, 2]
