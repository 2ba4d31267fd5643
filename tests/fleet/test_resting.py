"""Devices that would hand work back: they are given none, runs wait for them, and nothing is counted against a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.record import replace
from asterism.core.run import placement, transitions
from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.fleet.monitor import Monitor
from asterism.fleet.run_explanation import explain_run
from tests.fleet.fleet_scenes import WORK, Device, Stage

pytestmark = pytest.mark.virtual_time

FRAIL = replace(WORK, name="frail", rounds=1, no_device_timeout=20.0)
"""Fails after the first round in which all decline, and soon if no device can execute it."""

WORDS = "resting: it would hand this back because 'battery < 0.2' holds"


class Battery:
    """The profile of a device that hands work back when it is low."""

    def __init__(self, level: float = 0.1) -> None:
        self.level = level
        self.terms: dict[str, Any] = {"hands_back": "battery < 0.2", "measure": self.measure, "heartbeat": 5.0}

    def measure(self) -> dict[str, Any]:
        return {"battery": self.level}


async def watched(stage: Stage, seconds: float) -> Monitor:
    """One that has watched for a while."""
    monitor = stage.monitor()
    for _ in range(round(seconds / 5.0)):
        await monitor.run_pass()
        await asyncio.sleep(5.0)
    return monitor


async def test_a_run_waits_for_a_device_that_rests_and_is_begun_with_the_heartbeat_that_ends_the_rest(
    stage: Stage,
) -> None:
    battery = Battery()
    laptop = await stage.device("laptop", **battery.terms)
    run = await stage.person.create(FRAIL)
    assert run.status == "created", "it is not even asked"
    await watched(stage, 600.0)
    stored = await stage.read(run)
    assert (stored.status, stored.epoch, stored.rounds, stored.previous) == ("created", 0, 0, ())
    answer = await explain_run(stage.person, run.id)
    assert [(reason.kind, reason.name) for reason in answer.reasons] == [("resting", "laptop")]
    assert "'battery < 0.2' holds" in answer.reasons[0].text
    battery.level, charged = 0.9, stage.now()
    await stage.until(lambda: laptop.agent.joined.is_set() and laptop.agent.acceptance.resting is None)
    noticed = stage.now()
    await stage.at_work(laptop, run)
    [(_, _, begun)] = laptop.hands.begun
    assert noticed - charged <= 5.1, "with its next heartbeat"
    assert begun <= noticed, "at once, not when it looks again anyway"


async def test_work_that_was_handed_back_goes_to_another_device_or_waits(stage: Stage) -> None:
    battery = Battery(0.9)
    laptop = await stage.device("laptop", **battery.terms)
    run = await stage.person.create(FRAIL)
    await stage.at_work(laptop, run)
    battery.level = 0.1
    await stage.reaches(run, "reassigning")
    await watched(stage, 60.0)
    assert (await stage.read(run)).status == "reassigning"
    attic = await stage.device("attic")
    await stage.at_work(attic, run)
    assert (await stage.read(run)).rounds == 0


async def test_a_decline_by_a_resting_device_does_not_count_as_a_round(
    stage: Stage,
) -> None:
    battery = Battery(0.9)
    laptop = await stage.device("laptop", **battery.terms)
    await stage.person.placer()  # which is good for a second, and knows of no rest
    battery.level = 0.1
    await laptop.agent.heartbeat.beat()
    run = await stage.person.create(FRAIL)
    assert run.status == "assigned"
    stored = await stage.reaches(run, "reassigning")
    assert (stored.previous[0].reason, stored.previous[0].detail) == ("declined", WORDS)
    assert (stored.rounds, stored.avoid, stored.declined) == (0, (), {})
    await watched(stage, 60.0)
    stored = await stage.read(run)
    assert (stored.status, stored.epoch, stored.rounds) == ("reassigning", 1, 0), "it is not chosen again"


async def test_a_device_that_joins_while_it_has_to_rest_takes_nothing_at_all(stage: Stage) -> None:
    run = await stage.person.create(FRAIL)
    laptop = await stage.device("laptop", **Battery().terms)
    [session] = await stage.store.sessions()
    assert session.resting == "'battery < 0.2' holds"
    await asyncio.sleep(30.0)
    assert (laptop.hands.begun, (await stage.read(run)).epoch) == ([], 0)


async def test_a_run_that_others_declined_waits_for_a_resting_device(stage: Stage) -> None:
    """Its rounds are not over before that one was asked, too; a failed attempt does not wait for it."""
    battery = Battery()
    laptop = await stage.device("laptop", **battery.terms)
    attic = await stage.device("attic")
    attic.hands.refuses = "not at night"
    run = await stage.person.create(FRAIL)
    await watched(stage, 120.0)
    stored = await stage.read(run)
    assert (stored.status, stored.rounds, stored.declined) == ("reassigning", 0, {"attic": "not at night"})
    battery.level = 0.9
    await stage.at_work(laptop, run)


async def test_a_failed_attempt_is_repeated_on_its_device_while_the_other_one_rests(stage: Stage) -> None:
    await stage.device("laptop", **Battery().terms)
    attic = await stage.device("attic")
    run = await stage.person.create(replace(FRAIL, retries=1, backoff=1.0))
    await stage.at_work(attic, run)
    attic.hands.fail(run, RuntimeError("no luck"))
    await stage.reaches(run, "reassigning")
    await watched(stage, 20.0)
    assert run.id in attic.hands.busy


# -- ablations ---------------------------------------------------------------------------------------------------------


def frail_run_after(stage: Stage, device: Device, flow: Workflow) -> Any:
    async def outcome() -> str:
        run = await stage.person.create(flow)
        await watched(stage, 120.0)
        return (await stage.read(run)).status

    return outcome()


async def test_without_the_objection_a_run_fails_on_a_low_battery(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it did: the device is chosen, declines, and is asked again until the rounds are over."""
    laptop = await stage.device("laptop", **Battery().terms)
    monkeypatch.setattr(Session, "resting", property(lambda _: None))
    decline = transitions.decline
    monkeypatch.setattr(transitions, "decline", lambda *args, for_now: decline(*args))  # a decline that counts
    assert await frail_run_after(stage, laptop, FRAIL) == "failed"


async def test_without_waiting_for_the_resting_a_run_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    laptop = await stage.device("laptop", **Battery().terms)
    monkeypatch.setattr(placement.Placer, "waits_for", lambda *_: False)
    assert await frail_run_after(stage, laptop, FRAIL) == "failed"
