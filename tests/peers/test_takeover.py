"""Takeover of the runs of a silent peer, and its return."""

from __future__ import annotations

from asterism.core.run.run import COMPLETED, PROCESSING, REASSIGNING, Run
from asterism.fleet.monitor import Monitor
from asterism.fleet.run_explanation import explain_run
from asterism.peers.takeover import Takeover
from asterism.store.protocol import Query
from tests.peers.exchange_fixtures import Side, three, two

HOUR = 3600.0


async def passes(side: Side, takeover: Takeover, seconds: float) -> None:
    """Run a takeover pass now, and one after so many seconds."""
    await takeover.run_pass(await side.store.sessions())
    side.clock.now += seconds
    await takeover.run_pass(await side.store.sessions())


async def left(**options: object) -> tuple[Side, Side, Run]:
    """A waiting run of the laptop, with a copy in the kitchen."""
    laptop, kitchen = await two()
    run = await laptop.create(**options)
    await laptop.sync_with(kitchen)
    return laptop, kitchen, run


async def test_waiting_runs_of_a_silent_peer_are_offered_here() -> None:
    laptop, kitchen, run = await left()
    takeover = Takeover(kitchen.fleet)
    await passes(kitchen, takeover, HOUR - 10.0)
    assert await kitchen.store.find(Query(offered=True)) == []
    kitchen.clock.now += 20.0
    await takeover.run_pass(await kitchen.store.sessions())
    [record] = await kitchen.store.find(Query(offered=True))
    assert record.id == run.id
    assert record.waiting_since == record.not_before == kitchen.store.clock()
    assert (record.story[-1].what, await kitchen.left_to(run.id)) == ("adopted", None)
    assert record.story[-1].why == "peer laptop has been silent for 3610 s"
    await laptop.sync_with(kitchen)
    assert await laptop.left_to(run.id) == await kitchen.id()


async def test_owned_runs_of_a_silent_peer_are_lost_and_assigned_again() -> None:
    laptop, kitchen, run = await left()
    await laptop.take(run.id)
    await laptop.sync_with(kitchen)
    await passes(kitchen, Takeover(kitchen.fleet), HOUR + 10.0)
    record = await kitchen.run(run.id)
    assert (record.status, record.losses, record.epoch) == (REASSIGNING, 1, 1)
    assert record.previous[-1].detail == "peer laptop has been silent for 3610 s"
    await kitchen.step(run.id, lambda record: record.changed(not_before=0.0, revision=record.revision + 1))
    await kitchen.take(run.id)
    result = await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).device == "kitchen"
    assert "it was assigned again since, and the later assignment wins" in result.lost[0]


async def test_a_clock_jump_adopts_nothing() -> None:
    _, kitchen, run = await left()
    takeover = Takeover(kitchen.fleet)
    await takeover.run_pass(await kitchen.store.sessions())
    own = kitchen.clock.now
    kitchen.store.clock = lambda: 1_000_000.0 + own + 100 * HOUR
    await takeover.run_pass(await kitchen.store.sessions())
    assert await kitchen.left_to(run.id) is not None


async def test_a_peer_that_is_heard_from_keeps_its_runs() -> None:
    laptop, kitchen, run = await left()
    takeover = Takeover(kitchen.fleet)
    for _ in range(5):
        await passes(kitchen, takeover, HOUR / 2)
        await laptop.sync_with(kitchen)
    assert await kitchen.left_to(run.id) == await laptop.id()


async def test_a_request_on_a_run_of_a_silent_peer_does_not_block_its_adoption() -> None:
    laptop, kitchen, run = await left()
    await laptop.take(run.id)
    await laptop.sync_with(kitchen)
    await kitchen.fleet.cancel(run.id)
    assert await kitchen.left_to(run.id) == await laptop.id()
    await passes(kitchen, Takeover(kitchen.fleet), HOUR + 10.0)
    record = await kitchen.run(run.id)
    assert (record.ended, record.cancelled) == (True, True)


async def test_ignored_records_about_a_silent_peer_are_requested_again() -> None:
    """The kitchen sent a record of the garage, which was ignored because only the garage is believed about it."""
    laptop, kitchen, garage = await three()
    run = await garage.create()
    for other in (kitchen, garage):
        await laptop.sync_with(other)
    await garage.sync_with(kitchen)
    await garage.take(run.id)
    await garage.complete(run.id, {"done": True})
    await garage.sync_with(kitchen)
    await laptop.sync_with(kitchen)
    assert not (await laptop.run(run.id)).ended
    await passes(laptop, Takeover(laptop.fleet), HOUR + 10.0)
    kitchen.clock.now = laptop.clock.now
    await laptop.sync_with(kitchen)
    record = await laptop.run(run.id)
    assert (record.status, record.output) == (COMPLETED, {"done": True})


async def test_a_monitor_adopts_copies_only_after_the_timeout() -> None:
    laptop, kitchen, run = await left()
    await laptop.take(run.id)
    await laptop.sync_with(kitchen)
    monitor = Monitor(kitchen.fleet, "kitchen")
    for _ in range(10):
        await kitchen.beat()
        await monitor.run_pass()
        kitchen.clock.now += 25.0
    assert (await kitchen.run(run.id)).status is PROCESSING
    await kitchen.fleet.configure(peer_timeout=100.0)
    for _ in range(10):
        kitchen.clock.now += 25.0
        await kitchen.beat()
        await monitor.run_pass()
    assert (await kitchen.run(run.id)).device != "laptop"


async def test_a_takeover_pass_reads_nothing_in_a_store_without_peers() -> None:
    side = await Side("laptop").joined()
    asked: list[str] = []

    class Counting(Takeover):
        pass

    judges = side.store.judges

    async def counted() -> set[str]:
        asked.append("judges")
        return await judges()  # type: ignore[no-any-return]

    side.store.judges = counted
    takeover = Counting(side.fleet)
    await passes(side, takeover, HOUR)
    assert asked == []
    await side.exchange._open()
    await passes(side, takeover, HOUR)
    assert asked


async def test_why_explains_a_copy() -> None:
    laptop, kitchen, run = await left()
    explanation = await explain_run(kitchen.fleet, run.id)
    assert [reason.kind for reason in explanation.reasons] == ["left"]
    assert "peer laptop manages it" in str(explanation)
    await laptop.take(run.id)
    await laptop.sync_with(kitchen)
    kinds = [reason.kind for reason in (await explain_run(kitchen.fleet, run.id)).reasons]
    assert kinds == ["running", "left"]
    assert [reason.kind for reason in (await explain_run(laptop.fleet, run.id)).reasons] == ["running"]
