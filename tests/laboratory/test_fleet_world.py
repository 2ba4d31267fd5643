"""Simulated fleets under faults; and that the simulator notices a missing safeguard."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet import monitor
from asterism.fleet.device import heartbeat, lease, worker
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.completion import HeldRun
from asterism.fleet.device.device_connection import Fail, OwnerStep
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import TakeRequest
from asterism.testing.virtual_time import run as in_virtual_time
from tests.laboratory.simulator import Violation, fleet_world, machines, simulate
from tests.laboratory.simulator.checker import CheckedStore, Checker
from tests.laboratory.simulator.fleet_world import SimHost
from tests.laboratory.simulator.machines import Machine, SimExecutor

pytestmark = pytest.mark.slow

ABLATED = 400
"""The number of worlds in which a missing safeguard has to show."""


@pytest.mark.hunt(few=3, many=80)
def test_no_world_breaks_a_promise(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.long
def test_one_seed_is_one_world() -> None:
    assert simulate(4).checker.log == simulate(4).checker.log
    assert simulate(4).checker.log != simulate(5).checker.log


def hunt(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


def no_fencing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transitions, "_fence", lambda *_: None)


def no_self_fencing(patch: pytest.MonkeyPatch) -> None:
    async def never(self: heartbeat.Heartbeat) -> None:
        await asyncio.get_running_loop().create_future()

    patch.setattr(heartbeat.Heartbeat, "enforce_leases", never)


def heartbeats_by_the_clock_of_the_device(patch: pytest.MonkeyPatch) -> None:
    """The monitor relies on the clock of a device, and does not check twice."""
    patch.setattr(machines.Wire, "clock", lambda wire: 1_000_000.0 + wire._machine.time())
    patch.setattr(monitor.Monitor, "_silent_for", lambda *_: 1e9)


def a_deputy_that_has_observed_nothing(patch: pytest.MonkeyPatch) -> None:
    """The monitor relies on the store's clock alone."""
    left, is_held = monitor.Monitor._time_left, monitor.Monitor._is_held

    async def never_held(self: monitor.Monitor, *args: Any, notify: bool = True) -> bool:
        return await is_held(self, *args, notify=notify) and notify

    patch.setattr(monitor.Monitor, "_time_left", lambda self, *args: 0.0 if args[-1] else left(self, *args))
    patch.setattr(monitor.Monitor, "_is_held", never_held)


def what_a_sick_machine_cannot_do_has_failed(patch: pytest.MonkeyPatch) -> None:
    """A fault of the device counts as a failure of the work."""

    def failed(working: worker.Worker, held: HeldRun, seconds: float, error: Exception) -> OwnerStep:
        return Fail(held.grant, str(error), held.progress)

    patch.setattr(worker.Worker, "_broken_off", failed)


def stories_that_go_backwards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("asterism.core.run.run.step_time", lambda last, now: now)


@pytest.mark.parametrize(
    ("ablation", "first"),
    [
        (no_fencing, 103),
        (no_self_fencing, 27),
        (heartbeats_by_the_clock_of_the_device, 0),
        (a_deputy_that_has_observed_nothing, 95),
        (what_a_sick_machine_cannot_do_has_failed, 32),
        (stories_that_go_backwards, 27),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.long
def test_a_missing_safeguard_is_noticed(
    ablation: Callable[[pytest.MonkeyPatch], Any], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``first`` is the seed of the first world: not far below the first that shows it."""
    ablation(monkeypatch)
    with pytest.raises(Violation, match=r"python -m tests.laboratory.simulator --seed \d+"):
        hunt(range(first, first + ABLATED))


# -- wall clocks ---------------------------------------------------------------------------------------------------


def hunt_with_wall_clocks(seeds: range) -> None:
    for seed in seeds:
        simulate(seed, world=fleet_world.WallClockWorld)


@pytest.mark.hunt(few=3, many=60)
def test_no_jump_of_a_wall_clock_shows_in_the_records(seeds: range) -> None:
    hunt_with_wall_clocks(seeds)


def test_a_machine_that_relies_on_its_wall_clock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_world, "own_clock", lambda machine: machine.wall_time)
    with pytest.raises(Violation, match="--world wall-clocks"):
        hunt_with_wall_clocks(range(ABLATED))


# -- the check after every wait: too rare to occur at random, so it is staged-----------------------------------------


SCHEDULES = 10
"""Seeds of the order in which a machine that thaws continues."""


class FrozenAfterTaking(machines.Wire):
    """The machine freezes between the store's commit and its answer, for longer than its lease."""

    frozen = False

    async def take(self, offer: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        taken = await super().take(offer, step)
        if taken and not self.frozen:
            self.frozen = True
            self._machine.freeze()
            asyncio.get_running_loop().call_later(40.0, self._machine.thaw)
            await self._machine.gate()
        return taken


class BlindLease(lease.Lease):
    """The lease as a worker without the second check sees it: every run is certainly its own."""

    def remaining(self, run: Run, now: float | None = None) -> float:
        return max(1.0, super().remaining(run, now))


async def staged(*, blind: bool = False) -> list[str]:
    """Return the broken promises if a reply arrives after the run was assigned to another device. With ``blind``
    workers do not check the lease."""
    loop = asyncio.get_running_loop()
    checker = Checker(loop.time)
    store = CheckedStore(lambda: 1_000_000.0 + loop.time(), checker)
    chance = random.Random(1)
    times: dict[str, Any] = {"heartbeat": 3.0, "heartbeat_timeout": 10.0}

    def device(name: str, wire: type[machines.Wire], every: float | None) -> asyncio.Task[None]:
        machine = Machine(name, 1.0, 0.0)
        line = wire(store, machine, chance)
        fleet = Fleet(line, by=name, clock=machine, chance=chance)
        executor = SimExecutor(machine, checker, chance)
        agent = DeviceAgent(fleet, name, executor=executor, grace=0.5, monitor_every=every, host=SimHost(name), **times)
        if blind:
            agent.worker._lease = BlindLease(machine, agent.session, interval=3.0, grace=0.5)
            agent.worker._lease.__dict__ = agent.lease.__dict__  # one state, two views
        line.session = agent.session.id
        return asyncio.create_task(agent.run())

    person = Fleet(store, chance=chance)
    run = await person.create(Workflow("w", call="work:do", **times), {"steps": 1, "seconds": 60.0, "fails": 0.0})
    tasks = [device("late", FrozenAfterTaking, None)]
    await asyncio.sleep(20.0)
    tasks.append(device("other", machines.Wire, 2.0))
    ended = await person.wait(run.id)
    assert (ended.status, ended.device, ended.epoch) == ("completed", "other", 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return checker.violations


@pytest.mark.hunt(few=3, many=SCHEDULES)
def test_the_lease_is_checked_again_after_a_wait(seeds: range) -> None:
    for seed in seeds:
        assert in_virtual_time(staged(), seed=seed) == []


def test_without_the_second_check_two_devices_would_work_on_one_run() -> None:
    schedules = (in_virtual_time(staged(blind=True), seed=seed) for seed in range(SCHEDULES))
    assert any("while other still executed it" in promise for broken in schedules for promise in broken)


def test_a_bug_that_a_device_survives_fails_the_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def mistaken(watching: monitor.Monitor) -> None:
        raise AttributeError("a slip of the pen")

    monkeypatch.setattr(monitor.Monitor, "run_pass", mistaken)
    with pytest.raises(Violation, match="a slip of the pen"):
        simulate(0)
