"""Work of a plan's own process: its run is written once, with its end, or when it lasts; and it is nobody else's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import CancelTask, EditBatch, RemoveTask
from asterism.core.plan.journal import RecordedConstellation
from asterism.core.plan.status import ConstellationState
from asterism.core.run.run import COMPLETED, PROCESSING, Run
from asterism.core.run.work import Workflow
from asterism.durable import compaction, plan_actor
from asterism.durable.fleet_device import FleetDevice
from asterism.durable.unwritten_runs import WRITE_AFTER, UnwrittenRuns
from asterism.fleet import monitor, retention
from asterism.fleet.device.completion import HeldRun
from asterism.fleet.workflows import UnknownWorkflow
from asterism.store.protocol import Notice, PutLog, PutRun, Query, Write
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Line, Stage, behind, chain, left, task, written

pytestmark = pytest.mark.virtual_time

SOON = WRITE_AFTER / 5


class Recorded(Counter[str]):
    """Counts as ``DONE`` does, and notes the order."""

    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self._order = order

    def __setitem__(self, name: str, count: int) -> None:
        self._order.append(name)
        super().__setitem__(name, count)


async def runs(stage: Stage) -> list[Run]:
    return await stage.store.find(Query())


# -- what others see ---------------------------------------------------------------------------------------------------


async def test_a_short_task_leaves_the_run_that_it_always_left(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, puts = stage.store.commit, []

    async def counted(writes: Sequence[Write]) -> None:
        puts.extend(write for write in writes if isinstance(write, PutRun))
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", counted)
    await stage.orchestrator().run(chain("a"))
    [put], [run] = puts, await runs(stage)
    assert put.expected is None
    assert (run.status, run.output, run.device, run.epoch) == (COMPLETED, "a done", "nightly@here", 1)
    assert [entry.what for entry in run.story] == ["created", "assigning to self", "claimed", "processing", "completed"]
    assert sum(run.id in entry.why for entry in (await stage.load()).plan.story()) == 1


async def test_a_task_that_lasts_is_written_while_it_executes(stage: Stage) -> None:
    running = asyncio.ensure_future(stage.orchestrator().run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    assert await runs(stage) == []
    await asyncio.sleep(2 * WRITE_AFTER)
    [run] = await runs(stage)
    assert (run.status, run.device) == (PROCESSING, "nightly@here")
    durable_work.gate("a").set()
    durable_work.gate("b").set()
    await running
    assert DONE == {"a": 1, "b": 1}
    assert [run.status for run in await runs(stage)] == [COMPLETED, COMPLETED]


async def test_an_end_while_the_run_is_being_written_comes_after_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = stage.store.commit

    async def slow(writes: Sequence[Write]) -> None:
        if any(isinstance(write, PutRun) and write.run.status is PROCESSING for write in writes):
            durable_work.gate("a").set()
            await asyncio.sleep(1.0)
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slow)
    assert (await stage.orchestrator().run(chain("a", call="wait"))).state is ConstellationState.COMPLETED
    [run] = await runs(stage)
    assert (run.status, DONE["a"]) == (COMPLETED, 1)


async def test_a_failed_task_is_written_with_all_its_attempts(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("a", "fail", retries=1, backoff=0.0))
    assert (await stage.orchestrator().run(plan)).state is ConstellationState.FAILED
    [run] = await runs(stage)
    assert [(past.epoch, past.reason) for past in run.previous] == [(1, "failed"), (2, "failed")]


async def test_a_heartbeat_does_not_count_an_unwritten_run_as_lost(stage: Stage) -> None:
    """The answer names the runs that the store knows of. Without the check, the work is stopped and done again."""
    orchestrator = stage.orchestrator(heartbeat=0.1)
    running = asyncio.ensure_future(orchestrator.run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(4 * SOON)
    durable_work.gate("a").set()
    await running
    [run] = await runs(stage)
    assert (run.previous, DONE) == ((), {"a": 1})


async def test_a_task_cancelled_at_once_leaves_a_cancelled_run(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    plan.add(task("b", "wait"))
    running = asyncio.ensure_future(orchestrator.run(plan))
    await durable_work.gate("a begun").wait()
    await orchestrator.edit("nightly", EditBatch((CancelTask("a"),), "ann"))
    durable_work.gate("b").set()
    await running
    [run] = [run for run in await runs(stage) if "/a/" in (run.key or "")]
    assert run.cancelled
    assert "a" not in DONE


async def test_the_slot_of_a_short_task_goes_to_the_run_that_has_waited_longest(stage: Stage) -> None:
    """A run of somebody else waits for the only slot, and gets it before what follows from the task."""
    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    plan.add(task("b"), "a")
    order: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable_work, "DONE", Recorded(order))
        running = asyncio.ensure_future(stage.orchestrator(local=1).run(plan))
        await durable_work.gate("a begun").wait()
        await stage.fleet().create(Workflow("other", call="tests.durable.durable_work:work"), {"name": "other"})
        await asyncio.sleep(SOON)
        durable_work.gate("a").set()
        await running
    assert order == ["a", "other", "b"]


# -- a process that dies, freezes or leaves ----------------------------------------------------------------------------


async def test_the_next_owner_writes_the_run_of_a_process_that_is_gone(stage: Stage) -> None:
    line = Line(stage)
    stage.spawn(behind(stage, line).run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    line.cut = True  # it lives, and cannot say so
    begun = (await stage.load()).plan.begun_run("a")
    assert begun is not None
    assert await runs(stage) == []
    second = stage.spawn(stage.orchestrator(host="there").standby("nightly"))
    await asyncio.sleep(200.0)
    durable_work.gate("a").set()
    await second
    [run] = await runs(stage)
    assert (run.id, DONE) == (begun.id, {"a": 1})
    assert [(past.device, past.reason) for past in run.previous] == [("nightly@here", "timeout")]
    assert run.losses == 0  # that its own process ended says nothing about the task


async def test_a_set_up_of_a_process_that_is_gone_is_torn_down(stage: Stage) -> None:
    """Its plan is cancelled before it is taken up: the journal says that the set-up had begun."""
    plan = Constellation("nightly")
    plan.add(task("create", "wait"))
    plan.add(task("use"), "create")
    plan.add(task("drop"), teardown="create")
    line = Line(stage)
    stage.spawn(behind(stage, line, "there").run(plan))
    await durable_work.gate("create begun").wait()
    line.cut = True
    await asyncio.sleep(200.0)
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    await behind(stage, Line(stage, 0.002)).run_stored("nightly")
    assert DONE == {"drop": 1}


@pytest.mark.long
async def test_a_plan_goes_on_though_the_session_of_a_dead_process_is_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "SILENT_SHOWN", 300.0)
    line = Line(stage)
    stage.spawn(behind(stage, line).run(chain("a", call="wait")))
    await stage.device("kitchen")
    await durable_work.gate("a begun").wait()
    line.cut = True
    await asyncio.sleep(700.0)
    await stage.fleet().prune(60.0)
    assert [session.device for session in await stage.store.sessions(ended=True)] == ["kitchen"]
    durable_work.gate("a").set()
    await stage.orchestrator(host="there").run_stored("nightly")
    [run] = await runs(stage)
    assert [(past.reason, past.detail) for past in run.previous] == [("timeout", "its process is forgotten")]


async def test_a_process_that_has_lost_its_plan_writes_no_run_of_it(stage: Stage) -> None:
    """It is cut off while it writes an end; the plan is completed elsewhere, removed, and another one has its name."""
    line = Line(stage)
    stage.spawn(behind(stage, line, "there").run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    line.cut = True
    durable_work.gate("a").set()
    await stage.orchestrator().standby("nightly")
    await retention.remove_plan(stage.store, "nightly", Notice(stage.store.clock(), "removed", "by ann", None, None))
    line.cut = False
    await asyncio.sleep(400.0)
    assert await runs(stage) == []
    result = await stage.orchestrator().run(chain("a", call="who_am_i"))
    assert result["a"].value == "another function"


async def test_work_of_a_plan_that_was_cancelled_meanwhile_is_given_to_nobody(stage: Stage) -> None:
    line = Line(stage)
    stage.spawn(behind(stage, line, "there").run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    line.cut = True
    await asyncio.sleep(91.0)
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    await behind(stage, Line(stage, 0.002)).run_stored("nightly")
    await stage.device("kitchen")
    durable_work.gate("a begun").clear()
    line.cut = False
    await asyncio.sleep(400.0)
    assert not durable_work.gate("a begun").is_set()
    assert all(run.ended for run in await runs(stage))


async def begun_by_two(stage: Stage) -> bool:
    """Let a standby take a plan over while its owner lives, since the clock of the store jumps. Returns whether it
    begins what the owner has begun and has not written."""
    clock = stage.store.clock
    first = stage.spawn(stage.orchestrator().run(chain("a", call="numbered")))
    await durable_work.gate("a 1 begun").wait()
    stage.store.clock = lambda: clock() + 3600.0  # type: ignore[method-assign]
    second = stage.spawn(stage.orchestrator(host="there").standby("nightly"))
    await asyncio.sleep(10.0)
    assert (await stage.load()).head.device == "nightly@there"
    twice = DONE["a begun"] > 1
    for number in (1, 2):
        durable_work.gate(f"a {number}").set()
    await asyncio.wait([first, second])
    return twice


async def test_a_living_process_keeps_what_it_has_begun(stage: Stage) -> None:
    assert not await begun_by_two(stage)


async def test_without_the_session_in_the_journal_two_processes_execute_one_task(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordedConstellation, "begun_run", lambda self, task: None)
    assert await begun_by_two(stage)


async def test_the_session_is_in_the_snapshot_of_a_compacted_journal(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 1)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    orchestrator = stage.orchestrator()
    stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await orchestrator.edit("nightly", EditBatch((RemoveTask("b"),), "ann"))
    await asyncio.sleep(SOON)
    loaded = await stage.load()
    assert loaded.head.snapshot is not None
    begun = loaded.plan.begun_run("a")
    assert begun is not None
    assert begun.session == loaded.head.owner


async def test_work_that_outlives_its_lease_is_stopped_and_done_again(stage: Stage) -> None:
    line = Line(stage)
    running = stage.spawn(behind(stage, line).run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    line.cut = True
    await asyncio.sleep(200.0)
    line.cut = False
    durable_work.gate("a").set()
    result = await running
    assert (result.state, DONE) == (ConstellationState.COMPLETED, {"a": 1})
    [run] = await runs(stage)
    assert [past.reason for past in run.previous] == ["timeout"]


async def test_a_process_that_leaves_hands_back_what_it_has_not_written(stage: Stage) -> None:
    plan = chain("a", call="wait")
    await left(stage.orchestrator().run(plan), durable_work.gate("a begun").is_set, stage)
    [run] = await runs(stage)
    assert [past.reason for past in run.previous] == ["released"]
    durable_work.gate("a").set()
    await stage.orchestrator().run_stored("nightly")
    assert DONE == {"a": 1}


# -- commits that do not happen ----------------------------------------------------------------------------------------


async def test_a_reload_neither_interrupts_nor_repeats_short_work(stage: Stage) -> None:
    """Somebody changes the run of another task, and the plan is read again."""
    plan = Constellation("nightly")
    plan.add(task("long", "wait"))
    plan.add(task("a", "wait"), "long")
    plan.add(task("z", "wait"))
    running = stage.spawn(stage.orchestrator().run(plan))
    await written("long", "z")
    durable_work.gate("long").set()
    await durable_work.gate("a begun").wait()
    [run] = [run for run in await runs(stage) if "/z/" in (run.key or "")]
    await stage.fleet().cancel(run.id)
    durable_work.gate("z").set()
    await asyncio.sleep(SOON)
    durable_work.gate("a").set()
    await running
    assert DONE["a"] == 1


async def test_an_end_whose_commit_is_refused_is_not_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, refused = stage.store.commit, []

    async def picky(writes: Sequence[Write]) -> None:
        ends = [write for write in writes if isinstance(write, PutRun) and write.run.ended]
        if ends and len(writes) > 2 and not refused:
            refused.append(ends)
            raise ValueError("cannot be stored together")
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", picky)
    assert (await stage.orchestrator().run(chain("a", "b"))).state is ConstellationState.COMPLETED
    assert refused
    assert DONE == {"a": 1, "b": 1}


async def test_no_end_of_a_large_refused_commit_is_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, refused = stage.store.commit, []

    async def picky(writes: Sequence[Write]) -> None:
        ends = [write for write in writes if isinstance(write, PutRun) and write.run.ended]
        if len(ends) > 50 and not refused:
            refused.append(ends)
            raise ValueError("one of them cannot be stored")
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", picky)
    plan = Constellation("nightly")
    for number in range(200):
        plan.add(task(f"t{number}"))
    await behind(stage, Line(stage, 0.01), local=200).run(plan)
    assert refused
    assert set(DONE.values()) == {1}


async def test_the_log_of_a_refused_end_is_written(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, refused = stage.store.commit, []

    async def picky(writes: Sequence[Write]) -> None:
        if any(isinstance(write, PutLog) for write in writes) and len(writes) > 3 and not refused:
            refused.append(writes)
            raise ValueError("cannot be stored together")
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", picky)
    await stage.orchestrator().run(chain("a", call="printing"))
    assert refused
    [run] = await runs(stage)
    [attempt] = await stage.fleet().logs(run.id)
    assert (attempt.text, DONE) == ("a says hello\n", {"a": 1})


async def test_without_the_ends_of_a_refused_commit_work_is_done_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnwrittenRuns, "keep_ends", lambda self, ends: None)
    with pytest.raises(AssertionError):
        await test_an_end_whose_commit_is_refused_is_not_lost(stage, monkeypatch)


async def test_what_cannot_be_written_after_a_plan_was_left_changes_nothing_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow of a refused end may have been removed with its plan."""

    async def removed(self: FleetDevice, name: str) -> None:
        raise UnknownWorkflow("there is no version 1 of workflow plan:nightly")

    monkeypatch.setattr(FleetDevice, "forget", removed)
    assert (await stage.orchestrator().run(chain("a"))).state is ConstellationState.COMPLETED


async def test_progress_and_output_are_reported_once_the_run_is_written(stage: Stage) -> None:
    reports: list[tuple[bool, str]] = []
    report = HeldRun.report

    def watched(self: HeldRun) -> Any:
        reports.append((self.unwritten is None, self.run.id))
        return report(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldRun, "report", watched)
        orchestrator = stage.orchestrator(heartbeat=0.1)
        running = asyncio.ensure_future(orchestrator.run(chain("a", call="reporting")))
        await durable_work.gate("a begun").wait()
        await asyncio.sleep(3.0)
        durable_work.gate("a").set()
        await running
    assert reports
    assert all(is_written for is_written, _ in reports)
