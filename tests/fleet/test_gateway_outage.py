"""Devices of a gateway while the server is away: work goes on until the lease ends, results wait and are delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Grant, Owner, Progress
from asterism.core.run.work import Workflow
from asterism.fleet.device.device_connection import (
    BreakOff,
    Claim,
    Complete,
    Decline,
    Disown,
    Fail,
    OwnerStep,
    Release,
    Start,
)
from asterism.gateway import gateway as gateway_module
from asterism.gateway.gateway_messages import parse_step, step_json
from asterism.gateway.outbox import FileOutbox
from tests.async_tests import async_fixture
from tests.fleet.fleet_scenes import WORK, Stage, staged

pytestmark = pytest.mark.virtual_time

TIGHT = Workflow("tight", call="work:do", heartbeat=3.0, heartbeat_timeout=10.0)


@async_fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged("gateway") as stage:
        yield stage


async def test_work_goes_on_while_the_server_is_started_again(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    run = await stage.person.create(TIGHT)
    await stage.at_work(kitchen, run)
    kitchen.line.down = True
    await asyncio.sleep(5.0)
    await stage.start_gateway()  # it has forgotten everything
    kitchen.line.down = False
    await asyncio.sleep(10.0)
    kitchen.hands.finish(run, 42)
    ended = await stage.end_of(run)
    assert (ended.output, ended.epoch, kitchen.hands.stopped) == (42, 1, [])


async def test_work_stops_when_the_lease_ends(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    run = await stage.person.create(TIGHT)
    await stage.at_work(kitchen, run)
    kitchen.line.down, cut = True, stage.now()
    await stage.until(lambda: kitchen.hands.stopped)
    assert stage.now() - cut < 10.0, "before the store could give it away"


async def test_a_result_waits_on_disk_and_is_delivered_by_the_next_process_of_the_device(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.line.down = True
    kitchen.hands.finish(run, {"answer": 42})
    await stage.until(lambda: list(stage.outboxes["kitchen"].waiting()))
    await kitchen.leave()  # the process ends, and the server is still away
    again = await stage.device("kitchen")
    ended = await stage.end_of(run)
    assert (ended.output, ended.epoch) == ({"answer": 42}, 1)
    assert list(stage.outboxes["kitchen"].waiting()) == []
    assert again.hands.begun == [], "it is not done again"


async def test_a_failure_waits_on_disk_as_a_result_does(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.line.down = True
    kitchen.hands.fail(run, ValueError("it cannot work"))
    await stage.until(lambda: list(stage.outboxes["kitchen"].waiting()))
    await kitchen.leave()
    again = await stage.device("kitchen")
    ended = await stage.end_of(run)
    assert (ended.error, ended.epoch) == ("ValueError: it cannot work", 1)
    assert again.hands.begun == [], "it is not done again"


async def test_a_result_of_an_earlier_process_is_refused_if_the_run_was_given_away(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    run = await stage.person.create(TIGHT)
    await stage.at_work(kitchen, run)
    kitchen.line.down = True
    kitchen.hands.finish(run, "late")
    await stage.until(lambda: list(stage.outboxes["kitchen"].waiting()))
    await kitchen.leave()
    attic = await stage.device("attic", heartbeat=3.0, heartbeat_timeout=10.0)
    await stage.person.ledger.change(run.id, lambda r: transitions.lose(r, stage.store.clock(), "silent"))
    await stage.at_work(attic, run)
    await stage.device("kitchen")
    assert list(stage.outboxes["kitchen"].waiting()) == []
    assert [notice.device for notice in await stage.notices("late")] == ["kitchen"]
    attic.hands.finish(run, "right")
    assert (await stage.end_of(run)).output == "right"


async def test_a_result_that_was_delivered_does_not_stay_in_the_outbox(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.line.loses["commit"] = 2  # the server has made the step, and the answer is lost
    kitchen.hands.finish(run, 1)
    assert (await stage.end_of(run)).output == 1
    await stage.until(lambda: not len(kitchen.agent.worker))
    assert list(stage.outboxes["kitchen"].waiting()) == []
    assert await stage.notices("late") == []


async def test_a_server_forgets_devices_that_left_without_a_word(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "SILENT_FOR", 200.0)
    kitchen, attic = await stage.device("kitchen"), await stage.device("attic")
    await kitchen.crash()
    assert stage.gateway is not None
    await asyncio.sleep(300.0)
    assert set(stage.gateway._sessions) == set(stage.gateway._watches) == {attic.session}


def test_a_file_outbox_keeps_whole_messages_and_leaves_others_alone(tmp_path: Path) -> None:
    outbox = FileOutbox(tmp_path / "outbox")
    assert list(outbox.waiting()) == []
    first, second = outbox.put({"do": "complete", "output": "é\n"}), outbox.put({"do": "complete"})
    assert first is not None
    (tmp_path / "outbox" / "damaged.json").write_text("{")
    (tmp_path / "outbox" / ".half.json").write_text("{")
    assert [path.stat().st_mode & 0o077 for path in (tmp_path / "outbox").glob("0*.json")] == [0, 0]
    again = FileOutbox(tmp_path / "outbox")
    assert list(again.waiting()) == [(first, {"do": "complete", "output": "é\n"}), (second, {"do": "complete"})]
    again.remove(first)
    assert [name for name, _ in again.waiting()] == [second]


def test_an_outbox_that_cannot_be_written_is_no_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert FileOutbox(tmp_path / "file" / "outbox").put({}) is None


GRANT = Grant("r", "s", 3)


@pytest.mark.parametrize(
    "step",
    [
        Claim(GRANT, starts=True),
        Start(GRANT),
        Complete(GRANT, {"a": [1, None]}, Progress(1, 2)),
        Complete(GRANT, None),
        Fail(GRANT, "no", Progress(1), final=True),
        Decline(GRANT, "why", for_now=True),
        BreakOff(GRANT, "trouble", None),
        Release(GRANT, "preempted", "by r2", Progress(4, 5)),
        Disown(GRANT, "kitchen"),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_step_is_the_same_after_the_wire(step: OwnerStep) -> None:
    assert parse_step(step_json(step, "token"), GRANT, "kitchen") == step


@pytest.mark.parametrize("ended", [Complete(GRANT, 1), Fail(GRANT, "no"), Release(GRANT, "released", "")])
def test_a_step_recognises_itself_in_the_record_and_no_other(ended: OwnerStep) -> None:
    owner, flow = Owner("kitchen", "s"), Workflow("w", call="work:do", retries=3)
    run = transitions.create("r", flow, {}, by="ann", now=1.0).changed(epoch=2)
    run = transitions.take(run, owner, 2.0, starts=True)
    assert run.grant == GRANT
    assert not ended.was_applied(run)
    after = ended.apply(run, 3.0)
    assert ended.was_applied(after)
    others = [step for step in (Complete(GRANT, 1), Fail(GRANT, "no"), Release(GRANT, "released", "")) if step != ended]
    assert not any(other.was_applied(after) for other in others)


async def test_of_many_devices_some_are_woken_in_turn_for_a_run_that_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that no device can take must not make all of them ask every few seconds."""
    monkeypatch.setattr(gateway_module, "WOKEN_TOGETHER", 1)
    devices = [await stage.device(f"device-{number}") for number in range(4)]
    await stage.person.create(Workflow("other", call="work:do", needs=frozenset({"gpu"})))
    await asyncio.sleep(60.0)
    before = [device.line.asked["take"] for device in devices]
    await asyncio.sleep(200.0)
    asked = [device.line.asked["take"] - earlier for device, earlier in zip(devices, before, strict=True)]
    assert all(8 <= times <= 25 for times in asked), asked


async def test_a_device_that_waits_in_vain_asks_for_nothing_else(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    await asyncio.sleep(60.0)
    before = kitchen.line.asked.copy()
    await asyncio.sleep(1000.0)
    assert kitchen.line.asked["wait"] - before["wait"] == 20
    assert kitchen.line.asked["take"] == before["take"]
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
