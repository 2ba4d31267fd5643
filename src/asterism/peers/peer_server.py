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

import contextlib
import logging
import re
from collections.abc import Awaitable, Callable
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
from asterism.peers.authentication import Guard
from asterism.peers.exchange import Exchange
from asterism.peers.peer_client import MESSAGE, STORE
from asterism.peers.registry import Peer
from asterism.peers.wire import NotStrictJson, decode, encode, strict
from asterism.store.store_errors import StoreError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    Answer = Callable[[Request, Peer], Awaitable[Response | LargeAnswer]]

log = logging.getLogger("asterism.peers")

ACCEPTED = 1000
"""How many bytes the body of POST /v1/accept may have."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def peer_app(exchange: Exchange, guard: Guard, limits: Limits | None = None) -> Starlette:
    """Raises AsterismError if what it takes is not installed."""
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError:
        raise AsterismError(f"peers are answered with starlette: {install_hint('peers')}") from None
    desk = _Desk(exchange, guard, Bodies(limits or Limits()))
    routes = [
        Route("/v1/accept", desk.accept, methods=["POST"]),
        Route("/v1/meet", desk.meet, methods=["POST"]),
        Route("/v1/blobs/{name}", desk.fetch, methods=["GET"]),
        Route("/v1/blobs/{name}", desk.give, methods=["PUT"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_such_thing})


class _Desk:
    def __init__(self, exchange: Exchange, guard: Guard, bodies: Bodies) -> None:
        self._exchange, self._guard, self._bodies = exchange, guard, bodies

    async def accept(self, request: Request) -> Any:
        async def redeemed() -> Response:
            address, authorization = _address(request), request.headers.get("authorization", "")
            await self._guard.invited(authorization, address)
            body = await read_body(request, self._bodies, client=address, most=ACCEPTED, each=ACCEPTED)
            sha256 = _parsed(strict, body).get("secret_sha256")
            if not isinstance(sha256, str) or _SHA256.fullmatch(sha256) is None:
                raise RequestRefused(400, "an invitation is exchanged for the SHA-256 of a secret")
            peer = await self._guard.redeem(authorization, address, sha256)
            log.info("the invitation of %s was accepted", peer.name)
            return _told(200, {})

        return await _answered(_address(request), redeemed)

    async def meet(self, request: Request) -> Any:
        return await self._admitted(request, self._meet)

    async def fetch(self, request: Request) -> Any:
        return await self._admitted(request, self._fetch)

    async def give(self, request: Request) -> Any:
        return await self._admitted(request, self._give)

    async def _meet(self, request: Request, peer: Peer) -> Response:
        from starlette.responses import Response

        body = await read_body(request, self._bodies, client=peer.name, most=MESSAGE, each=await self._each())
        answer = await self._exchange.answer(peer.name, _parsed(decode, body))
        return Response(encode(answer), media_type="application/x-ndjson")

    async def _fetch(self, request: Request, peer: Peer) -> LargeAnswer:
        _must_be_its_store(request, peer)
        name = request.path_params["name"]
        data = await self._exchange.fetch(peer.name, name, request.query_params.get("run", ""))
        if data is None:
            raise RequestRefused(404, f"there is no blob {name!r} here that belongs to this run")
        with contextlib.ExitStack() as held:
            held.enter_context(self._bodies.reserved(peer.name, len(data), await self._each()))
            return LargeAnswer(data, self._bodies, held.pop_all())

    async def _give(self, request: Request, peer: Peer) -> Response:
        _must_be_its_store(request, peer)
        name = request.path_params["name"]
        most = (await self._exchange.fleet.settings()).most
        length, size = length_of(request, most), self._exchange.wanted_size(peer.name, name)
        if length != size:
            raise RequestRefused(409, f"{size:,} bytes were asked for, and these are {length:,}")
        data = await read_body(request, self._bodies, client=peer.name, most=most, each=await self._each())
        await self._exchange.give(peer.name, name, data)
        return _told(200, {})

    async def _each(self) -> int:
        """How many bytes of large requests a peer may have under way: something large, and a message."""
        return int((await self._exchange.fleet.settings()).most) + MESSAGE

    async def _admitted(self, request: Request, answer: Answer) -> Any:
        """The answer to a peer, or why there is none."""

        async def admitted() -> Any:
            peer = await self._guard.admit(request.headers.get("authorization", ""), _address(request))
            if (place := place_of(request)) is not None:
                place.admit(peer.name)
            return await _answered(peer.name, lambda: answer(request, peer))

        return await _answered(_address(request), admitted)


async def _answered(who: str, answer: Callable[[], Awaitable[Any]]) -> Any:
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


def _must_be_its_store(request: Request, peer: Peer) -> None:
    if peer.store is None or request.headers.get(STORE) != peer.store:
        raise RequestRefused(403, f"this is for the store of {peer.name} that was met here, and for no other")


def _parsed(read: Callable[[bytes], Any], body: bytes) -> dict[str, Any]:
    try:
        message = read(body)
    except NotStrictJson as error:
        raise RequestRefused(400, f"the message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise RequestRefused(400, "the message is no JSON object")
    return message


async def _no_such_thing(request: Request, error: Exception) -> Response:
    """Another path, another method."""
    status = getattr(error, "status_code", 404)
    return _refused(status, f"{request.method} {request.url.path} is nothing that a peer asks for")


def _refused(status: int, sentence: str, retry_after: float | None = None) -> Response:
    headers = {"connection": "close"}  # or what is still to come of the request would be read to its end
    if retry_after is not None:
        headers["retry-after"] = f"{retry_after:.0f}"
    return _told(status, {"error": sentence}, headers)


def _told(status: int, document: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(document, status, headers)
