"""Ends of runs at a peer: they count from their arrival here, and a failure gives a notice in the original store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import COMPLETED, FAILED, PROCESSING, Run
from asterism.fleet import retention
from asterism.fleet.monitor import WHOLE_PRUNE_INTERVAL, Monitor
from asterism.store.memory import MemoryStore
from asterism.store.sqlite.store import SqliteStore
from tests.async_tests import async_fixture
from tests.peers.exchange_fixtures import Liar, Side, three, two

TODAY = 1.79e9
DAY = 86_400.0
Scene = Callable[[Side], Awaitable[None]]


@async_fixture(params=["memory", "sqlite"])
async def laptop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Side]:
    """A laptop with a correct clock, in a store of each kind."""
    store: Any = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "store.db")
    laptop = Side("laptop", store)
    store.clock = lambda: TODAY + laptop.clock.now
    await laptop.joined()
    await laptop.fleet.configure(keep=3600.0)
    yield laptop
    await store.close()


async def prunes(side: Side) -> None:
    await Monitor(side.fleet, side.name)._prune(side.store.clock())


async def done_at(side: Side, run_id: str) -> None:
    """Let the assigned device complete a run."""
    await side.step(run_id, lambda record: transitions.claim(record, record.grant, side.store.clock()))
    await side.step(run_id, lambda record: transitions.start(record, record.grant, side.store.clock()))
    await side.complete(run_id, {"ok": 1})


async def assigned(laptop: Side, kitchen: Side) -> Run:
    """A run of the laptop for the device of the kitchen."""
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    await laptop.step(
        run.id, lambda record: transitions.assign(record, kitchen.owner, by="laptop", now=laptop.store.clock())
    )
    await laptop.sync_with(kitchen)
    return run


async def test_runs_of_a_peer_whose_clock_is_in_1970_are_kept_as_long_as_others(laptop: Side) -> None:
    kitchen = await Side("kitchen").joined()
    await laptop.knows(kitchen)
    await kitchen.knows(laptop)
    run = await assigned(laptop, kitchen)
    await done_at(kitchen, run.id)
    own = await kitchen.create()  # new to the laptop
    await kitchen.take(own.id)
    await kitchen.complete(own.id)
    await laptop.sync_with(kitchen)
    for _ in range(2):
        await prunes(laptop)
        assert [(await laptop.run(ended.id)).status for ended in (run, own)] == [COMPLETED, COMPLETED]
        laptop.clock.now += 1800.0
    laptop.clock.now += 1800.0
    await prunes(laptop)
    assert [await laptop.store.run(ended.id) for ended in (run, own)] == [None, None]


@pytest.mark.parametrize("when", [0.0, TODAY + 1e9])
@pytest.mark.parametrize("by", ["liar-store", "our own"])
async def test_a_false_end_time_counts_from_its_arrival(laptop: Side, when: float, by: str) -> None:
    await laptop.exchange.peers.add("kitchen")
    run = await laptop.create()
    liar = Liar(laptop)
    await liar.says()
    lie = transitions.give_up(await laptop.run(run.id), when, "bad luck")
    await liar.says(lie, by=await laptop.id() if by == "our own" else by)
    assert (await laptop.run(run.id)).status is FAILED
    await prunes(laptop)
    assert (await laptop.run(run.id)).ended_at == when
    laptop.clock.now += 3599.0
    await liar.says(lie)  # nothing new
    await prunes(laptop)
    assert await laptop.store.run(run.id) is not None
    laptop.clock.now += 2.0
    await prunes(laptop)
    assert await laptop.store.run(run.id) is None


async def test_a_false_clock_keeps_no_run_longer(laptop: Side) -> None:
    await laptop.exchange.peers.add("kitchen")
    run = await laptop.create()
    await laptop.take(run.id)
    await laptop.complete(run.id)
    await Liar(laptop).says(clock=0.0)
    laptop.clock.now += DAY
    await prunes(laptop)
    assert await laptop.store.run(run.id) is None


async def test_a_run_that_continues_and_ends_here_counts_from_its_end_here(laptop: Side) -> None:
    await laptop.exchange.peers.add("kitchen")
    run = await laptop.create()
    liar = Liar(laptop)
    await liar.says()
    mine = await laptop.run(run.id)
    await liar.says(transitions.give_up(mine, 0.0, "bad luck"))
    laptop.clock.now += 3000.0
    again = transitions.take(mine, laptop.owner, laptop.store.clock(), starts=True)
    again = transitions.release(again, again.grant, "released", "", laptop.store.clock())  # a later epoch
    await liar.says(again, by=await laptop.id())
    await laptop.take(run.id)
    await laptop.complete(run.id)
    laptop.clock.now += 3000.0
    await prunes(laptop)
    assert (await laptop.run(run.id)).status is COMPLETED
    laptop.clock.now += WHOLE_PRUNE_INTERVAL + 1.0
    await prunes(laptop)
    assert await laptop.store.run(run.id) is None


# -- notices in the store that created the run -------------------------------------------------------------------------


async def begun_at(side: Side, run_id: str) -> None:
    await side.step(run_id, lambda record: transitions.claim(record, record.grant, side.store.clock()))
    await side.step(run_id, lambda record: transitions.start(record, record.grant, side.store.clock()))


async def failed_at(side: Side, run_id: str) -> None:
    await side.step(
        run_id,
        lambda record: transitions.fail(record, record.grant, "disk is full", side.store.clock(), final=True),
    )


@pytest.mark.parametrize("heard_that_it_began", [True, False])
async def test_a_failure_at_a_peer_gives_a_notice_in_the_original_store(heard_that_it_began: bool) -> None:
    laptop, kitchen, garage = await three()
    run = await assigned(laptop, kitchen)
    await begun_at(kitchen, run.id)
    if heard_that_it_began:
        await laptop.sync_with(kitchen)
        assert (await laptop.run(run.id)).status is PROCESSING
        await garage.sync_with(laptop)
    await failed_at(kitchen, run.id)
    for _ in range(2):
        await laptop.sync_with(kitchen)
        await garage.sync_with(kitchen)
    expected = [f"run {run.id} (transcode) failed: disk is full"]
    assert [(await side.run(run.id)).status for side in (laptop, garage)] == [FAILED, FAILED]
    assert [await side.notices("failed") for side in (laptop, garage)] == [expected, []]
    assert await laptop.store.registers(retention.HANDED) == []


async def test_a_cancelled_or_completed_run_at_a_peer_gives_no_notice() -> None:
    laptop, kitchen = await two()
    first, second = await assigned(laptop, kitchen), await assigned(laptop, kitchen)
    await begun_at(kitchen, first.id)
    await laptop.sync_with(kitchen)
    assert len(await laptop.store.registers(retention.HANDED)) == 1
    await kitchen.complete(first.id)
    await kitchen.step(second.id, lambda record: transitions.cancel(record, kitchen.store.clock(), "bob"))
    await laptop.sync_with(kitchen)
    assert [(await laptop.run(run.id)).status for run in (first, second)] == [COMPLETED, FAILED]
    assert await laptop.notices("failed") == []
    assert await laptop.store.registers(retention.HANDED) == []


async def test_the_notice_of_a_run_that_a_liar_ends_has_our_own_time() -> None:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    run = await laptop.create()
    liar = Liar(laptop)
    await liar.says()
    await liar.says(transitions.give_up(await laptop.run(run.id), 0.0, "bad luck"))
    [notice] = [notice for _, notice in await laptop.store.notices() if notice.kind == "failed"]
    assert (notice.run, notice.at) == (run.id, laptop.store.clock())


async def test_the_register_of_a_handover_is_forgotten_with_its_run() -> None:
    laptop, kitchen = await two()
    run = await assigned(laptop, kitchen)
    await begun_at(kitchen, run.id)
    await laptop.sync_with(kitchen)
    await laptop.step(run.id, lambda record: transitions.lose(record, laptop.store.clock(), "it is silent"))
    await laptop.step(run.id, lambda record: transitions.cancel(record, laptop.store.clock(), "ann"))
    assert len(await laptop.store.registers(retention.HANDED)) == 1
    while await retention.prune(laptop.store, laptop.store.clock() + 1.0, 100):
        pass
    assert await laptop.store.registers(retention.HANDED) == []
