"""Absent peers, slow clocks and bad records: none of them loses a run or stops a monitor."""

from __future__ import annotations

import pytest

from asterism.core.run.run import ASSIGNED, COMPLETED, CREATED, FAILED, REASSIGNING
from asterism.core.run.session import ABROAD, ENDED, Session
from asterism.core.run.work import Workflow
from asterism.fleet.monitor import Monitor
from asterism.fleet.run_explanation import explain_run
from asterism.peers import remote_devices
from asterism.peers.registry import Peer, largest_clock_lag
from asterism.store.protocol import PutSession
from tests.peers.exchange_fixtures import Side, three, two

COOK = Workflow("cook", argv=("true",), device="kitchen")
DAY = 86_400.0


async def watches(side: Side, seconds: float, monitor: Monitor | None = None, every: float = 5.0) -> Monitor:
    monitor = monitor or Monitor(side.fleet, side.name)
    for _ in range(int(seconds / every)):
        side.clock.now += every
        await side.beat()
        await monitor.run_pass()
    return monitor


# -- an absent peer ----------------------------------------------------------------------------------------------------


async def test_a_run_for_a_suspended_remote_device_waits() -> None:
    laptop, kitchen = await two()
    [session] = [session for session in await kitchen.store.sessions() if session.device == "kitchen"]
    changed = session.changed(profile={**session.profile, "suspended": "its disk is full"})
    await kitchen.store.commit([PutSession(changed, session.revision)])
    await laptop.sync_with(kitchen)
    laptop.clock.now += 1000
    await laptop.fleet.workflows.add(COOK)
    run = await laptop.fleet.create("cook", {})
    await watches(laptop, COOK.no_device_timeout + 20)
    assert (await laptop.run(run.id)).status is CREATED


async def test_a_run_for_an_absent_remote_device_waits() -> None:
    """For days: the device is still known."""
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    laptop.clock.now += 1000  # no sync with the kitchen for a while
    await laptop.fleet.workflows.add(COOK)
    run = await laptop.fleet.create("cook", {})
    assert run.status is CREATED
    monitor = await watches(laptop, 2000)
    await watches(laptop, 3 * DAY, monitor, every=20.0 * 60)
    assert (await laptop.run(run.id)).status is CREATED
    assert "the run waits until that peer is met" in str(await explain_run(laptop.fleet, run.id))
    kitchen.clock.now = laptop.clock.now
    await kitchen.beat()
    await laptop.sync_with(kitchen)
    await watches(laptop, 20, monitor)
    assert (await laptop.run(run.id)).device == "kitchen"


async def test_a_run_for_an_absent_remote_device_is_given_up_after_the_removal() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    laptop.clock.now += 1000
    await laptop.fleet.workflows.add(COOK)
    run = await laptop.fleet.create("cook", {})
    await laptop.exchange.peers.remove("kitchen")
    await watches(laptop, COOK.no_device_timeout + 20)
    assert (await laptop.run(run.id)).status is FAILED


async def test_a_run_that_no_remote_device_can_do_is_given_up() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    laptop.clock.now += 1000
    await laptop.fleet.workflows.add(Workflow("draw", argv=("true",), needs=frozenset({"gpu"})))
    run = await laptop.fleet.create("draw", {})
    await watches(laptop, COOK.no_device_timeout + 20)
    assert (await laptop.run(run.id)).status is FAILED


async def test_an_unanswered_assignment_to_a_peer_is_not_a_loss() -> None:
    """More of them than the workflow allows losses: the run still waits for the peer."""
    laptop, kitchen = await two()
    await laptop.fleet.configure(peer_timeout=60.0)
    await laptop.fleet.workflows.add(COOK)
    await laptop.sync_with(kitchen)
    run = await laptop.fleet.create("cook", {})
    assert run.status is ASSIGNED
    monitor = Monitor(laptop.fleet, "laptop")
    taken_back = 0
    for _ in range(COOK.losses + 2):
        await watches(laptop, 90, monitor)
        taken_back += (await laptop.run(run.id)).status is REASSIGNING
        kitchen.clock.now = laptop.clock.now
        await kitchen.beat()
        await remote_devices.store_announcement(
            laptop.store,
            await laptop.exchange.peers.get("kitchen"),
            await remote_devices.announced_devices(kitchen.store, await kitchen.exchange.peers.get("laptop")),
        )
        await watches(laptop, 20, monitor)
    record = await laptop.run(run.id)
    assert taken_back == COOK.losses + 2
    assert (record.losses, record.ended) == (0, False)


async def test_an_assignment_to_a_device_that_is_no_longer_announced_is_not_a_loss() -> None:
    laptop, kitchen = await two()
    await laptop.fleet.workflows.add(COOK)
    await laptop.sync_with(kitchen)
    run = await laptop.fleet.create("cook", {})
    await remote_devices.store_announcement(laptop.store, await laptop.exchange.peers.get("kitchen"), [])
    await watches(laptop, 10)
    record = await laptop.run(run.id)
    assert (record.status, record.losses) == (REASSIGNING, 0)


async def test_a_new_monitor_keeps_the_answer_time_of_a_peer() -> None:
    laptop, kitchen = await two()
    await laptop.fleet.workflows.add(COOK)
    await laptop.sync_with(kitchen)
    run = await laptop.fleet.create("cook", {})
    await watches(laptop, 10 * COOK.assignment_timeout)
    record = await laptop.run(run.id)
    assert (record.status, record.epoch) == (ASSIGNED, 1)


async def test_a_device_of_a_long_absent_peer_may_move_to_another_store() -> None:
    laptop, kitchen, garage = await three()
    await laptop.sync_with(kitchen)
    await garage.store.commit([PutSession(Session("kitchen-9", "kitchen", 0.0, host="garage.local"), None)])
    await laptop.sync_with(garage)
    assert await laptop.notices("impostor")
    for side in (laptop, garage):
        side.clock.now += 2 * remote_devices.NAME_RESERVED_FOR
    await garage.store.heartbeat("kitchen-9", {}, [])
    await laptop.sync_with(garage)
    [there] = [session for session in await laptop.store.sessions() if session.id == "kitchen-9"]
    assert there.state == ABROAD


@pytest.mark.long
async def test_a_gone_own_device_is_still_ended() -> None:
    laptop, _ = await two()
    await laptop.store.commit([PutSession(Session("old-1", "old", 0.0), None)])
    await watches(laptop, 2 * DAY, every=20.0)
    assert {session.id: session.state for session in await laptop.store.sessions(ended=True)}["old-1"] == ENDED


# -- slow clocks -------------------------------------------------------------------------------------------------------


async def test_records_of_a_peer_with_a_slow_clock_are_ingested_and_kept() -> None:
    laptop, kitchen = await two(skew=-2 * DAY)
    await laptop.fleet.configure(keep=3600.0)
    run = await kitchen.create()
    await kitchen.take(run.id)
    await kitchen.complete(run.id, 1)
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status is COMPLETED
    monitor = await watches(laptop, 1800)
    assert (await laptop.run(run.id)).status is COMPLETED
    await watches(laptop, 3600, monitor)
    assert await laptop.store.run(run.id) is None


def test_the_slowest_of_several_clocks_counts() -> None:
    assert largest_clock_lag([]) == largest_clock_lag([Peer("a"), Peer("b", skew=DAY)]) == 0.0
    assert largest_clock_lag([Peer("a", skew=-DAY), Peer("b", skew=5.0)]) == DAY
