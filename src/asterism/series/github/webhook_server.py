"""The webhook server: accepts signed deliveries, requests syncs, shows health and metrics.

``POST /webhook`` checks the signature of the raw body first, ignores replays, and answers at once: the worker syncs.
Connections and bodies have the limits of ``asterism.base.http_limits``. ``GET /health`` tells whether the last sync
succeeded; ``GET /metrics`` has the metrics for Prometheus, if they are enabled.
"""

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
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from asterism.base.http_limits import Bodies, Limits, RequestRefused, network_of, place_of, read_body
from asterism.base.http_server import LimitedServer
from asterism.core.errors import AsterismError
from asterism.series.github.discovery import SeriesMatcher
from asterism.series.github.sync_worker import SyncWorker
from asterism.series.github.webhook import SeenDeliveries, affected_series, is_signed

log = logging.getLogger("asterism.series")

MAX_BODY = 5 * 1024 * 1024
"""Bytes of a body. Those of issues and pull requests are much smaller."""

MAX_DELIVERY_ID = 200
SENDER = "the webhook's sender"
"""The client name of all signed connections."""

LIMITS = Limits(per_client=50, bodies=64 * 1024 * 1024)

SHUTDOWN_GRACE = 5
"""How long requests may take to end when the server stops, in seconds."""


class WebhookEndpoint:
    """The HTTP application. ``repository`` is ``owner/name``; deliveries about others are ignored."""

    def __init__(
        self,
        worker: SyncWorker,
        repository: str,
        matcher: SeriesMatcher,
        secret: bytes,
        metrics: bool = True,
        limits: Limits = LIMITS,
    ) -> None:
        self._worker, self._repository, self._matcher, self._secret = worker, repository, matcher, secret
        self._seen = SeenDeliveries()
        self._limits, self._bodies = limits, Bodies(limits)
        routes = [Route("/webhook", self.deliver, methods=["POST"]), Route("/health", self.health, methods=["GET"])]
        if metrics:
            routes.append(Route("/metrics", self.metrics, methods=["GET"]))
        self.app = Starlette(routes=routes)

    async def deliver(self, request: Request) -> Response:
        signature = request.headers.get("x-hub-signature-256")
        if signature is None:
            return _refusal(RequestRefused(401, "the signature is missing"))
        address = network_of(request.client.host) if request.client is not None else "nowhere"
        each = MAX_BODY if self._limits.per_address is not None else self._limits.bodies
        try:
            body = await read_body(request, self._bodies, client=address, most=MAX_BODY, each=each)
            if not is_signed(self._secret, body, signature):
                log.warning("refused a delivery with a wrong signature")
                raise RequestRefused(401, "the signature is wrong")
            if (place := place_of(request)) is not None:
                place.admit(SENDER)
        except RequestRefused as error:
            return _refusal(error)
        event, delivery = request.headers.get("x-github-event", ""), request.headers.get("x-github-delivery", "")
        if event == "ping":
            return PlainTextResponse("pong\n")
        if not delivery or len(delivery) > MAX_DELIVERY_ID:
            return PlainTextResponse("the header X-GitHub-Delivery is missing or too long\n", 400)
        try:
            affected = affected_series(event, body, self._repository, self._matcher)
        except (ValueError, RecursionError) as error:
            return PlainTextResponse(f"the body is not a payload of GitHub: {error}\n", 400)
        if not self._seen.add(delivery, body):
            return PlainTextResponse("ignored: delivered before\n")
        if affected.series is not None and not affected.series:
            return PlainTextResponse(f"ignored: {affected.why}\n")
        self._worker.request(affected.series)
        names = "all series" if affected.series is None else ", ".join(sorted(affected.series))
        log.info("%s: %s", affected.why, names)
        return PlainTextResponse(f"{affected.why}: {names}\n", 202)

    async def health(self, request: Request) -> Response:
        problem = self._worker.problem
        return PlainTextResponse("fine\n") if problem is None else PlainTextResponse(f"{problem}\n", 503)

    async def metrics(self, request: Request) -> Response:
        metrics = self._worker.service.metrics
        return PlainTextResponse(metrics.to_prometheus(metrics.counts), media_type="text/plain; version=0.0.4")


def _refusal(error: RequestRefused) -> Response:
    headers = {"Connection": "close"}  # otherwise the rest of the body would be read
    if error.retry_after is not None:
        headers["Retry-After"] = f"{error.retry_after:.0f}"
    return PlainTextResponse(f"{error}\n", error.status, headers=headers)


# -- serving -----------------------------------------------------------------------------------------------------------


class CannotServe(AsterismError):
    """The address cannot be listened on, or must not be without TLS."""


class ListenAddress(NamedTuple):
    """Host and port, and the TLS certificate. With ``behind_proxy`` a proxy does TLS."""

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
        """Behind a proxy, or a tunnel on this machine, all clients have the same address."""
        return replace(LIMITS, per_address=None) if self.behind_proxy or self.is_loopback else LIMITS


def parse_listen_address(text: str, certificate: str | None, key: str | None, behind_proxy: bool) -> ListenAddress:
    """From ``host:port``. Raises CannotServe, also for an address that other machines can reach without TLS."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise CannotServe(f"{text!r} is not a valid address to listen on (example: 127.0.0.1:8080)")
    address = ListenAddress(host, int(port), certificate, key, behind_proxy)
    if bool(certificate) != bool(key):
        raise CannotServe("TLS needs a certificate and its key: give both --tls-cert and --tls-key")
    if not (address.is_loopback or certificate or behind_proxy):
        raise CannotServe(
            f"other machines can reach {host}: give --tls-cert and --tls-key, or --behind-proxy if a proxy does TLS"
        )
    return address


async def serve(app: Starlette, worker: SyncWorker, address: ListenAddress, on_listen: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, or until the worker fails. ``on_listen`` is called with the URL."""
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        sock = socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise CannotServe(f"cannot listen on {address.host}:{address.port}: {error}") from None
    server = LimitedServer(app, address.limits, log, _tls_context(address), timeout_graceful_shutdown=SHUTDOWN_GRACE)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.leaving.set)
    working = asyncio.create_task(worker.run(), name="series worker")
    working.add_done_callback(lambda task: server.leaving.set())
    scheme = "https" if address.certificate else "http"
    host = f"[{address.host}]" if ":" in address.host else address.host
    on_listen(f"{scheme}://{host}:{sock.getsockname()[1]}/webhook")
    try:
        await server.serve(sockets=[sock])
    finally:
        sock.close()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


def _tls_context(address: ListenAddress) -> ssl.SSLContext | None:
    """Raises CannotServe."""
    if address.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(address.certificate, address.key)
    except (OSError, ssl.SSLError) as error:
        raise CannotServe(
            f"{address.certificate} and {address.key} are not a certificate and its key: {error}"
        ) from None
    return context
