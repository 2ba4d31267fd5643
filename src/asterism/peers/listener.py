"""Listening for peers: a socket, TLS, and a server within the limits of base/http_limits.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from asterism.base.extras import install_hint
from asterism.base.http_limits import Limits
from asterism.core.errors import AsterismError
from asterism.peers.identity import Identity
from asterism.peers.invitations import PORT

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from asterism.base.http_server import LimitedServer

log = logging.getLogger("asterism.peers")

HERE = f"127.0.0.1:{PORT}"
LIMITS = Limits()
LEAVING = 2
"""How long those who are being answered may take when the server ends, in seconds."""

_PLACE = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[0-9A-Fa-f:.%\w]+\]):)?(?P<port>[0-9]{1,5})", re.ASCII)


class CannotListen(AsterismError):
    """There is no listening where it was wanted."""


def listen(place: str) -> socket.socket:
    """A socket at ``HOST:PORT``, or at a port of this machine alone. Raises CannotListen."""
    found = _PLACE.fullmatch(place.strip())
    if found is None or int(found["port"]) > 65535:
        raise CannotListen(f"{place!r} is no place to listen: write HOST:PORT, such as {HERE} or 0.0.0.0:{PORT}")
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


def place_of(sock: socket.socket) -> str:
    """``https://127.0.0.1:7420``."""
    host, port, *_ = sock.getsockname()
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


@contextlib.asynccontextmanager
async def served(
    app: Starlette, sock: socket.socket, identity: Identity, limits: Limits = LIMITS
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


def _server(app: Starlette, identity: Identity, limits: Limits) -> LimitedServer:
    try:
        from asterism.base.http_server import LimitedServer
    except ImportError:
        raise AsterismError(f"peers are answered with uvicorn: {install_hint('peers')}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(identity.path)
    return LimitedServer(app, limits, log, context, date_header=False, timeout_graceful_shutdown=LEAVING)
