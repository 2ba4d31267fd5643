"""Runs that the series of one store holds, and that another store decides about later."""

from __future__ import annotations

from asterism.core.history import Entry
from asterism.core.series.machine import Series
from asterism.peers.exchange import Exchange
from asterism.store.protocol import PutRegister
from tests.laboratory.simulator import peer_world
from tests.peers.exchange_fixtures import Liar, two


async def test_a_run_held_elsewhere_that_became_ours_is_released_by_our_series() -> None:
    """The kitchen had adopted it while disconnected, and held it behind a run of its own."""
    laptop, _ = await two()
    run = await laptop.create(series="alpha")
    assert not run.held
    entries = (*run.story, Entry(5.0, "adopted", None, "peer laptop was not heard of"), Entry(6.0, "x", None, "y"))
    await Liar(laptop).says(run.changed(held=True, story=entries), by=await laptop.id())
    record = await laptop.run(run.id)
    assert record.story[-1].what == "its turn"
    assert (record.held, await laptop.left_to(run.id)) == (False, None)


async def test_it_waits_in_our_own_series() -> None:
    laptop, _ = await two()
    first = await laptop.create(series="alpha")
    second = await laptop.create(series="alpha")
    record = second.changed(story=(*second.story, Entry(5.0, "adopted", None, "x")))
    series = await laptop.store.register("series/alpha")
    alone = Series("alpha").claim(first.id, 1.0)
    await laptop.store.commit([PutRegister("series/alpha", alone.to_json(), series.revision)])
    await Liar(laptop).says(record, by=await laptop.id())
    assert (await laptop.run(second.id)).held
    assert (await laptop.fleet.ledger.series("alpha")).position(second.id) == 1


async def test_a_run_that_returns_after_a_rollback_joins_its_series() -> None:
    laptop, kitchen = await two()
    await laptop.create()
    await laptop.sync_with(kitchen)
    old = peer_world.copy_of(laptop.store)
    first = await laptop.create(series="alpha")
    second = await laptop.create(series="alpha")
    await laptop.sync_with(kitchen)
    peer_world.put_back(laptop.store, old)
    laptop.exchange = Exchange(laptop.fleet)
    await laptop.sync_with(kitchen)
    held = {run_id: (await laptop.run(run_id)).held for run_id in (first.id, second.id)}
    series = await laptop.fleet.ledger.series("alpha")
    assert held == {run_id: run_id != series.active for run_id in held}
    assert {series.active, *series.queue} == set(held)


async def test_an_unreadable_series_does_not_stop_a_sync() -> None:
    laptop, _ = await two()
    run = await laptop.create(series="alpha")
    series = await laptop.store.register("series/alpha")
    await laptop.store.commit([PutRegister("series/alpha", {"no": "series"}, series.revision)])
    record = run.changed(held=True, story=(*run.story, Entry(5.0, "adopted", None, "x")))
    answer = await Liar(laptop).says(record, by=await laptop.id())
    assert answer["refused"] == 0
    assert (await laptop.run(run.id)).held
