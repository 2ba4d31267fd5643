"""What calls cost that fail, are cancelled or come too late: it is counted once, and no call waits for its own rest."""

from __future__ import annotations

import asyncio

import pytest

from asterism import EditEvent, Task
from asterism.models import Budget
from asterism.models.budget import DEFAULT_BUDGET
from asterism.models.model_calls import _Again
from tests.models.editor_scenes import REPAIR, add, orchestrator, pipeline, scripted

pytestmark = pytest.mark.virtual_time


def overloaded():
    return _Again("it is overloaded")


async def seen(runner, kind):
    """Wait for an event of a plan that runs."""
    happened = asyncio.Event()
    runner.events.subscribe(lambda event: happened.set() if event.kind == kind else None, EditEvent)
    await happened.wait()


async def test_an_attempt_that_failed_is_settled_before_the_next_one():
    model = scripted(overloaded(), REPAIR, budget=Budget(calls=1))
    runner = orchestrator(model)
    running = asyncio.create_task(runner.run(pipeline()))
    await seen(runner, "editor_held")
    account = await model.cassette.account("pipeline")
    assert (account.spent.calls, dict(account.open)) == (1, {})
    model.raise_budget("pipeline", "2calls")
    result = await running
    assert result["publish"].status == "completed"
    assert result.editor_cost.calls == 2


async def test_every_attempt_is_counted_once():
    model = scripted(overloaded(), overloaded(), REPAIR, budget=Budget(calls=9))
    result = await orchestrator(model).run(pipeline())
    account = await model.cassette.account("pipeline")
    [exchange] = await model.cassette.exchanges("pipeline")
    assert account.spent.calls == result.editor_cost.calls == exchange.cost.calls == 3
    assert account.spent.tokens == result.editor_cost.tokens == exchange.cost.tokens == 1100
    assert not account.open


async def test_a_cancellation_between_two_attempts_leaves_nothing_reserved():
    model = scripted(overloaded(), budget=Budget(calls=2))
    paused = asyncio.Event()

    async def pause(seconds):
        paused.set()
        await asyncio.Event().wait()

    model.caller._sleep = pause
    running = asyncio.create_task(orchestrator(model).run(pipeline()))
    await paused.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    account = await model.cassette.account("pipeline")
    assert (account.spent.calls, dict(account.open)) == (1, {})


# -- late answers ------------------------------------------------------------------------------------------------------


async def takes(seconds):
    await asyncio.sleep(seconds)


def with_a_long_task():
    plan = pipeline()
    plan.add(Task("long", call=takes, inputs={"seconds": 100}))
    return plan


async def test_the_cost_of_a_late_answer_is_recorded():
    model = scripted([], seconds=30)
    result = await orchestrator(model, edit_timeout=10).run(with_a_long_task())
    account = await model.cassette.account("pipeline")
    assert result.cycles[0].outcome == "timeout"
    assert (result.editor_cost.calls, result.editor_cost.tokens) == (1, 1100)
    assert [entry.what for entry in result.story()].count("editor called") == 1
    assert (account.spent.calls, account.open) == (2, {})  # the end of the plan has cut the second call off


async def test_a_budget_that_is_spent_after_the_timeout_holds_nothing():
    model = scripted("not an answer", seconds=30, budget=Budget(calls=1))
    runner = orchestrator(model, edit_timeout=10)
    plan = with_a_long_task()
    running = asyncio.create_task(runner.run(plan))
    await asyncio.sleep(60)
    account = await model.cassette.account("pipeline")
    assert (account.spent.calls, account.held_since) == (1, None)
    assert [entry for entry in plan.story() if entry.what == "editor waits"] == []
    assert [entry.what for entry in plan.story()].count("editor called") == 1
    running.cancel()


async def test_a_hold_sees_a_budget_that_was_raised_before_it_began():
    model = scripted(REPAIR, budget=Budget(calls=0))
    hold = model._hold

    def raised_meanwhile(plan, conversation, *about):
        held = hold(plan, conversation, *about)
        model.raise_budget(conversation.plan, "1call")
        return held

    model._hold = raised_meanwhile
    result = await orchestrator(model).run(pipeline())
    assert result["publish"].status == "completed"
    assert result.plan.ended_at - result.plan.started_at < 60


# -- limits that hold by default ---------------------------------------------------------------------------------------


async def test_a_model_that_never_stops_is_held_by_the_limits_of_every_editor():
    model = scripted(lambda question: add(f"more-{len(model.asked)}"))
    runner = orchestrator(model)
    running = asyncio.create_task(runner.run(pipeline()))
    await seen(runner, "editor_held")
    assert len(model.asked) == DEFAULT_BUDGET.calls
    [cycle] = runner.cycles()
    assert "200 of 200 calls are spent" in cycle.on_hold
    assert "raise_budget('pipeline', '400calls')" in cycle.on_hold
    model.go_on_without_editor("pipeline")
    assert (await running).state == "partially_failed"


def test_a_budget_names_other_limits_and_the_rest_stays():
    assert scripted([]).budget == DEFAULT_BUDGET == Budget(calls=200, tasks=500)
    assert scripted([], budget="$2 1000calls").budget == Budget(dollars=2, calls=1000, tasks=500)


async def test_a_plan_that_is_continued_keeps_its_limits():
    model = scripted([], budget="9calls")
    ended = await orchestrator(model).run(pipeline())
    again = scripted([], cassette=model.cassette)
    ended = await orchestrator(again).retry(ended)
    assert (await again.cassette.account("pipeline")).budget == Budget(calls=9, tasks=500)
    higher = scripted([], cassette=model.cassette, budget="12calls")
    await orchestrator(higher).retry(ended)
    assert (await higher.cassette.account("pipeline")).budget == Budget(calls=12, tasks=500)
