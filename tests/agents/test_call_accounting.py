"""What calls cost that fail, are cancelled or come too late: it is counted once, and no call waits for its own rest."""

from __future__ import annotations

import asyncio

import pytest

from asterism import EditEvent
from asterism.agents import Budget
from asterism.agents.model_calls import _Again
from tests.agents.editor_scenes import REPAIR, orchestrator, pipeline, scripted

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
