"""Conflicts between two stores that assigned or changed the same run while they were apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asterism.core.errors import AsterismError
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import CREATED, FAILED, PROCESSING, Progress, Run
from asterism.core.run.session import ABROAD, Session
from asterism.fleet.fleet import Fleet
from asterism.peers.exchange import Exchange
from asterism.store.memory import MemoryStore
from asterism.store.protocol import ProgressReport, PutCopy, PutPriority, PutRun, Write, feed_of
from asterism.store.sqlite import SqliteStore
from tests.peers.exchange_fixtures import FLOW, Direct, Side, StillClock, three, two

# -- conflicts and requests --------------------------------------------------------------------------------------------


async def contested(**options: Any) -> tuple[Side, Side, Run]:
    """A waiting run of one store is assigned in both."""
    laptop, kitchen = await two()
    run = await laptop.create(**options)
    await laptop.sync_with(kitchen)
    await laptop.take(run.id)
    kitchen.clock.now += 5.0
    await kitchen.take(run.id)
    return laptop, kitchen, run


async def test_after_a_conflict_one_record_wins_and_the_loser_learns_why() -> None:
    laptop, kitchen, run = await contested()
    outcome = await kitchen.sync_with(laptop)
    await kitchen.sync_with(laptop)
    ours, theirs = await laptop.run(run.id), await kitchen.run(run.id)
    assert ours == theirs.changed(revision=ours.revision)
    assert ours.device == "laptop"
    [lost] = outcome.lost
    assert lost.startswith(f"kitchen no longer owns run {run.id} (epoch 1): it was assigned to laptop")
    assert await kitchen.notices("conflict") == [lost]
    assert await laptop.notices("conflict") == []
    assert await kitchen.left_to(run.id) == await laptop.id()
    assert await laptop.left_to(run.id) is None
    assert (await kitchen.store.heartbeat("kitchen-1", {}, [])).held == []


async def test_a_result_that_loses_is_kept() -> None:
    laptop, kitchen, run = await contested()
    await laptop.complete(run.id, {"by": "laptop"})
    await kitchen.complete(run.id, {"by": "kitchen"})
    await laptop.sync_with(kitchen)
    await laptop.sync_with(kitchen)
    ours, theirs = await laptop.run(run.id), await kitchen.run(run.id)
    assert ours == theirs.changed(revision=ours.revision)
    assert (ours.output, [result.output for result in ours.superseded]) == ({"by": "laptop"}, [{"by": "kitchen"}])
    [notice] = await kitchen.notices("conflict")
    assert "is kept, but it is not the result of run" in notice


async def test_the_user_of_the_loser_can_keep_the_work() -> None:
    laptop, kitchen, run = await contested(input={"file": "a.mov"})
    await kitchen.store.heartbeat("kitchen-1", {}, [ProgressReport(run.id, 1, Progress(4, 9), "")])
    await laptop.sync_with(kitchen)
    [notice] = await kitchen.notices("conflict")
    assert notice.endswith("(progress: 4/9)")
    mine = await kitchen.fleet.keep_mine(run.id)
    assert (mine.retry_of, mine.pinned, mine.progress, mine.input) == (
        run.id,
        "kitchen",
        Progress(4, 9),
        {"file": "a.mov"},
    )
    with pytest.raises(AsterismError, match="there is nothing to insist on"):
        await laptop.fleet.keep_mine(run.id)


async def test_a_request_on_a_copy_reaches_the_owner() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.take(run.id)
    await laptop.sync_with(kitchen)
    await kitchen.fleet.cancel(run.id)
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).stop_request == "cancel"
    assert await laptop.left_to(run.id) is None
    await laptop.sync_with(kitchen)
    assert await kitchen.left_to(run.id) == await laptop.id()
    assert await laptop.notices("conflict") == []


async def test_a_request_that_loses_to_a_step_of_the_owner_is_repeated_once() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.step(run.id, lambda record: transitions.take(record, laptop.owner, laptop.store.clock()))
    await laptop.sync_with(kitchen)
    await kitchen.fleet.pause(run.id, "the disk is full")
    await laptop.step(run.id, lambda record: transitions.start(record, record.grant, laptop.store.clock()))
    await laptop.sync_with(kitchen)
    record = await laptop.run(run.id)
    assert (record.status, record.stop_request, record.stop_requested_by) == (
        PROCESSING,
        "pause",
        "kitchen: the disk is full",
    )
    await laptop.fleet.resume(run.id)
    await laptop.sync_with(kitchen)
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).stop_request is None
    assert (await kitchen.run(run.id)).stop_request is None


async def test_a_copy_that_was_cancelled_is_cancelled_despite_a_new_assignment() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    assert (await kitchen.fleet.cancel(run.id)).status is FAILED
    await laptop.take(run.id)
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).stop_request == "cancel"


async def what_a_third_store_did_reaches_the_winner() -> None:
    """The garage synced with the kitchen, and then disappears."""
    laptop, kitchen, garage = await three()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    await kitchen.sync_with(garage)
    garage.clock.now += 5.0
    await garage.take(run.id)
    await garage.complete(run.id, {"by": "garage"})
    await laptop.take(run.id)
    await laptop.complete(run.id, {"by": "laptop"})
    await garage.sync_with(kitchen)
    await kitchen.sync_with(laptop)
    await kitchen.sync_with(laptop)
    ours, theirs = await laptop.run(run.id), await kitchen.run(run.id)
    assert ours == theirs.changed(revision=ours.revision)
    assert [result.output for result in (*ours.superseded,)] == [{"by": "garage"}]


async def test_records_of_a_third_store_reach_the_winner_through_a_peer() -> None:
    await what_a_third_store_did_reaches_the_winner()


async def test_a_store_that_does_not_pass_records_on_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = MemoryStore.commit

    async def forgetful(self: MemoryStore, writes: list[Write]) -> None:
        marked = [replace(write, same=True) if isinstance(write, PutCopy) else write for write in writes]
        await commit(self, marked)

    monkeypatch.setattr(MemoryStore, "commit", forgetful)
    with pytest.raises(AssertionError):
        await what_a_third_store_did_reaches_the_winner()


async def test_a_run_of_a_store_that_is_not_heard_from_is_left_to_the_sender() -> None:
    laptop, kitchen, garage = await three()
    await laptop.sync_with(garage)
    laptop.clock.now = kitchen.clock.now = garage.clock.now = 10_000.0
    run = await garage.create()
    await garage.take(run.id)
    await garage.sync_with(kitchen)
    await kitchen.sync_with(laptop)
    assert await kitchen.left_to(run.id) == await garage.id()
    assert await laptop.left_to(run.id) == await kitchen.id()


async def test_a_peer_that_forgot_its_request_for_a_blob_asks_again() -> None:
    laptop, kitchen = await two()
    name = await laptop.store.put_blob(b'{"text":"large"}')
    run = await laptop.create(input={"$blob": name, "size": 16})

    class Restarting(Direct):
        async def send_blob(self, blob: str, data: bytes) -> None:
            if not kitchen.exchange._requested_blobs.pop("again", None):
                kitchen.exchange = Exchange(kitchen.fleet)
                kitchen.exchange._requested_blobs["again"] = frozenset({"it was restarted"})
            await super().send_blob(blob, data)

    await laptop.exchange.sync("kitchen", Restarting(laptop, kitchen))
    assert await kitchen.run(run.id) == run
    assert await kitchen.notices("refused") == []


# -- on a real file ----------------------------------------------------------------------------------------------------


async def test_two_sqlite_files_sync(tmp_path: Path) -> None:
    clock = StillClock()
    sides = []
    for name in ("laptop", "kitchen"):
        store = await SqliteStore.open(tmp_path / f"{name}.db", clock=lambda: 1_000_000.0 + clock.now)
        sides.append(await Side(name, store).joined())
    laptop, kitchen = sides
    await laptop.knows(kitchen)
    await kitchen.knows(laptop)
    runs = [await laptop.create() for _ in range(20)]
    await laptop.sync_with(kitchen)
    await laptop.take(runs[0].id)
    await kitchen.take(runs[0].id)
    await laptop.complete(runs[0].id, {"by": "laptop"})
    await kitchen.sync_with(laptop)
    await kitchen.sync_with(laptop)
    for run in runs:
        ours, theirs = await laptop.run(run.id), await kitchen.run(run.id)
        assert ours == theirs.changed(revision=ours.revision)
    assert await kitchen.store.check() == []
    assert await laptop.store.check() == []
    assert len(await kitchen.notices("conflict")) == 1
    await laptop.store.close()
    await kitchen.store.close()


async def test_a_fleet_validates_the_keep_rule() -> None:
    side = await Side("laptop").joined()
    await side.fleet.workflows.add(FLOW)
    assert (await side.fleet.create("transcode", keep="original", device="absent")).keep == "original"
    assert (await side.fleet.create("transcode", device="absent")).keep == "epoch"
    with pytest.raises(AsterismError, match="keep must be one of epoch, original, not 'newest'"):
        await side.fleet.create("transcode", keep="newest")
    run = await side.fleet.create("transcode", keep="original", device="absent")
    assert run.status is CREATED
    await side.fleet.cancel(run.id)
    assert (await side.fleet.retry(run.id)).keep == "original"


def test_an_exchange_needs_a_store_that_has_a_feed() -> None:
    class Shared:
        url = "postgresql://fleet"

    with pytest.raises(AsterismError, match="cannot exchange records with peers"):
        feed_of(Shared())  # type: ignore[arg-type]
    assert Exchange(Fleet(MemoryStore())).peers is not None
    assert Session("a", "a", 0.0, state=ABROAD).reachable(0.0)


async def test_a_changed_priority_reaches_the_other_store() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    after = transitions.prioritise(await laptop.run(run.id), 7, 5.0)
    await laptop.store.commit([PutRun(after, run.revision), PutPriority(run.id, 7)])
    await laptop.sync_with(kitchen)
    theirs = await kitchen.run(run.id)
    assert (theirs.priority, theirs.story[-1].what) == (7, "prioritised")
    await laptop.sync_with(kitchen)
    assert await kitchen.run(run.id) == theirs
