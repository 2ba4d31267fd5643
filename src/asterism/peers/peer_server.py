"""The server that answers peers, as an application of Starlette (the extra ``serve``).

=========================  =======================================================
``POST /v1/accept``        exchanges an invitation for a secret
``POST /v1/meet``          a message of a meeting, and the answer to it, as lines
``GET /v1/blobs/NAME``     something large that a record of ``?run=`` refers to
``PUT /v1/blobs/NAME``     something large that this store has asked for
=========================  =======================================================

Every request shows the secret of a peer, or the first one its invitation, before anything else of it is read. What
nobody has asked for is refused by its head, and not read at all. Something large is asked for, and given, only by the
store to which the secret belongs. Every refusal is an object with the sentence why: ``{"error": "…"}``. How much is
read of whom, and at which pace, is bounded by base/http_limits.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asterism.base.extras import install_hint
from asterism.base.http_limits import (
    Bodies,
    LargeAnswer,
    Limits,
    RequestRefused,
    length_of,
    network_of,
    place_of,
    read_body,
)
from asterism.core.errors import AsterismError
from asterism.peers.authentication import Authenticator
from asterism.peers.exchange import Exchange
from asterism.peers.invitations import DEFAULT_PORT
from asterism.peers.message_codec import NotStrictJson, decode_message, encode_message, parse_strict
from asterism.peers.peer_client import MAX_MESSAGE_BYTES, STORE_HEADER
from asterism.peers.registry import Peer
from asterism.peers.tls_identity import TlsIdentity
from asterism.store.store_errors import StoreError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from asterism.base.http_server import LimitedServer

    Answer = Callable[[Request, Peer], Awaitable[Response | LargeAnswer]]

log = logging.getLogger("asterism.peers")

MAX_ACCEPT_BYTES = 1000
"""How many bytes the body of POST /v1/accept may have."""

DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
DEFAULT_LIMITS = Limits()
SHUTDOWN_GRACE = 2
"""How many seconds open requests have to finish when the server stops."""

_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[0-9A-Fa-f:.%\w]+\]):)?(?P<port>[0-9]{1,5})", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def peer_app(exchange: Exchange, guard: Authenticator, limits: Limits | None = None) -> Starlette:
    """Raises AsterismError if what it takes is not installed."""
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError:
        raise AsterismError(f"peers are answered with starlette: {install_hint('peers')}") from None
    desk = _Handlers(exchange, guard, Bodies(limits or Limits()))
    routes = [
        Route("/v1/accept", desk.accept, methods=["POST"]),
        Route("/v1/meet", desk.meet, methods=["POST"]),
        Route("/v1/blobs/{name}", desk.fetch, methods=["GET"]),
        Route("/v1/blobs/{name}", desk.give, methods=["PUT"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _not_found})


class _Handlers:
    def __init__(self, exchange: Exchange, guard: Authenticator, bodies: Bodies) -> None:
        self._exchange, self._guard, self._bodies = exchange, guard, bodies

    async def accept(self, request: Request) -> Any:
        async def redeemed() -> Response:
            address, authorization = _address(request), request.headers.get("authorization", "")
            await self._guard.check_invitation(authorization, address)
            body = await read_body(request, self._bodies, client=address, most=MAX_ACCEPT_BYTES, each=MAX_ACCEPT_BYTES)
            sha256 = _parse_body(parse_strict, body).get("secret_sha256")
            if not isinstance(sha256, str) or _SHA256.fullmatch(sha256) is None:
                raise RequestRefused(400, "an invitation is exchanged for the SHA-256 of a secret")
            peer = await self._guard.redeem(authorization, address, sha256)
            log.info("the invitation of %s was accepted", peer.name)
            return _json_response(200, {})

        return await _response(_address(request), redeemed)

    async def meet(self, request: Request) -> Any:
        return await self._admitted(request, self._meet)

    async def fetch(self, request: Request) -> Any:
        return await self._admitted(request, self._fetch)

    async def give(self, request: Request) -> Any:
        return await self._admitted(request, self._give)

    async def _meet(self, request: Request, peer: Peer) -> Response:
        from starlette.responses import Response

        body = await read_body(request, self._bodies, client=peer.name, most=MAX_MESSAGE_BYTES, each=await self._each())
        answer = await self._exchange.answer(peer.name, _parse_body(decode_message, body))
        return Response(encode_message(answer), media_type="application/x-ndjson")

    async def _fetch(self, request: Request, peer: Peer) -> LargeAnswer:
        _check_store(request, peer)
        name = request.path_params["name"]
        data = await self._exchange.read_blob(peer.name, name, request.query_params.get("run", ""))
        if data is None:
            raise RequestRefused(404, f"there is no blob {name!r} here that belongs to this run")
        with contextlib.ExitStack() as held:
            held.enter_context(self._bodies.reserved(peer.name, len(data), await self._each()))
            return LargeAnswer(data, self._bodies, held.pop_all())

    async def _give(self, request: Request, peer: Peer) -> Response:
        _check_store(request, peer)
        name = request.path_params["name"]
        most = (await self._exchange.fleet.settings()).most
        length, size = length_of(request, most), self._exchange.wanted_size(peer.name, name)
        if length != size:
            raise RequestRefused(409, f"{size:,} bytes were asked for, and these are {length:,}")
        data = await read_body(request, self._bodies, client=peer.name, most=most, each=await self._each())
        await self._exchange.receive_blob(peer.name, name, data)
        return _json_response(200, {})

    async def _each(self) -> int:
        """How many bytes of large requests a peer may have under way: something large, and a message."""
        return int((await self._exchange.fleet.settings()).most) + MAX_MESSAGE_BYTES

    async def _admitted(self, request: Request, answer: Answer) -> Any:
        """The answer to a peer, or why there is none."""

        async def admitted() -> Any:
            peer = await self._guard.authenticate(request.headers.get("authorization", ""), _address(request))
            if (place := place_of(request)) is not None:
                place.admit(peer.name)
            return await _response(peer.name, lambda: answer(request, peer))

        return await _response(_address(request), admitted)


async def _response(who: str, answer: Callable[[], Awaitable[Any]]) -> Any:
    """The answer, or why there is none."""
    try:
        return await answer()
    except RequestRefused as error:
        return _refused(error.status, str(error), error.retry_after)
    except StoreError as error:
        log.warning("%s could not be answered: %s", who, error)
        return _refused(503, "the store of this peer is out of reach just now")
    except AsterismError as error:
        log.warning("%s was refused: %s", who, error)
        return _refused(409, str(error))
    except Exception:
        log.exception("%s could not be answered", who)
        return _refused(500, "something went wrong here; the log of this peer says what")


def _address(request: Request) -> str:
    return network_of(request.client.host) if request.client is not None else "nowhere"


def _check_store(request: Request, peer: Peer) -> None:
    if peer.store is None or request.headers.get(STORE_HEADER) != peer.store:
        raise RequestRefused(403, f"this is for the store of {peer.name} that was met here, and for no other")


def _parse_body(read: Callable[[bytes], Any], body: bytes) -> dict[str, Any]:
    try:
        message = read(body)
    except NotStrictJson as error:
        raise RequestRefused(400, f"the message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise RequestRefused(400, "the message is no JSON object")
    return message


async def _not_found(request: Request, error: Exception) -> Response:
    """Another path, another method."""
    status = getattr(error, "status_code", 404)
    return _refused(status, f"{request.method} {request.url.path} is nothing that a peer asks for")


def _refused(status: int, sentence: str, retry_after: float | None = None) -> Response:
    headers = {"connection": "close"}  # or what is still to come of the request would be read to its end
    if retry_after is not None:
        headers["retry-after"] = f"{retry_after:.0f}"
    return _json_response(status, {"error": sentence}, headers)


def _json_response(status: int, document: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(document, status, headers)


# -- the listener ------------------------------------------------------------------------------------------------------


class CannotListen(AsterismError):
    """There is no listening where it was wanted."""


def open_socket(place: str) -> socket.socket:
    """A socket at ``HOST:PORT``, or at a port of this machine alone. Raises CannotListen."""
    found = _ADDRESS.fullmatch(place.strip())
    if found is None or int(found["port"]) > 65535:
        raise CannotListen(
            f"{place!r} is no place to listen: write HOST:PORT, such as {DEFAULT_ADDRESS} or 0.0.0.0:{DEFAULT_PORT}"
        )
    host = (found["host"] or "127.0.0.1").strip("[]")
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, int(found["port"]), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, number)
        try:
            if os.name == "posix":  # elsewhere it would let others listen here, too
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen()
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise CannotListen(f"there is no listening on {place}: {error.strerror or error}") from None
    return sock


def socket_url(sock: socket.socket) -> str:
    """``https://127.0.0.1:7420``."""
    host, port, *_ = sock.getsockname()
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


@contextlib.asynccontextmanager
async def serving(
    app: Starlette, sock: socket.socket, identity: TlsIdentity, limits: Limits = DEFAULT_LIMITS
) -> AsyncIterator[LimitedServer]:
    """The application answers on the socket while the block runs."""
    with contextlib.closing(sock):
        server = _server(app, identity, limits)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            started = asyncio.create_task(server.ready.wait())
            await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
            started.cancel()
            if serving.done():
                serving.result()
            yield server
        finally:
            server.leaving.set()
            try:
                await asyncio.wait([serving])
            finally:  # also when we are told to hurry
                serving.cancel()
            if not serving.cancelled() and (error := serving.exception()) is not None:
                log.error("the server for peers ended: %s", error)


def _server(app: Starlette, identity: TlsIdentity, limits: Limits) -> LimitedServer:
    try:
        from asterism.base.http_server import LimitedServer
    except ImportError:
        raise AsterismError(f"peers are answered with uvicorn: {install_hint('peers')}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(identity.path)
    return LimitedServer(app, limits, log, context, date_header=False, timeout_graceful_shutdown=SHUTDOWN_GRACE)
