"""HTTP server with the limits of http_limits.py: uvicorn in the running event loop.

It needs the extra ``serve``. Its listener counts connections as it accepts them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from asterism.base.clock import first_of
from asterism.base.error_log import RecurringError
from asterism.base.http_limits import PLACE, Connections, Limits, Place, descriptor_limit, places
from asterism.core.errors import AsterismError

ACCEPTS_PER_TURN = 16
"""How many connections are accepted in one turn of the event loop."""

ACCEPT_PAUSE = 1.0
"""The pause after a failed accept, such as without free file descriptors, in seconds."""

FLOOD_OVER_AFTER = 60.0
"""How long no connection must have been closed for another before the flood counts as over, in seconds. So a flood
writes only a few lines a minute to the log."""

BACKLOG = 128
LONGEST_HEAD = 32 * 1024
"""The longest head of a request, in bytes."""

TLS_HANDSHAKE = b"\x16"
"""The first byte of a TLS connection. No request begins with it."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class CannotAccept(AsterismError):
    """A connection could not be accepted."""


class TooManyConnections(AsterismError):
    """Connections of strangers were closed for others."""


def _send_at_once(sock: socket.socket) -> None:
    """Let the body of an answer follow its head without a wait for the client, which may take 40 ms to acknowledge it.
    asyncio does so only for a socket whose protocol was named when it was made."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # the client has gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Listener:
    """Accepts connections on a socket and gives each a place. It has the methods that uvicorn expects of an asyncio
    server. ``protocol`` creates the protocol of a connection. With ``also_plain`` a client uses TLS or not, which the
    first byte that it sends tells."""

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        context: ssl.SSLContext | None,
        protocol: Callable[[Place], asyncio.Protocol],
        log: logging.Logger,
        *,
        also_plain: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock, self._protocol, self._limits = sock, protocol, limits
        self._connected_over = self._over_either if also_plain else self._over_one
        self._context = context
        self._exhausted = RecurringError(
            log, "no connection can be accepted", "connections are accepted again", self._loop.time
        )
        self._crowded = RecurringError(
            log,
            "too many connections",
            "no more than the usual number of connections",
            self._loop.time,
            calm=FLOOD_OVER_AFTER,
        )
        self.connections = Connections(limits, places(limits, descriptor_limit()), self._loop.time, self._made_room)
        self._pausing: asyncio.TimerHandle | None = None
        self._connecting: dict[asyncio.Future[Any], Place] = {}
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Accept no more connections, and abort handshakes."""
        if self._pausing is not None:
            self._pausing.cancel()
        self._loop.remove_reader(self._sock)
        for place in list(self._connecting.values()):
            place.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _accept(self) -> None:
        self._crowded.recovered()
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                self._pause(error)
                return
            self._exhausted.recovered()
            self._connect(sock, str(address[0]) if address else "")

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a moment. If the process is out of descriptors, those of strangers are freed, since its
        own work needs some."""
        self._exhausted.occurred(CannotAccept(f"{error.strerror or error}; the next try is in {ACCEPT_PAUSE:g} s"))
        if error.errno in _EXHAUSTED:
            self.connections.shed()
        self._loop.remove_reader(self._sock)
        self._pausing = self._loop.call_later(ACCEPT_PAUSE, self._loop.add_reader, self._sock, self._accept)

    def _made_room(self) -> None:
        most = self.connections.strangers_at_most
        self._crowded.occurred(
            TooManyConnections(f"the oldest of {most} connections without authentication are closed")
        )

    def _connect(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        _send_at_once(sock)
        place = self.connections.enter(address)
        place.close = lambda: _hang_up(sock)
        made = asyncio.ensure_future(self._connected_over(place, sock, self._context))
        self._connecting[made] = place
        made.add_done_callback(self._connected)

    def _over_one(self, place: Place, sock: socket.socket, context: ssl.SSLContext | None) -> Coroutine[Any, Any, Any]:
        return self._loop.connect_accepted_socket(
            lambda: self._protocol(place),
            sock,
            ssl=context,
            ssl_handshake_timeout=None if context is None else self._limits.handshake,
            ssl_shutdown_timeout=None if context is None else self._limits.head,
        )

    async def _over_either(self, place: Place, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Over TLS if the client begins with it. The first byte has the time of a head of a request."""
        try:
            readable = asyncio.Event()
            self._loop.add_reader(sock, readable.set)
            try:
                async with asyncio.timeout(self._limits.head):
                    await readable.wait()
            finally:
                self._loop.remove_reader(sock)
            first = sock.recv(1, socket.MSG_PEEK)
            if not first:
                raise ConnectionResetError("the client has hung up")
        except BaseException:
            sock.close()
            raise
        await self._over_one(place, sock, context if first == TLS_HANDSHAKE else None)

    def _connected(self, made: asyncio.Future[Any]) -> None:
        """From now on the protocol gives the place back; without a protocol, the handshake has failed."""
        place = self._connecting.pop(made)
        if made.cancelled() or made.exception() is not None:
            place.leave()


def _hang_up(sock: socket.socket) -> None:
    """Abort a handshake. asyncio then closes the socket: it must not be closed here, since its descriptor might be
    reused before asyncio looks at it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class LimitedProtocol(H11Protocol):
    """Closes connections on which the head of a request does not arrive in time."""

    def __init__(self, place: Place, limits: Limits, log: logging.Logger, **options: Any) -> None:
        super().__init__(**options)
        self.logger = log
        self._place, self._limits, self._answer = place, limits, self.app
        self._late: asyncio.TimerHandle | None = None
        self.app = self._counted

    async def _counted(self, scope: Any, receive: Any, send: Any) -> None:
        scope[PLACE] = self._place
        self._place.busy = True
        try:
            await self._answer(scope, receive, send)
        finally:
            self._place.busy = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._place.close = transport.abort
        self._expect_a_head()

    def data_received(self, data: bytes) -> None:
        if self._late is None and self._is_idle():
            self._expect_a_head()
        super().data_received(data)
        if not self._is_idle():
            self._stop_expecting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        self._place.leave()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """The answer to what is not HTTP: a problem document, as every other error."""
        headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
        document = {"type": "about:blank", "title": "Bad Request", "status": 400, "detail": msg}
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=json.dumps(document).encode()),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_a_head(self) -> None:
        self._late = self.loop.call_later(self._limits.head, self.transport.abort)

    def _stop_expecting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class LimitedServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller, sets ``ready`` when it listens, and ends when ``leaving`` is
    set. With ``also_plain`` clients may use the TLS of ``context`` or none."""

    def __init__(
        self,
        app: Any,
        limits: Limits,
        log: logging.Logger,
        context: ssl.SSLContext | None,
        *,
        also_plain: bool = False,
        **options: Any,
    ) -> None:
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=max(1, int(limits.idle)),
            h11_max_incomplete_event_size=LONGEST_HEAD,
            **options,
        )
        super().__init__(config)
        self._limits, self.log, self._context, self._also_plain = limits, log, context, also_plain
        # uvicorn warns of every malformed request, so any client could fill the log: only its errors are logged
        self._errors = logging.Logger(log.name, logging.ERROR)
        self._errors.parent = log
        self.ready, self.leaving = asyncio.Event(), asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen on open sockets."""

        def protocol(place: Place) -> asyncio.Protocol:
            return LimitedProtocol(
                place, self._limits, self._errors, config=self.config, server_state=self.server_state, app_state={}
            )

        await self.lifespan.startup()
        self.listeners = [
            Listener(sock, self._limits, self._context, protocol, self.log, also_plain=self._also_plain)
            for sock in sockets or ()
        ]
        self.servers = list(self.listeners)  # type: ignore[arg-type]
        self.started = True
        self.ready.set()

    async def main_loop(self) -> None:
        await self.leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.server_state.tasks:  # no request is being answered: close idle connections at once
            for listener in self.listeners:
                listener.close()
                listener.connections.close()
        await super().shutdown(sockets)


@contextlib.asynccontextmanager
async def serving(server: LimitedServer, sock: socket.socket) -> AsyncIterator[None]:
    """Serve on an open socket while the block runs. Requests that are being answered at its end have the grace time of
    the server."""
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await first_of(server.ready.wait(), asyncio.wait([task]))
        if task.done():
            task.result()
        yield
    finally:
        server.leaving.set()
        try:
            await asyncio.wait([task])
        finally:  # also when this is cancelled
            task.cancel()
        if not task.cancelled() and (error := task.exception()) is not None:
            server.log.error("the server failed: %s", error)
