"""Refusals by the device policy: a run is judged before it is taken, and no grant is recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asterism.core.record import replace
from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet.device.executor import DeviceExecutor, RunWork
from asterism.fleet.device.take_order import JUDGED_AHEAD
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids
from asterism.fleet.run_explanation import explain_run
from tests.fleet.device.device_scenes import a_run
from tests.fleet.fleet_scenes import WORK, Device, Hands, Stage

pytestmark = pytest.mark.virtual_time

before_taking = pytest.mark.store_only("a device of a gateway judges a run when it begins it")

NAME_ONE = Workflow("name-one", argv=("{tool}", "--version"), rounds=9)


class Strict(Hands):
    """Refuses what its input forbids."""

    def check(self, run: Run) -> str | None:
        return "the policy forbids it" if run.input.get("forbidden") else None


async def busy(stage: Stage, hands: Hands) -> tuple[Device, Run]:
    """A device at work, so that whatever is created now waits to be pulled."""
    device = await stage.device("kitchen")
    device.hands = device.agent.worker.executor = hands
    run = await stage.person.create(WORK)
    await stage.at_work(device, run)
    return device, run


def whats(run: Run) -> list[str]:
    return [entry.what for entry in run.story]


@before_taking
async def test_a_refused_run_is_never_taken_and_records_the_reason(stage: Stage) -> None:
    kitchen, first = await busy(stage, Strict())
    run = await stage.person.create(WORK, {"forbidden": True})
    kitchen.hands.finish(first)
    await asyncio.sleep(100.0)
    stored = await stage.read(run)
    assert (stored.status, stored.epoch, stored.previous, stored.rounds) == ("created", 0, (), 0)
    assert whats(stored) == ["created", "declined"]
    assert stored.declined == {"kitchen": "the policy forbids it"}
    answer = await explain_run(stage.person, run.id)
    assert ("objection", "kitchen: the policy forbids it") in [(reason.kind, reason.text) for reason in answer.reasons]
    attic = await stage.device("attic")
    await stage.at_work(attic, run)


@before_taking
async def test_a_device_judges_a_refused_run_once(stage: Stage) -> None:
    kitchen, first = await busy(stage, Strict())
    judged: list[Any] = []
    check = kitchen.hands.check
    kitchen.hands.check = lambda run: judged.append(run.input) or check(run)  # type: ignore[method-assign,func-returns-value]
    await stage.person.create(WORK, {"forbidden": True})
    kitchen.hands.finish(first)
    await asyncio.sleep(1000.0)
    assert judged == [{"forbidden": True}]


@before_taking
async def test_a_device_finds_an_acceptable_run_behind_any_number_of_others(stage: Stage) -> None:
    kitchen, first = await busy(stage, Strict())
    refused = [await stage.person.create(WORK, {"forbidden": True}) for _ in range(6 * JUDGED_AHEAD)]
    last = await stage.person.create(WORK)
    kitchen.hands.finish(first)
    now = stage.now()
    await stage.at_work(kitchen, last)
    assert stage.now() - now < 1.0, "in one look"
    assert {(await stage.read(run)).epoch for run in refused} == {0}


async def test_a_run_to_be_judged_is_not_overtaken_by_less_urgent_ones(stage: Stage) -> None:
    kitchen, first = await busy(stage, Strict())
    kitchen.hands.judges_each = lambda run: bool(run.input)  # type: ignore[method-assign]
    plain = await stage.person.create(WORK)
    urgent = await stage.person.create(WORK, {"n": 1}, priority=5)
    kitchen.hands.finish(first)
    await stage.at_work(kitchen, urgent)
    assert plain.id not in kitchen.hands.busy


@before_taking
async def test_refusals_count_as_rounds_once_every_device_has_refused(stage: Stage) -> None:
    kitchen, first = await busy(stage, Strict())
    await stage.device("hub", slots=0, monitor_every=2.0)
    run = await stage.person.create(replace(WORK, name="asked", rounds=2), {"forbidden": True})
    kitchen.hands.finish(first)
    ended = await stage.end_of(run)
    assert ended.error == "all devices declined, in 2 rounds. kitchen (declined): the policy forbids it"


@pytest.mark.parametrize(
    ("flow", "run_input", "each"),
    [
        (WORK, {}, False),
        (WORK, {"n": 1}, False),
        (WORK, {"key": {"secret": "KEY"}}, True),
        (NAME_ONE, {"tool": "sh"}, True),
        (Workflow("line", shell="true"), {}, True),
    ],
)
def test_only_a_function_with_a_plain_input_is_judged_by_its_workflow_alone(
    flow: Workflow, run_input: dict[str, Any], each: bool
) -> None:
    executors = DeviceExecutor(DevicePolicy.open(), device="kitchen", session="s")
    assert executors.judges_each(a_run(flow, run_input)) is each


@before_taking
async def test_the_device_policy_judges_each_command_before_the_run_is_taken(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("commands: [sh]\n")
    executors = DeviceExecutor(DevicePolicy.load(file), device="kitchen", session="s")
    kitchen, first = await busy(stage, Hands())
    kitchen.hands.check = executors.check  # type: ignore[method-assign]
    run = await stage.person.create(NAME_ONE, {"tool": "shred"})
    kitchen.hands.finish(first)
    await stage.until(lambda: stage.store._runs[run.id].declined)
    stored = await stage.read(run)
    assert (stored.epoch, whats(stored)) == (0, ["created", "declined"])
    assert "shred" in stored.declined["kitchen"]


class StrictAtWork(Hands):
    """Refuses when the work is to begin, as every device does that did not judge it before."""

    async def execute(self, work: RunWork) -> Any:
        if work.run.input.get("forbidden"):
            raise PolicyForbids("the policy forbids it")
        return await super().execute(work)


async def test_a_run_that_is_judged_when_it_begins_goes_to_another_device(stage: Stage) -> None:
    kitchen, first = await busy(stage, StrictAtWork())
    refused = [await stage.person.create(WORK, {"forbidden": True}) for _ in range(3)]
    await asyncio.sleep(1.0)
    last = await stage.person.create(WORK)
    kitchen.hands.finish(first)
    await stage.at_work(kitchen, last)
    stored = [await stage.read(run) for run in refused]
    assert {(run.status, run.losses, *run.declined.values()) for run in stored} == {
        ("reassigning", 0, "the policy forbids it")
    }
    attic = await stage.device("attic", slots=3)
    for run in refused:
        await stage.at_work(attic, run)


async def test_without_judging_first_a_refused_run_shows_a_grant(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation."""
    kitchen, first = await busy(stage, Hands())
    kitchen.hands.judges_each = lambda run: False  # type: ignore[method-assign]
    run = await stage.person.create(WORK)
    kitchen.hands.refuses = "the policy forbids it"
    kitchen.hands.finish(first)
    await stage.until(lambda: stage.store._runs[run.id].declined)
    assert whats(await stage.read(run))[1:4] == ["assigning to self", "claimed", "processing"]
