"""The authority of a run after a rollback or among three stores: exactly one store continues it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import COMPLETED, CREATED, PROCESSING, REASSIGNING, Run
from asterism.core.run.session import ENDED
from asterism.core.run.work import KEEP_RULES
from asterism.peers.exchange import Exchange
from asterism.store.protocol import PutCopy, PutSession
from tests.laboratory.simulator import peer_world
from tests.laboratory.simulator.peer_world import copy_of as copied
from tests.peers.exchange_fixtures import Side, three, two


async def put_back(side: Side, what: dict[str, Any]) -> None:
    """Roll back a store; its device starts again with a new session."""
    peer_world.put_back(side.store, what)
    side.exchange = Exchange(side.fleet)
    await rejoined(side)


async def rejoined(side: Side) -> None:
    [first] = [session for session in await side.store.sessions() if session.id == side.session.id]
    side.session = replace(side.session, id=f"{side.session.id}+")
    await side.store.commit([PutSession(first.changed(state=ENDED), first.revision), PutSession(side.session, None)])


async def begun(laptop: Side, kitchen: Side, run: Run) -> None:
    """The kitchen assigns its run to the device of the laptop, which starts it."""
    await kitchen.step(
        run.id, lambda record: transitions.assign(record, laptop.owner, by="kitchen", now=kitchen.store.clock())
    )
    await laptop.sync_with(kitchen)
    await laptop.step(run.id, lambda record: transitions.claim(record, record.grant, laptop.store.clock()))
    await laptop.step(run.id, lambda record: transitions.start(record, record.grant, laptop.store.clock()))
    await laptop.sync_with(kitchen)


async def sync_both(laptop: Side, kitchen: Side) -> None:
    for _ in range(2):
        await laptop.sync_with(kitchen)
        await kitchen.sync_with(laptop)


@pytest.mark.parametrize("keep", KEEP_RULES)
@pytest.mark.parametrize("known", [True, False])
async def test_a_run_that_a_device_had_begun_before_a_rollback_is_assigned_again(keep: str, known: bool) -> None:
    """With and without a copy of the run in the restored file."""
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    old = copied(laptop.store)
    run = await kitchen.create(keep=keep)
    await laptop.sync_with(kitchen)
    if known:
        old = copied(laptop.store)
    await begun(laptop, kitchen, run)
    assert (await kitchen.run(run.id)).status is PROCESSING
    await put_back(laptop, old)
    await sync_both(laptop, kitchen)
    assert (await laptop.run(run.id)).status is (await kitchen.run(run.id)).status is REASSIGNING
    judges = [await side.left_to(run.id) for side in (laptop, kitchen)]
    assert judges == [None, await laptop.id()]
    await laptop.take(run.id)
    await laptop.complete(run.id, 1)
    await sync_both(laptop, kitchen)
    assert (await kitchen.run(run.id)).status is COMPLETED


async def test_it_is_assigned_again_even_if_the_sync_precedes_the_join() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.sync_with(kitchen)
    old = copied(laptop.store)
    await begun(laptop, kitchen, run)
    peer_world.put_back(laptop.store, old)
    laptop.exchange = Exchange(laptop.fleet)
    await sync_both(laptop, kitchen)  # as far as the laptop knows, the session is at work
    assert (await laptop.run(run.id)).status is CREATED
    await rejoined(laptop)
    await sync_both(laptop, kitchen)
    assert (await laptop.run(run.id)).status is (await kitchen.run(run.id)).status is REASSIGNING


async def test_a_run_that_the_device_works_on_again_stays_with_it() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    old = copied(laptop.store)
    await laptop.take(run.id)
    await laptop.sync_with(kitchen)
    await put_back(laptop, old)
    again = await laptop.take(run.id)
    await sync_both(laptop, kitchen)
    assert (await laptop.run(run.id)).grant == again.grant
    await laptop.complete(run.id, 1)
    await sync_both(laptop, kitchen)
    assert (await kitchen.run(run.id)).status is COMPLETED


async def test_a_run_that_was_completed_before_a_rollback_is_done_again() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.sync_with(kitchen)
    old = copied(laptop.store)
    await begun(laptop, kitchen, run)
    await laptop.complete(run.id, "first")
    await laptop.sync_with(kitchen)
    await put_back(laptop, old)
    await sync_both(laptop, kitchen)
    assert (await laptop.left_to(run.id), (await laptop.run(run.id)).status) == (None, CREATED)
    await laptop.take(run.id)
    await laptop.complete(run.id, "second")
    await sync_both(laptop, kitchen)
    record = await kitchen.run(run.id)
    assert {record.output, *(result.output for result in record.superseded)} == {"first", "second"}


async def test_three_stores_agree_on_one_authority() -> None:
    """Two stores were its authority while they were apart, and each received the other's record from a third."""
    sides = laptop, kitchen, garage = await three()
    run = await laptop.create()
    for side, other in itertools.permutations(sides, 2):
        await side.sync_with(other)
    for side, judge in ((laptop, kitchen), (kitchen, garage), (garage, laptop)):
        mine = await side.run(run.id)
        again = mine.changed(revision=mine.revision + 1)
        await side.store.commit([PutCopy(again, mine.revision, await judge.id(), same=False)])
    for side, other in [*itertools.permutations(sides, 2)] * 3:
        await side.sync_with(other)
    assert [await side.left_to(run.id) for side in sides].count(None) == 1
    for side, other in itertools.permutations(sides, 2):
        assert not (await side.sync_with(other)).sent, "they go on telling each other the same"
