"""The local model server speaks the formats of OpenAI and Anthropic, and a model edits a plan through each of them."""

import asyncio

import pytest
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelRequest, ToolCallPart
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.tools import ToolDefinition

from tests.models.editor_scenes import REPAIR, editor, orchestrator, pipeline, served
from tests.models.model_server import Failure, ModelServer, Reply

MODELS = ["openai-chat:gpt-5", "openai:gpt-5", "anthropic:claude-sonnet-5-5"]
TOOL = ToolDefinition(name="answer", description="Answer", parameters_json_schema={"type": "object", "properties": {}})
PARAMETERS = ModelRequestParameters(output_tools=[TOOL], output_mode="tool", allow_text_output=False)
NO_RETRIES = {"max_retries": 0, "max_tokens": 1000}


@pytest.fixture(params=MODELS)
def model(request):
    return request.param


async def ask(server, model, monkeypatch, stream):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return await asyncio.to_thread(asyncio.run, request_apart(model, stream))


async def request_apart(model, stream):
    messages = [ModelRequest.user_text_prompt("What now?", instructions="Be short.")]
    arguments = {"model_settings": NO_RETRIES, "model_request_parameters": PARAMETERS}
    async with infer_model(model) as opened:
        if not stream:
            return await model_request(opened, messages, **arguments)
        async with model_request_stream(opened, messages, **arguments) as streamed:
            async for _ in streamed:
                pass
            return streamed.get()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_arrives_whole_or_as_a_stream(model, stream, monkeypatch):
    reply = Reply.call({"edits": [], "reason": "x" * 100}, usage=(12, 3))
    async with ModelServer([reply]) as server:
        response = await ask(server, model, monkeypatch, stream)
    [part] = [part for part in response.parts if isinstance(part, ToolCallPart)]
    assert part.tool_name == "answer"
    assert part.args_as_dict() == {"edits": [], "reason": "x" * 100}
    assert (response.usage.input_tokens, response.usage.output_tokens) == (12, 3)
    [question] = server.questions
    assert "What now?" in question.text
    assert "Be short." in question.text
    assert question.tools == ["answer"]
    assert question.last == "What now?"


@pytest.mark.parametrize("status", [429, 529, 500])
async def test_an_error_is_an_error_of_the_protocol(model, status, monkeypatch):
    async with ModelServer([Failure(status, retry_after=7)]) as server:
        with pytest.raises(ModelHTTPError) as caught:
            await ask(server, model, monkeypatch, True)
    assert caught.value.status_code == status


@pytest.mark.parametrize("reply", [Reply.edits().but(cut=2), Failure(0)])
async def test_a_cut_connection_is_an_error(model, reply, monkeypatch):
    async with ModelServer([reply]) as server:
        with pytest.raises(ModelAPIError):
            await ask(server, model, monkeypatch, True)


async def test_a_refusal_is_told_apart(model, monkeypatch):
    async with ModelServer([Reply.refusal()]) as server:
        response = await ask(server, model, monkeypatch, False)
    assert response.finish_reason == "content_filter" or not [p for p in response.parts if isinstance(p, ToolCallPart)]


async def test_a_model_edits_a_plan_through_each_format(model):
    bad = [{"op": "remove_task", "task_id": "build"}]
    async with served(
        Reply.call({"tasks": ["build"]}, tool="show_tasks"), Reply.edits(*bad), Reply.edits(*REPAIR)
    ) as server:
        result = await orchestrator(editor(model)).run(pipeline())
    assert result["publish"].status == "completed"
    assert "The plan rejected this answer" in server.questions[2].last
    assert result.cycles[0].cost.calls == 3
    assert result.cycles[0].cost.dollars > 0
