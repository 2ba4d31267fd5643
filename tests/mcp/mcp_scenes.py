"""An MCP server in the test process, and clients of the official SDK: of the newest revision, and of an older one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import mcp_types as types
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.server.lowlevel.server import Server

from asterism.mcp.mcp_http import local_caller, server_host
from asterism.mcp.mcp_server import mcp_server
from asterism.mcp.mcp_tasks import EXTENSION
from tests.durable.durable_scenes import Stage, chain
from tests.durable.durable_work import gate
from tests.server.server_scenes import ServerScene, plan_server

MODES = ("auto", "legacy")
"""How a client connects: with the newest revision, or with the handshake of older ones."""

REMOVE = {"op": "remove_task", "task_id": "b", "dependents": "bridge"}
ADD = {"op": "add_task", "task": {"id": "d", "call": "tests.durable.durable_work:work", "inputs": {"name": "d"}}}


class Refused(Exception):
    """A tool has answered with a problem document."""

    def __init__(self, problem: dict[str, Any]) -> None:
        self.problem = problem
        self.kind = str(problem["type"]).rpartition(":")[2]
        super().__init__(problem["detail"])


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """The structured content of a result, which the client has checked against the output schema. Raises Refused."""
    return content(await client.call_tool(tool, arguments))


def content(result: types.CallToolResult) -> Any:
    [text] = result.content
    assert isinstance(text, types.TextContent)
    if result.is_error:
        raise Refused(json.loads(text.text))
    assert json.loads(text.text) == result.structured_content
    return result.structured_content


def server_of(scene: ServerScene, *scopes: str, name: str = "ann") -> Server[Any]:
    return mcp_server(server_host(scene.state), local_caller(name, scopes or ["admin"]))


@asynccontextmanager
async def plan_client(*scopes: str, **options: Any) -> AsyncIterator[tuple[Client, ServerScene, Stage]]:
    """A client of a server that runs plans, in virtual time."""
    async with plan_server() as (scene, stage), Client(server_of(scene, *scopes), **options) as client:
        yield client, scene, stage


@asynccontextmanager
async def running_plan(
    *scopes: str, plan: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Client, ServerScene, Stage]]:
    """The same, beside a process that runs the plan ``nightly``, whose first task waits at its gate."""
    async with plan_server() as (scene, stage):
        stage.spawn(stage.orchestrator(**plan or {}).run(chain("a", "b", "c", call="wait")))
        if plan is not None and plan.get("local") == 0:
            await stage.device("kitchen")
        await gate("a begun").wait()
        async with Client(server_of(scene, *scopes), **options) as client:
            yield client, scene, stage


def open_gates(names: Sequence[str] = "abc") -> None:
    for name in names:
        gate(name).set()


async def ended(client: Client, plan: str = "nightly") -> Any:
    """The plan when it has ended."""
    for _ in range(1000):
        document = await call(client, "read_plan", plan=plan)
        if document["ended_at"] is not None:
            return document
        await asyncio.sleep(1.0)
    raise AssertionError(f"{plan} has not ended")


class Person:
    """A person at a client: answers questions, and remembers them."""

    def __init__(self, *answers: dict[str, str] | str) -> None:
        self._answers = list(answers)
        self.questions: list[str] = []

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.questions.append(params.message)
        assert params.requested_schema["properties"]["decision"]["enum"] == ["approve", "refuse"]
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            return types.ElicitResult(action=answer)  # type: ignore[arg-type]
        return types.ElicitResult(action="accept", content=dict(answer))


# -- a client with the Tasks extension ---------------------------------------------------------------------------------


class TaskHandle(types.Result):
    """The result of a call that goes on as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    poll_interval_ms: int


class TaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(types.Request[TaskParams, str]):
    name_param = "taskId"


class TaskState(types.Result):
    status: str = ""
    status_message: str = ""
    result: types.CallToolResult | None = None
    input_requests: dict[str, Any] | None = None


async def ask_task(session: Any, method: str, task_id: str, responses: Any = None) -> TaskState:
    params = TaskParams(task_id=task_id, input_responses=responses)
    state: TaskState = await session.send_request(TaskRequest(method=f"tasks/{method}", params=params), TaskState)
    return state


class TasksExtension(ClientExtension):
    """Polls a task to its end, and lets a person answer its questions."""

    identifier = EXTENSION

    def __init__(self, person: Person | None = None) -> None:
        self._person, self.states = person, list[str]()
        self.handles: list[TaskHandle] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskHandle, resolve=self._resolve)]

    async def _resolve(self, handle: TaskHandle, context: ClaimContext) -> types.CallToolResult:
        self.handles.append(handle)
        answered: set[str] = set()
        while True:
            state = await ask_task(context.session, "get", handle.task_id)
            self.states.append(state.status)
            if state.status == "completed":
                assert state.result is not None
                return state.result
            for key, request in (state.input_requests or {}).items():
                if key not in answered and self._person is not None:
                    answered.add(key)
                    asked = types.ElicitRequest.model_validate(request).params
                    answer = (await self._person(None, asked)).model_dump(by_alias=True, exclude_none=True)
                    await ask_task(context.session, "update", handle.task_id, {key: answer})
            await asyncio.sleep(handle.poll_interval_ms / 1000)
