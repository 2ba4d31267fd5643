"""Membership: one device per name that is alive; refusals, replacement, and the runs of an earlier session."""

from __future__ import annotations

import asyncio
import re

import pytest

from asterism.core.errors import AsterismError
from asterism.core.record import replace
from asterism.fleet.device.agent import DeviceReplaced
from asterism.fleet.device.membership import DeviceNameTaken
from tests.fleet.fleet_scenes import WORK, Device, Stage

pytestmark = pytest.mark.virtual_time

TIGHT = replace(WORK, name="tight", heartbeat=3.0, heartbeat_timeout=10.0)


async def test_a_device_that_was_replaced_stops_its_work_and_says_so(stage: Stage) -> None:
    old = await stage.device("kitchen", host="one")
    run = await stage.person.create(WORK)
    await stage.at_work(old, run)
    new = await stage.device("kitchen", host="two", replace=True)
    with pytest.raises(DeviceReplaced, match="another device has taken the name 'kitchen'"):
        await old.task
    assert not old.hands.busy
    assert (await stage.read(run)).session == old.session, "its grants run out by the clock"
    assert not new.hands.begun
    [notice] = await stage.notices("replaced")
    assert notice.message == f"device kitchen on {stage.host('one')} was replaced by one on {stage.host('two')}"


async def test_a_new_incarnation_inherits_nothing_and_the_work_of_the_old_one_is_free_at_once(stage: Stage) -> None:
    old = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(old, run)
    await old.crash()
    new = await stage.device("kitchen")
    assert new.presence.strays == [new.session], "it ends what was left running, but not its own"
    await asyncio.sleep(20.0)
    assert new.hands.begun == []
    monitor = stage.monitor()
    await monitor.run_pass()
    await asyncio.sleep(60.0)
    await monitor.run_pass()
    await stage.until(lambda: new.hands.busy)
    stored = await stage.read(run)
    assert (stored.epoch, stored.previous[0].detail) == (2, "kitchen is gone")


async def test_of_two_devices_with_one_name_the_second_is_refused(stage: Stage) -> None:
    await stage.device("kitchen", host="one")
    known = re.escape(f"a device 'kitchen' is joined from {stage.host('one')} and was heard of 0 s ago")
    with pytest.raises(DeviceNameTaken, match=known):
        await stage.device("kitchen", host="two")
    attic = Device(stage, "attic")
    attic.presence.free = False
    with pytest.raises(DeviceNameTaken, match="is running on this machine already"):
        await attic.task


@pytest.mark.virtual_time(seeds=5)
async def test_two_devices_that_want_one_name_at_once_are_one_device(stage: Stage) -> None:
    rivals = [Device(stage, "kitchen", host=f"host-{number}") for number in range(5)]
    stage.devices += rivals
    await asyncio.sleep(5.0)
    refused = [rival for rival in rivals if rival.task.done()]
    assert len(refused) == 4
    assert all(isinstance(rival.task.exception(), DeviceNameTaken) for rival in refused)


async def test_a_silent_device_of_this_name_is_replaced_without_being_asked_to(stage: Stage) -> None:
    old = await stage.device("kitchen", host="one")
    await old.crash()
    await asyncio.sleep(91.0)
    await stage.device("kitchen", host="two")
    states = {session.id: session.state for session in await stage.store.sessions(ended=True)}
    assert states[old.session] == "replaced"


async def test_a_device_joins_although_the_answer_gets_lost_or_the_store_is_out_of_reach_for_a_while(
    stage: Stage,
) -> None:
    kitchen = Device(stage, "kitchen")
    stage.devices.append(kitchen)
    kitchen.line.loses["commit"] = 2
    kitchen.line.drops["register"] = 5
    await asyncio.wait_for(kitchen.agent.joined.wait(), 30.0)
    assert len(await stage.store.sessions()) == 1


@pytest.mark.store_only("the answer to its own commit is lost")
async def test_a_device_whose_name_is_taken_while_it_joins_gives_way(stage: Stage) -> None:
    """The answer to its entry was lost, and another device took the name before it looked again."""
    late = Device(stage, "kitchen", host="one")
    stage.devices.append(late)
    late.line.loses["commit"] = 5
    await stage.until(lambda: stage.store._sessions)
    other = await stage.device("kitchen", host="two", replace=True)
    with pytest.raises((DeviceNameTaken, DeviceReplaced)):
        await asyncio.wait_for(late.task, 300.0)
    assert not other.task.done()


async def test_a_device_counts_from_before_it_asked_to_join(stage: Stage) -> None:
    """The store may have heard of it as long ago as that: it begins nothing before it is heard of again."""
    await stage.device("hub", slots=0)
    kitchen = Device(stage, "kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    stage.devices.append(kitchen)
    kitchen.line.slow["commit"] = 9.0
    kitchen.line.drops["heartbeat"] = 3
    await stage.until(lambda: kitchen.session in stage.store._sessions)
    await kitchen.agent.joined.wait()
    await asyncio.sleep(0.1)
    assert stage.store._sessions[kitchen.session].beat_at < 1_000_001.0
    run = await stage.person.create(TIGHT)
    await stage.at_work(kitchen, run)
    assert stage.store._sessions[kitchen.session].beat_at > 1_000_009.0


async def test_a_device_that_would_do_nothing_but_beat_is_refused(stage: Stage) -> None:
    with pytest.raises(AsterismError, match=r"heartbeat must be at least 0\.1 s, not 0\.05 s"):
        await stage.device("laptop", heartbeat=0.05, heartbeat_timeout=90.0)


async def test_a_device_tries_to_join_about_once_a_second_while_the_store_is_unavailable(stage: Stage) -> None:
    kitchen = Device(stage, "kitchen")
    stage.devices.append(kitchen)
    kitchen.line.down = True
    await asyncio.sleep(30.0)
    assert 20 <= kitchen.line.asked["register"] <= 60  # pauses of 0.5 to 1.5 s, so that devices do not ask together
    kitchen.line.down = False
    await asyncio.wait_for(kitchen.agent.joined.wait(), 2.0)
