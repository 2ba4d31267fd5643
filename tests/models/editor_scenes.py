"""Scenes with a model editor: a plan, a scripted model in this process, or a model server over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

from asterism import Constellation, Orchestrator, Task
from asterism.core.plan.editor_cost import EditorCost
from asterism.models import ModelCaller, ModelEditor, Price
from asterism.models.answer_form import Form
from asterism.models.model_calls import Bill
from asterism.models.model_messages import ModelAnswer, ModelQuestion, ToolCall
from asterism.orchestrator.devices import LocalDevice
from tests.models.model_server import ModelServer

CHAT = "openai-chat:gpt-5"


async def ok() -> str:
    return "fine"


async def fails() -> None:
    print("line one of the log")
    raise ValueError("no such file")


def pipeline() -> Constellation:
    """build -> test -> publish, where test fails."""
    plan = Constellation("pipeline")
    plan.add(Task("build", call=ok))
    plan.add(Task("test", call=fails, description="run the tests"), after="build")
    plan.add(Task("publish", call=ok, description="publish the package"), after="test")
    return plan


def add(task: str, after: str | None = None, on: str = "success", **fields: Any) -> list[dict[str, Any]]:
    """Edits that add a task."""
    call = {} if {"shell", "argv", "call"} & fields.keys() else {"call": "tests.models.editor_scenes:ok"}
    edits: list[dict[str, Any]] = [{"op": "add_task", "task": {"id": task, **call, **fields}}]
    if after is not None:
        edits.append({"op": "add_dependency", "source": after, "target": task, "on": on})
    return edits


REPAIR = [
    *add("test-2", "test", "failure"),
    {"op": "remove_dependency", "source": "test", "target": "publish"},
    {"op": "add_dependency", "source": "test-2", "target": "publish"},
]
"""Repairs the pipeline."""


class ScriptedCaller(ModelCaller):
    """A model in this process: it answers with lists of edits, one for each question, and again with the last;
    with a text, as it is; or with what a function makes of the question. An error fails the attempt, which counts as a
    call. ``tokens`` is what each answer costs."""

    def __init__(
        self, *replies: Any, seconds: float = 0.0, tokens: tuple[int, int] = (1000, 100), **options: Any
    ) -> None:
        super().__init__(["test:scripted"], prices={"test:scripted": Price(1.0, 10.0)}, **options)
        self.replies, self.seconds, self.tokens = replies, seconds, tokens
        self.asked: list[ModelQuestion] = []
        self.gate: asyncio.Event | None = None
        """If there is one, each answer waits for it."""

    async def _attempt(self, model: Any, name: str, question: ModelQuestion, form: Form, bill: Bill) -> ModelAnswer:
        self.asked.append(question)
        number = len(self.asked)
        reply = self.replies[:number][-1]
        reply = reply(question) if callable(reply) else reply
        if self.gate is not None:
            await self.gate.wait()
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if isinstance(reply, Exception):
            bill.cost = EditorCost(name, 1)
            raise reply
        bill.cost = EditorCost(name, 1, *self.tokens, Price(1.0, 10.0).dollars(*self.tokens), self.seconds)
        text = reply if isinstance(reply, str) else json.dumps({"edits": reply, "reason": "scripted"})
        return ModelAnswer("", (ToolCall(f"call-{number}", "answer", text),), False, name)

    @property
    def prompts(self) -> list[str]:
        """The text of the first message of each question."""
        return [str(question.messages[0]["user"]) for question in self.asked]


def scripted(*replies: Any, **options: Any) -> Any:
    """An editor with a scripted model: options of both."""
    caller_options = {name: options.pop(name) for name in ("seconds", "tokens") if name in options}
    caller = ScriptedCaller(*replies, **caller_options)
    model_editor: Any = ModelEditor("test:scripted", caller=caller, **options)
    model_editor.asked = caller.asked
    return model_editor


def editor(model: str = CHAT, **options: Any) -> Any:
    """An editor with a model over HTTP, which does not wait between two attempts."""
    models = [model, *options.pop("fallback", ())]
    caller_options = {
        name: options.pop(name) for name in ("timeout", "stall_timeout", "attempts", "prices") if name in options
    }
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    model_editor: Any = ModelEditor(model, caller=ModelCaller(models, sleep=nap, **caller_options), **options)
    model_editor.naps = naps
    return model_editor


@contextlib.asynccontextmanager
async def served(*script: Any) -> AsyncIterator[ModelServer]:
    """A model server, with its address in the environment."""
    async with ModelServer(script[0] if callable(script[0]) else list(script)) as server:
        with patch.dict(os.environ, server.environment):
            yield server


def orchestrator(model_editor: ModelEditor, **options: Any) -> Orchestrator:
    return Orchestrator([LocalDevice("desk", 4, ["python"])], editor=model_editor, **options)
