"""Tests of the change feed: copies that are left to peers, numbered changes, contributions."""

from __future__ import annotations

from typing import Any

from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, CLAIMED
from asterism.core.run.session import ABROAD, ENDED, Session
from asterism.store.protocol import ENDED as ENDED_TOPIC
from asterism.store.protocol import (
    FEED,
    PLANS,
    ChangeFeed,
    Contribution,
    Notice,
    PutCopy,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    Store,
    Usage,
    feed_of,
    for_device,
)
from asterism.store.store_errors import StoreError
from asterism.testing.store_conformance.sample_records import (
    FAR,
    FLOW,
    WAKE_TIMEOUT,
    StoreTests,
    a_run,
    a_session,
    added,
    after,
    assigned_to,
    completed,
    conflict,
    contents,
    held_by,
    ids,
    joined,
    lines_of,
    offer,
    raising,
    released,
    session_in,
    started,
    taking,
)

PEER = "peer-store-1"
OTHER = "peer-store-2"
_ABROAD = a_session("garage-1", "garage", state=ABROAD, host="via garage")


def copy(number: int, left_to: str = PEER, *, same: bool = True, **more: Any) -> PutCopy:
    return PutCopy(a_run(number, **more), None, left_to, same)


class FeedTests(StoreTests):
    """Tests of ``PutCopy`` and ``ChangeFeed``."""

    async def test_a_store_without_a_feed_has_no_copies_and_no_changes(self, store: Store) -> None:
        await added(store, a_run(1))
        with raising(ValueError, StoreError):
            await store.commit([copy(2)])
        assert ids(await store.find(Query())) == ["r0001"]
        assert ids(await store.find(Query(judged=True))) == ["r0001"]
        assert await store.find(Query(judged=False)) == []
        assert await store.register(FEED) is None

    async def test_a_feed_is_started_once_and_numbers_all_runs(self, store: Store, feed: ChangeFeed) -> None:
        register = await store.register(FEED)
        assert register is not None
        assert await feed.start_feed() == register.value["id"]
        assert (await feed.newest(), await feed.changes(0, 10)) == (0, [])
        await added(store, a_run(1), a_run(2))
        newest = await feed.newest()
        assert await feed.start_feed() == register.value["id"]
        assert await feed.newest() == newest
        assert [change.run.id for change in await feed.changes(0, 10)] == ["r0001", "r0002"]

    async def test_runs_from_before_the_feed_are_in_it(self, store: Store) -> None:
        await added(store, *(a_run(number) for number in range(5)))
        if not self.has_feed:
            return
        feed = feed_of(store)
        await feed.start_feed()
        assert [change.run for change in await feed.changes(0, 10)] == await store.find(Query())
        assert all(change.left_to is None and not change.same for change in await feed.changes(0, 10))

    async def test_each_change_moves_a_run_to_the_end(self, store: Store, feed: ChangeFeed) -> None:
        await added(store, a_run(1), a_run(2), a_run(3))
        seen = (await feed.changes(0, 10))[-1].number
        await store.commit([PutRun(transitions.cancel(a_run(2), 5.0, "tester"), 1)])
        [change] = await feed.changes(seen, 10)
        assert (change.run.id, change.run.ended) == ("r0002", True)
        assert [change.run.id for change in await feed.changes(0, 10)] == ["r0001", "r0003", "r0002"]
        numbers = [change.number for change in await feed.changes(0, 10)]
        assert numbers == sorted(numbers)
        assert numbers[-1] == await feed.newest() == change.number
        assert [change.run.id for change in await feed.changes(numbers[0], 1)] == ["r0003"]

    async def test_a_take_is_a_change(self, store: Store, feed: ChangeFeed, session: Session) -> None:
        await added(store, a_run(1))
        seen = await feed.newest()
        await store.take(offer(), taking(session))
        [change] = await feed.changes(seen, 10)
        assert (change.run.device, change.left_to) == ("kitchen", None)

    async def test_a_number_is_never_reused(self, store: Store, feed: ChangeFeed) -> None:
        await added(store, a_run(1), transitions.cancel(a_run(2), 5.0, "tester"))
        newest = await feed.newest()
        assert await store.prune(FAR, 10) == 1
        assert [change.run.id for change in await feed.changes(0, 10)] == ["r0001"]
        await added(store, a_run(3))
        [change] = await feed.changes(newest, 10)
        assert change.run.id == "r0003"
        assert change.number > newest

    async def test_a_failed_commit_is_not_a_change(self, store: Store, feed: ChangeFeed) -> None:
        await added(store, a_run(1))
        newest = await feed.newest()
        with conflict("run r0001"):
            await store.commit([copy(2), PutCopy(a_run(1).changed(revision=9), 8, PEER), Notice(1.0, "x", "y")])
        assert [change.number for change in await feed.changes(0, 10)] == [newest]
        assert await feed.judges() == set()

    async def test_a_copy_is_compared_and_swapped_like_any_run(self, store: Store, feed: ChangeFeed) -> None:
        await store.commit([copy(1, key="once")])
        with conflict("run r0001"):
            await store.commit([copy(1)])
        with conflict("run r0001"):
            await store.commit([PutCopy(a_run(1).changed(revision=5), 4, PEER)])
        with conflict("key once"):
            await store.commit([copy(2, key="once")])
        with raising(ValueError):
            await store.commit([copy(3), PutRun(a_run(3), None)])
        assert await store.run("r0001") == a_run(1, key="once")

    async def test_a_copy_is_not_offered(self, store: Store, feed: ChangeFeed, session: Session) -> None:
        await added(store, a_run(1))
        await store.commit([copy(2)])
        assert ids(await store.find(Query(offered=True))) == ["r0001"]
        assert ids(await store.find(Query(offered=False))) == ["r0002"]
        assert [group.number for group in await store.waiting()] == [1]
        assert ids(await store.take(offer(), taking(session))) == ["r0001"]
        assert await store.take(offer(), taking(session)) == []

    async def test_a_run_that_is_left_to_a_peer_is_no_longer_offered(self, store: Store, feed: ChangeFeed) -> None:
        await joined(store, a_session())
        await added(store, a_run(1))
        await store.commit([PutCopy(a_run(1).changed(revision=2), 1, PEER)])
        assert await store.take(offer(), taking(a_session())) == []
        assert await store.waiting() == []
        await store.commit([PutRun(a_run(1).changed(revision=3), 2)])
        assert ids(await store.take(offer(), taking(a_session()))) == ["r0001"]

    async def test_any_other_write_makes_a_copy_the_stores_own(self, store: Store, feed: ChangeFeed) -> None:
        await store.commit([copy(1), copy(2, OTHER, same=False)])
        assert await feed.left_to(["r0001", "r0002", "r0003"]) == {"r0001": PEER, "r0002": OTHER}
        assert [(change.left_to, change.same) for change in await feed.changes(0, 10)] == [(PEER, True), (OTHER, False)]
        assert ids(await store.find(Query(judged=False))) == ["r0001", "r0002"]
        await store.commit([PutRun(transitions.pause(a_run(1), 5.0, "tester"), 1)])
        assert await feed.left_to(["r0001", "r0002"]) == {"r0002": OTHER}
        assert ids(await store.find(Query(judged=True))) == ["r0001"]
        assert await feed.judges() == {OTHER}
        await store.commit([PutCopy(a_run(1).changed(revision=3), 2, OTHER)])
        assert [change.left_to for change in await feed.changes(0, 10)] == [OTHER, OTHER]

    async def test_the_times_of_a_copy_can_be_left_out(self, store: Store, feed: ChangeFeed) -> None:
        await joined(store, a_session(), _ABROAD)
        mine, theirs = assigned_to(a_run(1), a_session()), assigned_to(a_run(2), _ABROAD)
        await added(store, mine)
        await store.commit([PutCopy(theirs, None, PEER)])
        overdue = Query(statuses=frozenset({ASSIGNED, CLAIMED}), due_before=FAR, judged=True)
        assert ids(await store.find(overdue)) == ["r0001"]

    async def test_a_copy_is_never_an_orphan(self, store: Store, feed: ChangeFeed) -> None:
        gone = a_session("gone-1", "gone", state=ENDED)
        await joined(store, gone, _ABROAD)
        theirs = started(held_by(a_run(1), gone))
        abroad = started(held_by(a_run(2), _ABROAD))
        await store.commit([PutCopy(theirs, None, PEER), PutCopy(abroad, None, PEER)])
        unknown = started(held_by(a_run(3), a_session("unknown-1", "unknown")))
        await store.commit([PutCopy(unknown, None, PEER)])
        assert await store.orphans(FAR, 10) == []
        assert (await session_in(store, "garage-1")).used == 1
        await store.commit([after(theirs, theirs), after(abroad, abroad)])
        assert [(run.id, owner.id) for run, owner in await store.orphans(FAR, 10)] == [("r0001", "gone-1")]
        await store.commit([after(unknown, released(unknown))])

    async def test_open_copies_of_a_peer_are_found(self, store: Store, feed: ChangeFeed) -> None:
        ended = completed(held_by(a_run(3), _ABROAD))
        await store.commit([copy(1), copy(2, OTHER), PutCopy(ended, None, "third")])
        assert ids(await feed.copies(PEER, 10)) == ["r0001"]
        assert ids(await feed.copies(OTHER, 10)) == ["r0002"]
        assert await feed.copies("third", 10) == []
        assert await feed.judges() == {PEER, OTHER}
        assert await feed.copies(PEER, 0) == []
        assert ids(await feed.copies(PEER, 10, "r0000")) == ["r0001"]
        assert await feed.copies(PEER, 10, "r0001") == []

    async def test_the_kinds_of_all_runs_are_listed(self, store: Store, feed: ChangeFeed) -> None:
        assert await feed.kinds() == set()
        await store.commit([copy(1), PutRun(a_run(2), None)])
        assert await feed.kinds() == {a_run(1).kind}

    async def test_each_write_of_a_session_abroad_counts_as_its_heartbeat(self, store: Store, feed: ChangeFeed) -> None:
        await joined(store, _ABROAD)
        first = await session_in(store, "garage-1")
        assert not (await store.heartbeat("garage-1", {}, [])).alive
        await store.commit([PutSession(first.changed(), first.revision)])
        second = await session_in(store, "garage-1")
        assert second.beat_at >= first.beat_at
        assert second.state == ABROAD
        assert [session.id for session in await store.sessions()] == ["garage-1"]

    async def test_a_copy_wakes_its_device_and_waiters_for_ends(self, store: Store, feed: ChangeFeed) -> None:
        device = store.watch(frozenset({for_device("garage")}))
        ends = store.watch(frozenset({ENDED_TOPIC}))
        try:
            await store.commit([PutCopy(assigned_to(a_run(1), _ABROAD), None, PEER)])
            assert await device.wait(WAKE_TIMEOUT)
            await store.commit([PutCopy(completed(held_by(a_run(2), _ABROAD)), None, PEER)])
            assert await ends.wait(WAKE_TIMEOUT)
        finally:
            device.close()
            ends.close()

    async def test_the_end_of_a_copy_counts_from_when_this_store_first_saw_it(
        self, store: Store, feed: ChangeFeed
    ) -> None:
        began = store.clock()
        ends = {number: completed(held_by(a_run(number), _ABROAD), now=now) for number, now in ((1, 5.0), (2, FAR / 2))}
        for number, run in ends.items():
            await store.commit([PutCopy(run.changed(key=f"plan:{number}/x"), None, PEER)])
        await added(store, completed(held_by(a_run(3), a_session()), now=5.0))
        assert await store.prune(began, 10) == 1
        assert ids(await store.find(Query())) == ["r0001", "r0002"]
        seen = store.clock() + 1.0
        again = ends[1].changed(revision=ends[1].revision + 1, key="plan:1/x")
        await store.commit([PutCopy(again, ends[1].revision, PEER)])
        await store.commit([PutRegister(f"{PLANS}{number}", {}, None) for number in ends])
        assert await store.prune(seen, 10) == 0
        await store.commit([PutRegister(f"{PLANS}{number}", None, 1) for number in ends])
        assert await store.prune(seen, 1) == 1
        assert await store.prune(seen, 1) == 1
        assert await store.prune(seen, 1) == 0

    async def test_ended_sessions_that_own_nothing_can_be_deleted(self, store: Store, feed: ChangeFeed) -> None:
        open_one, owning, over = (a_session(f"{name}-1", name) for name in ("open", "owning", "over"))
        await joined(store, open_one, owning, over)
        await added(store, held_by(a_run(1), owning))
        for session in (owning, over):
            known = await session_in(store, session.id)
            await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        await feed.forget_sessions([open_one.id, owning.id, over.id, "nobody's"])
        assert {session.id for session in await store.sessions(ended=True)} == {open_one.id, owning.id}
        await joined(store, over)
        assert (await session_in(store, over.id)).state != ENDED

    async def test_a_restored_store_has_another_feed_and_no_open_copies(
        self, store: Store, feed: ChangeFeed, fresh: Store
    ) -> None:
        ended = completed(held_by(a_run(3), _ABROAD))
        await store.commit([copy(1), PutRun(a_run(2), None), PutCopy(ended, None, PEER)])
        first = await feed.start_feed()
        dumped = [line async for line in store.dump()]
        assert await fresh.load(lines_of(dumped)) == 2
        assert await fresh.register(FEED) is None
        assert ids(await fresh.find(Query(offered=True))) == ["r0002"]
        assert await feed_of(fresh).start_feed() != first
        assert (await contents(fresh)).runs == {"r0002": a_run(2), "r0003": ended}
        assert ["are not restored: 1." in notice.message for _, notice in await fresh.notices()] == [True]

    async def test_a_large_feed_is_read_in_parts(self, store: Store, feed: ChangeFeed) -> None:
        await store.commit([PutRun(a_run(number, FLOW), None) for number in range(250)])
        seen: list[str] = []
        after = 0
        while page := await feed.changes(after, 40):
            assert len(page) <= 40
            seen += [change.run.id for change in page]
            after = page[-1].number
        assert seen == ids(await store.find(Query()))

    async def test_contributions_of_a_peer_are_added_up_and_deleted_with_their_runs(
        self, store: Store, feed: ChangeFeed
    ) -> None:
        assert await feed.usage(PEER) == Usage(0, 0, 0)
        await store.commit([PutCopy(a_run(1), None, PEER), Contribution("r0001", PEER, 1, 100, 0)])
        ended = completed(held_by(a_run(2), _ABROAD), now=5.0)
        await store.commit([PutCopy(ended, None, PEER), Contribution("r0002", PEER, 1, 50, 7)])
        await store.commit([Contribution("r0001", PEER, 0, 10, 1), Contribution("r0001", "another", 0, 1000, 0)])
        await added(store, a_run(3))
        assert await feed.usage(PEER) == Usage(2, 160, 8)
        assert await feed.usage("another") == Usage(0, 1000, 0)
        assert await feed.came_from_peers(["r0001", "r0003", "unknown"]) == {"r0001"}
        assert ids(await feed.came_from(PEER)) == ["r0001"]
        assert ids(await feed.came_from("another")) == []
        assert await store.prune(FAR, 10) == 1
        assert await feed.usage(PEER) == Usage(1, 110, 1)

    async def test_a_contribution_is_not_stored_if_its_commit_is_refused(self, store: Store, feed: ChangeFeed) -> None:
        await store.commit([PutCopy(a_run(1), None, PEER)])
        with conflict("run r0001"):
            await store.commit([Contribution("r0001", PEER, 1, 100, 0), PutCopy(a_run(1), None, PEER)])
        assert await feed.usage(PEER) == Usage(0, 0, 0)
