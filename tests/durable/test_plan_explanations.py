"""What holds a whole plan: the tasks at the beginning of what waits, by cause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.api.system import LocalSystem
from asterism.cli.plan.plan_views import stalled_line
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.plan_summaries import ListedPlan, list_plans
from asterism.durable.stored_plans import explain_plan, read_plan
from asterism.store.protocol import PlanQuery, Query
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


async def listed(stage: Stage) -> str:
    (plan,) = await list_plans(stage.store, PlanQuery())
    assert isinstance(plan, ListedPlan)
    assert plan == (await read_plan(stage.fleet(), "nightly")).listed
    return plan.stalled


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ({"needs": "gpu"}, "1 queued"),
        ({"wait_for": {"event": "payment"}}, "waits for an event"),
        ({"wait_for": {"until": "2100-01-01T00:00+00:00"}}, "waits for a time"),
        ({"approval": {}}, "1 approval waits"),
    ],
)
async def test_a_list_says_in_a_word_why_nothing_moves(stage: Stage, held: dict[str, Any], why: str) -> None:
    plan = Constellation("nightly")
    plan.add(task("build", "wait"))
    plan.add(Task("next", **held) if "wait_for" in held else task("next", **held), "build")
    await stage.device("lab")
    stage.spawn(stage.orchestrator(local=0).run(plan))
    await durable_work.gate("build begun").wait()
    await asyncio.sleep(5.0)
    assert await listed(stage) == ""
    durable_work.gate("build").set()
    await asyncio.sleep(30.0)
    assert await listed(stage) == why


async def test_a_process_that_only_runs_a_plan_is_no_device(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("train", needs="gpu"))
    await stage.device("lab")
    stage.spawn(stage.orchestrator(local=0).run(plan))
    await asyncio.sleep(30.0)
    system = LocalSystem(stage.fleet())
    assert len(await stage.store.sessions()) == 2
    assert [device.name for device in (await system.list_devices()).items] == ["lab"]
    (run,) = await stage.store.find(Query())
    assert [score.device for score in (await system.score_devices(run.id)).devices] == ["lab"]
    why = await system.explain_plan("nightly")
    assert [cause.text for cause in why.causes] == [
        "it needs a device with 'gpu'; the only device cannot take it; lab: it lacks gpu"
    ]
    assert stalled_line(why) == f"nothing moves: train: {why.causes[0].text}"


async def test_a_plan_with_many_causes_is_read_once(stage: Stage) -> None:
    plan = Constellation("nightly")
    for number in range(5):
        plan.add(task(f"train{number}", needs=f"gpu{number}"))
    await stage.device("lab")
    stage.spawn(stage.orchestrator(local=0).run(plan))
    await asyncio.sleep(30.0)
    reads, registers = list[str](), stage.store.registers

    async def counted(prefix: str, *more: Any) -> Any:
        reads.append(prefix)
        return await registers(prefix, *more)

    stage.store.registers = counted  # type: ignore[method-assign]
    assert len((await explain_plan(stage.fleet(), "nightly")).causes) == 5
    assert reads.count("journal/nightly/") == 1
