"""HTTP request tasks, with httpx (the extra ``http``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from asterism.core.errors import AsterismError

FIELDS = frozenset({"method", "url", "headers", "params", "json", "body", "expect"})


class RequestFailed(AsterismError):
    """The server answered with a status that was not expected."""

    def __init__(self, status: int, url: str, body: str) -> None:
        self.status, self.url, self.body = status, url, body
        super().__init__(f"{url} answered {status}: {body[:200]}")


_in_request: ContextVar[bool] = ContextVar("asterism_in_request", default=False)


def _not_ours(record: logging.LogRecord) -> bool:
    """httpx logs every address it asks for, and ours may hold secrets; requests of others are none of our business."""
    return not _in_request.get()


logging.getLogger("httpx").addFilter(_not_ours)


async def request(terms: Mapping[str, Any]) -> Any:
    """Send a request and return the body of the answer: parsed if it is JSON, text otherwise.

    ``expect`` lists the statuses that count as success; without it every 2xx does. Raises RequestFailed for any
    other, and what httpx raises when there is no answer at all."""
    try:
        import httpx
    except ImportError:
        raise AsterismError("HTTP tasks need httpx: pip install 'asterism[http]'") from None
    quiet = _in_request.set(True)
    try:
        async with httpx.AsyncClient(timeout=None, follow_redirects=True) as client:  # the task's own timeout rules
            answer = await client.request(
                terms.get("method", "GET"),
                terms["url"],
                headers=terms.get("headers"),
                params=terms.get("params"),
                json=terms.get("json"),
                content=terms.get("body"),
            )
    finally:
        _in_request.reset(quiet)
    expected = terms.get("expect")
    if answer.status_code not in expected if expected else not answer.is_success:
        raise RequestFailed(answer.status_code, str(answer.request.url), answer.text)
    kind = answer.headers.get("content-type", "")
    return answer.json() if "json" in kind and answer.content else answer.text
