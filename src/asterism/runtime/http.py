"""HTTP request tasks, with httpx (the extra ``http``)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from asterism.core.errors import AsterismError
from asterism.core.url_text import masked_url, masked_urls
from asterism.runtime.http_client import http_client

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


@contextmanager
def asking(terms: Mapping[str, Any]) -> Iterator[None]:
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


def json_in(answer: Any, body: bytes) -> Any:
    """The body of an answer that says it is JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        problem = "JSON that is nested too deep" if deep else f"what is not JSON, although it says so: {error}"
        raise AsterismError(
            f"{answer.request.method} {masked_url(str(answer.request.url))} answered with {problem}"
        ) from None


async def request(terms: Mapping[str, Any]) -> Any:
    """Send a request and return the body of the answer: parsed if it is JSON, text otherwise.

    ``expect`` lists the statuses that count as success; without it every 2xx does. Raises RequestFailed for any
    other, and NoAnswer when there is none."""
    client = await http_client(timeout=None, follow_redirects=True)  # the task's own timeout rules
    with asking(terms):
        async with client:
            answer = await client.request(
                terms.get("method", "GET"),
                terms["url"],
                headers=terms.get("headers"),
                params=terms.get("params"),
                json=terms.get("json"),
                content=terms.get("body"),
            )
    expected = terms.get("expect")
    if answer.status_code not in expected if expected else not answer.is_success:
        raise RequestFailed(answer.status_code, str(answer.request.url), answer.text, answer.request.method)
    kind = answer.headers.get("content-type", "")
    return json_in(answer, answer.content) if "json" in kind and answer.content else answer.text
