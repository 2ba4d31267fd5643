"""Limits across plans: the tasks of all plans of a store share them, also those that the process of a plan executes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from asterism import LocalDevice, Orchestrator
from asterism.core.errors import PlanError
from asterism.core.limits import Limit
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.status import ConstellationState
from asterism.core.plan.task import Task
from asterism.durable.plan_submissions import submit_plan
from asterism.durable.stored_plans import explain_task
from asterism.fleet.stored_limits import remove_limit, set_limit
from asterism.store.protocol import PutRun, Query, Write
from tests.durable.durable_scenes import DONE, Stage, task
from tests.durable.durable_work import gate

pytestmark = pytest.mark.virtual_time

WAREHOUSE = {"warehouse": 1}


def using(name: str, number: int, call: str = "work") -> Constellation:
    plan = Constellation(name)
    for index in range(number):
        plan.add(task(f"{name}{index}", call, uses=WAREHOUSE))
    return plan


def watched(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs that use limits devices own, after each commit."""
    commit, counts = stage.store.commit, list[int]()

    async def counted(writes: Sequence[Write]) -> None:
        await commit(writes)
        if any(isinstance(write, PutRun) for write in writes):
            counts.append(sum(run.session is not None and run.uses is not None for run in stage.store._runs.values()))

    monkeypatch.setattr(stage.store, "commit", counted)
    return counts


async def test_functions_of_two_plans_in_two_processes_share_a_limit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_limit(stage.store, Limit("warehouse", 2))
    counts = watched(stage, monkeypatch)
    plans = [stage.orchestrator(host=name).run(using(name, 20)) for name in ("day", "night")]
    results = await asyncio.gather(*plans)
    assert [result.state for result in results] == [ConstellationState.COMPLETED] * 2
    assert max(counts) == 2
    assert len(DONE) == 40


async def test_a_plan_that_uses_an_unknown_limit_is_refused(stage: Stage) -> None:
    plan = using("nightly", 1)
    refused = r"task 'nightly0': no limit 'warehouse' is set\. Set it with: asterism limit set 'warehouse' 1"
    with pytest.raises(PlanError, match=refused):
        await stage.orchestrator().run(plan)
    with pytest.raises(PlanError, match=refused):
        await submit_plan(stage.fleet(), plan)
    fleet = stage.fleet()
    with pytest.raises(PlanError, match=refused):
        await fleet.schedules.add("daily", plan=plan, every=86_400)
    assert await stage.store.registers("plan/") == []
    assert await stage.store.registers("schedule/") == []


async def test_a_task_that_an_edit_adds_fails_if_its_limit_is_not_set(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    plan = Constellation("nightly")
    plan.add(task("first", "wait"))
    running = stage.spawn(orchestrator.run(plan))
    await gate("first begun").wait()
    await orchestrator.edit("nightly", EditBatch((AddTask(task("more", uses={"disk": 1})),)))
    gate("first").set()
    result = await running
    assert result.state is ConstellationState.PARTIALLY_FAILED
    assert "no limit 'disk' is set" in str(result["more"].error)


async def test_a_waiting_task_says_who_holds_its_limit(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    plan = using("nightly", 2, "wait")
    running = stage.spawn(stage.orchestrator().run(plan))
    await stage.until(lambda: any(run.session for run in stage.store._runs.values()))
    [holder] = [run for run in stage.store._runs.values() if run.session is not None]
    waits = next(name for name in ("nightly0", "nightly1") if f"/{name}/" not in str(holder.key))
    why = str(await explain_task(stage.fleet(), "nightly", waits))
    assert f"of limit 'warehouse' (1) 0 is free: run {holder.id} (plan:nightly, task" in why
    for name in ("nightly0", "nightly1"):
        gate(name).set()
    assert (await running).state is ConstellationState.COMPLETED


async def test_a_task_that_waits_for_a_removed_limit_is_cancelled_with_its_plan(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    orchestrator = stage.orchestrator()
    running = stage.spawn(orchestrator.run(using("nightly", 2, "wait")))
    await stage.until(lambda: len(stage.store._runs) == 2)
    await remove_limit(stage.store, "warehouse")
    await asyncio.sleep(10.0)
    await orchestrator.cancel("nightly")
    assert (await running).state is ConstellationState.CANCELLED
    assert [run.ended for run in await stage.store.find(Query())] == [True, True]


async def test_a_process_that_dies_holds_nothing(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    await stage.device("hub")
    dying = stage.spawn(stage.orchestrator(host="there").run(using("dies", 1, "wait")))
    await gate("dies0 begun").wait()
    other = stage.spawn(stage.orchestrator().run(using("nightly", 1)))
    await asyncio.sleep(10.0)
    assert not DONE
    dying.cancel()
    gate("dies0").set()  # the hub may take it before the other one
    assert (await other).state is ConstellationState.COMPLETED


async def test_a_plan_without_a_store_says_where_limits_are_kept() -> None:
    orchestrator = Orchestrator([LocalDevice("laptop")])
    plan = Constellation("nightly")
    plan.add(Task("load", call=lambda: None, uses=WAREHOUSE))
    with pytest.raises(PlanError, match="task 'load': it uses limits, and these are kept in a store"):
        await orchestrator.run(plan)
    added = Constellation("added")
    added.add(Task("first", call=lambda: orchestrator.edit("added", EditBatch((AddTask(Task("x", uses=WAREHOUSE)),)))))
    result = await orchestrator.run(added)
    assert "it uses limits, and these are kept in a store" in str(result["x"].error)
