"""The HTTP service: listens on an address with the limits of the server, until the block that uses it ends."""

from __future__ import annotations

import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from starlette.routing import BaseRoute

from asterism.api.credentials import Credentials
from asterism.api.system import Proposer
from asterism.base.http_limits import Bodies, Limits
from asterism.base.http_server import LimitedServer, serving
from asterism.base.listen_address import CannotServe, ListenAddress, renewed_certificate
from asterism.fleet.fleet import Fleet
from asterism.server.app import server_app
from asterism.server.endpoint import ServerState
from asterism.server.gateway_routes import GatewayRoutes
from asterism.server.people_proxy import PeopleProxy
from asterism.server.request_guard import SERVER_LIMITS, Gate, request_hosts

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
