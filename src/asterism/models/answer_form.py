"""The forms in which a model answers: with calls of tools, or with JSON that fits a schema.

A model calls tools if its endpoint lets it. Small models and many local servers do not: they answer in words, which no
plan can use. Such an endpoint may still bind the answer to a JSON Schema while it is written (OpenAI's
``response_format``, the grammars of llama.cpp). The schema then is the choice of one tool and its arguments::

    {"call": {"tool": "answer", "arguments": {"edits": [], "reason": "the plan is right as it is"}}}

For everybody else it is a call of that tool, so conversations and cassettes do not know in which form a model has
answered. The messages of a conversation are written for pydantic-ai here, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from asterism.core.json_values import JsonObject
from asterism.models.model_messages import ModelAnswer, ModelQuestion, ToolCall, ToolSpec

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

Form = Literal["tools", "schema"]


def answer_schema(question: ModelQuestion) -> JsonObject:
    """The JSON Schema of an answer that is a call of one of the tools."""
    calls = [
        _object(tool={"type": "string", "const": tool.name}, arguments=dict(tool.schema)) for tool in question.tools
    ]
    return _object(call=calls[0] if len(calls) == 1 else {"anyOf": calls})


def _object(**properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def instructions(question: ModelQuestion, form: Form) -> str:
    """The instructions of a question. For a model without tools they describe the JSON object that replaces a call."""
    if form == "tools":
        return question.instructions
    tools = "\n".join(f"- {tool.name}: {tool.description}" for tool in question.tools)
    schema = json.dumps(answer_schema(question), ensure_ascii=False, separators=(",", ":"))
    return (
        f"{question.instructions}\n\nThere are no tools here. In place of a call of a tool, write one JSON object and "
        f"nothing else. It names the tool and has its arguments:\n{tools}\n\nIts JSON Schema:\n{schema}"
    )


def messages_of(question: ModelQuestion, form: Form) -> list[ModelMessage]:
    """The messages of a question for pydantic-ai."""
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

    told = instructions(question, form)
    messages: list[Any] = []
    for message in question.messages:
        if "assistant" in message:
            parts: list[Any] = [TextPart(message["assistant"])] if message["assistant"] else []
            for call in (ToolCall(*call) for call in message["calls"]):
                as_call = form == "tools"
                parts.append(ToolCallPart(call.name, call.arguments, tool_call_id=call.id) if as_call else _said(call))
            messages.append(ModelResponse(parts))
            continue
        part: Any
        if "tool" not in message:
            part = UserPromptPart(message["user"])
        elif form == "tools":
            part = ToolReturnPart(message["name"], message["text"], tool_call_id=message["tool"])
        else:
            part = UserPromptPart(f"{message['name']}: {message['text']}")
        if messages and isinstance(messages[-1], ModelRequest):  # the results of one answer are one message
            messages[-1] = ModelRequest([*messages[-1].parts, part], instructions=told)
        else:
            messages.append(ModelRequest([part], instructions=told))
    return messages


def _said(call: ToolCall) -> Any:
    from pydantic_ai.messages import TextPart

    return TextPart(json.dumps({"call": {"tool": call.name, "arguments": call.read()}}, ensure_ascii=False))


def parameters_of(question: ModelQuestion, form: Form) -> ModelRequestParameters:
    """What pydantic-ai asks an endpoint for."""
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    def definition(tool: ToolSpec) -> ToolDefinition:
        return ToolDefinition(
            name=tool.name, parameters_json_schema=dict(tool.schema), description=tool.description, strict=False
        )

    if form == "schema":
        answer = OutputObjectDefinition(answer_schema(question), name="answer", strict=False)
        return ModelRequestParameters(output_mode="native", output_object=answer, allow_text_output=True)
    return ModelRequestParameters(
        function_tools=[definition(tool) for tool in question.tools if not tool.final],
        output_tools=[definition(tool) for tool in question.tools if tool.final],
        output_mode="tool",
        allow_text_output=False,
    )


def answer_of(response: ModelResponse, question: ModelQuestion, form: Form, model: str) -> ModelAnswer:
    """The answer of a model. In the form ``schema``, JSON that names a tool is a call of it; other text stays text."""
    from pydantic_ai.messages import TextPart, ToolCallPart

    calls = tuple(
        ToolCall(
            part.tool_call_id, part.tool_name, part.args if isinstance(part.args, str) else json.dumps(part.args or {})
        )
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )
    text = "\n".join(part.content for part in response.parts if isinstance(part, TextPart))
    if form == "schema" and not calls and (call := _call_in(text, f"call-{len(question.messages)}")) is not None:
        text, calls = "", (call,)
    return ModelAnswer(text, calls, not calls and response.finish_reason == "content_filter", model)


def _call_in(text: str, number: str) -> ToolCall | None:
    """The call that a JSON text stands for; None if it stands for none, as a text that was cut off."""
    try:
        call = json.loads(text)["call"]
        name, arguments = call["tool"], call["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(name, str):
        return None
    return ToolCall(number, name, json.dumps(arguments, ensure_ascii=False))
