"""Lists of a running plan: the journal has each end at once, the runs and the summary follow together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.journal import RecordedConstellation
from asterism.core.run.run import COMPLETED, Run
from asterism.durable import compaction, plan_actor, plan_summaries
from asterism.durable.journal_store import OwnershipLost, ReloadRequired
from asterism.durable.journal_writer import LIST_INTERVAL, JournalWriter, UnwrittenEnd
from asterism.durable.plan_summaries import ListedPlan, list_plans
from asterism.durable.unwritten_runs import UnwrittenRun
from asterism.orchestrator import unchanged_tasks
from asterism.store.protocol import PlanQuery, PutLog, PutRun, Query, Write
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
    await plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch((AddTask(task("d")),), "ann"))
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


# -- ends, steps and rows that come apart ------------------------------------------------------------------------------


async def test_a_task_that_is_cancelled_as_it_completes_was_executed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its teardown runs, although the plan takes no note of its result."""
    plan = chain("create", "load")
    plan.add(task("drop"), teardown="create")
    orchestrator = stage.orchestrator()
    completed = UnwrittenRun.completed

    def then_cancelled(self: UnwrittenRun, after: Run, log: Sequence[PutLog]) -> bool:
        done = completed(self, after, log)
        if self.work.task.id == "create":
            [owner] = orchestrator.fleet.running_plans.values()
            execution = owner.running.execution
            execution._cancel_task(execution.plan.node("create"), "by ann")
        return done

    monkeypatch.setattr(UnwrittenRun, "completed", then_cancelled)
    await orchestrator.run(plan)
    assert DONE == {"create": 1, "drop": 1}


def held_open(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Let a task with ``skip_if_unchanged`` take a while between the end of its run and its own. Returns an event that
    is set then, and one that lets it end."""
    between, go = asyncio.Event(), asyncio.Event()

    async def hashes(files: Any, patterns: Sequence[str]) -> dict[str, str]:
        if patterns and DONE["a"]:
            between.set()
            await go.wait()
        return dict.fromkeys(patterns, "1")

    monkeypatch.setattr(unchanged_tasks._NamedFiles, "_hashes", hashes)
    return between, go


async def reloaded_between_an_end_and_its_step(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    between, go = held_open(monkeypatch)
    plan = Constellation("nightly")
    plan.add(task("a", skip_if_unchanged={"inputs": [], "outputs": ["out"]}))
    plan.add(task("b", "wait"))
    orchestrator = stage.orchestrator()
    running = stage.spawn(orchestrator.run(plan))
    await between.wait()
    [owner] = orchestrator.fleet.running_plans.values()
    await owner.running.journal.commit()
    monkeypatch.setattr(JournalWriter, "_append", refused_once(JournalWriter._append))
    with contextlib.suppress(OwnershipLost):
        await owner.running.journal.commit()
    go.set()
    durable_work.gate("b").set()
    await running


def refused_once(append: Any) -> Any:
    refusals = iter([ReloadRequired("another process has changed run x")])

    async def refused(journal: JournalWriter, *about: Any) -> None:
        for refusal in refusals:
            raise refusal
        await append(journal, *about)

    return refused


async def test_an_end_is_kept_until_a_step_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await reloaded_between_an_end_and_its_step(stage, monkeypatch)
    assert DONE == {"a": 1, "b": 1}


async def test_ablation_an_end_that_is_taken_too_early_is_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of_them(journal: JournalWriter) -> list[UnwrittenEnd]:
        ends, journal._ends = journal._ends, []
        return ends

    monkeypatch.setattr(JournalWriter, "_take_ends", all_of_them)
    await reloaded_between_an_end_and_its_step(stage, monkeypatch)
    assert DONE["a"] == 2


async def test_a_takeover_does_not_compact_the_journal_before_its_runs_are_listed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second owner is about to look which runs are missing, and dies."""
    first, second = Line(stage), Line(stage)
    stage.spawn(behind(stage, first).run(begun_and_waiting()))
    await durable_work.gate("c begun").wait()
    first.cut = True
    await asyncio.sleep(200.0)
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 1)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    find = stage.store.find

    async def slow(query: Query) -> list[Run]:
        if query.keys:
            await asyncio.sleep(1.0)
        return await find(query)

    monkeypatch.setattr(stage.store, "find", slow)
    stage.spawn(behind(stage, second, "second").run_stored("nightly"))
    await asyncio.sleep(0.5)
    second.cut = True
    monkeypatch.setattr(stage.store, "find", find)
    await asyncio.sleep(200.0)
    durable_work.gate("c").set()
    await stage.orchestrator(host="there").run_stored("nightly")
    assert [run.key for run in await stored_runs(stage)][:2] == ["plan:nightly/a/1", "plan:nightly/b/2"]


async def test_a_run_that_the_store_refuses_does_not_stop_the_plan(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = stage.store.commit

    async def picky(writes: Sequence[Write]) -> None:
        if any(isinstance(write, PutRun) and write.run.key == "plan:nightly/a/1" for write in writes):
            raise ValueError("cannot be stored")
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", picky)
    running = stage.spawn(stage.orchestrator().run(begun_and_waiting()))
    await durable_work.gate("c begun").wait()
    await asyncio.sleep(1.5 * LIST_INTERVAL)
    durable_work.gate("c").set()
    assert (await running).state == "completed"
    assert [run.key for run in await stored_runs(stage)] == ["plan:nightly/c/3"]


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


async def test_a_list_by_state_finds_a_plan_whose_process_died_as_it_began(stage: Stage) -> None:
    await counted_after_a_death(stage)
    [resting] = await list_plans(stage.store, PlanQuery(states=frozenset({"at_rest"})))
    assert isinstance(resting, ListedPlan)
    assert await list_plans(stage.store, PlanQuery(states=frozenset({"created", "ready", "executing"}))) == []


async def test_ablation_without_a_look_at_the_journal_a_list_is_old(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*about: Any) -> bool:
        return False

    monkeypatch.setattr(plan_summaries, "_is_old", never)
    assert (await counted_after_a_death(stage)).get("completed", 0) < 2
