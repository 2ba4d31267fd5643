"""Takeover of the runs of a silent peer, and its return."""

from __future__ import annotations

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import COMPLETED, PROCESSING, REASSIGNING, Run
from asterism.fleet.monitor import Monitor
from asterism.fleet.run_explanation import explain_run
from asterism.peers.record_decisions import BatchDecisions
from asterism.peers.takeover import Takeover
from asterism.store.protocol import PutRegister, Query, Write
from tests.peers.exchange_fixtures import FLOW, Side, three, two

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


async def test_adopted_held_runs_join_the_series_here() -> None:
    laptop, kitchen = await two()
    first, second = await laptop.create(series="a"), await laptop.create(series="a")
    await laptop.sync_with(kitchen)
    own = await kitchen.create(series="a")
    await passes(kitchen, Takeover(kitchen.fleet), HOUR + 10.0)
    series = await kitchen.fleet.ledger.series("a")
    assert (series.active, series.queue) == (own.id, (first.id, second.id))
    assert (await kitchen.run(first.id)).held
    await kitchen.fleet.cancel(own.id)
    assert (await kitchen.fleet.ledger.series("a")).active == first.id
    assert not (await kitchen.run(first.id)).held
    assert await kitchen.store.check() == []


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


async def test_an_unreadable_series_blocks_the_adoption_of_its_runs() -> None:
    laptop, kitchen = await two()
    run = await laptop.create(series="a")
    await laptop.sync_with(kitchen)
    await kitchen.store.commit([PutRegister("series/a", {"nonsense": 1}, None)])
    await passes(kitchen, Takeover(kitchen.fleet), HOUR + 10.0)
    assert await kitchen.left_to(run.id) == await laptop.id()
    assert transitions.cancel(await kitchen.run(run.id), 1.0, "ann").ended
    assert FLOW.name == run.workflow


async def each_waits_for_the_other() -> None:
    """Two stores each run one run of a series; each adopts the other's run and holds it behind its own."""
    laptop, kitchen = await two()
    runs = {}
    for side in (laptop, kitchen):
        runs[side.name] = (await side.create(series="a")).id
        await side.take(runs[side.name])
    await laptop.sync_with(kitchen)
    for side in (laptop, kitchen):
        await passes(side, Takeover(side.fleet), HOUR + 10.0)
        await side.store.heartbeat(side.session.id, {}, [])
    assert (await laptop.run(runs["kitchen"])).held
    assert (await kitchen.run(runs["laptop"])).held
    for _ in range(2):
        await laptop.sync_with(kitchen)
    held = {name: (await laptop.run(run_id)).held for name, run_id in runs.items()}
    assert sorted(held.values()) == [False, True], "each store waits for the run that the other one holds"
    for side in (laptop, kitchen):
        assert await side.store.check() == []


async def test_series_of_two_stores_do_not_wait_for_each_other() -> None:
    await each_waits_for_the_other()


async def test_series_that_wait_for_each_other_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = BatchDecisions._leave_series

    async def only_at_the_end(self: BatchDecisions, run: Run, left_to: str | None) -> list[Write]:
        return await leaving(self, run, left_to) if run.ended else []

    monkeypatch.setattr(BatchDecisions, "_leave_series", only_at_the_end)
    with pytest.raises(AssertionError, match="each store waits"):
        await each_waits_for_the_other()
