"""The endpoint for GitHub's webhook: small, and suspicious of all that is not signed.

``POST /webhook`` checks the signature over the raw body before anything else is looked at, ignores what was here
before, and answers at once: the sync is the worker's. Connections and bodies have the limits of
base/http_limits.py, as those of peers do. ``GET /health`` says
whether the last sync went well, ``GET /metrics`` the figures for Prometheus, if they are wanted here.
"""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from asterism.base.http_limits import Bodies, Limits, RequestRefused, network_of, place_of, read_body
from asterism.series.github.discovery import Finder
from asterism.series.github.sync_worker import Worker
from asterism.series.github.webhook import Memory, concern_of, is_signed

log = logging.getLogger("asterism.series")

LARGEST = 5 * 1024 * 1024
"""Bytes of a body. What GitHub sends about issues and pull requests is a small part of that."""

SENDER = "the webhook's sender"
"""Whoever signs: all of its connections are one client's."""

LIMITS = Limits(per_client=50, bodies=64 * 1024 * 1024)


class Endpoint:
    """``repository`` is ``owner/name``; what is delivered about others is ignored."""

    def __init__(
        self,
        worker: Worker,
        repository: str,
        finder: Finder,
        secret: bytes,
        metrics: bool = True,
        limits: Limits = LIMITS,
    ) -> None:
        self._worker, self._repository, self._finder, self._secret = worker, repository, finder, secret
        self._memory = Memory()
        self._limits, self._bodies = limits, Bodies(limits)
        routes = [Route("/webhook", self.deliver, methods=["POST"]), Route("/health", self.health, methods=["GET"])]
        if metrics:
            routes.append(Route("/metrics", self.metrics, methods=["GET"]))
        self.app = Starlette(routes=routes)

    async def deliver(self, request: Request) -> Response:
        signature = request.headers.get("x-hub-signature-256")
        if signature is None:
            return _refused(RequestRefused(401, "the signature is missing"))
        address = network_of(request.client.host) if request.client is not None else "nowhere"
        each = LARGEST if self._limits.per_address is not None else self._limits.bodies
        try:
            body = await read_body(request, self._bodies, client=address, most=LARGEST, each=each)
            if not is_signed(self._secret, body, signature):
                log.warning("a delivery with a wrong signature was refused")
                raise RequestRefused(401, "the signature is wrong")
            if (place := place_of(request)) is not None:
                place.admit(SENDER)
        except RequestRefused as error:
            return _refused(error)
        event, delivery = request.headers.get("x-github-event", ""), request.headers.get("x-github-delivery", "")
        if event == "ping":
            return PlainTextResponse("pong\n")
        if not delivery or len(delivery) > 200:
            return PlainTextResponse("there is no X-GitHub-Delivery\n", 400)
        try:
            concern = concern_of(event, body, self._repository, self._finder)
        except (ValueError, RecursionError) as error:
            return PlainTextResponse(f"this is no payload of GitHub: {error}\n", 400)
        if not self._memory.is_new(delivery, body):
            return PlainTextResponse("ignored: it was here before\n")
        if concern.series is not None and not concern.series:
            return PlainTextResponse(f"ignored: {concern.why}\n")
        self._worker.ask(concern.series)
        named = "all series" if concern.series is None else ", ".join(sorted(concern.series))
        log.info("%s: %s", concern.why, named)
        return PlainTextResponse(f"{concern.why}: {named}\n", 202)

    async def health(self, request: Request) -> Response:
        trouble = self._worker.trouble
        return PlainTextResponse("fine\n") if trouble is None else PlainTextResponse(f"{trouble}\n", 503)

    async def metrics(self, request: Request) -> Response:
        metrics = self._worker.service.metrics
        return PlainTextResponse(metrics.to_prometheus(metrics.counts), media_type="text/plain; version=0.0.4")


def _refused(error: RequestRefused) -> Response:
    headers = {"Connection": "close"}  # or the rest of the body would be read to its end
    if error.retry_after is not None:
        headers["Retry-After"] = f"{error.retry_after:.0f}"
    return PlainTextResponse(f"{error}\n", error.status, headers=headers)
