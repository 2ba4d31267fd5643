"""Problem documents as answers of the server."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from asterism.api.local.problem_statuses import error_json, problem_json
from asterism.base.http_limits import RequestRefused
from asterism.core.json_values import JsonObject

MEDIA_TYPE = "application/problem+json"


def problem(
    status: int, detail: str, name: str | None = None, *, retry_after: float | None = None, **more: Any
) -> Response:
    """A problem document as an answer."""
    return _response(problem_json(status, detail, name, **more), retry_after)


def problem_of(error: Exception, where: str, plan: str | None = None) -> Response:
    """The answer to a request that failed. ``where`` is for the log; ``plan`` is the plan of the request."""
    return _response(error_json(error, where, plan), error.retry_after if isinstance(error, RequestRefused) else None)


def _response(document: JsonObject, retry_after: float | None) -> Response:
    status, headers = document["status"], dict[str, str]()
    if status in (400, 401, 408, 411, 413, 429, 503):
        headers["connection"] = "close"  # or the rest of the request would be read to its end
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="asterism"'
    if retry_after is not None:
        headers["retry-after"] = f"{max(1.0, retry_after):.0f}"
    return JSONResponse(document, status, headers, MEDIA_TYPE)
