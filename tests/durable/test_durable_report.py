"""The report of a stored plan."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.cli.plan.plan_context import OutputOptions
from asterism.cli.plan.plan_execution import LocalWork, WatchedOrchestrator
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, CancelTask, EditBatch
from asterism.core.plan.status import ConstellationState
from asterism.durable.plan_metrics import plan_families
from asterism.durable.stored_plans import read_plan
from asterism.report.result_report import report_of
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, agent, chain, refuse_next_end, task, written

pytestmark = pytest.mark.virtual_time


async def test_the_report_has_all_edits_and_the_first_plan_after_a_reload(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def here(function: Any, *a: Any, **k: Any) -> Any:
        return function(*a, **k)

    monkeypatch.setattr(asyncio, "to_thread", here)
    monkeypatch.chdir(tmp_path)
    orchestrator = WatchedOrchestrator(
        stage.fleet(),
        LocalWork(2, frozenset()),
        OutputOptions(None, True, True),
        takeover_after=15.0,
        host="here",
        make_agent=lambda *a, **t: agent(*a, host="here", **t),
    )
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await orchestrator.edit("nightly", EditBatch((AddTask(task("c", "wait")),), "ann"))
    await written("c")
    refuse_next_end(stage)
    for name in "abc":
        durable_work.gate(name).set()
    assert (await running).state is ConstellationState.COMPLETED
    assert orchestrator.recording is not None
    assert sorted(orchestrator.recording.first) == ["a", "b"]
    assert [edit.kind for edit in orchestrator.recording.edits] == ["edit_applied"]


async def test_tasks_took_as_long_as_they_worked(stage: Stage) -> None:
    plan = Constellation("nightly")
    for number in range(12):
        plan.add(task(f"t{number}", "slow"))
    orchestrator = stage.orchestrator(local=4)
    running = stage.spawn(orchestrator.run(plan))
    await asyncio.sleep(1.0)
    stored = await read_plan(stage.fleet(), "nightly")
    assert stored.counts == {"pending": 8, "running": 4}
    assert {stored.phase(node) for node in stored.record.plan.nodes.values()} == {None, "running"}
    families = {family.name: family for family in await plan_families(stage.store, 3600.0)}
    assert families["asterism_plan_tasks"].samples == {("nightly", "pending"): 8, ("nightly", "running"): 4}
    result = await running
    attempts = [task["attempt"] for task in report_of(result)["plan"]["tasks"]]
    assert [one["ended_at"] - one["begun_at"] for one in attempts] == pytest.approx([8.0] * 12, abs=0.1)
    assert result.summary.parallelism.work == pytest.approx(12 * 8.0, abs=1.0)
    read = (await stage.load()).plan  # as another process knows it
    assert [node.times for node in read.nodes.values()] == [node.times for node in result.plan.nodes.values()]


async def test_a_task_that_was_cancelled_in_the_queue_has_no_bar(stage: Stage) -> None:
    plan = Constellation("nightly")
    for name in ("a", "b", "c"):
        plan.add(task(name, "wait"))
    orchestrator = stage.orchestrator(local=1)
    running = stage.spawn(orchestrator.run(plan))
    await durable_work.gate("a begun").wait()
    await orchestrator.edit("nightly", EditBatch((CancelTask("b", "not needed"), CancelTask("a", "too slow")), "ann"))
    await durable_work.gate("c begun").wait()
    durable_work.gate("c").set()
    result = await running
    worked = {one["task"] for one in report_of(result)["changes"] if "started_at" in one}
    assert worked == {"a", "c"}
    assert (result.plan.nodes["b"].span, result.plan.nodes["a"].span is None) == (None, False)
