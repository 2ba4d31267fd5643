"""Models that call no tools: they are found out once, and answer with JSON that fits a schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from asterism.models.answer_form import answer_schema
from asterism.models.conversation import TOOLS
from asterism.models.model_calls import ModelCaller, ModelFailed, Unlimited
from asterism.models.model_messages import ModelAnswer, ModelQuestion, ToolCall
from asterism.models.planner import PLAN_TOOL
from tests.models.editor_scenes import CHAT, REPAIR, editor, orchestrator, pipeline, served
from tests.models.model_server import Failure, Question, Reply

QUESTION = ModelQuestion("You edit a plan.", ({"user": "What now?"},), TOOLS)
NO_EDITS = {"edits": [], "reason": "it is right"}


def bound(question: Question) -> dict[str, Any] | None:
    """The schema to which the answer is bound, if it is."""
    response = question.body.get("response_format")
    return None if response is None else response["json_schema"]["schema"]


def offered(schema: Any) -> list[str]:
    """The tools whose calls a schema allows."""
    return [call["properties"]["tool"]["const"] for call in schema["properties"]["call"]["anyOf"]]


def as_json(tool: str, arguments: Any) -> Reply:
    return Reply(json.dumps({"call": {"tool": tool, "arguments": arguments}}))


def words_or_json(*answers: Reply) -> Any:
    """A model without tools: words, unless its answer is bound to a schema."""
    left = list(answers)

    def script(question: Question) -> Reply:
        if bound(question) is None:
            return Reply("I would run the build again.")
        return left.pop(0) if len(left) > 1 else left[0]

    return script


async def ask(caller: ModelCaller, question: ModelQuestion = QUESTION) -> ModelAnswer:
    return await caller.ask(question, Unlimited())


async def test_a_model_that_answers_in_words_is_asked_for_json_from_then_on() -> None:
    async with served(words_or_json(as_json("answer", NO_EDITS))) as server:
        caller = ModelCaller([CHAT])
        for _ in range(2):
            answer = await ask(caller)
            assert [(call.name, call.read()) for call in answer.calls] == [("answer", NO_EDITS)]
            assert answer.text == ""
    probe, first, second = server.questions
    assert (probe.tools, bound(probe)) == (["show_tasks", "answer"], None)
    for question in (first, second):
        assert question.tools == []
        assert offered(bound(question)) == ["answer", "show_tasks"]
        assert "write one JSON object" in question.text
        assert '"remove_dependency"' in question.text, "it reads the form of edits, too"


async def test_a_model_that_calls_tools_is_never_asked_for_json() -> None:
    async with served(Reply.edits(), Reply("no more edits")) as server:
        caller = ModelCaller([CHAT])
        assert (await ask(caller)).calls
        assert (await ask(caller)).text == "no more edits"
    assert [bound(question) for question in server.questions] == [None, None]


@pytest.mark.parametrize(
    "failure",
    [
        Failure(500, message="tools param requires --jinja flag"),  # llama.cpp
        Failure(400, message="registry/gemma does not support tools"),  # Ollama
        Failure(400, message='"auto" tool choice requires --enable-auto-tool-choice'),  # vLLM
    ],
)
async def test_an_endpoint_that_refuses_tools_is_asked_for_json(failure: Failure) -> None:
    async with served(lambda q: failure if q.tools else as_json("answer", NO_EDITS)) as server:
        caller = ModelCaller([CHAT])
        assert (await ask(caller)).calls
        assert (await ask(caller)).calls
    assert len(server.questions) == 3, "it is asked with tools once"


async def test_of_two_questions_at_once_the_second_learns_it_from_the_first() -> None:
    """Its refusal arrives when the first one has its answer."""
    caller = ModelCaller([CHAT])

    def script(question: Question) -> Reply | Failure:
        if not question.tools:
            return as_json("answer", NO_EDITS)
        caller._forms[CHAT] = "schema"
        return Failure(400, message="registry/gemma does not support tools")

    async with served(script):
        assert (await ask(caller)).calls


async def test_an_endpoint_without_schemas_keeps_its_words() -> None:
    def script(question: Question) -> Reply | Failure:
        return Reply("in words") if bound(question) is None else Failure(400, message="response_format: unknown")

    async with served(script) as server:
        caller = ModelCaller([CHAT])
        for _ in range(2):
            assert await ask(caller) == ModelAnswer("in words", (), False, CHAT)
    assert [bound(question) is None for question in server.questions] == [True, False, True, True]


async def test_every_call_of_an_endpoint_without_schemas_is_paid_once() -> None:
    def script(question: Question) -> Reply | Failure:
        if bound(question) is not None:
            return Failure(400, message="response_format: unknown")
        return Reply.edits(*REPAIR) if question.number else Reply("in words")

    async with served(script):
        result = await orchestrator(editor(CHAT)).run(pipeline())
    assert result["publish"].value == "fine"
    assert result.editor_cost.calls == 3


async def test_an_endpoint_with_neither_says_both_problems() -> None:
    async with served(lambda q: Failure(400, message="no tools here" if q.tools else "no schema here")):
        with pytest.raises(ModelFailed, match=r"no tools here.*no schema here"):
            await ask(ModelCaller([CHAT]))


async def test_an_overloaded_endpoint_is_not_probed() -> None:
    async with served(Failure(503)) as server:
        with pytest.raises(ModelFailed):
            await ask(ModelCaller([CHAT], attempts=1))
    assert [bound(question) for question in server.questions] == [None]


@pytest.mark.parametrize("answers", ["tools", "schema"])
async def test_the_form_can_be_set(answers: Any) -> None:
    async with served(Reply("in words")) as server:
        assert (await ask(ModelCaller([CHAT], answers=answers))).text == "in words"
    [question] = server.questions
    assert (bound(question) is not None) == (answers == "schema")


async def test_a_conversation_goes_on_in_json() -> None:
    messages = (
        {"user": "What now?"},
        ModelAnswer("", (ToolCall("call-1", "show_tasks", '{"below": "a"}'),)).message,
        {"tool": "call-1", "name": "show_tasks", "text": "b waits"},
    )
    question = ModelQuestion("You edit a plan.", messages, TOOLS)
    async with served(as_json("answer", NO_EDITS)) as server:
        await ask(ModelCaller([CHAT], answers="schema"), question)
    said = server.questions[0].body["messages"]
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user"]
    assert json.loads(said[2]["content"]) == {"call": {"tool": "show_tasks", "arguments": {"below": "a"}}}
    assert said[3]["content"] == "show_tasks: b waits"


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"call": 1}', '{"call": {"tool": 1, "arguments": {}}}', "[" * 10_000]
)
async def test_text_that_names_no_tool_stays_text(text: str) -> None:
    async with served(Reply(text)):
        answer = await ask(ModelCaller([CHAT], answers="schema", attempts=1))
    assert (answer.calls, answer.text) == ((), text)


async def test_a_plan_is_repaired_by_a_model_without_tools() -> None:
    repair = as_json("answer", {"edits": REPAIR, "reason": "try again"})
    async with served(words_or_json(as_json("show_tasks", {"pattern": "*"}), repair)) as server:
        result = await orchestrator(editor(CHAT)).run(pipeline())
    assert result["publish"].value == "fine"
    assert len(server.questions) == 3
    assert result.editor_cost.calls == 3, "the first call is paid, too"


def test_the_schema_takes_calls_and_nothing_else() -> None:
    check = jsonschema.Draft202012Validator(answer_schema(ModelQuestion("", (), (*TOOLS, PLAN_TOOL))))
    assert check.is_valid({"call": {"tool": "answer", "arguments": NO_EDITS}})
    assert check.is_valid({"call": {"tool": "plan", "arguments": {"file": "x", "explanation": "y"}}})
    for wrong in (
        {},
        {"call": {"tool": "rm", "arguments": {}}},
        {"call": {"tool": "answer", "arguments": {"edits": "none"}}},
        {"call": {"tool": "answer", "arguments": NO_EDITS}, "more": 1},
    ):
        assert not check.is_valid(wrong), wrong
