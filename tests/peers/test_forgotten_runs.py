"""A run that its authority has forgotten does not stay open forever in other stores."""

from __future__ import annotations

import pytest

from asterism.core.run import transitions
from asterism.core.run.merge import is_forgotten
from asterism.core.run.run import ASSIGNED, COMPLETED, CREATED, FAILED, PROCESSING, Run
from asterism.fleet import retention
from asterism.peers import forgotten_runs, messages
from asterism.peers.exchange import Exchange, SyncResult
from asterism.peers.registry import unknown_runs_key
from asterism.store.protocol import PutRegister
from tests.laboratory.simulator.peer_world import copy_of, put_back
from tests.peers.exchange_fixtures import Direct, Side, three, two

DAY = 86_400.0


async def done_and_forgotten(side: Side, run: Run) -> None:
    await side.take(run.id)
    await side.complete(run.id, 1)
    side.clock.now += 31 * DAY
    assert await retention.prune(side.store, side.store.clock() - 30 * DAY, 500)


async def asked_twice(asker: Side, other: Side) -> SyncResult:
    """Sync twice, a check interval apart."""
    for _ in range(2):
        for side in (asker, other):
            side.clock.now += forgotten_runs.CHECK_INTERVAL
        result = await asker.sync_with(other)
    return result


async def test_a_copy_of_a_forgotten_run_is_closed_with_a_notice() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.sync_with(kitchen)
    await done_and_forgotten(kitchen, run)
    laptop.clock.now += 31 * DAY
    result = await asked_twice(laptop, kitchen)
    closed = await laptop.run(run.id)
    why = "its end is unknown: it was left to peer kitchen, which no longer knows it"
    assert (closed.status, closed.error) == (FAILED, why)
    assert result.closed == (f"run {run.id}: {why}",)
    assert (await laptop.notices("failed"))[0].endswith(why)


async def test_the_server_asks_about_forgotten_runs_as_well() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    await done_and_forgotten(laptop, run)
    await asked_twice(laptop, kitchen)
    assert (await kitchen.run(run.id)).status is FAILED


async def test_a_closed_copy_does_not_return_to_the_store_that_forgot_it() -> None:
    laptop, kitchen, garage = await three()
    await kitchen.sync_with(garage)
    run = await kitchen.create()
    for other in (laptop, garage):
        await other.sync_with(kitchen)
    await done_and_forgotten(kitchen, run)
    laptop.clock.now += 31 * DAY
    garage.clock.now += 31 * DAY
    for side in (laptop, garage):
        await asked_twice(side, kitchen)
    for side, other in ((laptop, kitchen), (laptop, garage), (garage, kitchen), (kitchen, laptop), (garage, kitchen)):
        await side.sync_with(other)
    assert (await laptop.run(run.id)).status is (await garage.run(run.id)).status is FAILED
    assert await kitchen.store.run(run.id) is None
    assert not [notice for side in (laptop, kitchen, garage) for notice in await side.notices("refused")]


async def test_a_known_end_outranks_a_closed_copy() -> None:
    laptop, kitchen, garage = await three()
    run = await kitchen.create()
    for other in (laptop, garage):
        await other.sync_with(kitchen)
    await kitchen.take(run.id)
    await kitchen.complete(run.id, 1)
    await garage.sync_with(kitchen)
    await laptop.sync_with(garage)  # the kitchen is its authority
    assert (await laptop.run(run.id)).status is CREATED
    kitchen.clock.now += 1.0
    await retention.prune(kitchen.store, kitchen.store.clock(), 500)
    await asked_twice(laptop, kitchen)
    assert (await laptop.run(run.id)).status is FAILED
    await laptop.sync_with(garage)
    assert (await laptop.run(run.id)).status is COMPLETED
    assert (await garage.run(run.id)).status is COMPLETED


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_known_failure_or_cancellation_outranks_a_closed_copy(how: str) -> None:
    laptop, kitchen, garage = await three()
    await kitchen.sync_with(garage)
    run = await kitchen.create()
    await kitchen.take(run.id)
    await laptop.sync_with(kitchen)
    if how == "cancelled":
        await kitchen.step(run.id, lambda record: transitions.cancel(record, kitchen.store.clock(), "ann"))
    await kitchen.step(
        run.id,
        lambda record: transitions.fail(record, record.grant, "disk is full", kitchen.store.clock(), final=True),
    )
    true = await kitchen.run(run.id)
    await garage.sync_with(kitchen)
    kitchen.clock.now += 1.0
    await retention.prune(kitchen.store, kitchen.store.clock(), 500)
    await asked_twice(laptop, kitchen)
    assert is_forgotten(await laptop.run(run.id))
    for _ in range(2):
        await laptop.sync_with(garage)
        await garage.sync_with(kitchen)
    assert (await laptop.run(run.id)).error == (await garage.run(run.id)).error == true.error


@pytest.mark.parametrize("order", ["its owner last", "its owner first"])
async def test_a_running_run_is_not_closed_after_a_rollback_of_a_store_between(order: str) -> None:
    """The laptop knows the garage's run through the kitchen, which is rolled back and syncs with the laptop at once."""
    laptop, kitchen, garage = [await Side(name).joined() for name in ("laptop", "kitchen", "garage")]
    for side, other in ((laptop, kitchen), (kitchen, laptop), (kitchen, garage), (garage, kitchen)):
        await side.knows(other)
    await garage.create()
    await kitchen.sync_with(garage)
    await laptop.sync_with(kitchen)
    old = copy_of(kitchen.store)
    run = await garage.create()
    await garage.take(run.id)
    await kitchen.sync_with(garage)
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status is PROCESSING
    put_back(kitchen.store, old)
    for side in (laptop, kitchen):
        side.exchange = Exchange(side.fleet)
    if order == "its owner first":
        await kitchen.sync_with(garage)
    for _ in range(3):  # however long the owner is absent
        result = await asked_twice(laptop, kitchen)
        assert result.closed == ()
    await kitchen.sync_with(garage)
    await asked_twice(laptop, kitchen)
    assert {(await side.run(run.id)).status for side in (laptop, kitchen, garage)} == {PROCESSING}


async def test_a_rolled_back_store_answers_after_it_has_synced_with_all_peers() -> None:
    laptop, kitchen = await two()
    await kitchen.create()
    await laptop.sync_with(kitchen)
    run = await kitchen.create()
    await laptop.sync_with(kitchen)
    old = copy_of(kitchen.store)
    await kitchen.create()
    await laptop.sync_with(kitchen)
    put_back(kitchen.store, old)
    kitchen.exchange = Exchange(kitchen.fleet)
    await laptop.sync_with(kitchen)
    assert await kitchen.notices("restored")
    await done_and_forgotten(kitchen, run)
    await asked_twice(laptop, kitchen)
    assert (await laptop.run(run.id)).status is FAILED


async def test_a_copy_is_closed_after_two_answers_without_a_rollback_between() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.sync_with(kitchen)
    await done_and_forgotten(kitchen, run)
    laptop.clock.now += 31 * DAY
    assert (await laptop.sync_with(kitchen)).closed == ()
    laptop.clock.now += forgotten_runs.CHECK_INTERVAL
    await laptop.exchange._forgotten_runs.reset(await laptop.exchange.peers.get("kitchen"))
    assert (await laptop.sync_with(kitchen)).closed == ()
    laptop.exchange = Exchange(laptop.fleet)  # checks at once, which is too early
    assert (await laptop.sync_with(kitchen)).closed == ()
    laptop.clock.now += forgotten_runs.CHECK_INTERVAL
    assert len((await laptop.sync_with(kitchen)).closed) == 1


@pytest.mark.parametrize("who", ["laptop", "kitchen"])
async def test_an_answer_before_a_rollback_does_not_count(who: str) -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    old = copy_of((kitchen if who == "laptop" else laptop).store)
    for side in (laptop, kitchen):
        await side.create()
    await laptop.sync_with(kitchen)
    for side, other in ((laptop, kitchen), (kitchen, laptop)):
        if side.name == who:
            await side.store.commit([PutRegister(unknown_runs_key(other.name), {"a run": 1.0}, None)])
        else:
            put_back(side.store, old)
            side.exchange = Exchange(side.fleet)
    await laptop.sync_with(kitchen)
    side, other = (laptop, kitchen) if who == "laptop" else (kitchen, laptop)
    assert (await side.store.register(unknown_runs_key(other.name))).value == {}


async def test_a_copy_of_a_known_run_stays_open() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    for _ in range(2):
        result = await laptop.sync_with(kitchen)
        laptop.clock.now += forgotten_runs.CHECK_INTERVAL
    assert result.closed == ()
    assert (await laptop.run(run.id)).status is CREATED


async def test_forgotten_runs_are_checked_at_an_interval() -> None:
    laptop, kitchen = await two()
    await kitchen.create()

    async def asked() -> int:
        line = Direct(laptop, kitchen)
        await laptop.exchange.sync("kitchen", line)
        return sum("asks" in message for message in line.sent)

    assert await asked() == 2  # the question about the copy, and the empty one
    assert await asked() == 0
    laptop.clock.now += forgotten_runs.CHECK_INTERVAL
    assert await asked() == 2


async def test_a_sync_ends_if_the_last_changes_are_of_a_forgotten_run() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    await laptop.sync_with(kitchen)
    await done_and_forgotten(laptop, run)
    line = Direct(laptop, kitchen)
    await laptop.exchange.sync("kitchen", line)
    assert sum("asks" not in message for message in line.sent) == 1


async def test_any_number_of_copies_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgotten_runs, "MAX_RUNS_ASKED", 2)
    laptop, kitchen = await two()
    mine = [await kitchen.create() for _ in range(5)]
    theirs = [await laptop.create() for _ in range(7)]
    await laptop.sync_with(kitchen)
    for side in (laptop, kitchen):
        for run in mine if side is kitchen else theirs:
            await side.step(run.id, lambda record: transitions.cancel(record, 5.0, "ann"))
        await retention.prune(side.store, side.store.clock(), 500)
    await asked_twice(laptop, kitchen)
    assert [(await laptop.run(run.id)).status for run in mine] == [FAILED] * 5
    assert [(await kitchen.run(run.id)).status for run in theirs] == [FAILED] * 7


async def test_an_unanswered_assignment_is_closed_as_well() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    run = await kitchen.create()
    await kitchen.step(run.id, lambda record: transitions.assign(record, laptop.owner, by="kitchen", now=5.0))
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status is ASSIGNED
    await kitchen.step(run.id, lambda record: transitions.cancel(record, 6.0, "ann"))
    await retention.prune(kitchen.store, kitchen.store.clock(), 500)
    await asked_twice(laptop, kitchen)
    closed = await laptop.run(run.id)
    assert closed.status is FAILED
    assert closed.session is None
    assert await laptop.store.check() == []


async def test_a_peer_can_close_only_copies_left_to_it() -> None:
    laptop, kitchen, garage = await three()
    await garage.sync_with(laptop)
    own, others = await laptop.create(), await garage.create()
    await laptop.sync_with(garage)
    await laptop.sync_with(kitchen)
    message = await laptop.exchange.answer("kitchen", _says(await kitchen.id(), own.id, others.id, laptop))
    assert message["unknown"] == []
    assert (await laptop.run(own.id)).status is (await laptop.run(others.id)).status is CREATED


def _says(store: str, *ids: object) -> dict[str, object]:
    *run_ids, victim = ids
    assert isinstance(victim, Side)
    return {
        "protocol": messages.PROTOCOL, "store": store, "clock": victim.store.clock(), "feed": "f", "cursor": None,
        "after": 0, "upto": 0, "more": False, "newest": 0, "records": [], "devices": None, "wants": {},
        "lacks": [], "asks": [], "unknown": run_ids,
    }  # fmt: skip
