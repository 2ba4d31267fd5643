"""A language model with tools as the agent of a device: it reads and writes files, runs commands and sends requests.

The model has only those tools that the ``permissions`` of the device policy allow, and each call of a tool is judged
like a request of any other agent (``judged_actions``). A refusal is an answer to the model, not a failure of the run.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from asterism.agents.agent_prompt import AgentAnswer, AgentFailed, agent_result, load_extra
from asterism.base.text import clean, shorten
from asterism.core.errors import AsterismError
from asterism.fleet.device.agent_work import AgentWork
from asterism.fleet.policy.judged_requests import request
from asterism.models.judged_actions import JudgedActions
from asterism.models.model_calls import model_problem, open_model
from asterism.models.untrusted_text import mark_untrusted

MOST_REQUESTS = 50
"""How many requests to the model one execution may take."""

REQUEST_TIMEOUT = 300.0
"""How long one request to the model may take, in seconds."""

COMMAND_TIMEOUT = 600.0
"""How long a command of the model may take, in seconds."""

_LONGEST_RESULT = 100_000
"""How many characters of the result of a tool the model gets."""

_INSTRUCTIONS = (
    "You do one task of a plan on a device, with the tools that you have. Nobody answers questions: decide yourself. "
    "Relative paths start in the working directory. When the task is done, answer with its result."
)


Tool = TypeVar("Tool", bound=Callable[..., Any])


def load_pydantic_ai() -> Any:
    """The library that calls models. Raises AsterismError if it is not installed."""
    [library] = load_extra("model", "a model as an agent needs pydantic-ai", "pydantic_ai")
    return library


class ModelAgent:
    """A model, such as ``anthropic:…`` or ``openai:…``, or an object of pydantic-ai."""

    def __init__(self, model: Any, *, most_requests: int = MOST_REQUESTS) -> None:
        self._model, self._most_requests = model, most_requests
        self.can: frozenset[str] = frozenset()
        name = model if isinstance(model, str) else type(model).__name__
        self.labels: Mapping[str, str] = {"agent": name, "agent-protocol": "model"}

    @classmethod
    async def connect(cls, name: str) -> ModelAgent:
        """The model of this name, such as ``anthropic:…``. Raises AsterismError if there is no such model, or if its
        library is not installed."""
        problem = await asyncio.to_thread(model_problem, name)  # a key that is missing is noticed here
        if problem is not None:
            raise AsterismError(f"the model {name!r} cannot be used: {problem}")
        return cls(name)

    async def execute(self, work: AgentWork) -> Any:
        library = await asyncio.to_thread(load_pydantic_ai)  # it takes seconds, and heartbeats must not wait
        actions = JudgedActions(work)
        tools = _Tools(work, actions)
        try:
            agent = await asyncio.to_thread(self._agent, library, tools)  # it makes clients and loads certificates
            history: list[Any] = []
            limits, spent = library.UsageLimits(request_limit=self._most_requests), library.RunUsage()

            async def ask(prompt: str) -> AgentAnswer:
                done = await agent.run(prompt, message_history=history or None, usage_limits=limits, usage=spent)
                history[:] = done.all_messages()
                work.note(f"tokens: {spent.input_tokens} in, {spent.output_tokens} out, {spent.requests} requests")
                work.write(1, f"{done.output}\n".encode(errors="replace"))
                return AgentAnswer(done.output)

            return await agent_result(work, ask)
        except library.UsageLimitExceeded as error:
            raise AgentFailed(f"the model needs too many requests: {clean(str(error))}") from error
        except (library.exceptions.AgentRunError, library.exceptions.UserError) as error:
            raise AgentFailed(f"the model did not answer: {shorten(str(error), 500)}") from error
        finally:
            await actions.close()

    def _agent(self, library: Any, tools: _Tools) -> Any:
        settings = {"request_timeout": REQUEST_TIMEOUT}  # of the whole request, not of each read
        model = open_model(self._model)
        return library.Agent(
            model, instructions=_INSTRUCTIONS, tools=tools.allowed(), model_settings=settings, name="device"
        )


def _answering(tool: Tool) -> Tool:
    """A tool whose refusals and failures are answers to the model."""

    @wraps(tool)
    async def answer(tools: _Tools, *args: Any, **kwargs: Any) -> str:
        try:
            return cast("str", await tool(tools, *args, **kwargs))
        except (OSError, AsterismError) as error:
            return f"refused: {error}"

    return cast("Tool", answer)


class _Tools:
    """The tools of one execution. Their docstrings are what the model reads about them."""

    def __init__(self, work: AgentWork, actions: JudgedActions) -> None:
        self._work, self._actions = work, actions

    def allowed(self) -> list[Callable[..., Any]]:
        """Those that the device policy allows at all."""
        tools = {
            "read": (self.read_file, self.list_directory),
            "edit": (self.write_file,),
            "execute": (self.run_command,),
            "fetch": (self.fetch,),
        }
        return [tool for kind, some in tools.items() if kind in self._work.policy.rules.permissions for tool in some]

    def _path(self, path: str) -> str:
        return os.path.join(self._work.cwd, path)

    @_answering
    async def read_file(self, path: str, first_line: int = 1, lines: int = 2000) -> str:
        """Read lines of a text file."""
        text = await self._actions.read_file(self._path(path), first_line, lines)
        return self._marked(f"file {path}", text)

    @_answering
    async def list_directory(self, path: str = ".") -> str:
        """List the names in a directory."""
        names = await self._actions.list_directory(self._path(path))
        return self._marked(f"directory {path}", "\n".join(names))

    @_answering
    async def write_file(self, path: str, text: str) -> str:
        """Write a text file; an existing one is replaced."""
        await self._actions.write_file(self._path(path), text)
        return "written"

    @_answering
    async def run_command(self, words: list[str], directory: str = ".") -> str:
        """Run a command, given as a list of words and without a shell. Returns its exit code and its output."""
        name = self._actions.start_command(words or [""], cwd=self._path(directory))
        command = self._actions.commands[name]
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT):
                await command.wait()
        except TimeoutError:
            await command.stop()
        ended = command.signal or f"exit code {command.exit_code}"
        output = command.output
        await self._actions.release(name)
        return f"{ended}\n{self._marked(f'output of {words[0]}', output)}"

    async def fetch(self, url: str) -> str:
        """Send a GET request and return the body."""
        if not self._actions.permit("fetch", url, (), {"url": url}):
            return "refused: the device policy does not allow this address"
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                body = await request({"url": url}, {}, self._work.policy, self._work.mask)
        except (AsterismError, TimeoutError) as error:
            return f"failed: {error}"
        return self._marked(f"answer of {url}", body if isinstance(body, str) else json.dumps(body))

    def _marked(self, label: str, text: str) -> str:
        text = self._work.mask.text(text)  # first: a part of a secret would not be found
        cut = text if len(text) <= _LONGEST_RESULT else f"{text[:_LONGEST_RESULT]}\n(the rest is left out)"
        return mark_untrusted(self._work.mask.text(label), cut)
