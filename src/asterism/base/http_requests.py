"""HTTP request tasks, with httpx (the extra ``http``).

Redirects are followed by ``next_hop``, here and on devices. Another origin (scheme, host or port) is somebody else:
headers that bear a secret are not sent there, nor are credentials and cookies, and a body that bears one is not sent
either: the request fails, since without its body it would mean something else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from asterism.base.http_client import http_client
from asterism.base.secret_mask import Mask
from asterism.base.url_text import masked_url, masked_urls
from asterism.core.errors import AsterismError

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 20
"""How many redirects one request follows."""

_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie"})
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""Headers that httpx writes, and without which no server understands the request."""

FIELDS = frozenset({"method", "url", "headers", "params", "json", "body", "expect"})


class RequestFailed(AsterismError):
    """The server answered with a status that was not expected."""

    def __init__(self, status: int, url: str, body: str, method: str = "GET") -> None:
        self.status, self.url, self.body, self.method = status, masked_url(url), body, method
        super().__init__(f"{method} {self.url} answered {status}: {body[:200]}")


class NoAnswer(AsterismError):
    """A request got no answer: the address is wrong, nobody is there, or the connection broke."""

    def __init__(self, method: str, url: str, error: Exception) -> None:
        self.method, self.url = method, masked_url(url)
        what = " ".join(masked_urls(str(error)).split())
        super().__init__(f"{method} {self.url} got no answer: {type(error).__name__}{f': {what}' if what else ''}")


_in_request: ContextVar[bool] = ContextVar("asterism_in_request", default=False)


def _not_ours(record: logging.LogRecord) -> bool:
    """httpx logs every address it asks for, and ours may hold secrets; requests of others are none of our business."""
    return not _in_request.get()


logging.getLogger("httpx").addFilter(_not_ours)


class UnsafeRedirect(AsterismError):
    """A redirect to another origin for a request whose body bears a secret. Nothing was sent there."""


@contextmanager
def request_errors(terms: Mapping[str, Any]) -> Iterator[None]:
    """While a request is under way: httpx does not log it, and what it raises becomes NoAnswer, which says what was
    asked for."""
    import httpx

    quiet = _in_request.set(True)
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise NoAnswer(terms.get("method", "GET"), str(terms["url"]), error) from error
    finally:
        _in_request.reset(quiet)


def json_body(answer: Any, body: bytes) -> Any:
    """The body of an answer that says it is JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        problem = "JSON that is nested too deep" if deep else f"what is not JSON, although it says so: {error}"
        raise AsterismError(
            f"{answer.request.method} {masked_url(str(answer.request.url))} answered with {problem}"
        ) from None


async def send_request(terms: Mapping[str, Any], mask: Mask) -> Any:
    """Send a request and return the body of the answer: parsed if it is JSON, text otherwise. ``mask`` has the secrets
    that no other origin is told.

    ``expect`` lists the statuses that count as success; without it every 2xx does. Raises RequestFailed for any
    other, NoAnswer when there is none, and UnsafeRedirect."""
    client = await http_client(timeout=None)  # the task's own timeout rules
    with request_errors(terms):
        async with client:
            answer = await client.send(build_request(client, terms, terms.get("headers")))
            for _ in range(MAX_REDIRECTS):
                if answer.next_request is None:
                    break
                answer = await client.send(follow_redirect(answer, mask))
            if answer.next_request is not None:
                raise too_many_redirects(terms)
    expected = terms.get("expect")
    if answer.status_code not in expected if expected else not answer.is_success:
        raise RequestFailed(answer.status_code, str(answer.request.url), answer.text, answer.request.method)
    kind = answer.headers.get("content-type", "")
    return json_body(answer, answer.content) if "json" in kind and answer.content else answer.text


def build_request(client: httpx.AsyncClient, terms: Mapping[str, Any], headers: Any) -> httpx.Request:
    return client.build_request(
        terms.get("method", "GET"),
        terms["url"],
        headers=headers,
        params=terms.get("params"),
        json=terms.get("json"),
        content=terms.get("body"),
    )


def follow_redirect(answer: httpx.Response, mask: Mask) -> httpx.Request:
    """The request that a redirect leads to. Raises UnsafeRedirect."""
    import httpx

    asked = answer.next_request
    assert asked is not None
    if _origin(asked.url) == _origin(answer.request.url):
        return asked
    for name, value in asked.headers.items():
        if name in _CREDENTIALS or (name not in _FRAMING and mask.contains_secret(value)):
            del asked.headers[name]
    body = b"".join(asked.stream) if isinstance(asked.stream, httpx.ByteStream) else b""  # empty if it is a GET now
    if body and mask.contains_secret(body.decode(errors="replace")):
        raise UnsafeRedirect(
            f"{masked_url(str(answer.request.url))} redirects ({answer.status_code}) to another origin, "
            f"{_origin_text(asked.url)}, and the body of the request bears a secret, so it was not sent there; if it "
            "belongs there, use that address as 'url'"
        )
    return asked


def too_many_redirects(terms: Mapping[str, Any]) -> AsterismError:
    return AsterismError(
        f"{masked_url(terms['url'])} led from one address to the next, more than {MAX_REDIRECTS} times"
    )


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    port = url.port if url.port is not None else {"http": 80, "https": 443}.get(url.scheme)
    return url.scheme, url.host, port


def _origin_text(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
