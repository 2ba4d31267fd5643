"""MCP over streamable HTTP, at ``/mcp`` of the server, with its guard, credentials, scopes and limits.

The guard of the server (``server/request_guard.py``) refuses foreign hosts and origins before this. Here each request
is authenticated and counted like one of the API, and its body is read under the limits of the server. A session of the
protocol belongs to the credential that opened it (mcp_sessions.py). Streams and sessions end when their credential is
revoked or expires, or the server stops.

The SDK is imported with the first request: a server without MCP clients does not pay for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.routing import BaseRoute, Route

from asterism.api.http_form import LARGEST_BODY
from asterism.base.http_limits import RequestRefused, read_body
from asterism.base.strict_json import NotStrictJson, parse_strict
from asterism.mcp.mcp_sessions import McpSessions
from asterism.server.endpoint import MAX_DEPTH, ServerState, in_time
from asterism.server.problems import problem, problem_of

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import Message, Receive, Scope, Send

    from asterism.server.request_guard import Caller

PATH = "/mcp"
ENVELOPE = 4
"""How deep the arguments of a tool are nested in a message."""

SESSION_HEADER = "mcp-session-id"

MAX_SESSIONS = 1000
"""How many sessions of clients of older revisions may be open, of all credentials together."""


def mcp_routes(server: ServerState) -> Iterable[BaseRoute]:
    """The route of MCP, for the server."""
    return [Route(PATH, McpEndpoint(server), methods=["GET", "POST", "DELETE"])]


class McpEndpoint:
    """MCP as an ASGI application."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._manager: StreamableHTTPSessionManager | None = None
        self._opening = asyncio.Lock()
        self._sessions = McpSessions(server, self._end_session)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        timed = in_time(request, send)
        with contextlib.ExitStack() as held, contextlib.suppress(ClientDisconnect):
            try:
                caller = await self._server.gate.caller(request)
                self._server.gate.admit(request, caller)
                held.enter_context(self._server.gate.counted(caller))
                body, opens = await self._body(request, caller)
                manager = await self._open()
                if opens:
                    held.enter_context(self._sessions.opening(caller))
                    await self._sessions.make_room(caller)
            except Exception as error:
                return await problem_of(error, f"{request.method} {PATH}")(scope, receive, timed)
            if manager is None:
                missing = problem(501, "this server needs the MCP SDK: install the extra 'mcp' there", "mcp-missing")
                return await missing(scope, receive, timed)
            session = request.headers.get(SESSION_HEADER)
            held.enter_context(self._sessions.used(caller, session))
            answered = self._remembering(timed, caller, session, ends=request.method == "DELETE")
            await self._serve(manager, _with_caller(scope, caller), _replayed(body, receive), answered, caller)

    async def _body(self, request: Request, caller: Caller) -> tuple[bytes, bool]:
        """The body of a request, and whether it asks for a session."""
        if request.method != "POST":
            return b"", False
        body = await read_body(
            request, self._server.bodies, client=caller.name, most=LARGEST_BODY, each=4 * LARGEST_BODY
        )
        try:
            message = parse_strict(body, max_depth=MAX_DEPTH + ENVELOPE)
        except NotStrictJson as error:
            raise RequestRefused(400, f"the body is not valid JSON: {error}") from None
        return body, isinstance(message, dict) and message.get("method") == "initialize"

    def _remembering(self, send: Send, caller: Caller, session: str | None, *, ends: bool) -> Send:
        """``send`` that notices which sessions an answer opens and ends."""

        async def remember(message: Message) -> None:
            if message["type"] == "http.response.start":
                opened = Headers(raw=message["headers"]).get(SESSION_HEADER)
                if session is not None and (ends or message["status"] == 404):
                    self._sessions.forget(caller, session)
                elif session is None and opened is not None and message["status"] < 400:
                    self._sessions.add(caller, opened)
            await send(message)

        return remember

    async def _end_session(self, caller: Caller, session: str) -> None:
        """End a session as its client would."""
        headers = [(SESSION_HEADER.encode(), session.encode())]
        scope = {"type": "http", "method": "DELETE", "path": PATH, "query_string": b"", "headers": headers}

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def unheard(message: Message) -> None:
            pass

        if self._manager is not None:
            await self._manager.handle_request(_with_caller(scope, caller), nothing, unheard)

    async def _open(self) -> StreamableHTTPSessionManager | None:
        """The manager of sessions, started with the first request; None without the SDK."""
        async with self._opening:
            if self._manager is None and find_spec("mcp") is not None:
                if self._server.stopping.is_set():
                    raise RequestRefused(503, "the server stops", 1.0)
                manager = await asyncio.to_thread(_make_manager, self._server)
                started = asyncio.Event()
                self._server.spawn(self._run(manager, started))
                await started.wait()
                self._manager = manager
            return self._manager

    async def _run(self, manager: StreamableHTTPSessionManager, started: asyncio.Event) -> None:
        async with manager.run():
            started.set()
            await self._server.stopping.wait()

    async def _serve(
        self, manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send, caller: Caller
    ) -> None:
        """Answer a request, as long as its credential is valid and the server does not stop."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        answering = asyncio.create_task(manager.handle_request(scope, receive, watched))
        ending = asyncio.create_task(self._end_of(caller))
        try:
            await asyncio.wait([answering, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            answered = answering.done()
            for task in (answering, ending):
                task.cancel()
            await asyncio.gather(answering, ending, return_exceptions=True)
        if answered:
            answering.result()
        elif begun:
            with contextlib.suppress(Exception):  # the client may have left meanwhile
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif self._server.stopping.is_set():
            await problem(503, "the server stops: try again later", retry_after=1.0)(scope, receive, send)
        else:
            await problem(401, "this token is unknown, expired or revoked")(scope, receive, send)

    async def _end_of(self, caller: Caller) -> None:
        """Return when the server stops, or a credential is not valid any more."""
        waits = (self._server.stopping.wait(), self._server.credential_ends.wait(caller.credential.id))
        tasks = [asyncio.create_task(one) for one in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _make_manager(server: ServerState) -> StreamableHTTPSessionManager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from asterism.mcp.mcp_server import mcp_server
    from asterism.mcp.mcp_tools import prepare_schemas

    prepare_schemas()
    # the guard has checked host and origin
    return StreamableHTTPSessionManager(
        mcp_server(server), max_request_body_size=LARGEST_BODY, max_sessions=MAX_SESSIONS
    )


def _with_caller(scope: Scope, caller: Caller) -> Scope:
    """The scope with its caller: for the tools, and for the SDK, whose sessions belong to a user."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    from asterism.mcp.mcp_server import CALLER

    identity = caller.credential.id
    token = AccessToken(token="", client_id=identity, scopes=sorted(caller.credential.scopes), subject=identity)
    return {**scope, CALLER: caller, "user": AuthenticatedUser(token)}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """``receive`` for a body that was read already."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        first: dict[str, Any] = {"type": "http.request", "body": body, "more_body": False}
        return first

    return replay
