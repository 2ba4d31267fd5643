"""Inherited priority in a store: the queued runs of a plan change in the commit of the edit that makes them urgent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddDependency, AddTask, CancelTask, EditBatch
from asterism.core.plan.journal import Edit
from asterism.core.plan.task import Priority
from asterism.core.run.run import CLAIMED, CREATED, Run
from asterism.durable.journal_writer import JournalWriter
from asterism.durable.plan_actor import edit_plan
from asterism.store.protocol import PutRegister, PutRun, Query
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, task

pytestmark = pytest.mark.virtual_time

URGENT = EditBatch((AddTask(task("urgent", priority="critical")), AddDependency("low", "urgent")), "ann")


async def queued(stage: Stage, backlog: int = 0) -> asyncio.Task[Any]:
    """A plan whose task "low" is a run that waits behind "busy" on the only device."""
    await stage.device("only", slots=1, backlog=backlog)
    plan = Constellation("nightly")
    plan.add(task("busy", "wait", priority="critical"))
    plan.add(task("low", priority="low"))
    plan.add(task("plain"))
    plan.add(task("more"))
    job = stage.spawn(stage.orchestrator(local=0).run(plan))
    await durable_work.gate("busy begun").wait()
    await asyncio.sleep(5.0)
    return job


async def run_of(stage: Stage, name: str) -> Run:
    [run] = [candidate for candidate in await stage.store.find(Query()) if f"/{name}/" in str(candidate.key)]
    return run


async def test_a_queued_run_becomes_urgent_in_the_commit_of_the_edit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await queued(stage)
    before = await run_of(stage, "low")
    assert (before.status, before.priority) == (CREATED, Priority.LOW)
    commits: list[Any] = []
    commit = stage.store.commit

    async def watched(writes: Any) -> None:
        commits.append(writes)
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", watched)
    await edit_plan(stage.fleet(), "nightly", URGENT)
    run = await run_of(stage, "low")
    assert (run.priority, run.story[-1].what, run.story[-1].why) == (
        Priority.CRITICAL,
        "prioritised",
        "from 1 to 4: by the tasks that wait for it",
    )
    [writes] = [some for some in commits if any(isinstance(write, PutRun) and write.run.id == run.id for write in some)]
    steps = [
        write.value.steps for write in writes if isinstance(write, PutRegister) and write.key.startswith("journal/")
    ]
    assert [type(step) for step in steps[0]] == [Edit]
    await edit_plan(stage.fleet(), "nightly", EditBatch((CancelTask("urgent"),)))
    assert (await run_of(stage, "low")).priority == Priority.LOW
    durable_work.gate("busy").set()
    await job


async def test_the_run_that_critical_work_waits_for_goes_first(stage: Stage) -> None:
    job = await queued(stage)
    await edit_plan(stage.fleet(), "nightly", URGENT)
    durable_work.gate("busy").set()
    await job
    assert list(DONE)[:2] == ["busy", "low"]


async def test_a_run_that_was_claimed_in_advance_becomes_urgent_too(stage: Stage) -> None:
    """In the record, and for the device that holds it."""
    job = await queued(stage, backlog=3)
    assert (await run_of(stage, "low")).status == CLAIMED
    await edit_plan(stage.fleet(), "nightly", URGENT)
    run = await run_of(stage, "low")
    assert (run.status, run.priority) == (CLAIMED, Priority.CRITICAL)
    durable_work.gate("busy").set()
    await job
    assert list(DONE)[:2] == ["busy", "low"]
    assert (await run_of(stage, "low")).previous == ()


async def test_without_the_change_of_queued_runs_critical_work_is_last(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JournalWriter, "_take_urged", lambda self, writes: {})
    job = await queued(stage)
    await edit_plan(stage.fleet(), "nightly", URGENT)
    durable_work.gate("busy").set()
    await job
    assert list(DONE) == ["busy", "plain", "more", "low", "urgent"]


async def test_a_run_that_another_process_changes_meanwhile_only_makes_the_commit_look_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await queued(stage)
    prioritised, tries = JournalWriter._prioritised, 0

    async def disturbed(self: JournalWriter, urged: Any, writes: Any) -> Any:
        nonlocal tries
        priority_writes = await prioritised(self, urged, writes)
        tries += 1
        if tries == 1:  # another process writes the run between the look and the commit
            run = await run_of(stage, "low")
            await stage.store.commit([PutRun(run.changed(revision=run.revision + 1), run.revision)])
        return priority_writes

    monkeypatch.setattr(JournalWriter, "_prioritised", disturbed)
    answer = await edit_plan(stage.fleet(), "nightly", URGENT)
    assert (answer.applied.version, tries) == (1, 2)
    assert (await run_of(stage, "low")).priority == Priority.CRITICAL
    durable_work.gate("busy").set()
    assert (await job).state == "completed"


async def test_a_run_is_created_with_the_priority_with_which_its_task_counts(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("low", priority="low"))
    plan.add(task("urgent", priority="critical"), "low")
    await stage.device("kitchen")
    await stage.orchestrator(local=0).run(plan)
    assert (await run_of(stage, "low")).priority == Priority.CRITICAL
