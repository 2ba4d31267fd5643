"""What a run prints reaches the store: with the heartbeats and with its end, once, in order; silence costs nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.store.protocol import PutLog, PutRun
from asterism.store.watches import check_distinct_records
from tests.fleet.fleet_scenes import WORK, Device, Stage

pytestmark = pytest.mark.virtual_time


async def working(stage: Stage, flow: Workflow = WORK, **options: Any) -> tuple[Device, Run]:
    device = await stage.device("kitchen", **options)
    run = await stage.person.create(flow)
    await stage.at_work(device, run)
    return device, run


def prints(device: Device, run: Run, text: str, stream: str = "stdout") -> None:
    output = device.hands.works[run.id].output
    assert output is not None
    recorder = output.recorder()
    if recorder is not None:
        recorder.write(stream, text)


async def texts(stage: Stage, run: Run) -> list[str]:
    return [log.text for log in await stage.person.logs(run.id)]


async def test_a_run_that_prints_nothing_causes_no_write_and_one_that_prints_no_other_commit(stage: Stage) -> None:
    """The two or three writes of a run stay what they are: its log is a part of its last one."""
    device = await stage.device("kitchen")
    counted = []
    for text in ("", "printed\n", ""):
        run = await stage.person.create(WORK)
        await stage.at_work(device, run)
        before = device.line.asked.copy()
        if text:
            prints(device, run, text)
        device.hands.finish(run, 1)
        await stage.end_of(run)
        asked = device.line.asked - before
        counted.append((asked["commit"], asked["heartbeat"], asked["put_blob"]))
    assert counted == [(1, 0, 0)] * 3
    silent, loud = [run.id for run in await stage.person.runs()][:2]
    assert await stage.store.log(silent) == []
    assert (await stage.person.logs(loud))[0].text == "printed\n"


async def test_output_is_streamed_with_at_most_one_heartbeat_a_second(stage: Stage) -> None:
    device, run = await working(stage)
    before, began = device.line.asked.copy(), stage.now()
    for number in range(200):
        prints(device, run, f"line {number}\n")
        await asyncio.sleep(0.05)
    seconds = stage.now() - began
    asked = device.line.asked - before
    assert 5 <= asked["heartbeat"] <= seconds + 1
    assert asked["commit"] == 0
    assert "line 150\n" in (await texts(stage, run))[0]  # it is readable while the run executes
    device.hands.finish(run)
    await stage.end_of(run)
    assert await texts(stage, run) == ["".join(f"line {number}\n" for number in range(200))]


async def test_each_attempt_has_its_own_log_with_the_reason_of_its_failure(stage: Stage) -> None:
    device, run = await working(stage, Workflow("work", call="work:do", retries=1, backoff=1.0), monitor_every=5.0)
    prints(device, run, "first\n")
    device.hands.fail(run, RuntimeError("broken"))
    await stage.until(lambda: len(device.hands.begun) == 2)
    prints(device, run, "second\n", "stderr")
    device.hands.fail(run, RuntimeError("broken again"))
    assert str((await stage.end_of(run)).status) == "failed"
    logs = await stage.person.logs(run.id)
    assert [(log.attempt, log.text) for log in logs] == [(1, "first\n"), (2, "second\n")]
    assert logs[1].lines[0].stream == "stderr"


async def test_a_lost_heartbeat_and_a_lost_answer_lose_and_double_no_line(stage: Stage) -> None:
    device, run = await working(stage)
    for trouble in ("", "drops", "", "loses", "", "drops", ""):
        if trouble:
            getattr(device.line, trouble)["heartbeat"] = 1
        prints(device, run, f"during {trouble or 'peace'}\nmore\n")
        await asyncio.sleep(3.0)
    device.line.loses["commit"] = 1
    prints(device, run, "the end\n")
    device.hands.finish(run)
    await stage.end_of(run)
    words = ("peace", "drops", "peace", "loses", "peace", "drops", "peace")
    expected = "".join(f"during {word}\nmore\n" for word in words)
    assert await texts(stage, run) == [f"{expected}the end\n"]


async def test_an_end_while_a_heartbeat_is_under_way_writes_what_that_may_lose(stage: Stage) -> None:
    device, run = await working(stage)
    prints(device, run, "in the heartbeat\n")
    device.line.late["heartbeat"] = 2.0
    device.line.loses["heartbeat"] = 1
    before = device.line.asked["heartbeat"]
    await stage.until(lambda: device.line.asked["heartbeat"] > before)
    prints(device, run, "after it\n")
    device.hands.finish(run)
    await stage.end_of(run)
    assert await texts(stage, run) == ["in the heartbeat\nafter it\n"]


async def test_ends_that_are_written_together_have_their_logs(stage: Stage) -> None:
    device = await stage.device("kitchen", slots=3)
    runs = [await stage.person.create(WORK) for _ in range(3)]
    for run in runs:
        await stage.at_work(device, run)
    await device.fleet.settings()
    for run in runs[:2]:
        prints(device, run, f"{run.id}\n")
    for run in runs:
        device.hands.finish(run)
    for run in runs:
        await stage.end_of(run)
    assert [await texts(stage, run) for run in runs] == [[f"{runs[0].id}\n"], [f"{runs[1].id}\n"], []]


async def test_a_run_that_is_cancelled_or_taken_away_keeps_what_it_printed(stage: Stage) -> None:
    device, run = await working(stage)
    prints(device, run, "before\n")
    await stage.person.cancel(run.id)
    await stage.end_of(run)
    assert await texts(stage, run) == ["before\n"]
    output = device.hands.works[run.id].output
    assert output is not None
    prints(device, run, "after the end\n")  # a thread that was left behind
    assert await texts(stage, run) == ["before\n"]


async def test_large_output_is_a_blob_and_the_limit_is_a_setting(stage: Stage) -> None:
    await stage.person.configure(log_limit=4000, large=100)
    device, run = await working(stage)
    prints(device, run, "".join(f"line {number}\n" for number in range(1000)))
    device.hands.finish(run)
    await stage.end_of(run)
    chunks = await stage.store.log(run.id)
    if stage.through == "store":
        assert [set(chunk.value) for chunk in chunks] == [{"$blob", "size"}] * 2
    else:  # a gateway stores no blob that a later part of the log makes useless
        assert [type(chunk.value) for chunk in chunks] == [list] * 2
    (log,) = await stage.person.logs(run.id)
    lines = [line.text for line in log.lines]
    assert (lines[0], lines[-1]) == ("line 0", "line 999")
    assert [line.stream for line in log.lines].count("gap") == 1
    assert len(log.text) < 4100


async def test_with_a_limit_of_zero_nothing_is_kept(stage: Stage) -> None:
    await stage.person.configure(log_limit=0)
    device, run = await working(stage)
    prints(device, run, "unheard\n")
    device.hands.finish(run)
    await stage.end_of(run)
    assert await stage.store.log(run.id) == []


async def test_a_heartbeat_cannot_add_to_the_log_of_another_owner(stage: Stage) -> None:
    device, run = await working(stage)
    prints(device, run, "mine\n")
    taken = stage.store._runs[run.id]
    await stage.store.commit([PutRun(taken.changed(revision=taken.revision + 1, epoch=9), taken.revision)])
    await stage.until(lambda: not len(device.agent.worker))
    assert await stage.store.log(run.id) == []


def test_put_log_is_a_write() -> None:
    """It names its record, so that no batch writes one log twice."""
    with pytest.raises(ValueError, match="twice"):
        check_distinct_records([PutLog("r", 1, ()), PutLog("r", 1, ())])
