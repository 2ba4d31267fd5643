"""Many runs that are created at the same time: each slot gets one of them, and the others wait for a slot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.run.run import Run
from asterism.fleet import fleet as fleet_module
from asterism.fleet.device.executor import RunWork
from asterism.fleet.device.worker import Worker
from tests.fleet.fleet_scenes import WORK, Hands, Line, Stage

pytestmark = pytest.mark.virtual_time


class Quick(Hands):
    """Ends each execution after a second."""

    async def execute(self, work: RunWork) -> Any:
        asyncio.get_running_loop().call_later(1.0, lambda: self.finish(work.run))
        return await super().execute(work)


class SlowLine(Line):
    """A store whose answers take a moment, so that requests overlap."""

    async def _ask(self, name: str, question: Any) -> Any:
        await asyncio.sleep(0.01)
        return await super()._ask(name, question)


async def test_a_burst_of_creates_gives_each_slot_one_run(stage: Stage) -> None:
    for number in range(8):
        device = await stage.device(f"device-{number}")
        device.hands = device.agent.worker.executor = Quick()
    person = stage.fleet("bob", SlowLine(stage.store))
    flow = await person.workflows.add(WORK)
    created = await asyncio.gather(*(person.create(flow) for _ in range(60)))
    assert sum(run.epoch for run in created) == 8, "the others wait"
    ended = [await stage.end_of(run) for run in created]
    assert [run.status for run in ended] == ["completed"] * 60
    assert sum(run.epoch for run in ended) == 60, "no run was assigned to a slot that another one had"


class Counted(Quick):
    """Counts the executions that overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.most = 0

    async def execute(self, work: RunWork) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await super().execute(work)
        finally:
            self.running -= 1


async def burst_of_two_processes(stage: Stage) -> tuple[list[Counted], list[Run]]:
    """Two fleets on one store, which know nothing of the slots that the other one has reserved."""
    hands = []
    for number in range(4):
        device = await stage.device(f"device-{number}", slots=2)
        device.hands = device.agent.worker.executor = Counted()
        hands.append(device.hands)
    flow = await stage.person.workflows.add(WORK)
    people = [stage.fleet(name, SlowLine(stage.store)) for name in ("bob", "eve")]
    created = await asyncio.gather(*(person.create(flow) for _ in range(30) for person in people))
    return hands, [await stage.end_of(run) for run in created]


async def test_bursts_of_two_processes_never_exceed_the_slots_of_a_device(stage: Stage) -> None:
    """Both may assign a run to the last free slot: the device starts one, and declines the other at once. It waits
    for a slot of any device, and nothing of it is counted."""
    hands, ended = await burst_of_two_processes(stage)
    assert [hand.most for hand in hands] == [2] * 4
    assert [run.status for run in ended] == ["completed"] * 60
    before = [(assignment.reason, assignment.detail) for run in ended for assignment in run.previous]
    assert before == [("declined", "it is full")] * 8, "each slot was given twice, and started one run"
    assert {(run.failures, run.losses, run.rounds) for run in ended} == {(0, 0, 0)}


async def test_without_the_places_that_a_device_keeps_a_burst_exceeds_its_slots(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "reserve", lambda self, run_id, *, starts: True)
    hands, _ = await burst_of_two_processes(stage)
    assert max(hand.most for hand in hands) > 2


async def test_a_slot_is_kept_for_a_run_while_it_is_written_and_the_devices_are_read_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.device("kitchen")
    line = Line(stage.store)
    person = stage.fleet("bob", line)
    flow = await person.workflows.add(WORK)
    line.late["commit"] = 5.0
    first = asyncio.create_task(person.create(flow))
    await asyncio.sleep(2 * fleet_module.PLACER_AGE)
    second = await person.create(flow)
    assert (second.status, (await first).device) == ("created", "kitchen")
    await person.cancel(second.id)  # or the next device would be its own
    monkeypatch.setattr(fleet_module.CurrentPlacer, "choose", choose_without_reservation)
    other = stage.fleet("eve", line)
    await stage.device("attic")
    line.late["commit"] = 5.0
    third = asyncio.create_task(other.create(flow))
    await asyncio.sleep(2 * fleet_module.PLACER_AGE)
    assert ((await other.create(flow)).device, (await third).device) == ("attic", "attic"), "two runs for one slot"


def choose_without_reservation(self: Any, run: Any, near: Any, busy: Any) -> Any:
    return self._known[1].choose(run, near=near)


async def test_a_slot_is_free_again_when_the_run_was_not_written(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    line = Line(stage.store)
    person = stage.fleet("bob", line)
    flow = await person.workflows.add(WORK)
    await stage.person.create(flow, key="one", device="nowhere")
    assert (await person.create(flow, key="one")).pinned == "nowhere", "the key is taken"
    line.late["commit"] = 5.0
    given_up = asyncio.create_task(person.create(flow))
    await asyncio.sleep(0.1)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    run = await person.create(flow)
    assert run.device == "kitchen"
    await stage.at_work(kitchen, run)


async def test_an_assignment_that_was_written_counts_once(stage: Stage) -> None:
    await stage.device("kitchen", slots=3)
    person = stage.fleet("bob")
    flow = await person.workflows.add(WORK)
    await person.create(flow)
    placer = await person.placer(fresh=True)
    assert placer.score_parts(placer.sessions["kitchen"], flow)["load"] == pytest.approx(40.0 * 2 / 3)
    written = [await person.create(flow), await person.create(flow)]
    assert [run.device for run in written] == ["kitchen", "kitchen"]


async def test_one_read_serves_all_that_wait_for_it(stage: Stage) -> None:
    line = SlowLine(stage.store)
    person = stage.fleet("bob", line)
    placers = await asyncio.gather(*(person.placer() for _ in range(20)))
    assert len({id(placer) for placer in placers}) == 1
    assert line.asked["sessions"] == 1
    assert await person.placer(fresh=True) is not placers[0]
