"""A question to a model and its answer, as plain data: a cassette keeps them, and reads them without any library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from asterism.core.plan.editor_cost import EditorCost
from asterism.core.record import Record


class ToolSpec(NamedTuple):
    """A tool that the model may call. ``final``: its call is the answer."""

    name: str
    description: str
    schema: Mapping[str, Any]
    final: bool = False


class ToolCall(NamedTuple):
    """A call of a tool, with its arguments as the model wrote them."""

    id: str
    name: str
    arguments: str

    def read(self) -> Any:
        """The arguments. Raises ValueError if they are not JSON."""
        try:
            return json.loads(self.arguments or "{}")
        except RecursionError:
            raise ValueError("they are nested too deep") from None

    @property
    def readable(self) -> bool:
        try:
            return isinstance(self.read(), dict)
        except ValueError:
            return False

    def reply(self, text: str) -> dict[str, Any]:
        """The message with its result. A call that cannot be read is no call for its provider."""
        if self.readable:
            return {"tool": self.id, "name": self.name, "text": text}
        return {"user": f"{self.name}: {text}"}


class ModelQuestion(Record, forbid_unknown_fields=True):
    """The messages are objects: ``{"user": text}``, ``{"assistant": text, "calls": [[id, name, arguments]]}`` and
    ``{"tool": id, "name": name, "text": result}``."""

    instructions: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[ToolSpec, ...] = ()

    @property
    def text(self) -> str:
        """All of it, as it is kept: the same question is the same text, byte for byte."""
        return json.dumps(self.to_json(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


class ModelAnswer(Record):
    """``refused``: the model or its provider declined to answer."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    refused: bool = False
    model: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of the next question. A call that cannot be read is only told about: no provider
        takes it back."""
        calls = [list(call) for call in self.calls if call.readable]
        unreadable = [f"(a call of {call.name} with unreadable arguments)" for call in self.calls if not call.readable]
        text = "\n".join(filter(None, [self.text, *unreadable]))
        return {"assistant": text, "calls": calls}


def call_attributes(answer: ModelAnswer, cost: EditorCost) -> dict[str, Any]:
    """A call in a trace, named by the conventions of OpenTelemetry."""
    provider, _, model = answer.model.rpartition(":")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider or None,
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": cost.input_tokens,
        "gen_ai.usage.output_tokens": cost.output_tokens,
        "asterism.editor.dollars": cost.dollars,
    }
