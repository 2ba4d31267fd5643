"""The storage quota of a peer: records beyond it stay with the sender until there is room."""

from __future__ import annotations

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.peers.quota import Quota
from asterism.store.protocol import Usage, feed_of
from tests.peers.exchange_fixtures import FLOW, Liar, Side, two


async def used(side: Side, other: Side) -> Usage:
    return await feed_of(side.store).usage(await other.id())


async def known(side: Side, runs: list[Run]) -> list[bool]:
    return [await side.store.run(run.id) is not None for run in runs]


async def test_records_beyond_the_quota_arrive_when_there_is_room() -> None:
    laptop, kitchen = await two()
    await kitchen.fleet.configure(peer_runs=2)
    runs = [await laptop.create() for _ in range(3)]
    result = await laptop.sync_with(kitchen)
    assert await known(kitchen, runs) == [True, True, False]
    assert result.refused_there[0].startswith("peer laptop has used its quota of 2 runs in this store")
    for _ in range(3):
        await laptop.sync_with(kitchen)
    assert len([one for one in await kitchen.notices("refused") if "quota of 2 runs" in one]) == 1
    await kitchen.fleet.configure(peer_runs=3)
    await laptop.sync_with(kitchen)
    assert await known(kitchen, runs) == [True, True, True]
    assert (await used(kitchen, laptop)).runs == 3


async def test_room_from_forgotten_runs_is_used() -> None:
    laptop, kitchen = await two()
    await kitchen.fleet.configure(peer_runs=1, keep=50)
    first, second = [await laptop.create() for _ in range(2)]
    await laptop.take(first.id)
    await laptop.complete(first.id)
    await laptop.sync_with(kitchen)
    assert await known(kitchen, [first, second]) != [True, True]
    for side in (laptop, kitchen):
        side.clock.now += 100.0
    assert await kitchen.store.prune(kitchen.store.clock() - 50, 10) == 1
    assert (await used(kitchen, laptop)) == Usage()
    await laptop.sync_with(kitchen)
    assert await known(kitchen, [second]) == [True]


async def test_a_full_quota_does_not_delay_the_rest_of_a_sync() -> None:
    """Results of our own runs and other news still arrive."""
    laptop, kitchen = await two()
    mine = await kitchen.create()
    await laptop.sync_with(kitchen)
    await kitchen.fleet.configure(peer_runs=0)
    theirs = await laptop.create()
    await laptop.take(mine.id)
    await laptop.complete(mine.id, {"soup": "hot"})
    await laptop.sync_with(kitchen)
    assert await known(kitchen, [theirs]) == [False]
    assert (await kitchen.run(mine.id)).output == {"soup": "hot"}
    assert await used(kitchen, laptop) == Usage()


async def test_records_and_blobs_have_separate_limits() -> None:
    laptop, kitchen = await two()
    await kitchen.fleet.configure(peer_bytes=6000, peer_blobs=1000)
    await laptop.fleet.workflows.add(FLOW)
    long = await laptop.create(given={"text": "x" * 5000})
    longer = await laptop.create(given={"text": "y" * 5000})
    result = await laptop.sync_with(kitchen)
    assert await known(kitchen, [long, longer]) == [True, False]
    assert "bytes of records" in result.refused_there[0]
    await kitchen.fleet.configure(peer_bytes=1_000_000)
    await laptop.fleet.configure(large=100)
    large = [await laptop.fleet.create(FLOW, {"text": letter * 800}, device="nobody") for letter in "ab"]
    result = await laptop.sync_with(kitchen)
    assert await known(kitchen, large) == [True, False]
    assert "bytes of large inputs and outputs" in result.refused_there[0]
    assert (await used(kitchen, laptop)).blobs <= 1000
    blob = (await laptop.run(large[1].id)).input["$blob"]
    assert await kitchen.store.blob(blob) is None


async def test_records_of_other_stores_are_charged_to_the_sender() -> None:
    laptop = await Side("laptop").joined()
    await laptop.knows(Side("kitchen"))
    await laptop.fleet.configure(peer_runs=3)
    liar = Liar(laptop)
    own = await laptop.id()
    for number in range(6):
        run = transitions.create(f"junk-{number}", FLOW, {}, by="liar", now=5.0)
        await liar.says(run, by=own if number % 2 else "somebody else")
    assert sum([await laptop.store.run(f"junk-{number}") is not None for number in range(6)]) == 3


async def test_the_growth_of_a_record_is_charged() -> None:
    laptop = await Side("laptop").joined()
    await laptop.knows(Side("kitchen"))
    await laptop.fleet.configure(peer_bytes=3000)
    liar = Liar(laptop)
    run = transitions.create("grows", FLOW, {}, by="liar", now=5.0)
    await liar.says(run)
    grown = transitions.pause(run, 6.0, "liar", "x" * 5000)
    answer = await liar.says(grown)
    assert answer["refused"] == 1
    assert await laptop.run("grows") == run


async def test_without_the_quota_a_peer_stores_any_amount() -> None:
    """Ablation of the quota."""
    laptop, kitchen = await two()
    await kitchen.fleet.configure(peer_runs=1)
    real = Quota.reserve
    Quota.reserve = lambda self, cost: None  # type: ignore[method-assign, assignment]
    try:
        runs = [await laptop.create() for _ in range(4)]
        await laptop.sync_with(kitchen)
        assert all(await known(kitchen, runs))
    finally:
        Quota.reserve = real  # type: ignore[method-assign]
