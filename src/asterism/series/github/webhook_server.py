"""Serves the endpoint until it is told to stop, with the worker beside it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from starlette.applications import Starlette

from asterism.base.http_limits import Limits
from asterism.base.http_server import LimitedServer
from asterism.core.errors import AsterismError
from asterism.series.github.sync_worker import Worker
from asterism.series.github.webhook_endpoint import LIMITS

log = logging.getLogger("asterism.series")

LEAVING = 5
"""How long those who are being answered may take when the server ends, in seconds."""


class CannotServe(AsterismError):
    """The address cannot be listened on, or must not be."""


class Listening(NamedTuple):
    """Where, and with which certificate. ``behind_proxy`` says that TLS is somebody else's."""

    host: str
    port: int
    certificate: str | None = None
    key: str | None = None
    behind_proxy: bool = False

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def limits(self) -> Limits:
        """Behind a proxy, or a tunnel on this machine, everybody has the same address."""
        return replace(LIMITS, per_address=None) if self.behind_proxy or self.is_loopback else LIMITS


def listening_at(text: str, certificate: str | None, key: str | None, behind_proxy: bool) -> Listening:
    """From ``host:port``. Raises CannotServe: what is wider than this machine takes TLS, here or at a proxy."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise CannotServe(f"{text!r} is no address to listen on: it takes the form 127.0.0.1:8080")
    listening = Listening(host, int(port), certificate, key, behind_proxy)
    if bool(certificate) != bool(key):
        raise CannotServe("a certificate goes with its key: give --tls-cert and --tls-key")
    if not (listening.is_loopback or certificate or behind_proxy):
        raise CannotServe(
            f"{host} can be reached by others: give --tls-cert and --tls-key, or say --behind-proxy if one does TLS"
        )
    return listening


async def serve(app: Starlette, worker: Worker, listening: Listening, began: Callable[[str], None]) -> None:
    """Until a signal says stop, or the worker ends by an error. ``began`` is told the address once it listens."""
    try:
        sock = socket.create_server((listening.host, listening.port), family=_family(listening.host))
    except OSError as error:
        raise CannotServe(f"{listening.host}:{listening.port} cannot be listened on: {error}") from None
    server = LimitedServer(app, listening.limits, log, _context(listening), timeout_graceful_shutdown=LEAVING)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.leaving.set)
    working = asyncio.create_task(worker.work(), name="series worker")
    working.add_done_callback(lambda task: server.leaving.set())
    scheme = "https" if listening.certificate else "http"
    host = f"[{listening.host}]" if ":" in listening.host else listening.host
    began(f"{scheme}://{host}:{sock.getsockname()[1]}/webhook")
    try:
        await server.serve(sockets=[sock])
    finally:
        sock.close()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _context(listening: Listening) -> ssl.SSLContext | None:
    """Raises CannotServe."""
    if listening.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(listening.certificate, listening.key)
    except (OSError, ssl.SSLError) as error:
        words = f"{listening.certificate} and {listening.key} are no certificate and its key"
        raise CannotServe(f"{words}: {error}") from None
    return context
