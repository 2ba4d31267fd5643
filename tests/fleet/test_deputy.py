"""A coordinator that dies: its own runs are free after their timeout and one pass, since its deputy has observed it."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.record import replace
from asterism.core.run.work import Workflow
from asterism.fleet.coordinator import JITTER
from asterism.fleet.monitor import Monitor
from asterism.fleet.settings import COORDINATOR, DEPUTY
from asterism.store.protocol import PutRegister
from tests.fleet.fleet_scenes import WORK, Device, Stage
from tests.long_tests import rest_long

pytestmark = pytest.mark.virtual_time

EVERY = 5.0
PASS = EVERY * (1.0 + JITTER)
"""The longest time between two passes."""

SLOW = replace(WORK, name="slow", heartbeat=30.0, heartbeat_timeout=90.0)
BRISK = replace(WORK, name="brisk", heartbeat=2.0, heartbeat_timeout=6.0)


def bound(flow: Workflow) -> float:
    """From the death of a device to the reassignment of its run."""
    return flow.heartbeat_timeout + PASS + EVERY / 10


async def seconds_until_free(stage: Stage, flow: Workflow, wait: float, *names: str) -> float:
    """The coordinator takes a run and dies ``wait`` seconds after; how long it takes until another begins it."""
    hub = await stage.device("hub", monitor_every=EVERY)
    await stage.until(lambda: hub.agent._coordinator.elected)
    others = [await stage.device(name, monitor_every=EVERY) for name in names]
    await asyncio.sleep(200.0)  # the deputy has been there for a while
    run = await stage.person.create(flow)  # the coordinator has the best rank, and so the best score
    await stage.at_work(hub, run)
    await asyncio.sleep(wait)
    died = stage.now()
    await hub.crash()
    await stage.until(lambda: any(run.id in other.hands.busy for other in others))
    assert (await stage.read(run)).losses == 1
    return stage.now() - died


@pytest.mark.parametrize("flow", [SLOW, BRISK], ids=["90 s", "6 s"])
@pytest.mark.parametrize("wait", rest_long([13.3, 0.0, 1.7, 29.9], 1))
@pytest.mark.parametrize("names", [("attic",), ("attic", "cellar", "shed")], ids=["two", "four"])
async def test_the_runs_of_a_dead_coordinator_are_free_after_their_own_timeout_and_a_pass(
    stage: Stage, flow: Workflow, wait: float, names: tuple[str, ...]
) -> None:
    took = await seconds_until_free(stage, flow, wait, *names)
    assert took <= bound(flow) + 0.1, f"{took:.1f} s"


@pytest.mark.parametrize(("flow", "wait"), [(SLOW, 13.3), (BRISK, 1.7)], ids=["slow", "brisk"])
@pytest.mark.long
async def test_without_a_deputy_they_wait_for_the_lease_and_another_timeout(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, flow: Workflow, wait: float
) -> None:
    """The ablation: as it was."""

    async def nothing(self: Monitor, coordinator: str | None) -> None:
        self.due_in = float("inf")

    monkeypatch.setattr(Monitor, "run_deputy_pass", nothing)
    assert await seconds_until_free(stage, flow, wait, "attic") > bound(flow)


def roles(devices: list[Device]) -> list[tuple[bool, bool]]:
    return [(device.agent._coordinator.elected, device.agent._coordinator.deputy.elected) for device in devices]


async def test_there_is_one_coordinator_and_one_deputy_and_each_has_one_role(stage: Stage) -> None:
    devices = [await stage.device(name, monitor_every=EVERY) for name in ("a", "b", "c")]
    await asyncio.sleep(60.0)
    assert sorted(roles(devices)) == [(False, False), (False, True), (True, False)]
    chief = next(device for device in devices if device.agent._coordinator.elected)
    await chief.crash()
    await asyncio.sleep(60.0)
    left = [device for device in devices if device is not chief]
    assert sorted(roles(left)) == [(False, True), (True, False)]


async def test_a_deputy_leaves_lost_runs_to_a_living_coordinator(stage: Stage) -> None:
    for name in ("hub", "deputy"):
        await stage.device(name, monitor_every=EVERY, slots=0)
    await asyncio.sleep(200.0)
    hub, deputy = stage.devices
    assert (hub.agent._coordinator.elected, deputy.agent._coordinator.deputy.elected) == (True, True)
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(SLOW)
    await stage.at_work(kitchen, run)
    commits = deputy.line.asked["commit"]
    died = stage.now()
    await kitchen.crash()
    await stage.reaches(run, "reassigning")
    assert stage.now() - died <= bound(SLOW) + 0.1, "the coordinator looks just in time, too"
    assert deputy.line.asked["commit"] - commits <= (stage.now() - died) / (EVERY * (1 - JITTER)) + 1, "its lease"


async def test_a_deputy_acts_for_a_coordinator_whose_monitor_is_stuck(stage: Stage) -> None:
    for name in ("hub", "deputy"):
        await stage.device(name, monitor_every=EVERY, slots=0)
    await asyncio.sleep(200.0)
    hub = stage.devices[0]

    async def stuck() -> None:
        """It stays elected and does nothing."""

    hub.agent._coordinator.monitor.watch = stuck  # type: ignore[method-assign]
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(SLOW)
    await stage.at_work(kitchen, run)
    died = stage.now()
    await kitchen.crash()
    await stage.reaches(run, "reassigning")
    assert hub.agent._coordinator.elected
    assert stage.now() - died <= bound(SLOW) + 2.5 * EVERY + 0.1


async def test_a_monitor_that_saw_something_coming_does_not_hurry_when_the_store_is_out_of_reach(stage: Stage) -> None:
    hub = await stage.device("hub", monitor_every=EVERY, slots=0)
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(replace(BRISK, heartbeat=0.5, heartbeat_timeout=1.0))
    await stage.at_work(kitchen, run)
    await stage.until(lambda: hub.agent._coordinator.monitor.due_in < 2.0)
    hub.line.down = True
    asked = hub.line.asked["register"]
    await asyncio.sleep(100.0)
    passes = 100.0 / (EVERY * (1 - JITTER)) + 2
    assert hub.line.asked["register"] - asked <= 2 * passes, "the watch and the telling of people"


async def test_the_lease_is_a_setting_of_the_fleet_and_three_passes_at_least(stage: Stage) -> None:
    await stage.person.configure(lease=60.0)
    await stage.device("hub", monitor_every=EVERY)
    await asyncio.sleep(1.0)
    register = await stage.store.register("coordinator")
    assert register is not None
    assert register.value["lease"] == 60.0
    await stage.person.configure(lease=1.0)
    await asyncio.sleep(20.0)
    register = await stage.store.register("coordinator")
    assert register is not None
    assert register.value["lease"] == 3 * EVERY


DAMAGED = [
    7,
    "x",
    [],
    {},
    [[1]],
    {"session": 1},
    {"device": "a", "session": "b", "epoch": "c", "until": 1, "lease": 1},
    {"device": "a", "session": "b", "epoch": 1, "until": 1e18, "lease": 1e18},
    {"device": "a", "session": "b", "epoch": 1, "until": 10**400, "lease": 30},
    {"device": "a", "session": "b", "epoch": 1, "until": 1, "lease": 10**400},
    {"device": "a", "session": "b", "epoch": 10**400, "until": 1, "lease": 30},
    {"device": "a", "session": "b", "epoch": -5, "until": 1, "lease": 30},
]


@pytest.mark.parametrize("value", DAMAGED, ids=lambda value: str(value)[:80])
async def test_a_damaged_lease_is_replaced_by_the_next_election(
    stage: Stage, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is taken for the coordinator by it, and runs are created and executed as ever."""
    await stage.store.commit([PutRegister(COORDINATOR, value, None), PutRegister(DEPUTY, value, None)])
    assert await stage.person.coordinator() is None
    hub = await stage.device("hub", monitor_every=EVERY)
    attic = await stage.device("attic", monitor_every=EVERY)
    await stage.until(lambda: hub.agent._coordinator.elected and attic.agent._coordinator.deputy.elected)
    assert hub.agent._coordinator.leader.epoch == 2
    assert await stage.person.coordinator() == "hub"
    run = await stage.person.create(WORK)
    await stage.at_work(hub, run)
    assert "register 'coordinator' is not the lease of a role: the next election replaces it" in caplog.text
