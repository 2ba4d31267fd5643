"""Exchanges are kept with what they cost, and read again: whole, or refused with a sentence."""

from __future__ import annotations

import pytest

from asterism import Task
from asterism.core.errors import AsterismError
from asterism.models import ModelEditor, StoreCassette
from asterism.models.model_messages import ToolCall
from asterism.store.protocol import PutRegister
from tests.durable.durable_scenes import staged
from tests.models.editor_scenes import REPAIR, ScriptedCaller, fails, orchestrator, pipeline, scripted

pytestmark = pytest.mark.virtual_time

BAD = [{"op": "remove_task", "task_id": "build"}]


async def test_every_exchange_of_a_stored_plan_is_kept_with_its_cost():
    """A rejected answer, one that cannot be read, and the repair."""
    async with staged() as stage:
        caller = ScriptedCaller(BAD, '{"edits": [', REPAIR)
        model = ModelEditor("test:scripted", caller=caller, fleet=stage.fleet())
        result = await stage.orchestrator(editor=model, concurrency=1).run(pipeline())
        exchanges = await StoreCassette(stage.store).exchanges("pipeline")
    assert [exchange.number for exchange in exchanges] == [1, 2, 3]
    assert [exchange.question for exchange in exchanges] == [question.text for question in caller.asked]
    assert sum((exchange.cost.tokens for exchange in exchanges), 0) == result.editor_cost.tokens == 3300


async def test_edits_of_the_editor_itself_are_told_without_its_name():
    """Another model may continue the plan."""
    plan = pipeline()
    plan.add(Task("last", call=fails), after="publish")
    model = scripted(REPAIR, [])
    await orchestrator(model).run(plan)
    assert "version 1 by you: scripted (add task 'test-2'" in model.caller.prompts[1]


async def malformed(**changes):
    """The first exchange of a cassette whose register was changed."""
    async with staged() as stage:
        model = ModelEditor("test:scripted", caller=ScriptedCaller(REPAIR), fleet=stage.fleet())
        await stage.orchestrator(editor=model, concurrency=1).run(pipeline())
        register = await stage.store.register("exchange/pipeline/000001")
        await stage.store.commit([PutRegister(register.key, {**register.value, **changes}, register.revision)])
        return await StoreCassette(stage.store).exchanges("pipeline")


@pytest.mark.parametrize(
    "changes",
    [
        {"number": "one"},
        {"question": 7},
        {"answer": []},
        {"answer": {"text": 5, "calls": [], "refused": False, "model": ""}},
        {"answer": {"text": "", "calls": [["1", "edit"]], "refused": False, "model": ""}},
        {"answer": {"text": "", "calls": [["1", "edit", {"edits": []}]], "refused": False, "model": ""}},
        {"cost": {"calls": "many"}},
        {"cost": None},
        {"more": 1},
    ],
)
async def test_a_malformed_cassette_is_refused_with_a_sentence(changes):
    with pytest.raises(AsterismError, match=r"(register exchange/pipeline/000001 cannot be read|is not readable)"):
        await malformed(**changes)


def test_arguments_that_are_nested_too_deep_are_unreadable():
    assert not ToolCall("1", "edit", "[" * 100_000).readable
