"""An agent that speaks A2A with the server of the official SDK, in this process. It can be cut off and restarted.

The first line of a message is a JSON list of steps, each a mapping with one key, as for the scripted ACP agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as types
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, Response


class ScriptedExecutor(AgentExecutor):
    """``asked`` are the ids of the tasks that it was given, in their order; ``go_on`` ends the step ``wait``."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.texts: list[str] = []
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()
        self.again: list[Any] = []

    async def execute(self, context: RequestContext, event_queue: Any) -> None:
        text = context.message.parts[0].text  # type: ignore[union-attr]
        self.texts.append(text)
        steps = json.loads(text.splitlines()[0]) if not self.again or len(self.texts) == 1 else self.again
        if steps[0] == {"message": 1}:
            await event_queue.enqueue_event(_message(context, steps[1]["say"]))
            return
        self.asked.append(context.task_id or "")
        task = types.Task(id=context.task_id, context_id=context.context_id, history=[cast(Any, context.message)])
        task.status.state = types.TASK_STATE_SUBMITTED
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        for step in steps:
            ((name, value),) = step.items()
            await getattr(self, f"do_{name}")(updater, value, context)
        return None

    async def cancel(self, context: RequestContext, event_queue: Any) -> None:
        self.cancelled.append(context.task_id or "")
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()

    async def do_say(self, updater: TaskUpdater, value: str, context: RequestContext) -> None:
        await updater.start_work(_message(context, value))

    async def do_again(self, updater: TaskUpdater, value: list[Any], context: RequestContext) -> None:
        self.again = value

    async def do_text(self, updater: TaskUpdater, value: str, context: RequestContext) -> None:
        await updater.add_artifact([types.Part(text=value)])

    async def do_data(self, updater: TaskUpdater, value: Any, context: RequestContext) -> None:
        part = types.Part()
        part.data.struct_value.update(value)
        await updater.add_artifact([part])

    async def do_wait(self, updater: TaskUpdater, value: Any, context: RequestContext) -> None:
        self.waiting.set()
        await self.go_on.wait()

    async def do_end(self, updater: TaskUpdater, value: str, context: RequestContext) -> None:
        said = _message(context, "that is why")
        await updater.update_status(types.TaskState.Value(f"TASK_STATE_{value}"), said)


def _message(context: RequestContext, text: str) -> types.Message:
    return types.Message(
        message_id=f"m-{text[:8]}",
        role=types.ROLE_AGENT,
        parts=[types.Part(text=text)],
        task_id=context.task_id or "",
        context_id=context.context_id or "",
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class A2aServer:
    """The agent behind a door that may be closed: then connections are cut, and new ones are closed at once."""

    def __init__(self, *, streaming: bool = True, token: str | None = None, url: str | None = None) -> None:
        self.streaming, self._token, self._other_url = streaming, token, url
        self.executor = ScriptedExecutor()
        self.store = InMemoryTaskStore()
        self.methods: list[str] = []
        self.encoding = ""  # what it says about its answers
        self.refused, self.listed, self.followed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.answered, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()  # until it is cleared: then an answer to a message is held back
        self.lists = True  # whether it can list its tasks
        self.drops = 0  # how many messages are lost on their way
        self._backend: int | None = None
        self._relays: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> A2aServer:
        self._door = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._door.sockets[0].getsockname()[1]}"
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self._door.close()
        await self._door.wait_closed()

    def card(self) -> types.AgentCard:
        interface = types.AgentInterface(
            url=self._other_url or f"{self.url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0"
        )
        skill = types.AgentSkill(id="summary", name="Summary", description="Writes summaries", tags=["text"])
        odd = types.AgentSkill(id="gpu,\x1b", name="Odd", description="Odd", tags=["text"])
        return types.AgentCard(
            name="Helper",
            description="Helps",
            version="7",
            supported_interfaces=[interface],
            capabilities=types.AgentCapabilities(streaming=self.streaming),
            skills=[skill, odd],
            default_input_modes=["text"],
            default_output_modes=["text"],
        )

    async def start(self) -> None:
        """Start the agent, with the tasks that its store has."""
        handler = DefaultRequestHandlerV2(self.executor, self.store, self.card())
        routes = [*create_agent_card_routes(self.card()), *create_jsonrpc_routes(handler, "/rpc")]
        app = Starlette(routes=routes)
        app.add_middleware(BaseHTTPMiddleware, dispatch=self._judge)
        config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=0)
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        await self._server.ready.wait()
        self._backend = self._server.servers[0].sockets[0].getsockname()[1]

    async def _judge(self, request: Any, call_next: Any) -> Response:
        if request.method == "POST":
            body = await request.body()
            self.methods.append(json.loads(body)["method"])
            if self.methods[-1] == "ListTasks":
                self.listed.set()
            elif self.methods[-1] in ("SubscribeToTask", "GetTask"):
                self.followed.set()  # the device knows the task
            if self._token is not None and request.headers.get("authorization") != f"Bearer {self._token}":
                return Response(status_code=401)
            if self.methods[-1] == "SendMessage" and self.drops:
                self.drops -= 1
                self.cut()
                self.mend()
                return Response(status_code=503)  # which nobody gets
            if self.methods[-1] == "ListTasks" and not self.lists:
                error = {"code": -32601, "message": "Method not found"}
                return JSONResponse({"jsonrpc": "2.0", "id": json.loads(body)["id"], "error": error})
        answer = await call_next(request)
        if request.method == "POST" and self.methods[-1] == "SendMessage":
            self.answered.set()
            await self.answers.wait()
        if self.encoding:
            answer.headers["Content-Encoding"] = self.encoding
        return answer  # type: ignore[no-any-return]

    async def stop(self) -> None:
        """Cut all connections, and end the agent."""
        self.cut()
        self._server.should_exit = True
        await self._serving

    def cut(self) -> None:
        """Cut all connections; new ones are closed at once until ``start`` or ``mend``."""
        self._hidden, self._backend = self._backend, None
        for writer in list(self._relays):
            writer.transport.abort()

    def mend(self) -> None:
        self._backend = self._hidden

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._backend is None:
            self.refused.set()
            writer.transport.abort()
            return
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._backend)
        self._relays |= {writer, inner_writer}
        try:
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
        finally:
            self._relays -= {writer, inner_writer}
            for stream in (writer, inner_writer):
                stream.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def a2a_server(**options: Any) -> AsyncIterator[A2aServer]:
    async with A2aServer(**options) as server:
        yield server
