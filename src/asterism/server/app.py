"""The application of the server, made of its parts: each part is a table of endpoints, or routes of its own.

To add endpoints, write a module with ``ENDPOINTS`` and name it in ``endpoints``. Routes that are no part of the API,
such as the page, go into ``more``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from asterism.api.operation import NoFields, Operation
from asterism.api.operations import OPERATIONS
from asterism.base.text import plain_name
from asterism.server import service_routes
from asterism.server.endpoint import Call, Endpoint, EndpointApp, ServerState
from asterism.server.openapi import openapi_endpoint
from asterism.server.page_routes import page_routes
from asterism.server.problems import problem
from asterism.server.request_guard import RequestGuard

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Scope


def endpoints() -> list[Endpoint]:
    """All endpoints of the API, in the order of the documentation. Of two paths that match, the first counts."""
    described = [*service_routes.ENDPOINTS, *OPERATION_ENDPOINTS]
    return [*described, openapi_endpoint(described)]


def server_app(server: ServerState, hosts: Collection[str], more: Iterable[BaseRoute] = ()) -> RequestGuard:
    """The application, with its guard. ``hosts`` are the names by which clients know the server."""
    routes = [_route(endpoint, server) for endpoint in endpoints()]
    # routes are tried in turn, and most messages are those of devices
    app = Starlette(routes=[*more, *routes, *page_routes()], exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False
    return RequestGuard(app, hosts, https=server.gate.https)


class EndpointRoute(Route):
    """A route whose parameters are any names: one with a ``/`` has it as ``%2F``, so it is decoded after the match."""

    def __init__(self, path: str, *arguments: Any, **options: Any) -> None:
        super().__init__(path, *arguments, **options)
        self._slashes = path.count("/")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw = scope.get("raw_path") or b""
        if raw and raw.count(b"/") != self._slashes:
            return Match.NONE, {}  # most routes have another number of parts: that is quicker to see than a mismatch
        encoded = b"%2F" in raw or b"%2f" in raw  # without it a path that was decoded first has the same parts
        match, child_scope = super().matches({**scope, "path": raw.decode("latin-1")} if encoded else scope)
        if match is not Match.NONE:
            parameters = child_scope["path_params"].items()
            child_scope["path_params"] = {
                name: plain_name(unquote(part) if encoded else part) for name, part in parameters
            }
        return match, child_scope


def _route(endpoint: Endpoint, server: ServerState) -> Route:
    route = EndpointRoute(endpoint.full_path, EndpointApp(endpoint, server), methods=endpoint.methods)
    route.methods = set(endpoint.methods)  # starlette adds HEAD to every GET
    return route


async def _no_route(request: Request, error: Exception) -> Response:
    """The answer to an unknown path or method."""
    status = getattr(error, "status_code", 404)
    sentence = f"there is no {request.url.path}" if status == 404 else f"{request.method} is not possible here"
    answer = problem(status, sentence, "unknown-path" if status == 404 else "unknown-method")
    for name, value in (getattr(error, "headers", None) or {}).items():
        answer.headers[name] = value
    return answer


# -- operations --------------------------------------------------------------------------------------------------------


HEAVY = ("copy_plan", "draw_plan", "explain_plan", "list_files", "show_plan", "show_version")
"""The operations whose answers take long to compute."""


def endpoint_of(operation: Operation[Any, Any, Any]) -> Endpoint:
    """The endpoint that checks a request and calls its operation, in the name of the caller."""
    in_query = operation.method in ("GET", "DELETE")

    async def handle(call: Call) -> Any:
        return await call.system.call(operation, call.query if in_query else call.body)

    return Endpoint(
        operation.method,
        operation.path,
        handle,
        operation.text,
        needs=operation.needs,
        query=operation.fields if in_query else NoFields,
        body=None if in_query else operation.fields,
        answer=operation.answer,
        status=operation.status,
        edits=operation.edits,
        heavy=operation.name in HEAVY,
        secret=operation.secret,
        name=operation.name,
    )


OPERATION_ENDPOINTS = tuple(endpoint_of(operation) for operation in OPERATIONS.values())
"""Those of all operations, in the order of the documentation."""
