"""The HTTP service: listens on an address with the limits of the server, until the block that uses it ends."""

from __future__ import annotations

import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from asterism.api.credentials import Credentials
from asterism.api.operation import NoFields, Operation
from asterism.api.operations import OPERATIONS
from asterism.api.system import Proposer
from asterism.base.http_limits import Bodies, Limits
from asterism.base.http_server import LimitedServer, serving
from asterism.base.listen_address import CannotServe, ListenAddress, renewed_certificate
from asterism.base.text import plain_name
from asterism.fleet.fleet import Fleet
from asterism.server import service_routes
from asterism.server.endpoint import Call, Endpoint, EndpointApp, ServerState
from asterism.server.gateway_routes import GatewayRoutes
from asterism.server.openapi import openapi_endpoint
from asterism.server.page_routes import page_routes
from asterism.server.people_proxy import PeopleProxy
from asterism.server.problems import problem
from asterism.server.request_guard import SERVER_LIMITS, Gate, RequestGuard, request_hosts

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Scope


log = logging.getLogger("asterism.server")

DEFAULT_PORT = 7400
SHUTDOWN_GRACE = 5
"""How many seconds open requests have to finish when the server stops."""


@dataclass(frozen=True, slots=True)
class HttpService:
    """A server that listens. ``url`` is the address for clients on this machine, or by the first of its names."""

    url: str
    state: ServerState
    server: LimitedServer


@contextlib.asynccontextmanager
async def http_service(
    fleet: Fleet,
    address: ListenAddress,
    names: Sequence[str] = (),
    *,
    limits: Limits = SERVER_LIMITS,
    more: Callable[[ServerState], Iterable[BaseRoute]] = lambda state: (),
    peers: bool = False,
    people: PeopleProxy | None = None,
    proposer: Proposer | None = None,
) -> AsyncIterator[HttpService]:
    """Serve the API of a fleet while the block runs. ``names`` are further host names by which clients know it;
    ``more`` makes further routes. With ``peers`` it answers the peers of the store too;
    ``people`` is the proxy that logs people in, ``proposer`` the model that answers requests in words. Raises
    CannotServe, and AsterismError for a store that cannot have peers."""
    hosts = request_hosts(address.host, names)
    if not hosts:
        raise CannotServe(f"clients cannot name {address.host}: give their name of this machine with --name HOST")
    https = address.certificate is not None or address.behind_proxy
    gate = Gate(Credentials(fleet.store), time.monotonic, https=https, shared=address.behind_proxy, people=people)
    state = ServerState(fleet, gate, Bodies(limits), proposer=proposer)
    own = context = address.tls_context()
    also_plain = False
    routes: Sequence[BaseRoute] = ()
    if peers:
        also_plain = context is None
        context, routes = _peer_endpoint(fleet, address, context)
    gateway = GatewayRoutes(fleet, state.bodies, shared=address.behind_proxy)
    with contextlib.closing(address.open_socket()) as sock:
        server = LimitedServer(
            server_app(state, hosts, [*gateway.routes, *more(state), *routes]),
            address.limits(limits),
            log,
            context,
            also_plain=also_plain,
            date_header=False,
            timeout_graceful_shutdown=SHUTDOWN_GRACE,
        )
        try:
            async with serving(server, sock), renewed_certificate(address, own, log):
                try:
                    yield HttpService(public_url(address, address.url(sock), names), state, server)
                finally:
                    gateway.stop_waiting()
                    server.leaving.set()
                    await state.close()
        finally:
            await state.kept_answers.write()  # those of the last requests
            await gateway.close()


def _peer_endpoint(
    fleet: Fleet, address: ListenAddress, context: ssl.SSLContext | None
) -> tuple[ssl.SSLContext, Sequence[BaseRoute]]:
    """What a server needs to answer peers: the TLS for them and for others, and the routes."""
    from asterism.peers import peer_server
    from asterism.peers.exchange import Exchange
    from asterism.peers.peer_service import authenticator
    from asterism.peers.private_files import tls_identity

    if address.behind_proxy:
        raise CannotServe(
            "peers check the certificate of the store, which a proxy that does TLS hides from them: leave out --peers, "
            "and answer them on a port of their own with `asterism peer serve`"
        )
    exchange, limits = Exchange(fleet), address.limits(peer_server.DEFAULT_LIMITS)
    routes = peer_server.peer_routes(exchange, authenticator(exchange), limits)
    return peer_server.context_for_peers(tls_identity(fleet.store), context), routes


def public_url(address: ListenAddress, url: str, names: Sequence[str]) -> str:
    """The address for people: by the first name, if there is one. A proxy has the standard port."""
    if not names:
        return url
    if address.behind_proxy:
        return f"https://{names[0]}"
    return f"{url.partition('://')[0]}://{names[0]}:{url.rpartition(':')[2]}"


def endpoints() -> list[Endpoint]:
    """All endpoints of the API, in the order of the documentation. Of two paths that match, the first counts."""
    described = [*service_routes.ENDPOINTS, *OPERATION_ENDPOINTS]
    return [*described, openapi_endpoint(described)]


def server_app(server: ServerState, hosts: Collection[str], more: Iterable[BaseRoute] = ()) -> RequestGuard:
    """The application, with its guard. ``hosts`` are the names by which clients know the server."""
    routes = [_route(endpoint, server) for endpoint in endpoints()]
    # routes are tried in turn, and most messages are those of devices
    app = Starlette(routes=[*more, *routes, *page_routes()], exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False
    return RequestGuard(app, hosts, https=server.gate.https)


class EndpointRoute(Route):
    """A route whose parameters are any names: one with a ``/`` has it as ``%2F``, so it is decoded after the match."""

    def __init__(self, path: str, *arguments: Any, **options: Any) -> None:
        super().__init__(path, *arguments, **options)
        self._slashes = path.count("/")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw = scope.get("raw_path") or b""
        if raw and raw.count(b"/") != self._slashes:
            return Match.NONE, {}  # most routes have another number of parts: that is quicker to see than a mismatch
        encoded = b"%2F" in raw or b"%2f" in raw  # without it a path that was decoded first has the same parts
        match, child_scope = super().matches({**scope, "path": raw.decode("latin-1")} if encoded else scope)
        if match is not Match.NONE:
            parameters = child_scope["path_params"].items()
            child_scope["path_params"] = {
                name: plain_name(unquote(part) if encoded else part) for name, part in parameters
            }
        return match, child_scope


def _route(endpoint: Endpoint, server: ServerState) -> Route:
    route = EndpointRoute(endpoint.full_path, EndpointApp(endpoint, server), methods=endpoint.methods)
    route.methods = set(endpoint.methods)  # starlette adds HEAD to every GET
    return route


async def _no_route(request: Request, error: Exception) -> Response:
    """The answer to an unknown path or method."""
    status = getattr(error, "status_code", 404)
    sentence = f"there is no {request.url.path}" if status == 404 else f"{request.method} is not possible here"
    answer = problem(status, sentence, "unknown-path" if status == 404 else "unknown-method")
    for name, value in (getattr(error, "headers", None) or {}).items():
        answer.headers[name] = value
    return answer


# -- operations --------------------------------------------------------------------------------------------------------


HEAVY = ("copy_plan", "draw_plan", "explain_plan", "list_files", "show_plan", "show_version")
"""The operations whose answers take long to compute."""


def endpoint_of(operation: Operation[Any, Any, Any]) -> Endpoint:
    """The endpoint that checks a request and calls its operation, in the name of the caller."""
    in_query = operation.method in ("GET", "DELETE")

    async def handle(call: Call) -> Any:
        return await call.system.call(operation, call.query if in_query else call.body)

    return Endpoint(
        operation.method,
        operation.path,
        handle,
        operation.text,
        needs=operation.needs,
        query=operation.fields if in_query else NoFields,
        body=None if in_query else operation.fields,
        answer=operation.answer,
        status=operation.status,
        edits=operation.edits,
        heavy=operation.name in HEAVY,
        secret=operation.secret,
        name=operation.name,
    )


OPERATION_ENDPOINTS = tuple(endpoint_of(operation) for operation in OPERATIONS.values())
"""Those of all operations, in the order of the documentation."""
