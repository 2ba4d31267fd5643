"""Health of a device: one that cannot do its own part loses a few runs and stops taking more."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.errors import DeviceTrouble
from asterism.core.record import replace
from asterism.core.run import circuit_breaker
from asterism.core.run.run import Run
from asterism.fleet.device.executor import RunWork
from asterism.fleet.run_explanation import explain_run
from tests.fleet.fleet_scenes import WORK, Device, Hands, Stage

pytestmark = pytest.mark.virtual_time

FULL = "the files of the run could not be written: No space left on device"
BUILD = replace(WORK, backoff=1.0, backoff_most=5.0)


class SickHands(Hands):
    """``error`` is what every execution raises at once; None while the device is well, and work takes
    half a second, as it does to fail."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error
        self.tried = self.probed = 0

    async def execute(self, work: RunWork) -> str:
        self.tried += 1
        if isinstance(self.error, DeviceTrouble):
            raise self.error
        await asyncio.sleep(0.5)
        if self.error is not None:
            raise self.error
        return "done"

    async def probe(self) -> None:
        self.probed += 1
        if isinstance(self.error, DeviceTrouble):
            raise self.error


async def device(stage: Stage, name: str, error: Exception | None, **options: object) -> tuple[Device, SickHands]:
    joined = await stage.device(name, **options)
    hands = SickHands(error)
    joined.hands = joined.agent._executor = joined.agent.worker.executor = hands
    return joined, hands


async def watched(stage: Stage) -> asyncio.Task[None]:
    monitor = stage.monitor()

    async def watch() -> None:
        while True:
            await monitor.run_pass()
            await asyncio.sleep(5.0)

    return asyncio.create_task(watch())


async def ends(stage: Stage, runs: list[Run]) -> list[Run]:
    return [await stage.end_of(run) for run in runs]


@pytest.fixture
def no_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "MAX_TROUBLES", 10**9)


async def beside_a_healthy_one(stage: Stage) -> tuple[list[Run], int]:
    """Forty runs, a sick device and a healthy one: how they ended, and how often the sick one tried."""
    watching = await watched(stage)
    _, sick = await device(stage, "sick", DeviceTrouble(FULL), slots=2)
    await device(stage, "well", None)
    runs = await ends(stage, [await stage.person.create(BUILD) for _ in range(40)])
    watching.cancel()
    return runs, sick.tried


async def test_a_sick_device_beside_a_healthy_one_fails_nothing_and_loses_little(stage: Stage) -> None:
    runs, tried = await beside_a_healthy_one(stage)
    assert {(run.status, run.device, run.failures) for run in runs} == {("completed", "well", 0)}
    lost = [assignment for run in runs for assignment in run.previous if assignment.reason == "timeout"]
    assert {assignment.detail for assignment in lost} == {f"sick: {FULL}"}
    assert len(lost) == tried <= 6


async def test_without_its_breaker_it_would_take_and_lose_most_of_the_queue(stage: Stage, no_breaker: None) -> None:
    _, tried = await beside_a_healthy_one(stage)
    assert tried > 20


async def test_it_says_that_it_has_stopped_and_why(stage: Stage) -> None:
    _, hands = await device(stage, "sick", DeviceTrouble(FULL))
    watching = await watched(stage)
    runs = [await stage.person.create(BUILD) for _ in range(3)]
    await stage.until(lambda: hands.tried >= 3)
    await asyncio.sleep(1.0)
    (session,) = await stage.person.devices()
    assert session.suspended == f"it could not begin work, 3 times in a row: {FULL}"
    (notice,) = await stage.notices("suspended")
    assert (notice.device, notice.run) == ("sick", None)
    assert FULL in notice.message
    waits = [run for run in runs if not (await stage.read(run)).ended]
    assert waits
    reasons = {reason.kind for run in waits for reason in (await explain_run(stage.person, run.id)).reasons}
    assert "suspended" in reasons
    later = await stage.person.create(BUILD)
    assert (later.status, later.device) == ("created", None), "it is assigned nothing"
    watching.cancel()


async def test_it_tries_again_from_time_to_time_and_goes_on_when_that_succeeds(stage: Stage) -> None:
    _, hands = await device(stage, "sick", DeviceTrouble(FULL), slots=4)
    watching = await watched(stage)
    runs = [await stage.person.create(BUILD) for _ in range(12)]
    await stage.until(lambda: hands.tried >= 4)
    before, now = hands.tried, stage.now()
    await asyncio.sleep(20.0 + 40.0 + 80.0)
    assert (hands.tried, hands.probed) == (before, 3), "no run is put at risk before it can do its own part"
    hands.error = None
    ended = await ends(stage, runs)
    assert {run.status for run in ended} == {"completed"}
    assert stage.now() - now < 600.0
    assert (await stage.person.devices())[0].suspended is None
    assert [notice.message for notice in await stage.notices("resumed")] == ["sick takes work again"]
    assert len(await stage.notices("suspended")) == 1
    watching.cancel()


async def test_runs_wait_for_a_fleet_whose_only_device_is_sick(stage: Stage) -> None:
    """For longer than ``no_device_timeout``: there is a device, and it will be mended."""
    _, hands = await device(stage, "sick", DeviceTrouble(FULL))
    watching = await watched(stage)
    runs = [await stage.person.create(BUILD) for _ in range(20)]
    await asyncio.sleep(4 * BUILD.no_device_timeout)
    assert not any([(await stage.read(run)).ended for run in runs])
    hands.error = None
    assert {run.status for run in await ends(stage, runs)} == {"completed"}
    watching.cancel()


async def test_runs_in_the_backlog_are_handed_back_at_once(stage: Stage) -> None:
    sick, hands = await device(stage, "sick", None, slots=1, backlog=5)
    runs = [await stage.person.create(BUILD) for _ in range(6)]
    await stage.until(lambda: len(sick.agent.worker) == 6)
    hands.error = DeviceTrouble(FULL)
    await stage.until(lambda: sick.agent.health.suspended is not None)
    await stage.until(lambda: not len(sick.agent.worker))
    stored = [await stage.read(run) for run in runs]
    handed = [run for run in stored if run.previous and run.previous[-1].reason == "released"]
    assert len(handed) == 6 - 1 - hands.tried + 1
    assert all(run.losses == 0 for run in handed)


async def test_work_that_fails_on_every_device_stops_no_device(stage: Stage) -> None:
    flow = await stage.person.workflows.add(replace(BUILD, retries=2))
    watching = await watched(stage)
    fleet = [await device(stage, name, ValueError("out of paper")) for name in ("kitchen", "attic")]
    ended = await ends(stage, [await stage.person.create(flow) for _ in range(20)])
    assert {run.status for run in ended} == {"failed"}
    assert all(hands.tried > circuit_breaker.MAX_QUICK_FAILURES for _, hands in fleet)
    assert [joined.agent.health.suspended for joined, _ in fleet] == [None, None]
    watching.cancel()


async def test_a_device_that_fails_where_another_completes_stops_taking_work(stage: Stage) -> None:
    flow = await stage.person.workflows.add(replace(BUILD, retries=3))
    watching = await watched(stage)
    sick, hands = await device(stage, "sick", ValueError("no such library"))
    await device(stage, "well", None)
    ended = await ends(stage, [await stage.person.create(flow) for _ in range(40)])
    assert {run.status for run in ended} == {"completed"}
    assert sick.agent.health.suspended is not None
    assert "while well completed 'work'" in sick.agent.health.suspended
    assert hands.tried <= 12
    watching.cancel()


async def test_work_that_fails_after_a_while_says_nothing_of_the_device(stage: Stage) -> None:
    kitchen, attic = await stage.device("kitchen"), await stage.device("attic")
    flow = await stage.person.workflows.add(replace(BUILD, retries=9))
    for _ in range(2 * circuit_breaker.MAX_QUICK_FAILURES):
        run = await stage.person.create(flow, device="kitchen")
        await stage.at_work(kitchen, run)
        other = await stage.person.create(flow, device="attic")
        await stage.at_work(attic, other)
        await asyncio.sleep(circuit_breaker.QUICK_FAILURE_SECONDS)
        attic.hands.finish(other)
        kitchen.hands.fail(run, ValueError("out of paper"))
        await stage.reaches(run, "reassigning")
        await stage.person.cancel(run.id)
    assert kitchen.agent.health.suspended is None


async def test_a_command_that_the_guard_ended_is_lost_and_is_no_late_result(stage: Stage) -> None:
    from asterism.execution.processes import LeaseExpired

    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.fail(run, LeaseExpired())
    stored = await stage.reaches(run, "reassigning")
    assert (stored.failures, stored.losses, stored.previous[0].reason) == (0, 1, "timeout")
    assert await stage.notices("late") == []
    assert kitchen.agent.health.suspended is None


# -- beside others -----------------------------------------------------------------------------------------------------


async def stopped(stage: Stage, **options: object) -> tuple[Device, SickHands]:
    """A device that has stopped taking work, with nothing left to do."""
    sick, hands = await device(stage, "sick", DeviceTrouble(FULL), slots=1, **options)
    run = await stage.person.create(BUILD, device="sick")
    await stage.until(lambda: hands.tried >= 3)
    await asyncio.sleep(2.0)
    await stage.person.cancel(run.id)
    return sick, hands


async def test_a_retry_on_a_healthy_device_does_not_wait_for_one_that_has_stopped(stage: Stage) -> None:
    watching = await watched(stage)
    await stopped(stage)
    _, well = await device(stage, "well", RuntimeError("flaky"))
    run = await stage.person.create(replace(BUILD, retries=3))
    await stage.until(lambda: well.tried >= 1)
    well.error = None
    assert (await stage.end_of(run)).status == "completed"
    watching.cancel()


async def test_runs_that_others_declined_wait_for_a_suspended_resting_device(stage: Stage) -> None:
    battery = {"level": 0.9}
    watching = await watched(stage)
    await stopped(stage, hands_back="battery < 0.2", measure=lambda: {"battery": battery["level"]}, heartbeat=5.0)
    battery["level"] = 0.1
    well = await stage.device("well")
    well.hands.refuses = "never"
    await asyncio.sleep(10.0)
    run = await stage.person.create(replace(BUILD, rounds=2))
    await asyncio.sleep(4000.0)
    assert (await stage.read(run)).status == "reassigning"
    watching.cancel()


async def test_a_recovered_device_gets_a_run_although_others_are_idle(stage: Stage) -> None:
    watching = await watched(stage)
    sick, hands = await stopped(stage)
    hands.error = None
    await device(stage, "well", None, slots=2)
    for _ in range(20):
        await stage.person.create(BUILD)
        await asyncio.sleep(30.0)
    assert sick.agent.health.suspended is None
    assert hands.tried > 3, "it was given work again"
    watching.cancel()


async def test_a_trial_that_goes_on_for_long_opens_the_other_slots(stage: Stage) -> None:
    class Long(SickHands):
        async def execute(self, work: RunWork) -> str:
            self.tried += 1
            if self.error is not None:
                raise self.error
            await asyncio.sleep(8 * 3600.0)
            return "done"

    watching = await watched(stage)
    joined = await stage.device("big", slots=16)
    hands = joined.hands = joined.agent._executor = joined.agent.worker.executor = Long(DeviceTrouble(FULL))
    runs = [await stage.person.create(BUILD) for _ in range(16)]
    await stage.until(lambda: hands.tried >= 3)
    hands.error = None
    await asyncio.sleep(1800.0)
    assert {(await stage.read(run)).status for run in runs} == {"processing"}
    watching.cancel()
