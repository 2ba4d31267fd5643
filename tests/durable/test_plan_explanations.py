"""What holds a whole plan: the tasks at the beginning of what waits, by cause."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.stored_plans import explain_plan
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, task

pytestmark = pytest.mark.virtual_time


async def test_the_causes_of_a_plan_follow_its_chains(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("prepare"))
    for number in range(3):
        plan.add(task(f"train{number}", needs="gpu"), "prepare")
    plan.add(task("report"), ["train0", "train1", "train2"])
    plan.add(task("publish"), "report")
    plan.add(Task("paid", wait_for={"event": "payment"}), "prepare")
    plan.add(task("ship"), "paid")
    await stage.device("lab")
    stage.spawn(stage.orchestrator(local=0).run(plan))
    await asyncio.sleep(30.0)
    why = await explain_plan(stage.fleet(), "nightly")
    assert (why.running, why.left) == ([], 0)
    assert [(cause.tasks, cause.behind) for cause in why.causes] == [
        (["train0", "train1", "train2"], {"report", "publish"}),
        (["paid"], {"ship"}),
    ]
    train, paid = why.causes
    assert (train.needs, train.reasons[0].kind) == (["gpu"], "no_device")
    assert [reason.text for reason in train.reasons] == ["the only device cannot take it", "lab: it lacks gpu"]
    assert "it waits for event 'payment'" in paid.reasons[0].text


async def test_a_plan_that_moves_says_what_runs(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    plan.add(task("b"), "a")
    job = stage.spawn(stage.orchestrator().run(plan))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(5.0)
    why = await explain_plan(stage.fleet(), "nightly")
    assert (why.running, why.causes) == (["a"], [])
    durable_work.gate("a").set()
    await job
    assert (await explain_plan(stage.fleet(), "nightly")).causes == []
