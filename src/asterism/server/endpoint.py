"""An endpoint of the API: one entry of the table from which the routes and the OpenAPI document are made.

A handler gets a ``Call`` and returns a JSON value, or a response of its own. Everything before it (who calls, scopes,
limits, the body) and after it (errors as problem documents) is done here, in one place for all of them::

    async def show(call: Call) -> Any:
        return await plan_view(call.fleet, call.path["plan"])

    ENDPOINTS = (Endpoint("GET", "/plans/{plan}", show, "A plan as it is now.", needs="observe plan {plan}"),)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from asterism.api.credentials import Credential, ScopeMissing
from asterism.api.local.audited import record_refusal
from asterism.api.local.edit_handlers import EditedPlans
from asterism.api.local.problem_statuses import InvalidRequest, checked_name, read_request
from asterism.api.operation import API, KEY_HEADER, LARGEST_BODY, NoFields, path_fields
from asterism.api.operations import OPERATIONS
from asterism.api.request import Request as Fields
from asterism.api.system import Actor, LocalSystem, Proposer
from asterism.base.http_limits import CHUNK, Bodies, RequestRefused, place_of, read_body
from asterism.base.strict_json import NotStrictJson, parse_strict
from asterism.core.record import UNKNOWN, Mistake, encode_json
from asterism.fleet.audit_log import AuditLog
from asterism.fleet.fleet import Fleet
from asterism.server.event_stream import FleetFeed, PlanFeeds
from asterism.server.kept_answers import KeptAnswers, KeyedRequest
from asterism.server.problems import problem, problem_of
from asterism.server.request_guard import CredentialEnds, Gate

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

MAX_DEPTH = 64
"""How deep the JSON of a request may be nested."""

SLOWEST_READ = 30.0
"""How long a client may take to accept a part of an answer, in seconds."""

MAX_CALLERS = 100
"""For how many callers a fleet object is kept."""

STOP_GRACE = 4.0
"""How many seconds a request that is being answered has when the server stops: less than the server itself has."""


class ServerStops(Exception):
    """The server stopped before a request was answered."""


class Unsettled(Exception):
    """It is unknown whether a request was done. ``response`` says why."""

    def __init__(self, response: Response) -> None:
        self.response = response
        super().__init__()


@dataclass
class ServerState:
    """What the endpoints of one server share. ``submitted`` is called when there may be a plan to run."""

    fleet: Fleet
    gate: Gate
    bodies: Bodies
    submitted: Callable[[], None] = lambda: None
    proposer: Proposer | None = None
    """The model that answers requests in words."""

    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: event streams end then."""

    _fleets: dict[str, Fleet] = field(default_factory=dict, repr=False)

    _answering: set[asyncio.Timeout] = field(default_factory=set, repr=False)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set, repr=False)
    _texts: dict[str, tuple[float, str]] = field(default_factory=dict, repr=False)
    _making: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin work that goes on when the request is answered."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @contextlib.asynccontextmanager
    async def while_serving(self) -> AsyncIterator[None]:
        """The answer to a request: it has ``STOP_GRACE`` seconds when the server stops. Raises ServerStops after
        that."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._answering.add(limit)
                try:
                    yield
                finally:
                    self._answering.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ServerStops from None

    async def close(self) -> None:
        """End what goes on. Requests that are being answered have a moment."""
        self.stopping.set()
        until = asyncio.get_running_loop().time() + STOP_GRACE
        for limit in self._answering:
            limit.reschedule(until)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def count_stored(self, caller: Credential, size: int) -> None:
        """Raises RequestRefused if a credential stores too much within an hour."""
        self.gate.count_stored(caller, size, int((await self.fleet.settings()).credential_bytes))

    async def remembered(self, name: str, age: float, produce: Callable[[], Awaitable[str]]) -> str:
        """A text that is produced again when it is older than so many seconds. Callers at one time share it."""
        async with self._making:
            now = self.fleet.clock.time()
            if name not in self._texts or now - self._texts[name][0] > age:
                self._texts[name] = (now, await produce())
            return self._texts[name][1]

    @cached_property
    def fleet_feed(self) -> FleetFeed:
        """The events of runs, devices and notices."""
        return FleetFeed(self.fleet, self.spawn)

    @cached_property
    def credential_ends(self) -> CredentialEnds:
        """Tells when a credential is revoked or expires."""
        return CredentialEnds(self.fleet.store)

    @cached_property
    def kept_answers(self) -> KeptAnswers:
        """The answers to requests that may be repeated."""
        return KeptAnswers(self.fleet.store, uuid.uuid4().hex, self.spawn)

    @cached_property
    def plan_feeds(self) -> PlanFeeds:
        """The events of plans, for those who follow them."""
        return PlanFeeds(self.fleet.store)

    @cached_property
    def edited_plans(self) -> EditedPlans:
        """The plans that are edited: their sizes and their order."""
        return EditedPlans()

    @cached_property
    def audit_log(self) -> AuditLog:
        """Who changed what."""
        return AuditLog(self.fleet.store)

    def system_of(
        self, caller: Credential | None, *, agent: bool = False, request: Request | None = None
    ) -> LocalSystem:
        """The store in the name of a caller, who makes a request. It is an editor, which has a scope, if it may edit
        plans but not operate them, or if it is an ``agent``: a model may act through MCP, whatever its credential
        allows."""
        is_person = caller is None or (caller.allows("operate") and not agent)
        editor = None if is_person or caller is None else caller.name
        fleet = self.fleet if caller is None else self._fleet_of(caller.name)
        actor = None if caller is None else self.actor_of(caller, request)
        system = LocalSystem(fleet, editor, self.submitted, self.spawn, own=False, client=actor, proposer=self.proposer)
        system.caller = caller
        system.edited_plans, system.audit_log = self.edited_plans, self.audit_log  # those of all callers
        return system

    def actor_of(self, caller: Credential, request: Request | None) -> Actor:
        """A caller as the audit log names it."""
        address = "" if request is None else self.gate.client_address(request)
        key = "" if request is None else request.headers.get(KEY_HEADER, "")
        return Actor(caller.name, caller.kind, caller.id, address, key)

    def _fleet_of(self, name: str) -> Fleet:
        """The fleet with this name in its stories."""
        fleet = self._fleets.get(name)
        if fleet is None:
            while len(self._fleets) >= MAX_CALLERS:
                del self._fleets[next(iter(self._fleets))]
            fleet = self._fleets[name] = self.fleet.named(name)
        return fleet


@dataclass
class Call:
    """One request, after it was checked. ``system`` acts in the name of the caller."""

    request: Request
    server: ServerState
    caller: Credential | None
    system: LocalSystem
    path: Mapping[str, str]
    query: Any = None
    body: Any = None

    @property
    def fleet(self) -> Fleet:
        return self.system.fleet


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """``path`` is below the prefix of the API, except if it is ``absolute``. ``needs`` is what the caller's scopes have
    to satisfy (api/credentials.py), with parameters of the path in braces; None if everybody may call it. ``edits``
    counts against the edits per minute. ``answer`` is the class of the answer, or its JSON schema; ``media`` its
    type if it is not JSON."""

    method: str
    path: str
    handler: Handler
    summary: str
    needs: str | None = "observe"
    query: type[Fields] = NoFields
    body: type[Fields] | None = None
    answer: Any = None
    status: int = 200
    media: str = "application/json"
    edits: bool = False
    heavy: bool = False
    """Whether its answer takes long to compute."""

    absolute: bool = False
    name: str = ""
    """That of its operation, if it has one."""

    secret: bool = False
    """Whether its answer has a secret, and so is not kept for repeats."""

    @property
    def full_path(self) -> str:
        return self.path if self.absolute else f"{API}{self.path}"

    @property
    def methods(self) -> list[str]:
        """HEAD belongs to GET, except for a login, which it would use up, and for a stream, which would not end."""
        once = self.method != "GET" or self.status != 200 or self.media == "text/event-stream"
        return [self.method] if once else [self.method, "HEAD"]

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters in the path."""
        return path_fields(self.path)


class DocumentResponse(JSONResponse):
    """A document as JSON."""

    def render(self, content: Any) -> bytes:
        return encode_json(content)


class EndpointApp:
    """An endpoint as an ASGI application. The request counts for its caller until the answer is sent, so that an event
    stream counts as long as it lasts."""

    def __init__(self, endpoint: Endpoint, server: ServerState) -> None:
        self._endpoint, self._server = endpoint, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        with contextlib.ExitStack() as held:
            try:
                response = await self._answer(request, held)
            except ServerStops:
                response = self._unfinished()
            except asyncio.CancelledError:  # the web server has no more patience with a request that waits
                if not self._server.stopping.is_set():
                    raise
                response = self._unfinished()
            except Unsettled as unsettled:
                response = unsettled.response
            except Exception as error:
                response = problem_of(error, self._where, request.path_params.get("plan"))
            with contextlib.suppress(ClientDisconnect):
                await response(scope, receive, in_time(request, send))

    def _unfinished(self) -> Response:
        """The answer to a request that was not done when the server stopped."""
        if self._endpoint.method == "GET":
            return problem(503, "the server stops: try again later", "server-stops", retry_after=1.0)
        text = "the server stops, and it is unknown whether this was done or will be: look before you send it again"
        return problem(504, text, "answer-lost", retry_after=1.0)

    async def _answer(self, request: Request, held: contextlib.ExitStack) -> Response:
        endpoint, server, caller = self._endpoint, self._server, None
        path = {name: checked_name(name, value) for name, value in request.path_params.items()}
        if endpoint.needs is not None:
            caller = await server.gate.caller(request)
            server.gate.admit(request, caller.shown)
            await self._check_scope(caller, request, path)
            held.enter_context(server.gate.counted(caller))
            if endpoint.edits:
                server.gate.count_edit(caller)
        call = Call(request, server, caller, server.system_of(caller, request=request), path)
        call.query = _fields(endpoint.query, _query(request), path)
        if endpoint.body is not None:
            body, size = await _json_body(request, server, caller)
            call.body = _fields(endpoint.body, body, path)
            if caller is not None and self._stores(call):
                await server.count_stored(caller, size)
        async with server.while_serving():
            key = request.headers.get(KEY_HEADER)
            if key is None or caller is None or endpoint.method == "GET":
                return await self._handle(call)
            words = [f"{endpoint.method} {endpoint.path}".encode(), *map(encode_json, (path, call.query, call.body))]
            keyed = KeyedRequest.of(caller.id, key, *words)
            return await server.kept_answers.answer(keyed, lambda: self._settled(call), secret=endpoint.secret)

    async def _check_scope(self, caller: Credential, request: Request, path: Mapping[str, str]) -> None:
        """Raises ScopeMissing, which is recorded, and RequestRefused for a caller who does not stop."""
        assert self._endpoint.needs is not None
        try:
            caller.check(self._endpoint.needs, path)
        except ScopeMissing as error:
            operation = OPERATIONS.get(self._endpoint.name)
            if operation is not None and operation.changes:
                self._server.gate.count_refusal(caller)
                await record_refusal(self._server.system_of(caller, request=request), operation, path, error)
            raise

    def _stores(self, call: Call) -> bool:
        """Whether a request leaves something in the store."""
        operation = OPERATIONS.get(self._endpoint.name)
        return operation is not None and operation.changes and not getattr(call.body, "dry_run", False)

    async def _handle(self, call: Call) -> Response:
        if self._endpoint.heavy or getattr(call.body, "dry_run", False):
            async with self._server.gate.heavy(call.caller):
                result = await self._endpoint.handler(call)
        else:
            result = await self._endpoint.handler(call)
        return result if isinstance(result, Response) else DocumentResponse(result, self._endpoint.status)

    async def _settled(self, call: Call) -> Response:
        """The answer to a request that was done or refused. Raises Unsettled."""
        try:
            return await self._handle(call)
        except Exception as error:
            response = problem_of(error, self._where, call.path.get("plan"))
            if response.status_code == 503:  # a repeat would not be done: its key is taken
                detail = json.loads(bytes(response.body))["detail"]
                text = f"{detail}; it is unknown whether this was done: look before you send it again"
                response = problem(504, text, "answer-lost", retry_after=1.0)
            if response.status_code >= 500:
                raise Unsettled(response) from error
            return response

    @property
    def _where(self) -> str:
        return f"{self._endpoint.method} {self._endpoint.path}"


def in_time(request: Request, send: Send) -> Send:
    """``send`` for a client that must read: a part that it does not accept in time ends the connection. A large body is
    sent in parts, since the end of a body waits only for what was sent before it."""

    async def timed(message: Message) -> None:
        try:
            async with asyncio.timeout(SLOWEST_READ):
                await send(message)
        except TimeoutError:
            if (place := place_of(request)) is not None:
                place.close()
            raise ClientDisconnect from None

    async def in_parts(message: Message) -> None:
        body = message.get("body", b"")
        if len(body) <= CHUNK:
            return await timed(message)
        for start in range(0, len(body), CHUNK):
            await timed({**message, "body": body[start : start + CHUNK], "more_body": True})
        await timed({**message, "body": b""})

    return in_parts


def _fields(kind: type[Fields], given: Any, path: Mapping[str, str]) -> Fields:
    """The fields of a request, some of which its path gives. Raises InvalidRequest, and RequestRefused for a path that
    can name nothing."""
    if not isinstance(given, Mapping):
        return read_request(kind, given)
    in_path = {name: value for name, value in path.items() if name in kind.__struct_fields__}
    if twice := sorted(in_path.keys() & given.keys()):
        raise InvalidRequest([Mistake((name,), "the path has it already", UNKNOWN) for name in twice])
    try:
        return read_request(kind, {**given, **in_path})
    except InvalidRequest as error:
        for mistake in error.mistakes:
            if mistake.place and mistake.place[0] in in_path:
                raise RequestRefused(404, f"there is no such {mistake}") from None
        raise


def _query(request: Request) -> dict[str, str]:
    """The query of a request. A name that occurs twice is a mistake of the client."""
    pairs = request.query_params.multi_items()
    if len(dict(pairs)) != len(pairs):
        raise RequestRefused(400, "a parameter of the query occurs twice")
    return dict(pairs)


async def _json_body(request: Request, server: ServerState, caller: Credential | None) -> tuple[Any, int]:
    """The JSON of a body, and how many bytes it has; an empty one is an empty object. Raises RequestRefused."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return {}, 0
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestRefused(415, "the body has to be JSON: Content-Type: application/json")
    client = caller.shown if caller is not None else "a stranger"
    body = await read_body(request, server.bodies, client=client, most=LARGEST_BODY, each=4 * LARGEST_BODY)
    try:
        return parse_strict(body, max_depth=MAX_DEPTH), len(body)
    except NotStrictJson as error:
        raise RequestRefused(400, f"the body is not valid JSON: {error}") from None
