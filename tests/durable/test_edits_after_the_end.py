"""Edits of plans that no process runs: whether the added work is run does not depend on the moment of the edit."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.plan.edits import AddTask, EditBatch
from asterism.durable import plan_actor, plan_submissions
from asterism.durable.commands import EditAnswer
from asterism.durable.journal_store import insert_plan, read_head
from asterism.durable.plan_actor import edit_plan, retry_plan
from asterism.durable.plan_metrics import plan_families
from asterism.durable.plan_runner import LOOK_INTERVAL, PlanRunner
from asterism.durable.plan_submissions import submit_plan
from asterism.durable.runner_registers import RUNNER_TIMEOUT, RUNNERS, announce_runner
from asterism.durable.stored_plans import read_plan
from asterism.store.protocol import PutRegister
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, task

pytestmark = pytest.mark.virtual_time


async def submitted_and_ended(stage: Stage) -> None:
    """A plan that a plan runner has run to its end. The runner goes on."""
    await stage.device("desk", monitor_every=None)
    await submit_plan(stage.fleet(), chain("a"))
    stage.spawn(PlanRunner(stage.fleet(), make=lambda fleet: stage.orchestrator(local=0)).run())
    await ended(stage)


async def ended(stage: Stage) -> None:
    for _ in range(1000):
        if (await read_head(stage.store, "nightly"))[0].ended:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"the plan is {(await read_plan(stage.fleet(), 'nightly')).state}")


async def add(stage: Stage, name: str) -> EditAnswer:
    return await edit_plan(stage.fleet(), "nightly", EditBatch((AddTask(task(name)),)))


@pytest.mark.parametrize("seconds", [0.0, 7.0, 600.0])
async def test_a_task_that_is_added_after_the_end_is_run_whenever_that_is(stage: Stage, seconds: float) -> None:
    await submitted_and_ended(stage)
    await asyncio.sleep(seconds)
    answer = await add(stage, "late")
    assert (answer.reopened, answer.rests) == (True, False)
    await ended(stage)
    assert DONE == {"a": 1, "late": 1}


async def test_the_edit_and_the_submission_are_one_commit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await submitted_and_ended(stage)
    await asyncio.sleep(60.0)
    assert await stage.store.register("submitted/nightly") is None
    commits: list[list[str]] = []
    commit = stage.store.commit

    async def recorded(writes: list[object], *more: object, **options: object) -> object:
        commits.append([write.key for write in writes if isinstance(write, PutRegister)])
        return await commit(writes, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(stage.store, "commit", recorded)
    await plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch((AddTask(task("late")),)))
    (reopening,) = [keys for keys in commits if "plan/nightly" in keys]
    assert "submitted/nightly" in reopening


async def test_without_the_submission_the_added_task_rests_forever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submitted_and_ended(stage)
    await asyncio.sleep(2 * LOOK_INTERVAL)

    async def nothing(*_: object) -> PutRegister:
        return PutRegister("unrelated", {}, None)

    monkeypatch.setattr(plan_actor, "submission", nothing)
    await add(stage, "late")
    await asyncio.sleep(3600.0)
    assert (await read_plan(stage.fleet(), "nightly")).state == "at rest"


async def test_an_edit_of_a_plan_that_was_stopped_says_that_it_rests(stage: Stage) -> None:
    running = asyncio.ensure_future(stage.orchestrator().run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    assert (await read_plan(stage.fleet(), "nightly")).state_name == "executing"
    running.cancel()
    await asyncio.wait([running])
    answer = await add(stage, "late")
    assert (answer.reopened, answer.rests) == (False, True)
    view = await read_plan(stage.fleet(), "nightly")
    assert (view.state_name, view.state) == ("at_rest", "at rest")
    states = next(family for family in await plan_families(stage.store, 60.0) if family.name == "asterism_plans")
    assert dict(states.samples) == {("at_rest",): 1}


async def test_an_edit_of_a_plan_that_a_runner_is_about_to_run_does_not_say_that_it_rests(stage: Stage) -> None:
    await submit_plan(stage.fleet(), chain("a", call="wait"))
    assert (await add(stage, "late")).rests  # no runner lives
    runner = stage.spawn(PlanRunner(stage.fleet(), make=lambda fleet: stage.orchestrator()).run())
    await durable_work.gate("a begun").wait()
    runner.cancel()
    await asyncio.wait([runner])
    assert (await add(stage, "later")).rests  # it has ended, and has said so


async def test_an_edit_that_reopens_a_plan_says_that_it_rests_unless_a_runner_lives(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    answer = await add(stage, "late")
    assert (answer.reopened, answer.rests) == (True, True)
    await announce_runner(stage.store, "a server")
    assert not (await add(stage, "later")).rests
    await asyncio.sleep(RUNNER_TIMEOUT + 1.0)
    assert (await add(stage, "latest")).rests  # it was killed
    await announce_runner(stage.store, "another server")
    assert [runner.key for runner in await stage.store.registers(RUNNERS)] == ["runner/another server"]


async def test_a_plan_that_was_only_stored_rests(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    assert (await add(stage, "late")).rests
    assert (await read_plan(stage.fleet(), "nightly")).state_name == "ready"


async def test_a_retry_through_a_server_is_submitted_in_its_commit(stage: Stage) -> None:
    await submitted_and_ended(stage)
    await asyncio.sleep(60.0)
    await retry_plan(stage.fleet(), "nightly", from_tasks=["a"], submit=True)
    assert await plan_submissions.open_submissions(stage.store) == ["nightly"]
    await ended(stage)
    assert DONE == {"a": 2}
