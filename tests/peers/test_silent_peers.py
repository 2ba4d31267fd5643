"""Silence of a peer: how it is measured, and which peers are asked for a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asterism.core.run import transitions
from asterism.core.run.run import COMPLETED, CREATED, PROCESSING, Run
from asterism.core.run.session import ABROAD, ENDED
from asterism.core.run.work import Workflow
from asterism.fleet.monitor import Monitor
from asterism.peers.record_decisions import Trust
from asterism.peers.registry import Peer
from asterism.peers.takeover import MIN_OBSERVED_SILENCE, Takeover
from asterism.store.protocol import PutRegister, Write
from asterism.store.store_errors import Conflict
from tests.peers.exchange_fixtures import Side, three, two

HOUR, DAY, YEAR = 3600.0, 86400.0, 365 * 86400.0


async def a_pass(side: Side, takeover: Takeover) -> None:
    await takeover.run_pass(await side.store.sessions())


async def meet_with_a_clock_far_ahead(laptop: Side, kitchen: Side) -> None:
    """Sync while the clock of the laptop's store is a year ahead."""
    right = laptop.store.clock
    laptop.store.clock = lambda: right() + YEAR
    await laptop.sync_with(kitchen)
    laptop.store.clock = right


async def cursor_of(side: Side, peer: str) -> int:
    register = await side.store.register(f"peer/{peer}/cursor")
    assert register is not None
    return int(register.value["number"])


async def passed_over() -> tuple[Side, Side, Run]:
    """The kitchen assigned a run to the garage, which completed it. The laptop ignored that record, since only the
    garage is believed about it. Its own copy is left to the kitchen, so no run is left to the garage."""
    laptop, kitchen, garage = await three()
    for side, other in ((laptop, kitchen), (laptop, garage), (kitchen, garage)):
        await side.sync_with(other)
    run = await kitchen.create()
    await kitchen.step(run.id, lambda record: transitions.assign(record, garage.owner, by="ann", now=1.0))
    await laptop.sync_with(kitchen)
    await garage.sync_with(kitchen)
    await garage.step(run.id, lambda record: transitions.claim(record, record.grant, garage.store.clock()))
    await garage.step(run.id, lambda record: transitions.start(record, record.grant, garage.store.clock()))
    await garage.complete(run.id, {"done": True})
    await garage.sync_with(kitchen)
    await laptop.sync_with(kitchen)
    assert (await kitchen.run(run.id)).status is COMPLETED
    assert not (await laptop.run(run.id)).ended
    assert await laptop.left_to(run.id) == await kitchen.id()
    return laptop, kitchen, run


async def test_ignored_records_are_requested_again_after_a_silence() -> None:
    laptop, kitchen, run = await passed_over()
    takeover = Takeover(laptop.fleet)
    for _ in range(3):
        laptop.clock.now += 2000.0
        kitchen.clock.now += 2000.0
        await laptop.sync_with(kitchen)
        await a_pass(laptop, takeover)
        await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status is COMPLETED


async def test_ignored_records_are_requested_again_after_a_removal() -> None:
    laptop, kitchen, run = await passed_over()
    await laptop.exchange.peers.remove("garage")
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status is COMPLETED


async def test_every_removal_requests_a_replay_of_the_others() -> None:
    laptop, kitchen, garage = await three()
    attic = await Side("attic").joined()
    await laptop.knows(attic)
    await attic.knows(laptop)
    for other in (kitchen, garage, attic):
        await other.create()
        await laptop.sync_with(other)
    takeover = Takeover(laptop.fleet)
    for name in ("kitchen", "garage"):
        assert await cursor_of(laptop, "attic") > 0
        await laptop.exchange.peers.remove(name)
        await a_pass(laptop, takeover)
        assert await cursor_of(laptop, "attic") == 0
        await laptop.sync_with(attic)


async def test_a_failed_replay_request_is_repeated_in_the_next_pass() -> None:
    laptop, kitchen, run = await passed_over()
    takeover = Takeover(laptop.fleet)
    await a_pass(laptop, takeover)
    for side in (laptop, kitchen):
        side.clock.now += HOUR + 10.0
    await laptop.sync_with(kitchen)
    commit = laptop.store.commit

    async def another_process_was_first(writes: Sequence[Write]) -> None:
        if any(isinstance(write, PutRegister) and write.key.endswith("/cursor") for write in writes):
            raise Conflict("register peer/kitchen/cursor")
        await commit(writes)

    laptop.store.commit = another_process_was_first
    await a_pass(laptop, takeover)
    laptop.store.commit = commit
    assert await cursor_of(laptop, "kitchen") > 0
    await a_pass(laptop, takeover)
    assert await cursor_of(laptop, "kitchen") == 0
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status is COMPLETED


async def test_several_monitors_request_one_replay() -> None:
    laptop, kitchen, _ = await passed_over()
    asked = []
    for _ in range(4):
        takeover = Takeover(laptop.fleet)
        for seconds in (10.0, HOUR + 10.0):
            await a_pass(laptop, takeover)
            for side in (laptop, kitchen):
                side.clock.now += seconds
            await laptop.sync_with(kitchen)
        await a_pass(laptop, takeover)
        asked.append(await cursor_of(laptop, "kitchen") == 0)
        await laptop.sync_with(kitchen)
    assert asked == [True, False, False, False]


async def test_replay_requests_because_of_one_peer_are_limited() -> None:
    laptop, kitchen, garage = await three()
    await laptop.fleet.configure(peer_timeout=60.0)
    await kitchen.create()
    takeover = Takeover(laptop.fleet)
    asked = []
    for minute in range(220):
        await laptop.sync_with(kitchen)
        if minute % 3 == 0 and minute < 140:  # and then it is gone for good, perhaps with an ignored record
            await laptop.sync_with(garage)
        laptop.clock.now += 60.0
        kitchen.clock.now += 60.0
        before = await cursor_of(laptop, "kitchen")
        await a_pass(laptop, takeover)
        if await cursor_of(laptop, "kitchen") < before:
            asked.append(minute)
    assert all(len([at for at in asked if first <= at < first + 58]) <= 5 for first in range(220))
    assert asked[-1] >= 138  # a replay is requested for records ignored before it was gone for good


async def test_a_machine_that_is_on_for_a_short_time_each_day_adopts_runs() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.sync_with(kitchen)
    for _ in range(2):
        laptop.clock.now += DAY
        monitor = Monitor(laptop.fleet, "laptop")
        for _ in range(60):
            laptop.clock.now += 10.0
            await laptop.beat()
            await monitor.run_pass()
    assert await laptop.left_to(run.id) is None


async def test_a_new_monitor_adopts_nothing() -> None:
    """The peer may be there: no process here was listening."""
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.sync_with(kitchen)
    laptop.clock.now += DAY
    takeover = Takeover(laptop.fleet)
    for _ in range(5):
        await a_pass(laptop, takeover)
        laptop.clock.now += MIN_OBSERVED_SILENCE / 5 - 1.0
    await a_pass(laptop, takeover)
    assert await laptop.left_to(run.id) is not None
    laptop.clock.now += 10.0
    await a_pass(laptop, takeover)
    assert await laptop.left_to(run.id) is None


async def test_a_peer_with_a_contact_in_the_future_becomes_silent() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await meet_with_a_clock_far_ahead(laptop, kitchen)
    takeover = Takeover(laptop.fleet)
    await a_pass(laptop, takeover)
    laptop.clock.now += HOUR - 10.0  # the length of its silence is unknown: an hour is observed
    await a_pass(laptop, takeover)
    assert await laptop.left_to(run.id) is not None
    laptop.clock.now += 20.0
    await a_pass(laptop, takeover)
    assert await laptop.left_to(run.id) is None
    assert (await laptop.run(run.id)).story[-1].why == "peer kitchen has been silent for 3610 s"


async def test_a_remote_device_with_a_contact_in_the_future_gets_no_work() -> None:
    laptop, kitchen = await two()
    await meet_with_a_clock_far_ahead(laptop, kitchen)
    await laptop.fleet.workflows.add(Workflow("cook", argv=("true",), device="kitchen"))
    await a_pass(laptop, Takeover(laptop.fleet))
    laptop.clock.now += 2.0  # the outlook of a fleet may be a second old
    run = await laptop.fleet.create("cook", {})
    assert (run.status, run.device) == (CREATED, None)
    [known] = [session for session in await laptop.store.sessions(ended=True) if session.device == "kitchen"]
    assert known.state == ENDED
    await laptop.sync_with(kitchen)  # announced again with the right clock
    laptop.clock.now += 2.0
    again = await laptop.fleet.create("cook", {})
    assert again.device == "kitchen"


async def test_a_remote_device_with_a_contact_in_the_future_keeps_its_work() -> None:
    laptop, kitchen = await two()
    run = await kitchen.create()
    await kitchen.take(run.id)
    await meet_with_a_clock_far_ahead(laptop, kitchen)
    monitor = Monitor(laptop.fleet, "laptop")
    for _ in range(20):
        await laptop.beat()
        await monitor.run_pass()
        laptop.clock.now += 10.0
    assert (await laptop.run(run.id)).status is PROCESSING
    [known] = [session for session in await laptop.store.sessions() if session.state == ABROAD]
    assert not known.reachable(laptop.store.clock())


def test_a_contact_in_the_future_does_not_count_for_trust() -> None:
    def heard(at: float | None) -> bool:
        garage = Peer("garage", store="garage-store", heard_at=at)
        return Trust(Peer("kitchen"), [garage], [], 1_000_000.0, HOUR).is_heard("garage-store")

    cases: list[tuple[Any, bool]] = [
        (None, False), (1_000_000.0 - HOUR - 1.0, False), (1_000_000.0 - HOUR, True),
        (1_000_000.0 + 60.0, True), (1_000_000.0 + 61.0, False), (1_000_000.0 + YEAR, False),
    ]  # fmt: skip
    assert [(at, heard(at)) for at, _ in cases] == cases
