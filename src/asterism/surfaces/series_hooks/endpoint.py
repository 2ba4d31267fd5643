"""The endpoint for GitHub's webhook: small, and suspicious of all that is not signed.

``POST /webhook`` checks the signature over the raw body before anything else is looked at, ignores what was here
before, and answers at once: the sync is the worker's. A body is read up to a limit and no further. ``GET /health`` says
whether the last sync went well, ``GET /metrics`` the figures for Prometheus, if they are wanted here.
"""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from asterism.series.github.deliveries import Memory, concern_of, is_signed
from asterism.series.github.finding import Finder
from asterism.surfaces.series_hooks.worker import Worker

log = logging.getLogger("asterism.series")

LARGEST = 5 * 1024 * 1024
"""Bytes of a body. What GitHub sends about issues and pull requests is a small part of that."""


class _TooLarge(Exception):
    pass


class Endpoint:
    """``repository`` is ``owner/name``; what is delivered about others is ignored."""

    def __init__(self, worker: Worker, repository: str, finder: Finder, secret: bytes, metrics: bool = True) -> None:
        self._worker, self._repository, self._finder, self._secret = worker, repository, finder, secret
        self._memory = Memory()
        routes = [Route("/webhook", self.deliver, methods=["POST"]), Route("/health", self.health, methods=["GET"])]
        if metrics:
            routes.append(Route("/metrics", self.metrics, methods=["GET"]))
        self.app = Starlette(routes=routes)

    async def deliver(self, request: Request) -> Response:
        try:
            body = await _read(request)
        except _TooLarge:
            return PlainTextResponse("too large\n", 413, headers={"Connection": "close"})
        except ClientDisconnect:
            return PlainTextResponse("cut off\n", 400)
        if not is_signed(self._secret, body, request.headers.get("x-hub-signature-256")):
            log.warning("a delivery with a wrong signature was refused")
            return PlainTextResponse("the signature is wrong\n", 401)
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


async def _read(request: Request) -> bytes:
    """No more than the limit, whatever the headers say."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > LARGEST:
        raise _TooLarge
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST:
            raise _TooLarge
        parts.append(part)
    return b"".join(parts)
