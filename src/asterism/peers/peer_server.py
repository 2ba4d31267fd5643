"""The HTTPS server for peers: its routes and its TLS listener (the extra ``serve``).

=========================  =======================================================
``POST /v1/accept``        exchanges an invitation for a secret
``POST /v1/meet``          a message of a sync, and its answer, as JSON lines
``GET /v1/blobs/NAME``     a blob that the record of the run ``?run=`` refers to
``PUT /v1/blobs/NAME``     a blob that this store has asked for
=========================  =======================================================

Every request carries the secret of a peer, or the token of its invitation, and is authenticated before its body is
read. A blob that was not asked for is refused by its headers. Blobs are exchanged only with the store that the secret
belongs to. Every refusal is a JSON object with a sentence: ``{"error": "…"}``. base/http_limits.py limits how much is
read from each client, and how slowly.

Nothing in a message identifies a peer, only the token does. An invitation is good for the exchange and nothing else. An
address that sends too many wrong tokens has to wait; a valid token from the same address is accepted all the same,
since many clients can share an address. The limit does not protect the tokens, which cannot be guessed, but the log,
and it makes a peer with an old token ask less often.

``asterism serve --peers`` has the same routes beside its others, on one port. Peers have pinned the certificate of the
store, and others expect the server's own one, or no TLS: ``context_for_peers`` tells them apart by the name that they
ask for.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asterism.base.http_limits import (
    Bodies,
    LargeAnswer,
    Limits,
    RecentEvents,
    RequestRefused,
    address_of,
    bearer_token,
    length_of,
    place_of,
    read_body,
)
from asterism.base.listen_address import CannotServe, ListenAddress
from asterism.base.startup import install_hint
from asterism.base.strict_json import NotStrictJson, parse_strict
from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.fleet.one_time_code import secret_hash
from asterism.peers.exchange import Exchange
from asterism.peers.invitations import DEFAULT_PORT, InvitationUsed, redeem
from asterism.peers.messages import decode_message, encode_message
from asterism.peers.peer_client import MAX_MESSAGE_BYTES, STORE_HEADER
from asterism.peers.private_files import SERVER_NAME, TlsIdentity
from asterism.peers.registry import Peer, PeerRegistry
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from asterism.base.http_server import LimitedServer

    Answer = Callable[[Request, Peer], Awaitable[Response | LargeAnswer]]

log = logging.getLogger("asterism.peers")

MAX_ACCEPT_BYTES = 1000
"""The largest body of POST /v1/accept, in bytes."""

MAX_FAILURES = 10
FAILURE_WINDOW = 60.0
"""The most wrong tokens of one address within so many seconds."""


DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
DEFAULT_LIMITS = Limits()
SHUTDOWN_GRACE = 2
"""How many seconds open requests have to finish when the server stops."""

_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[0-9A-Fa-f:.%\w]+\]):)?(?P<port>[0-9]{1,5})", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def peer_app(exchange: Exchange, authenticator: Authenticator, limits: Limits = DEFAULT_LIMITS) -> Starlette:
    """The application. Raises AsterismError if Starlette is not installed."""
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
    except ImportError:
        raise AsterismError(f"answering peers needs starlette: {install_hint('peers')}") from None
    routes = peer_routes(exchange, authenticator, limits)
    return Starlette(routes=routes, exception_handlers={HTTPException: _not_found})


def peer_routes(exchange: Exchange, authenticator: Authenticator, limits: Limits = DEFAULT_LIMITS) -> list[Route]:
    """The routes of the application, for a server that has others as well."""
    from starlette.routing import Route

    handlers = _Handlers(exchange, authenticator, Bodies(limits))
    return [
        Route("/v1/accept", handlers.accept, methods=["POST"]),
        Route("/v1/meet", handlers.admitted(handlers.sync), methods=["POST"]),
        Route("/v1/blobs/{name}", handlers.admitted(handlers.get_blob), methods=["GET"]),
        Route("/v1/blobs/{name}", handlers.admitted(handlers.put_blob), methods=["PUT"]),
    ]


class _Handlers:
    def __init__(self, exchange: Exchange, authenticator: Authenticator, bodies: Bodies) -> None:
        self._exchange, self._authenticator, self._bodies = exchange, authenticator, bodies

    async def accept(self, request: Request) -> Any:
        async def redeemed() -> Response:
            address, token = address_of(request), bearer_token(request)
            await self._authenticator.check_invitation(token, address)
            body = await read_body(request, self._bodies, client=address, most=MAX_ACCEPT_BYTES, each=MAX_ACCEPT_BYTES)
            sha256 = _parse_body(parse_strict, body).get("secret_sha256")
            if not isinstance(sha256, str) or _SHA256.fullmatch(sha256) is None:
                raise RequestRefused(400, "secret_sha256 has to be the SHA-256 of a secret")
            peer = await self._authenticator.redeem(token, address, sha256)
            log.info("%s accepted its invitation", peer.name)
            return _json_response(200, {})

        return await _response(address_of(request), redeemed)

    async def sync(self, request: Request, peer: Peer) -> Response:
        from starlette.responses import Response

        body = await read_body(request, self._bodies, client=peer.name, most=MAX_MESSAGE_BYTES, each=await self._each())
        answer = await self._exchange.answer(peer.name, _parse_body(decode_message, body))
        return Response(encode_message(answer), media_type="application/x-ndjson")

    async def get_blob(self, request: Request, peer: Peer) -> LargeAnswer:
        _check_store(request, peer)
        name = request.path_params["name"]
        data = await self._exchange.read_blob(peer.name, name, request.query_params.get("run", ""))
        if data is None:
            raise RequestRefused(404, f"this run has no blob {name!r}")
        with contextlib.ExitStack() as held:
            held.enter_context(self._bodies.reserved(peer.name, len(data), await self._each()))
            return LargeAnswer(data, self._bodies, held.pop_all())

    async def put_blob(self, request: Request, peer: Peer) -> Response:
        _check_store(request, peer)
        name = request.path_params["name"]
        most = (await self._exchange.fleet.settings()).largest_blob
        length, size = length_of(request, most), self._exchange.wanted_size(peer.name, name)
        if length != size:
            raise RequestRefused(409, f"the blob has to have {size:,} bytes, not {length:,}")
        data = await read_body(request, self._bodies, client=peer.name, most=most, each=await self._each())
        await self._exchange.receive_blob(peer.name, name, data)
        return _json_response(200, {})

    async def _each(self) -> int:
        """How many bytes of large requests a peer may have in progress: a blob and a message."""
        return (await self._exchange.fleet.settings()).largest_blob + MAX_MESSAGE_BYTES

    def admitted(self, answer: Answer) -> Callable[[Request], Awaitable[Any]]:
        """Answers an authenticated peer, and refuses all others."""

        async def handle(request: Request) -> Any:
            async def admit() -> Any:
                peer = await self._authenticator.authenticate(bearer_token(request), address_of(request))
                if (place := place_of(request)) is not None:
                    place.admit(peer.name)
                return await _response(peer.name, lambda: answer(request, peer))

            return await _response(address_of(request), admit)

        return handle


async def _response(client: str, answer: Callable[[], Awaitable[Any]]) -> Any:
    """The response, or the refusal."""
    try:
        return await answer()
    except RequestRefused as error:
        return _refused(error.status, str(error), error.retry_after)
    except StoreError as error:
        log.warning("cannot answer %s: %s", client, error)
        return _refused(503, "the store of this peer is unavailable")
    except AsterismError as error:
        log.warning("refused a request of %s: %s", client, error)
        return _refused(409, str(error))
    except Exception:
        log.exception("internal error in a request of %s", client)
        return _refused(500, "internal error; see the log of this peer")


def _check_store(request: Request, peer: Peer) -> None:
    if peer.store is None or request.headers.get(STORE_HEADER) != peer.store:
        raise RequestRefused(403, f"only the store that is bound to {peer.name} may exchange blobs")


def _parse_body(read: Callable[[bytes], Any], body: bytes) -> JsonObject:
    try:
        message = read(body)
    except NotStrictJson as error:
        raise RequestRefused(400, f"the message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise RequestRefused(400, "the message is not a JSON object")
    return message


async def _not_found(request: Request, error: Exception) -> Response:
    """The refusal of an unknown path or method."""
    status = getattr(error, "status_code", 404)
    return _refused(status, f"{request.method} {request.url.path} is not part of the peer protocol")


def _refused(status: int, sentence: str, retry_after: float | None = None) -> Response:
    headers = {"connection": "close"}  # or the rest of the request would be read to its end
    if retry_after is not None:
        headers["retry-after"] = f"{retry_after:.0f}"
    return _json_response(status, {"error": sentence}, headers)


def _json_response(status: int, document: JsonObject, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(document, status, headers)


# -- authentication ----------------------------------------------------------------------------------------------------


class Authenticator:
    """Checks the tokens of requests. ``now`` is a monotonic clock in seconds."""

    def __init__(self, store: Store, peers: PeerRegistry, now: Callable[[], float]) -> None:
        self._store, self._peers = store, peers
        self._failures = RecentEvents(now, MAX_FAILURES, FAILURE_WINDOW)

    async def authenticate(self, token: str, address: str) -> Peer:
        """The peer that has this token. Raises RequestRefused."""
        peer = await self._peers.find_by_hash("token_sha256", secret_hash(token))
        if peer is None:
            self._count_failure(address)
            raise RequestRefused(401, "unknown token: ask for a new invitation")
        return peer

    async def check_invitation(self, token: str, address: str) -> None:
        """Raises RequestRefused unless the token is that of an invitation of this store, used or not."""
        if await self._peers.find_by_hash("invitation_sha256", secret_hash(token)) is None:
            raise self._unknown_invitation(address)

    async def redeem(self, token: str, address: str, secret_sha256: str) -> Peer:
        """Exchange an invitation for a secret, and return the peer. Raises RequestRefused."""
        try:
            peer = await redeem(self._store, secret_hash(token), secret_sha256)
        except InvitationUsed as error:
            self._count_failure(address)
            raise RequestRefused(403, str(error)) from None
        if peer is None:
            raise self._unknown_invitation(address)
        return peer

    def _unknown_invitation(self, address: str) -> RequestRefused:
        self._count_failure(address)
        return RequestRefused(401, "unknown invitation: ask for a new one")

    def _count_failure(self, address: str) -> None:
        """Raises RequestRefused if too many requests of this address had a wrong token of late."""
        self._failures.check(address, f"too many wrong tokens from {address}")
        if not self._failures.knows(address):
            log.warning("received a wrong token from %s", address)
        self._failures.add(address)


# -- the listener ------------------------------------------------------------------------------------------------------


def open_socket(address: str) -> socket.socket:
    """A listening socket at ``HOST:PORT``, or at a port of the loopback address. Raises CannotServe."""
    parts = _ADDRESS.fullmatch(address.strip())
    if parts is None or int(parts["port"]) > 65535:
        raise CannotServe(f"{address!r} is not a valid HOST:PORT (examples: {DEFAULT_ADDRESS}, 0.0.0.0:{DEFAULT_PORT})")
    host, port = (parts["host"] or "127.0.0.1").strip("[]"), int(parts["port"])
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotServe(f"cannot listen on {address}: {error.strerror or error}") from None
    return ListenAddress(str(addresses[0][4][0]), port).open_socket()


def socket_url(sock: socket.socket) -> str:
    """The URL of a socket: ``https://127.0.0.1:7420``."""
    host, port, *_ = sock.getsockname()
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


@contextlib.asynccontextmanager
async def serving(
    app: Starlette, sock: socket.socket, identity: TlsIdentity, limits: Limits = DEFAULT_LIMITS
) -> AsyncIterator[LimitedServer]:
    """Serve the application on the socket while the block runs."""
    with contextlib.closing(sock):
        try:
            from asterism.base.http_server import LimitedServer
            from asterism.base.http_server import serving as listening
        except ImportError:
            raise AsterismError(f"answering peers needs uvicorn: {install_hint('peers')}") from None
        server = LimitedServer(
            app, limits, log, peer_context(identity), date_header=False, timeout_graceful_shutdown=SHUTDOWN_GRACE
        )
        async with listening(server, sock):
            yield server


def peer_context(identity: TlsIdentity) -> ssl.SSLContext:
    """The TLS of a server for peers: the certificate that they have pinned."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(identity.path)
    return context


def context_for_peers(identity: TlsIdentity, others: ssl.SSLContext | None) -> ssl.SSLContext:
    """The TLS of a server that peers share with others. ``others`` is the context of the others, which gets a second
    certificate; None if they use no TLS."""
    peers = peer_context(identity)
    if others is None:
        return peers

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name == SERVER_NAME:
            connection.context = peers

    others.sni_callback = choose
    return others
