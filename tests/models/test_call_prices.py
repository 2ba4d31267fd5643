"""What calls of a model cost: unknown prices, requests without an answer, models that do not exist."""

from __future__ import annotations

import pytest

from asterism.durable.editor_budget import InvalidBudget
from asterism.models import Budget, ModelCaller, ModelEditor
from asterism.models.budget import estimated_tokens
from tests.models.editor_scenes import REPAIR, editor, orchestrator, pipeline, served
from tests.models.model_server import Reply


async def test_dollars_of_a_model_without_a_price_are_neither_raised_nor_shown():
    async with served(Reply.edits(*REPAIR)):
        model = editor("openai-chat:mine")
        await orchestrator(model).run(pipeline())
    account = await model.cassette.account("pipeline")
    assert account.unpriced == "openai-chat:mine"
    assert account.spent_text.startswith("price unknown, ")
    with pytest.raises(InvalidBudget, match="the price of openai-chat:mine is unknown"):
        model.raise_budget("pipeline", "$5")
    assert model.raise_budget("pipeline", "500calls").budget.calls == 500


async def test_a_request_that_stalls_costs_its_question():
    async with served(Reply.edits(*REPAIR).but(hang=0)):
        model = editor(stall_timeout=0.2, attempts=1)
        await orchestrator(model).run(pipeline())
    spent = (await model.cassette.account("pipeline")).spent
    assert spent.tokens > 500
    assert spent.dollars > 0


async def test_a_model_that_does_not_exist_is_not_a_call():
    caller = ModelCaller(["nobody:nothing"])
    model = ModelEditor("nobody:nothing", caller=caller, budget=Budget(calls=1))
    result = await orchestrator(model).run(pipeline())
    account = await model.cassette.account("pipeline")
    assert (account.spent.calls, dict(account.open)) == (0, {})
    assert result.cycles[0].outcome == "editor_failed"


@pytest.mark.parametrize(("text", "least"), [("a" * 300, 100), ("\u6f22" * 100, 150), ("\U0001f600" * 10, 20), ("", 0)])
def test_an_estimate_is_cautious_in_every_script(text, least):
    assert estimated_tokens(text) == least
