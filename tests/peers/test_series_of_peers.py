"""Runs of a series in stores that exchange records: each store starts them one at a time, as far as it knows."""

from __future__ import annotations

from asterism.core.limits import series_limit
from asterism.fleet.stored_limits import read_stored_limits
from tests.peers.exchange_fixtures import Side, two

SERIES = {series_limit("alpha"): 1}


async def has_turn(side: Side) -> bool:
    return not (await read_stored_limits(side.store)).book(side.store.clock()).shortages(SERIES)


async def test_a_run_that_another_store_executes_holds_its_series_here() -> None:
    laptop, kitchen = await two()
    run = await laptop.create(series="alpha")
    await laptop.take(run.id)
    assert await has_turn(kitchen)
    await laptop.sync_with(kitchen)
    assert not await has_turn(kitchen)
    await laptop.complete(run.id)
    await laptop.sync_with(kitchen)
    assert await has_turn(kitchen)


async def test_a_copy_that_waits_elsewhere_does_not_hold_up_the_series_here() -> None:
    laptop, kitchen = await two()
    await laptop.create(series="alpha")
    await laptop.sync_with(kitchen)
    own = await kitchen.create(series="alpha")
    stored = await read_stored_limits(kitchen.store)
    [first] = stored.book(1.0).in_turn(group for group in stored.groups if group.waiting)
    assert first.first == own.id
