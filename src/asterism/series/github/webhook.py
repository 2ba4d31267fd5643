"""The webhook of series: accepts signed deliveries and requests syncs; its own server also shows health and metrics.

``POST /webhook`` checks the signature of the raw body first, ignores replays, and answers at once: the worker syncs.
Connections and bodies have the limits of ``asterism.base.http_limits``. ``asterism serve`` has this route beside its
others. ``serve`` in this module serves it alone, with ``GET /health``, which tells whether the last sync succeeded, and
with ``GET /metrics`` for Prometheus, if only this machine can ask.

The signature covers only the body, so a delivery is remembered by its body as well as by its id: a replay under a new
id is ignored. The memory is bounded and ends with the process; a replay that gets through costs one sync that finds
nothing to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from asterism.base.http_limits import (
    PROXY,
    Bodies,
    Limits,
    RequestRefused,
    WrongSignatures,
    address_of,
    place_of,
    read_body,
    signed_as_github,
)
from asterism.base.http_server import LimitedServer, serving
from asterism.base.listen_address import ListenAddress, renewed_certificate
from asterism.base.operating_system import stop_signals
from asterism.base.remembered import Remembered
from asterism.series.github.discovery import SeriesMatcher, has_label
from asterism.series.github.sync import SyncWorker

log = logging.getLogger("asterism.series")

MAX_REMEMBERED = 10_000
"""Deliveries that are remembered."""
EVENTS = frozenset({"issues", "pull_request"})

MAX_BODY = 5 * 1024 * 1024
"""Bytes of a body. Those of issues and pull requests are much smaller."""

MAX_DELIVERY_ID = 200
PATH = "/webhook"
SENDER = "the webhook's sender"
"""The client name of all signed connections, unless a proxy makes them."""

LIMITS = Limits(per_client=50, bodies=64 * 1024 * 1024)

SHUTDOWN_GRACE = 5
"""How long requests may take to end when the server stops, in seconds."""


# -- deliveries -------------------------------------------------------------------------------------------------------


class AffectedSeries(NamedTuple):
    """The series to sync: None for all, empty for none. ``why`` is for the log."""

    series: frozenset[str] | None
    why: str


class SeenDeliveries:
    """The deliveries that were received before."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._seen: Remembered[str, None] = Remembered(2 * limit)

    def add(self, delivery: str, body: bytes) -> bool:
        """Remember a delivery. Returns whether it is new."""
        marks = [f"id {delivery}", f"body {hashlib.sha256(body).hexdigest()}"]
        known = any(mark in self._seen for mark in marks)
        for mark in marks:
            self._seen[mark] = None
        return not known


def affected_series(event: str, body: bytes, repository: str, matcher: SeriesMatcher) -> AffectedSeries:
    """The series that an event affects. Raises ValueError for a body that GitHub does not send."""
    if event not in EVENTS:
        return AffectedSeries(frozenset(), f"the event {event or '(none)'} changes no series")
    payload = json.loads(body)
    if b"\\ud" in body.lower():  # most bodies have no such escape
        json.dumps(payload, ensure_ascii=False).encode()  # half of a pair: UnicodeEncodeError is a ValueError
    if not isinstance(payload, Mapping):
        raise ValueError("the payload is not an object")
    about = payload.get("repository")
    if not isinstance(about, Mapping) or str(about.get("full_name", "")).lower() != repository.lower():
        return AffectedSeries(frozenset(), "another repository")
    action = str(payload.get("action", ""))
    if event == "pull_request":
        # the payload does not say which issues the pull request closes
        ended = action in ("closed", "reopened")
        return AffectedSeries(None if ended else frozenset(), f"pull request {action}")
    return AffectedSeries(_series_of_issue(payload, matcher), f"issue {action}")


def _series_of_issue(payload: Mapping[str, Any], matcher: SeriesMatcher) -> frozenset[str]:
    """The series of the issue now, and before the event: a series that it left has to promote another issue."""
    issue = payload.get("issue")
    if not isinstance(issue, Mapping) or type(issue.get("number")) is not int:
        raise ValueError("the payload has no issue")
    labels = issue.get("labels") or []
    if not isinstance(labels, list):
        raise ValueError("the labels of the issue are not a list")
    forms = [dict(issue)]
    changes = payload.get("changes")
    title = changes.get("title") if isinstance(changes, Mapping) else None
    if isinstance(title, Mapping):
        forms.append({**issue, "title": title.get("from")})
    label = payload.get("label")
    if isinstance(label, Mapping) and payload.get("action") == "unlabeled":
        forms.append({**issue, "labels": [label, *labels]})
    if isinstance(label, Mapping) and payload.get("action") == "labeled":
        others = [other for other in labels if not has_label({"labels": [other]}, str(label.get("name")))]
        forms.append({**issue, "labels": others})
    return frozenset(member.series for form in forms if (member := matcher.match(form)) is not None)


# -- the endpoint -----------------------------------------------------------------------------------------------------


class WebhookEndpoint:
    """The route ``/webhook``, and the worker that syncs. ``repository`` is ``owner/name``; deliveries about others are
    ignored. ``shared`` is whether a proxy makes all connections."""

    def __init__(
        self,
        worker: SyncWorker,
        repository: str,
        matcher: SeriesMatcher,
        secret: bytes,
        limits: Limits = LIMITS,
        *,
        shared: bool = False,
    ) -> None:
        self._worker, self._repository, self._matcher, self._secret = worker, repository, matcher, secret
        self._seen, self._sender = SeenDeliveries(), PROXY if shared else SENDER
        self._limits, self._bodies = limits, Bodies(limits)
        self._wrong = WrongSignatures(log)
        self.route = Route(PATH, self.deliver, methods=["POST"])

    def app(self, *, metrics: bool) -> Starlette:
        """The application of a server that has nothing else."""
        routes = [self.route, Route("/health", self.health, methods=["GET"])]
        if metrics:
            routes.append(Route("/metrics", self.metrics, methods=["GET"]))
        return Starlette(routes=routes)

    @contextlib.asynccontextmanager
    async def syncing(self, on_end: Callable[[], None]) -> AsyncIterator[None]:
        """Let the worker work while the block runs. If it fails, ``on_end`` is called, and the end of the block raises
        its error."""
        working = asyncio.create_task(self._worker.run(), name="series worker")
        working.add_done_callback(lambda task: on_end())
        try:
            yield
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working

    async def deliver(self, request: Request) -> Response:
        signature = request.headers.get("x-hub-signature-256")
        if signature is None:
            return _refusal(RequestRefused(401, "the signature is missing"))
        address = address_of(request)
        each = MAX_BODY if self._limits.per_address is not None else self._limits.bodies
        try:
            body = await read_body(request, self._bodies, client=address, most=MAX_BODY, each=each)
            if not signed_as_github(self._secret, body, signature):
                raise self._wrong.refusal()
            if (place := place_of(request)) is not None:
                place.admit(self._sender)
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


async def serve(endpoint: WebhookEndpoint, address: ListenAddress, on_listen: Callable[[str], None]) -> None:
    """Serve the webhook alone, until SIGINT or SIGTERM, or until the worker fails. ``on_listen`` is called with the
    URL."""
    app, context = endpoint.app(metrics=address.is_loopback), address.tls_context()
    with contextlib.closing(address.open_socket()) as sock, stop_signals() as stop:
        server = LimitedServer(app, address.limits(LIMITS), log, context, timeout_graceful_shutdown=SHUTDOWN_GRACE)
        renewed = renewed_certificate(address, context, log)
        async with endpoint.syncing(stop.set), serving(server, sock), renewed:
            on_listen(f"{address.url(sock)}{PATH}")
            await stop.wait()
