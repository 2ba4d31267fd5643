"""MCP over streamable HTTP, at ``/mcp`` of the server, with its guard, credentials, scopes and limits; and over stdio.

The guard of the server (``server/request_guard.py``) refuses foreign hosts and origins before this. Here each request
is authenticated and counted like one of the API, and its body is read under the limits of the server. A session of the
protocol belongs to the credential that opened it. Streams and sessions end when their credential is
revoked or expires, or the server stops.

The SDK has one limit for all sessions. Each credential has one of its own here, so that nobody locks others out: the
session that was unused for longest makes room for a new one, and its client opens another. All sessions of a credential
end with it.

Which sessions there are is known from the answers of the SDK. One that it has ended because nobody used it is still
counted, and is the first to make room.

The SDK is imported with the first request: a server without MCP clients does not pay for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mcp.server.stdio import stdio_server
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.routing import BaseRoute, Route

from asterism.api.credentials import Credential, check_scopes
from asterism.api.operation import LARGEST_BODY
from asterism.api.system import LocalSystem
from asterism.base.clock import first_of
from asterism.base.http_limits import RequestRefused, read_body
from asterism.base.strict_json import NotStrictJson, parse_strict
from asterism.core.errors import AsterismError
from asterism.fleet.fleet import Fleet
from asterism.mcp.mcp_server import mcp_server
from asterism.mcp.mcp_tools import McpHost
from asterism.server.endpoint import MAX_DEPTH, ServerState, in_time
from asterism.server.problems import problem, problem_of

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import Message, Receive, Scope, Send

    from asterism.mcp.mcp_tools import McpHost


PATH = "/mcp"
ENVELOPE = 4
"""How deep the arguments of a tool are nested in a message."""

SESSION_HEADER = "mcp-session-id"

MAX_SESSIONS = 1000
"""How many sessions of clients of older revisions may be open, of all credentials together."""


SESSIONS_EACH = 32
"""How many sessions one credential may have."""

EndSession = Callable[[Credential, str], Awaitable[None]]


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
                self._server.gate.admit(request, caller.shown)
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

    async def _body(self, request: Request, caller: Credential) -> tuple[bytes, bool]:
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
        await self._server.count_stored(caller, len(body))
        return body, isinstance(message, dict) and message.get("method") == "initialize"

    def _remembering(self, send: Send, caller: Credential, session: str | None, *, ends: bool) -> Send:
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

    async def _end_session(self, caller: Credential, session: str) -> None:
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
        self, manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send, caller: Credential
    ) -> None:
        """Answer a request, as long as its credential is valid and the server does not stop."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        answering = asyncio.create_task(manager.handle_request(scope, receive, watched))
        await first_of(answering, self._server.stopping.wait(), self._server.credential_ends.wait(caller))
        if not answering.cancelled():
            return
        if begun:
            with contextlib.suppress(Exception):  # the client may have left meanwhile
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif self._server.stopping.is_set():
            await problem(503, "the server stops: try again later", retry_after=1.0)(scope, receive, send)
        else:
            await problem(401, "this token is unknown, expired or revoked")(scope, receive, send)


def server_host(server: ServerState) -> McpHost:
    """The tools of a server: each caller is an agent there."""
    from asterism.mcp.mcp_tools import McpHost

    return McpHost(
        server.fleet,
        partial(server.system_of, agent=True),
        server.gate.count_edit,
        server.stopping,
        server.gate.count_refusal,
        server.proposer is not None,
    )


def _make_manager(server: ServerState) -> StreamableHTTPSessionManager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from asterism.mcp.mcp_server import mcp_server
    from asterism.mcp.mcp_tools import prepare_schemas

    prepare_schemas()
    # the guard has checked host and origin
    return StreamableHTTPSessionManager(
        mcp_server(server_host(server)), max_request_body_size=LARGEST_BODY, max_sessions=MAX_SESSIONS
    )


def _with_caller(scope: Scope, caller: Credential) -> Scope:
    """The scope with its caller: for the tools, and for the SDK, whose sessions belong to a user."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    from asterism.mcp.mcp_server import CALLER

    identity = caller.id
    token = AccessToken(token="", client_id=identity, scopes=sorted(caller.scopes), subject=identity)
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


# -- sessions ---------------------------------------------------------------------------------------------------------


class McpSessions:
    """``end`` ends a session of a caller."""

    def __init__(self, server: ServerState, end: EndSession) -> None:
        self._server, self._end = server, end
        self._sessions: dict[
            str, dict[str, int]
        ] = {}  # of each credential: requests under way, least recently used first
        self._opening: dict[str, int] = {}

    @contextlib.contextmanager
    def used(self, caller: Credential, session: str | None) -> Iterator[None]:
        """A request in a session; it is in use until the block ends."""
        mine = self._sessions.get(caller.id, {})
        if session is None or session not in mine:
            yield
            return
        mine[session] = mine.pop(session) + 1  # to the end
        try:
            yield
        finally:
            if session in mine:
                mine[session] = mine.pop(session) - 1

    @contextlib.contextmanager
    def opening(self, caller: Credential) -> Iterator[None]:
        """A request that may open a session: it counts until the block ends."""
        identity = caller.id
        self._opening[identity] = self._opening.get(identity, 0) + 1
        try:
            yield
        finally:
            self._opening[identity] -= 1
            if not self._opening[identity]:
                del self._opening[identity]

    async def make_room(self, caller: Credential) -> None:
        """End sessions that are unused, if a credential has too many. Call it in the block of ``opening``. Raises
        RequestRefused if all are in use."""
        identity = caller.id
        while len(mine := self._sessions.get(identity, {})) + self._opening[identity] > SESSIONS_EACH:
            unused = next((session for session, requests in mine.items() if not requests), None)
            if unused is None:
                text = f"{SESSIONS_EACH} MCP sessions of {caller.name} are in use: close one of them"
                raise RequestRefused(429, text, 1.0)
            self.forget(caller, unused)
            await self._end(caller, unused)

    def add(self, caller: Credential, session: str) -> None:
        """A session was opened."""
        identity = caller.id
        if identity not in self._sessions:
            self._sessions[identity] = {}
            self._server.spawn(self._end_all(caller))
        self._sessions[identity][session] = 0

    def forget(self, caller: Credential, session: str) -> None:
        """A session is over."""
        self._sessions.get(caller.id, {}).pop(session, None)

    async def _end_all(self, caller: Credential) -> None:
        """End the sessions of a credential when it is revoked or expires."""
        await self._server.credential_ends.wait(caller)
        for session in self._sessions.pop(caller.id, {}):
            await self._end(caller, session)


def local_caller(name: str, scopes: Iterable[str]) -> Credential:
    """The client that started this process. It needs no token: it has the store. Raises InvalidScope."""
    return Credential("local", name, "", "local", 0.0, name, float("inf"), scopes=check_scopes(scopes))


async def serve_stdio(fleet: Fleet, caller: Credential, submitted: Callable[[], None]) -> None:
    """Serve the client until it closes standard input. Whatever else prints meanwhile goes to standard error.
    ``submitted`` is called when there may be a plan to run."""
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise AsterismError("an MCP client speaks over standard input and output, but one of them is closed")
    system = LocalSystem(fleet.named(caller.name), caller.name, submitted, own=False, caller=caller)
    host = McpHost(fleet, lambda caller: system)
    server = mcp_server(host, caller)
    with contextlib.redirect_stdout(sys.__stdout__):  # the command line has replaced it by a stream without a buffer
        lines: Any = InputLines(own_input())  # of a file, the server reads nothing but lines
        async with stdio_server(lines) as (received, sent):
            try:
                await server.run(received, sent, server.create_initialization_options())
            finally:
                host.stopping.set()


# -- standard input ----------------------------------------------------------------------------------------------------

READ_SIZE = 64 * 1024
LINES_AHEAD = 16
"""How many messages are read before the server takes one."""


def own_input() -> int:
    """A descriptor of standard input that no child process shares: what they read is empty."""
    own = os.dup(0)  # not inheritable
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return own


class InputLines:
    """The lines of a descriptor, read by a thread that does not outlive the process: so a signal ends the command even
    while its client says nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._loop = descriptor, asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(LINES_AHEAD)
        threading.Thread(target=self._read, name="standard input", daemon=True).start()

    def __aiter__(self) -> InputLines:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self) -> None:
        rest: list[bytes] = []
        while data := self._more():
            *whole, last = data.split(b"\n")
            for line in whole:
                self._put(b"".join([*rest, line]).decode("utf-8", "replace"))
                rest = []
            rest.append(last)
        self._put(None)

    def _more(self) -> bytes:
        try:
            return os.read(self._descriptor, READ_SIZE)
        except OSError:  # a terminal that has gone away
            return b""

    def _put(self, line: str | None) -> None:
        """Wait until there is room. If the server has gone meanwhile, nobody waits for the thread."""
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
