"""The webhook of events: ``POST /hooks/NAME`` sends an event, for a program that signs what it posts (``EventHook``).

The signature is the credential: without a right one, nothing of the body is looked at. It is answered when the event is
durable, so a sender that gets no answer posts again, and the key makes that the same event.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from asterism.base.http_limits import RequestRefused, WrongSignatures, address_of, read_body
from asterism.base.strict_json import NotStrictJson, parse_strict
from asterism.core.errors import AsterismError, NotJson, TooLarge
from asterism.fleet.event_hook import EventHook
from asterism.fleet.sent_events import LARGEST_DATA, SentEvent, send_event
from asterism.server.endpoint import MAX_DEPTH, ServerState
from asterism.server.problems import problem_of

log = logging.getLogger("asterism.server")

PATH = "/hooks/"


class EventHookRoutes:
    """The routes of the hooks of a server."""

    def __init__(self, server: ServerState, hooks: Sequence[EventHook]) -> None:
        self._server, self._hooks = server, {hook.name: hook for hook in hooks}
        self._wrong = WrongSignatures(log)
        self.routes: list[BaseRoute] = [Route(PATH + "{hook}", self.deliver, methods=["POST"])] if hooks else []

    async def deliver(self, request: Request) -> Response:
        try:
            event = await self._event(request)
        except (AsterismError, RequestRefused) as error:
            return problem_of(error, request.url.path)
        answer = {"number": event.number, "name": event.name, "again": event.again}
        return JSONResponse(answer, 200 if event.again else 202)

    async def _event(self, request: Request) -> SentEvent:
        """Send the event of a delivery. Raises RequestRefused and StoreError."""
        hook = self._hooks.get(request.path_params["hook"])
        if hook is None:
            raise RequestRefused(404, "there is no hook of this name")
        store, bodies = self._server.fleet.store, self._server.bodies
        body = await read_body(request, bodies, client=address_of(request), most=LARGEST_DATA, each=LARGEST_DATA)
        signed = hook.signed(request.headers, body)
        if not signed.is_right:
            raise self._wrong.refusal()
        signed.check_time(store.clock())
        self._server.gate.admit(request, f"hook {hook.name}")
        data = _json_object(body)
        name, key = hook.event_name(data), hook.key(signed, data, body)
        try:
            return await send_event(store, name, data, key=key, by=f"hook {hook.name}")
        except TooLarge as error:
            raise RequestRefused(413, str(error)) from None
        except NotJson as error:
            raise RequestRefused(400, str(error)) from None


def _json_object(body: bytes) -> dict[str, Any]:
    """Raises RequestRefused with 400."""
    try:
        data = parse_strict(body, max_depth=MAX_DEPTH)
    except NotStrictJson as error:
        raise RequestRefused(400, f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestRefused(400, "the body is not a JSON object")
    return data
