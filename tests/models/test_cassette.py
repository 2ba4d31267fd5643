"""Exchanges are kept, and a plan is repeated from them byte for byte, without a model and without its library."""

from __future__ import annotations

import json
import sys

import pytest

from asterism import Constellation, Task
from asterism.core.errors import AsterismError
from asterism.models import ModelEditor, StoreCassette
from asterism.models.cassette import ReplayDiffers, difference
from asterism.models.model_messages import ToolCall
from asterism.store.protocol import PutRegister
from tests.durable.durable_scenes import staged
from tests.models.editor_scenes import REPAIR, ScriptedCaller, fails, orchestrator, pipeline, scripted

pytestmark = pytest.mark.virtual_time

BAD = [{"op": "remove_task", "task_id": "build"}]


def outline(result):
    """Everything that a plan became, but times and costs."""
    story = [(entry.what, entry.task, entry.why) for entry in result.story() if entry.what != "editor called"]
    tasks = {task.id: (str(task.status), task.value, task.reason) for task in result}
    return json.dumps([story, tasks, [edge.to_json() for edge in result.plan.dependencies]], sort_keys=True)


async def recorded():
    model = scripted(BAD, '{"edits": [', REPAIR)
    result = await orchestrator(model).run(pipeline())
    return outline(result), await model.cassette.exchanges("pipeline")


async def test_a_plan_is_repeated_from_its_cassette(monkeypatch):
    first, exchanges = await recorded()
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    assert len(exchanges) == 3
    again = ModelEditor("test:scripted", replay=exchanges)
    result = await orchestrator(again).run(pipeline())
    assert outline(result) == first
    assert [exchange.question for exchange in await again.cassette.exchanges("pipeline")] == [
        exchange.question for exchange in exchanges
    ]
    assert [exchange.answer for exchange in await again.cassette.exchanges("pipeline")] == [
        exchange.answer for exchange in exchanges
    ]
    assert result.editor_cost.replayed == 3
    assert result.editor_cost.calls == 0


async def test_edits_of_the_editor_itself_are_told_without_its_name():
    """The name of an editor is another one when its answers are replayed."""
    plans = [pipeline(), pipeline()]
    for plan in plans:
        plan.add(Task("last", call=fails), after="publish")
    model = scripted(REPAIR, [])
    first = await orchestrator(model).run(plans[0])
    exchanges = await model.cassette.exchanges("pipeline")
    assert "version 1 by you: scripted (add task 'test-2'" in model.caller.prompts[1]
    again = await orchestrator(ModelEditor("replay", replay=exchanges)).run(plans[1])
    assert again.editor_cost.replayed == len(exchanges) == 2
    assert outline(again) == outline(first).replace("by test:scripted", "by replay")


async def test_a_plan_that_differs_is_refused_with_the_place():
    _, exchanges = await recorded()
    plan = Constellation("pipeline")
    plan.add(Task("build", call=fails, description="another plan"))
    result = await orchestrator(ModelEditor("test:scripted", replay=exchanges)).run(plan)
    assert result.cycles[0].outcome == "editor_failed"
    assert result.plan.version == 0
    assert "differs at character 3: recorded …'abcd'…, asked …'abce'…" in difference("abcd", "abce")
    assert issubclass(ReplayDiffers, Exception)


async def test_a_stored_plan_is_repeated_under_another_name():
    async with staged() as stage:
        caller = ScriptedCaller(BAD, REPAIR)
        model = ModelEditor("test:scripted", caller=caller, fleet=stage.fleet())
        first = await stage.orchestrator(editor=model, concurrency=1).run(pipeline())
        exchanges = await StoreCassette(stage.store).exchanges("pipeline")
        plan = pipeline()
        plan.id = "again"
        replaying = ModelEditor("test:scripted", replay=exchanges, fleet=stage.fleet())
        second = await stage.orchestrator(editor=replaying, concurrency=1).run(plan)
        assert len(caller.asked) == 2
        assert [dependency.to_json() for dependency in second.plan.dependencies] == [
            dependency.to_json() for dependency in first.plan.dependencies
        ]
        copied = await StoreCassette(stage.store).exchanges("again")
        assert [exchange.question for exchange in copied] == [exchange.question for exchange in exchanges]


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
