"""A run that its judge has forgotten does not stay open for ever in the stores of others."""

from __future__ import annotations

import pytest

from asterism.core.run import transitions
from asterism.core.run.merge import is_forgotten
from asterism.core.run.run import ASSIGNED, COMPLETED, CREATED, FAILED, PROCESSING, Run
from asterism.core.series.machine import Series
from asterism.fleet import retention
from asterism.peers import forgotten_runs, messages
from asterism.peers.exchange import Exchange
from asterism.peers.registry import unknown_runs_key
from asterism.peers.sync_progress import SyncResult
from asterism.store.protocol import PutRegister
from asterism.testing.simulator.peer_stores import copy_of, put_back
from tests.peers.exchange_scenes import FLOW, Direct, Side, three, two

DAY = 86_400.0


async def done_and_forgotten(side: Side, run: Run) -> None:
    await side.take(run.id)
    await side.complete(run.id, 1)
    side.clock.now += 31 * DAY
    assert await retention.prune(side.store, side.store.clock() - 30 * DAY, 500)


async def asked_twice(one: Side, other: Side) -> SyncResult:
    """They meet, and again when it is time to ask again."""
    for _ in range(2):
        for side in (one, other):
            side.clock.now += forgotten_runs.CHECK_INTERVAL
        met = await one.meet(other)
    return met


async def test_a_copy_of_a_run_that_its_judge_has_forgotten_is_closed_and_that_is_told() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.meet(kitchen)
    await done_and_forgotten(kitchen, run)
    laptop.clock.now += 31 * DAY
    met = await asked_twice(laptop, kitchen)
    closed = await laptop.run(run.id)
    why = "its end is unknown: it was left to peer kitchen, which no longer knows it"
    assert (closed.status, closed.error) == (FAILED, why)
    assert met.closed == (f"run {run.id}: {why}",)
    assert (await laptop.notices("failed"))[0].endswith(why)


async def test_the_side_that_is_called_asks_too() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.meet(kitchen)
    await done_and_forgotten(laptop, run)
    await asked_twice(laptop, kitchen)
    assert (await kitchen.run(run.id)).status is FAILED


async def test_what_was_closed_does_not_come_back_to_who_has_forgotten_it() -> None:
    laptop, kitchen, garage = await three()
    await kitchen.meet(garage)
    run = await kitchen.create()
    for other in (laptop, garage):
        await other.meet(kitchen)
    await done_and_forgotten(kitchen, run)
    laptop.clock.now += 31 * DAY
    garage.clock.now += 31 * DAY
    for one in (laptop, garage):
        await asked_twice(one, kitchen)
    for one, other in ((laptop, kitchen), (laptop, garage), (garage, kitchen), (kitchen, laptop), (garage, kitchen)):
        await one.meet(other)
    assert (await laptop.run(run.id)).status is (await garage.run(run.id)).status is FAILED
    assert await kitchen.store.run(run.id) is None
    assert not [one for side in (laptop, kitchen, garage) for one in await side.notices("refused")]


async def test_who_knows_better_how_it_ended_is_believed() -> None:
    laptop, kitchen, garage = await three()
    run = await kitchen.create()
    for other in (laptop, garage):
        await other.meet(kitchen)
    await kitchen.take(run.id)
    await kitchen.complete(run.id, 1)
    await garage.meet(kitchen)
    await laptop.meet(garage)  # it was for the kitchen to say
    assert (await laptop.run(run.id)).status is CREATED
    kitchen.clock.now += 1.0
    await retention.prune(kitchen.store, kitchen.store.clock(), 500)
    await asked_twice(laptop, kitchen)
    assert (await laptop.run(run.id)).status is FAILED
    await laptop.meet(garage)
    assert (await laptop.run(run.id)).status is COMPLETED
    assert (await garage.run(run.id)).status is COMPLETED


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_who_knows_that_it_failed_or_was_cancelled_is_believed(how: str) -> None:
    laptop, kitchen, garage = await three()
    await kitchen.meet(garage)
    run = await kitchen.create()
    await kitchen.take(run.id)
    await laptop.meet(kitchen)
    if how == "cancelled":
        await kitchen.step(run.id, lambda one: transitions.cancel(one, kitchen.store.clock(), "ann"))
    await kitchen.step(
        run.id,
        lambda one: transitions.fail(one, one.grant, "disk is full", FLOW, kitchen.store.clock(), final=True),
    )
    true = await kitchen.run(run.id)
    await garage.meet(kitchen)
    kitchen.clock.now += 1.0
    await retention.prune(kitchen.store, kitchen.store.clock(), 500)
    await asked_twice(laptop, kitchen)
    assert is_forgotten(await laptop.run(run.id))
    for _ in range(2):
        await laptop.meet(garage)
        await garage.meet(kitchen)
    assert (await laptop.run(run.id)).error == (await garage.run(run.id)).error == true.error


@pytest.mark.parametrize("order", ["its owner last", "its owner first"])
async def test_a_run_that_is_worked_on_is_not_closed_because_a_store_between_was_put_back(order: str) -> None:
    """The laptop knows the garage's run through the kitchen, which is put back and meets the laptop at once."""
    laptop, kitchen, garage = [await Side(name).joined() for name in ("laptop", "kitchen", "garage")]
    for one, other in ((laptop, kitchen), (kitchen, laptop), (kitchen, garage), (garage, kitchen)):
        await one.knows(other)
    await garage.create()
    await kitchen.meet(garage)
    await laptop.meet(kitchen)
    old = copy_of(kitchen.store)
    run = await garage.create()
    await garage.take(run.id)
    await kitchen.meet(garage)
    await laptop.meet(kitchen)
    assert (await laptop.run(run.id)).status is PROCESSING
    put_back(kitchen.store, old)
    for side in (laptop, kitchen):
        side.exchange = Exchange(side.fleet)
    if order == "its owner first":
        await kitchen.meet(garage)
    for _ in range(3):  # however long it takes until the owner is met
        met = await asked_twice(laptop, kitchen)
        assert met.closed == ()
    await kitchen.meet(garage)
    await asked_twice(laptop, kitchen)
    assert {(await side.run(run.id)).status for side in (laptop, kitchen, garage)} == {PROCESSING}


async def test_what_was_put_back_says_again_what_it_does_not_know_when_it_has_met_all() -> None:
    laptop, kitchen = await two()
    await kitchen.create()
    await laptop.meet(kitchen)
    run = await kitchen.create()
    await laptop.meet(kitchen)
    old = copy_of(kitchen.store)
    await kitchen.create()
    await laptop.meet(kitchen)
    put_back(kitchen.store, old)
    kitchen.exchange = Exchange(kitchen.fleet)
    await laptop.meet(kitchen)
    assert await kitchen.notices("restored")
    await done_and_forgotten(kitchen, run)
    await asked_twice(laptop, kitchen)
    assert (await laptop.run(run.id)).status is FAILED


async def test_once_is_not_enough_and_a_put_back_in_between_begins_it_anew() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.meet(kitchen)
    await done_and_forgotten(kitchen, run)
    laptop.clock.now += 31 * DAY
    assert (await laptop.meet(kitchen)).closed == ()
    laptop.clock.now += forgotten_runs.CHECK_INTERVAL
    await laptop.exchange._forgotten_runs.reset(await laptop.exchange.peers.get("kitchen"))
    assert (await laptop.meet(kitchen)).closed == ()
    laptop.exchange = Exchange(laptop.fleet)  # asks at once, and that is too early
    assert (await laptop.meet(kitchen)).closed == ()
    laptop.clock.now += forgotten_runs.CHECK_INTERVAL
    assert len((await laptop.meet(kitchen)).closed) == 1


@pytest.mark.parametrize("who", ["laptop", "kitchen"])
async def test_what_was_not_known_before_a_put_back_says_nothing_to_either_side(who: str) -> None:
    laptop, kitchen = await two()
    await laptop.meet(kitchen)
    old = copy_of((kitchen if who == "laptop" else laptop).store)
    for side in (laptop, kitchen):
        await side.create()
    await laptop.meet(kitchen)
    for side, other in ((laptop, kitchen), (kitchen, laptop)):
        if side.name == who:
            await side.store.commit([PutRegister(unknown_runs_key(other.name), {"a run": 1.0}, None)])
        else:
            put_back(side.store, old)
            side.exchange = Exchange(side.fleet)
    await laptop.meet(kitchen)
    side, other = (laptop, kitchen) if who == "laptop" else (kitchen, laptop)
    assert (await side.store.register(unknown_runs_key(other.name))).value == {}


async def test_the_next_of_its_series_is_up() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create(series="alpha")
    await laptop.meet(kitchen)
    taken = Series("alpha").claim(run.id, 1.0)
    await laptop.store.commit([PutRegister("series/alpha", taken.to_json(), None)])  # the laptop had adopted it before
    waits = await laptop.create(series="alpha")
    assert waits.held
    await done_and_forgotten(kitchen, run)
    await asked_twice(laptop, kitchen)
    assert not (await laptop.run(waits.id)).held


async def test_what_is_still_known_stays_open() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    for _ in range(2):
        met = await laptop.meet(kitchen)
        laptop.clock.now += forgotten_runs.CHECK_INTERVAL
    assert met.closed == ()
    assert (await laptop.run(run.id)).status is CREATED


async def test_it_is_asked_now_and_then_and_not_with_every_meeting() -> None:
    laptop, kitchen = await two()
    await kitchen.create()

    async def asked() -> int:
        line = Direct(laptop, kitchen)
        await laptop.exchange.sync("kitchen", line)
        return sum("asks" in one for one in line.said)

    assert await asked() == 2  # about the one copy, and that there is nothing more to ask
    assert await asked() == 0
    laptop.clock.now += forgotten_runs.CHECK_INTERVAL
    assert await asked() == 2


async def test_a_meeting_ends_at_once_if_the_last_changes_are_of_a_run_that_is_forgotten() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.meet(kitchen)
    await laptop.meet(kitchen)
    await done_and_forgotten(laptop, run)
    line = Direct(laptop, kitchen)
    await laptop.exchange.sync("kitchen", line)
    assert sum("asks" not in one for one in line.said) == 1


async def test_all_are_asked_about_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgotten_runs, "MAX_RUNS_ASKED", 2)
    laptop, kitchen = await two()
    mine = [await kitchen.create() for _ in range(5)]
    theirs = [await laptop.create() for _ in range(7)]
    await laptop.meet(kitchen)
    for side in (laptop, kitchen):
        for run in mine if side is kitchen else theirs:
            await side.step(run.id, lambda one: transitions.cancel(one, 5.0, "ann"))
        await retention.prune(side.store, side.store.clock(), 500)
    await asked_twice(laptop, kitchen)
    assert [(await laptop.run(run.id)).status for run in mine] == [FAILED] * 5
    assert [(await kitchen.run(run.id)).status for run in theirs] == [FAILED] * 7


async def test_an_assignment_that_was_never_answered_is_closed_too() -> None:
    laptop, kitchen = await two()
    await laptop.meet(kitchen)
    run = await kitchen.create()
    await kitchen.step(run.id, lambda one: transitions.assign(one, laptop.owner, FLOW, by="kitchen", now=5.0))
    await laptop.meet(kitchen)
    assert (await laptop.run(run.id)).status is ASSIGNED
    await kitchen.step(run.id, lambda one: transitions.cancel(one, 6.0, "ann"))
    await retention.prune(kitchen.store, kitchen.store.clock(), 500)
    await asked_twice(laptop, kitchen)
    closed = await laptop.run(run.id)
    assert closed.status is FAILED
    assert closed.session is None
    assert await laptop.store.check() == []


async def test_a_peer_can_close_only_what_is_left_to_it() -> None:
    laptop, kitchen, garage = await three()
    await garage.meet(laptop)
    own, others = await laptop.create(), await garage.create()
    await laptop.meet(garage)
    await laptop.meet(kitchen)
    message = await laptop.exchange.answer("kitchen", _says(await kitchen.id(), own.id, others.id, laptop))
    assert message["unknown"] == []
    assert (await laptop.run(own.id)).status is (await laptop.run(others.id)).status is CREATED


def _says(store: str, *told: object) -> dict[str, object]:
    *run_ids, victim = told
    assert isinstance(victim, Side)
    return {
        "protocol": messages.PROTOCOL, "store": store, "clock": victim.store.clock(), "feed": "f", "cursor": None,
        "after": 0, "upto": 0, "more": False, "newest": 0, "records": [], "workflows": [], "devices": None, "wants": {},
        "lacks": [], "asks": [], "unknown": run_ids,
    }  # fmt: skip
