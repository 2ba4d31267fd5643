"""The server that answers peers, as an application of Starlette (the extra ``serve``).

=========================  =======================================================
``POST /v1/meet``          a message of a meeting, and the answer to it, as JSON
``GET /v1/blobs/NAME``     something large that a record refers to
``PUT /v1/blobs/NAME``     the same the other way
=========================  =======================================================

Every request shows the token of a peer, before anything else of it is read. Every refusal is an object with the
sentence why: ``{"error": "…"}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asterism.core.errors import AsterismError
from asterism.core.extras import extra_advice
from asterism.runtime.peers.calling import MESSAGE
from asterism.runtime.peers.exchanging import Exchange
from asterism.runtime.peers.knowing import Peer
from asterism.store.errors import StoreError
from asterism.surfaces.peers.guarding import Guard, NotAdmitted

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    Answer = Callable[[Request, Peer], Awaitable[Response]]

log = logging.getLogger("asterism.peers")

READING = 120.0
READING_BLOB = 3600.0
"""How long a message and something large may take to arrive, in seconds."""


def peer_app(exchange: Exchange, guard: Guard) -> Starlette:
    """Raises AsterismError if what it takes is not installed."""
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError:
        raise AsterismError(f"peers are answered with starlette: {extra_advice('peers')}") from None
    desk = _Desk(exchange, guard)
    routes = [
        Route("/v1/meet", desk.meet, methods=["POST"]),
        Route("/v1/blobs/{name}", desk.fetch, methods=["GET"]),
        Route("/v1/blobs/{name}", desk.give, methods=["PUT"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_such_thing})


class _Desk:
    def __init__(self, exchange: Exchange, guard: Guard) -> None:
        self._exchange, self._guard = exchange, guard

    async def meet(self, request: Request) -> Response:
        return await self._answered(request, self._meet)

    async def fetch(self, request: Request) -> Response:
        return await self._answered(request, self._fetch)

    async def give(self, request: Request) -> Response:
        return await self._answered(request, self._give)

    async def _meet(self, request: Request, peer: Peer) -> Response:
        from starlette.responses import Response

        message = _parsed(await _body(request, MESSAGE, READING))
        answer = await self._exchange.answer(peer.name, message)
        text = json.dumps(answer, separators=(",", ":"), allow_nan=False)
        return Response(text, media_type="application/json")

    async def _fetch(self, request: Request, peer: Peer) -> Response:
        from starlette.responses import Response

        name = request.path_params["name"]
        data = await self._exchange.fetch(peer.name, name)
        if data is None:
            raise NotAdmitted(404, f"there is no blob {name!r} here")
        return Response(data, media_type="application/octet-stream")

    async def _give(self, request: Request, peer: Peer) -> Response:
        most = (await self._exchange.fleet.settings()).most
        data = await _body(request, most, READING_BLOB)
        await self._exchange.give(peer.name, request.path_params["name"], data)
        return _told(200, {})

    async def _answered(self, request: Request, answer: Answer) -> Response:
        """The answer, or why there is none."""
        who = address = request.client.host if request.client is not None else "nowhere"
        try:
            peer = await self._guard.admit(request.headers.get("authorization", ""), address)
            who = peer.name
            return await answer(request, peer)
        except NotAdmitted as error:
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


async def _body(request: Request, most: int, within: float) -> bytes:
    """Raises NotAdmitted if it is too long, or does not come."""
    from starlette.requests import ClientDisconnect

    too_large = NotAdmitted(413, f"that is too much: at most {most:,} bytes are taken")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(within), contextlib.aclosing(request.stream()) as parts:
            async for part in parts:
                body += part
                if len(body) > most:
                    raise too_large
    except ClientDisconnect:
        raise NotAdmitted(400, "the connection was cut") from None
    except TimeoutError:
        raise NotAdmitted(408, f"the request did not arrive within {within:g} s") from None
    return bytes(body)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise NotAdmitted(400, f"the message is not JSON: {why}") from None
    if not isinstance(message, dict):
        raise NotAdmitted(400, "the message is no JSON object")
    return message


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


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
