"""Stored plans whose tasks need approval: a person decides once, also while no process runs the plan."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import ApprovalForbidden, ApprovalGone, EditBatch, UpdateTask, WaitingEdit
from asterism.durable.approval_store import list_approvals
from asterism.durable.journal_store import UnknownConstellation
from asterism.durable.plan_actor import approve_edit, ask_why, edit_plan, refuse_edit
from tests.durable.durable_scenes import DONE, Stage, task

pytestmark = pytest.mark.virtual_time


def release(**approval: Any) -> Constellation:
    plan = Constellation("nightly")
    plan.add(task("build"))
    plan.add(task("deploy", approval=approval), "build")
    return plan


async def waiting(stage: Stage) -> WaitingEdit:
    """Wait until the store says that the task asks for its start."""
    while True:
        with contextlib.suppress(UnknownConstellation):
            edits = [edit for edit in await list_approvals(stage.store, "nightly") if edit.state == "waiting"]
            if edits:
                return edits[0]
        await asyncio.sleep(0.1)


async def asking(stage: Stage, **approval: Any) -> asyncio.Task[Any]:
    job = stage.spawn(stage.orchestrator().run(release(**approval)))
    await waiting(stage)
    return job


async def leave(job: asyncio.Task[Any]) -> None:
    job.cancel()
    await asyncio.wait([job])


async def test_the_owner_starts_the_task_for_those_who_may_decide(stage: Stage) -> None:
    job = await asking(stage, by="release-managers")
    assert "it waits for approval 1 by release-managers" in str(await ask_why(stage.fleet(), "nightly", "deploy"))
    with pytest.raises(ApprovalForbidden):
        await approve_edit(stage.fleet(), "nightly", 1, who="bob", groups=["qa"])
    with pytest.raises(ApprovalForbidden):
        await refuse_edit(stage.fleet(), "nightly", 1, who="bob")
    await approve_edit(stage.fleet(), "nightly", 1, reason="fine", who="ann", groups=["qa", "release-managers"])
    assert ((await job).state, dict(DONE)) == ("completed", {"build": 1, "deploy": 1})
    (decided,) = await list_approvals(stage.store, "nightly")
    assert (decided.state, decided.decided_by, decided.why) == ("approved", "ann", "fine")
    notices = [notice.message for _, notice in await stage.store.notices() if notice.kind == "approval"]
    assert notices == [
        "plan nightly: the start of task 'deploy' waits for approval 1 by release-managers "
        "(asterism plan approvals nightly)"
    ]


async def test_the_next_owner_goes_on_with_the_question(stage: Stage) -> None:
    await leave(await asking(stage, timeout=5000.0))
    job = stage.spawn(stage.orchestrator().run_stored("nightly"))
    await asyncio.sleep(60.0)
    (edit,) = await list_approvals(stage.store, "nightly")  # nobody is asked twice
    assert (edit.id, edit.state) == (1, "waiting")
    await approve_edit(stage.fleet(), "nightly", 1)
    assert ((await job).state, dict(DONE)) == ("completed", {"build": 1, "deploy": 1})


@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_about_a_plan_that_nobody_runs_holds_when_it_is_resumed(stage: Stage, approved: bool) -> None:
    await leave(await asking(stage))
    decide = approve_edit if approved else refuse_edit
    await decide(stage.fleet(), "nightly", 1, reason="ok")
    with pytest.raises(ApprovalGone):
        await decide(stage.fleet(), "nightly", 1, reason="again")
    result = await stage.orchestrator().run_stored("nightly")
    assert (result.state, DONE["deploy"]) == (("completed", 1) if approved else ("partially_failed", 0))


async def test_an_edit_of_a_plan_that_nobody_runs_makes_the_task_ask_again(stage: Stage) -> None:
    await leave(await asking(stage))
    await edit_plan(stage.fleet(), "nightly", EditBatch((UpdateTask("deploy", description="with care"),)))
    with pytest.raises(ApprovalGone):
        await approve_edit(stage.fleet(), "nightly", 1)
    job = stage.spawn(stage.orchestrator().run_stored("nightly"))
    await asyncio.sleep(60.0)
    states = [(edit.id, edit.state) for edit in await list_approvals(stage.store, "nightly")]
    assert states == [(1, "expired"), (2, "waiting")]
    await approve_edit(stage.fleet(), "nightly", 2)
    assert (await job).state == "completed"


@pytest.mark.parametrize("runs", [True, False], ids=["live", "at rest"])
async def test_an_editor_does_not_take_the_approval_away(stage: Stage, runs: bool) -> None:
    job = await asking(stage, timeout=3600.0)
    if not runs:
        await leave(job)
    batch = EditBatch((UpdateTask("deploy", approval=None),))
    for dry_run in (True, False):
        with pytest.raises(EditRejected, match="'deploy' needs approval; only a person removes"):
            await edit_plan(stage.fleet(), "nightly", batch, editor="robot", dry_run=dry_run)
    job = job if runs else stage.spawn(stage.orchestrator().run_stored("nightly"))
    await refuse_edit(stage.fleet(), "nightly", 1)
    assert ((await job).state, dict(DONE)) == ("partially_failed", {"build": 1})


@pytest.mark.parametrize("runs", [True, False], ids=["live", "at rest"])
async def test_only_those_who_may_decide_take_the_approval_away(stage: Stage, runs: bool) -> None:
    job = await asking(stage, by="release-managers")
    if not runs:
        await leave(job)
    batch = EditBatch((UpdateTask("deploy", approval=None),), "bob")
    for dry_run in (True, False):
        with pytest.raises(EditRejected, match="only release-managers removes"):
            await edit_plan(stage.fleet(), "nightly", batch, groups=["qa"], dry_run=dry_run)
    await edit_plan(stage.fleet(), "nightly", batch, groups=["release-managers"])
    job = job if runs else stage.spawn(stage.orchestrator().run_stored("nightly"))
    assert ((await job).state, dict(DONE)) == ("completed", {"build": 1, "deploy": 1})
