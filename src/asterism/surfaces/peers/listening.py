"""Listening for peers: a socket, TLS, and uvicorn (the extra ``serve``) inside the event loop that is there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from asterism.core.errors import AsterismError
from asterism.core.extras import extra_advice
from asterism.runtime.peers.identity import Identity
from asterism.runtime.peers.invitations import PORT

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

log = logging.getLogger("asterism.peers")

HERE = f"127.0.0.1:{PORT}"
AT_ONCE = 100
"""How many connections are served at once; more are told to come again."""

IDLE = 30.0
"""After how long a connection on which nothing is asked is looked at again, in seconds; and closed if nothing was."""

IDLE_EACH = 10
"""How many connections of one address may be idle; of more the oldest are closed, or one machine could keep all others
out by saying nothing."""

HANDSHAKE = 10.0
"""How long it may take to agree on TLS, in seconds."""

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
            sock.listen(AT_ONCE)
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
async def served(app: Starlette, sock: socket.socket, identity: Identity) -> AsyncIterator[asyncio.Task[None]]:
    """The application answers on the socket while the block runs; the task is the server's, and ends before the block
    only if something is wrong."""
    with contextlib.closing(sock):
        server = _server(app, identity)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            started = asyncio.create_task(server.ready.wait())
            await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
            started.cancel()
            if serving.done():
                serving.result()
            yield serving
        finally:
            server.leaving.set()
            try:
                await asyncio.wait([serving])
            finally:  # also when we are told to hurry
                serving.cancel()
            if not serving.cancelled() and (error := serving.exception()) is not None:
                log.error("the server for peers ended: %s", error)


def _server(app: Starlette, identity: Identity) -> Any:
    try:
        import uvicorn
    except ImportError:
        raise AsterismError(f"peers are answered with uvicorn: {extra_advice('peers')}") from None
    config = _terms(app, identity)

    class Server(uvicorn.Server):
        """Leaves signals to whoever runs it, says when it listens, and waits for its end instead of looking ten times a
        second whether it has come."""

        def __init__(self) -> None:
            super().__init__(config)
            self.ready, self.leaving = asyncio.Event(), asyncio.Event()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """As it is done there, for sockets that are open; but there a handshake may take a minute."""

            def protocol() -> asyncio.Protocol:
                return made(config=config, server_state=self.server_state, app_state=self.lifespan.state)

            made: Callable[..., asyncio.Protocol] = config.http_protocol_class
            await self.lifespan.startup()
            loop = asyncio.get_running_loop()
            terms: dict[str, Any] = {"ssl": config.ssl, "ssl_handshake_timeout": HANDSHAKE, "backlog": AT_ONCE}
            self.servers = [await loop.create_server(protocol, sock=sock, **terms) for sock in sockets or ()]
            self.started = True
            self.ready.set()

        async def main_loop(self) -> None:
            await self.leaving.wait()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if not self.server_state.tasks:  # nobody is being answered: idle connections need no farewell
                for connection in list(self.server_state.connections):
                    connection.transport.abort()
            await super().shutdown(sockets)

    return Server()


def _terms(app: Starlette, identity: Identity) -> uvicorn.Config:
    import uvicorn

    config = uvicorn.Config(
        app,
        ssl_certfile=identity.path,
        ssl_keyfile=identity.path,
        http=_protocol(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=AT_ONCE,
        timeout_keep_alive=int(IDLE),
        timeout_graceful_shutdown=LEAVING,
    )
    config.load()
    assert config.ssl is not None
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    return config


def _protocol() -> type[asyncio.Protocol]:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    counted = itertools.count()

    class Impatient(H11Protocol):
        """Closes connections on which nobody asks anything, or not to the end of a head: uvicorn would keep them, and
        they count."""

        _watching: asyncio.TimerHandle | None = None
        number = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.number = next(counted)
            self._look_again(None)
            self._make_room()

        def idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _make_room(self) -> None:
            alike = [one for one in self.connections if isinstance(one, Impatient) and one.host() == self.host()]
            idle = sorted((one for one in alike if one.idle()), key=lambda one: one.number)
            for one in idle[:-IDLE_EACH]:
                one.transport.abort()

        def host(self) -> str | None:
            return self.client[0] if self.client is not None else None

        def connection_lost(self, error: Exception | None) -> None:
            if self._watching is not None:
                self._watching.cancel()
            super().connection_lost(error)

        def _look_again(self, before: object) -> None:
            self._watching = self.loop.call_later(IDLE, self._look, before)

        def _look(self, before: object) -> None:
            cycle = self.cycle
            if cycle is before and self.idle():
                self.transport.abort()
            else:
                self._look_again(cycle)

    return Impatient
