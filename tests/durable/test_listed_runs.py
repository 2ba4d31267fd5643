"""Lists of a running plan: the journal has each end at once, the runs and the summary follow together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.journal import RecordedConstellation
from asterism.core.run.run import COMPLETED, Run
from asterism.durable import admin, compaction, plan_summaries
from asterism.durable.journal_writer import LIST_INTERVAL
from asterism.durable.plan_summaries import ListedPlan, list_plans
from asterism.store.protocol import PlanQuery, PutRegister, PutRun, Query, Write
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Line, Stage, behind, chain, task

pytestmark = pytest.mark.virtual_time


def begun_and_waiting() -> Constellation:
    """A plan whose first tasks are quick, and whose last one waits for the test."""
    plan = Constellation("nightly")
    plan.add(task("a"))
    plan.add(task("b"), "a")
    plan.add(task("c", "wait"), "b")
    return plan


async def stored_runs(stage: Stage) -> list[Run]:
    return sorted(await stage.store.find(Query(statuses=frozenset({COMPLETED}))), key=lambda run: run.key or "")


async def listed(stage: Stage) -> dict[str, int]:
    [plan] = await list_plans(stage.store, PlanQuery())
    assert isinstance(plan, ListedPlan)
    return plan.counts


async def test_runs_and_summary_follow_soon_after_the_steps(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(begun_and_waiting()))
    await durable_work.gate("c begun").wait()
    assert (await stage.load()).plan.node("b").status == "completed"
    assert await stored_runs(stage) == []
    await asyncio.sleep(1.5 * LIST_INTERVAL)
    assert [run.key for run in await stored_runs(stage)] == ["plan:nightly/a/1", "plan:nightly/b/2"]
    assert await listed(stage) == {"completed": 2, "running": 1}
    durable_work.gate("c").set()
    await running
    assert len(await stored_runs(stage)) == 3


async def test_many_short_tasks_are_listed_by_one_commit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, listings = stage.store.commit, []

    async def counted(writes: Sequence[Write]) -> None:
        if runs := [write for write in writes if isinstance(write, PutRun)]:
            listings.append(len(runs))
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", counted)
    await stage.orchestrator().run(chain(*"abcdefgh"))
    assert listings == [8]


async def left_by_a_dead_process(stage: Stage) -> Sequence[Run]:
    """Cut the owner of the plan off before it lists its runs, and let another process complete the plan."""
    line = Line(stage)
    stage.spawn(behind(stage, line).run(begun_and_waiting()))
    await durable_work.gate("c begun").wait()
    line.cut = True
    await asyncio.sleep(200.0)
    assert await stored_runs(stage) == []
    durable_work.gate("c").set()
    await stage.orchestrator(host="there").run_stored("nightly")
    assert DONE["a"] == DONE["b"] == 1
    return [run for run in await stored_runs(stage) if "/c/" not in (run.key or "")]


async def test_the_next_owner_lists_the_runs_as_their_own_process_would_have(stage: Stage) -> None:
    lost = await left_by_a_dead_process(stage)
    assert [run.key for run in lost] == ["plan:nightly/a/1", "plan:nightly/b/2"]
    [entry] = [entry for entry in (await stage.load()).plan.story("a") if entry.what == "run ended"]
    assert lost[0].id in entry.why
    assert (lost[0].device, lost[0].output) == ("nightly@here", "a done")
    whats = ["created", "assigning to self", "claimed", "processing", "completed"]
    assert [entry.what for entry in lost[0].story] == whats
    assert lost[1].input["a"] == "a done"


async def test_ablation_without_the_ended_runs_of_the_journal_they_are_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordedConstellation, "_collect_run", lambda self, *ended: None)
    assert await left_by_a_dead_process(stage) == []


async def test_an_edit_before_the_plan_is_taken_up_does_not_change_what_was_executed(stage: Stage) -> None:
    line = Line(stage)
    stage.spawn(behind(stage, line).run(begun_and_waiting()))
    await durable_work.gate("c begun").wait()
    line.cut = True
    await asyncio.sleep(200.0)
    await admin.edit(stage.fleet(), "nightly", EditBatch((AddTask(task("d")),), "ann"))
    durable_work.gate("c").set()
    await stage.orchestrator(host="there").run_stored("nightly")
    keys = [run.key for run in await stored_runs(stage)]
    assert keys == ["plan:nightly/a/1", "plan:nightly/b/2", "plan:nightly/c/3", "plan:nightly/d/4"]


async def test_compaction_loses_no_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 1)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    line = Line(stage)
    stage.spawn(behind(stage, line).run(begun_and_waiting()))
    await durable_work.gate("c begun").wait()
    await asyncio.sleep(LIST_INTERVAL / 2)
    assert (await stage.load()).head.snapshot is not None
    line.cut = True
    await asyncio.sleep(200.0)
    durable_work.gate("c").set()
    await stage.orchestrator(host="there").run_stored("nightly")
    assert [run.key for run in await stored_runs(stage)][:2] == ["plan:nightly/a/1", "plan:nightly/b/2"]


async def test_output_is_stored_with_the_end(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("a", "printing"))
    plan.add(task("b", "wait"), "a")
    stage.spawn(stage.orchestrator().run(plan))
    await durable_work.gate("b begun").wait()
    [run] = await stored_runs(stage)
    assert [chunk.value for chunk in await stage.store.log(run.id)]


# -- summaries ---------------------------------------------------------------------------------------------------------


async def counted_after_a_death(stage: Stage) -> dict[str, int]:
    line = Line(stage)
    stage.spawn(behind(stage, line).run(begun_and_waiting()))
    await durable_work.gate("c begun").wait()
    line.cut = True
    await asyncio.sleep(200.0)
    return await listed(stage)


async def test_a_list_reads_the_journal_that_went_on_after_the_summary(stage: Stage) -> None:
    assert await counted_after_a_death(stage) == {"completed": 2, "queued": 1}
    [row] = await stage.store.plans(PlanQuery())
    assert row.summary is not None
    assert row.summary["counts"] == {"completed": 2, "running": 1}  # it is right from now on


async def test_ablation_without_a_look_at_the_journal_a_list_is_old(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*about: Any) -> bool:
        return False

    monkeypatch.setattr(plan_summaries, "_is_old", never)
    assert (await counted_after_a_death(stage)).get("completed", 0) < 2


async def test_a_plan_of_an_earlier_version_is_listed(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    [row] = await stage.store.plans(PlanQuery())
    assert row.summary is not None
    earlier = {name: value for name, value in row.summary.items() if name != "record"}
    head = await stage.store.register("plan/nightly")
    assert head is not None
    await stage.store.commit(
        [PutRegister(head.key, head.value, head.revision), plan_summaries.PutPlan("nightly", "completed", earlier)]
    )
    assert await listed(stage) == {"completed": 1}
