"""HTTP request tasks, with httpx (the extra ``http``).

Redirects are followed by ``next_hop``, here and on devices. Another origin (scheme, host or port) is somebody else:
headers that bear a secret are not sent there, nor are credentials and cookies, and a body that bears one is not sent
either: the request fails, since without its body it would mean something else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from asterism.core.errors import AsterismError
from asterism.runtime.mask import Mask

if TYPE_CHECKING:
    import httpx

REDIRECTS = 20
"""How many redirects one request follows."""

_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie"})
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""Headers that httpx writes, and without which no server understands the request."""

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


class UnsafeRedirect(AsterismError):
    """A redirect to another origin for a request whose body bears a secret. Nothing was sent there."""


async def request(terms: Mapping[str, Any], mask: Mask) -> Any:
    """Send a request and return the body of the answer: parsed if it is JSON, text otherwise. ``mask`` has the secrets
    that no other origin is told.

    ``expect`` lists the statuses that count as success; without it every 2xx does. Raises RequestFailed for any
    other, UnsafeRedirect, and what httpx raises when there is no answer at all."""
    try:
        import httpx
    except ImportError:
        raise AsterismError("HTTP tasks need httpx: pip install 'asterism[http]'") from None
    quiet = _in_request.set(True)
    try:
        async with httpx.AsyncClient(timeout=None) as client:  # the task's own timeout rules
            answer = await client.send(build(client, terms, terms.get("headers")))
            for _ in range(REDIRECTS):
                if answer.next_request is None:
                    break
                answer = await client.send(next_hop(answer, mask))
            if answer.next_request is not None:
                raise too_many_redirects(terms)
    finally:
        _in_request.reset(quiet)
    expected = terms.get("expect")
    if answer.status_code not in expected if expected else not answer.is_success:
        raise RequestFailed(answer.status_code, str(answer.request.url), answer.text)
    kind = answer.headers.get("content-type", "")
    return answer.json() if "json" in kind and answer.content else answer.text


def build(client: httpx.AsyncClient, terms: Mapping[str, Any], headers: Any) -> httpx.Request:
    return client.build_request(
        terms.get("method", "GET"),
        terms["url"],
        headers=headers,
        params=terms.get("params"),
        json=terms.get("json"),
        content=terms.get("body"),
    )


def next_hop(answer: httpx.Response, mask: Mask) -> httpx.Request:
    """The request that a redirect leads to. Raises UnsafeRedirect."""
    import httpx

    asked = answer.next_request
    assert asked is not None
    if _origin(asked.url) == _origin(answer.request.url):
        return asked
    for name, value in asked.headers.items():
        if name in _CREDENTIALS or (name not in _FRAMING and mask.bears(value)):
            del asked.headers[name]
    body = b"".join(asked.stream) if isinstance(asked.stream, httpx.ByteStream) else b""  # empty if it is a GET now
    if body and mask.bears(body.decode(errors="replace")):
        raise UnsafeRedirect(
            f"{answer.request.url} redirects ({answer.status_code}) to another origin, {_origin_text(asked.url)}, and "
            "the body of the request bears a secret, so it was not sent there; if it belongs there, use that address "
            "as 'url'"
        )
    return asked


def too_many_redirects(terms: Mapping[str, Any]) -> AsterismError:
    return AsterismError(f"{terms['url']} led from one address to the next, more than {REDIRECTS} times")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    port = url.port if url.port is not None else {"http": 80, "https": 443}.get(url.scheme)
    return url.scheme, url.host, port


def _origin_text(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
