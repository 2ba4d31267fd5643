"""HTTP requests of tasks, with httpx (the extra ``http``), and safe redirects.

``follow_redirect`` follows redirects, here and on devices. Another origin (scheme, host or port) is another party:
headers with a secret, credentials and cookies are not sent there. If the body has a secret, the request fails, since
without its body it would mean something else.
"""

from __future__ import annotations

import codecs
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from asterism.base.http_answers import AnswerTooLarge, read_answer
from asterism.base.https_session import http_client, load_httpx
from asterism.base.secret_mask import Mask
from asterism.base.text import decode_whole, masked_url, masked_urls
from asterism.core.errors import AsterismError, DeviceTrouble
from asterism.core.json_values import NOTHING, SizeLimit
from asterism.execution.processes import EXHAUSTED
from asterism.execution.task_inputs import call_apart

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 20
"""How many redirects one request follows."""

_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie"})
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""Headers that httpx writes, which every request needs."""

_NOT_OF_TEXTS = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"})
"""Encodings that are not for bodies; the time of some grows with the square of the length."""

FIELDS = frozenset({"method", "url", "headers", "params", "json", "body", "expect"})


class RequestFailed(AsterismError):
    """The server answered with an unexpected status."""

    def __init__(self, status: int, url: str, body: str, method: str = "GET") -> None:
        self.status, self.url, self.body, self.method = status, masked_url(url), body, method
        super().__init__(f"{method} {self.url} answered {status}: {body[:200]}")


class NoAnswer(AsterismError):
    """A request got no answer: the address is wrong, no server listens there, or the connection broke."""

    def __init__(self, method: str, url: str, error: Exception) -> None:
        self.method, self.url = method, masked_url(url)
        reason = " ".join(masked_urls(str(error)).split())
        super().__init__(f"{method} {self.url} got no answer: {type(error).__name__}{f': {reason}' if reason else ''}")


_in_request: ContextVar[bool] = ContextVar("asterism_in_request", default=False)


def _not_ours(record: logging.LogRecord) -> bool:
    """httpx logs every URL, and those of tasks may contain secrets. The requests of other code are still logged."""
    return not _in_request.get()


logging.getLogger("httpx").addFilter(_not_ours)


class UnsafeRedirect(AsterismError):
    """A request whose body has a secret was redirected to another origin. Nothing was sent there."""


@contextmanager
def request_errors(request: Mapping[str, Any]) -> Iterator[None]:
    """For the duration of a request: httpx does not log it, and its errors become NoAnswer, with the request."""
    import httpx

    quiet = _in_request.set(True)
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise NoAnswer(request.get("method", "GET"), str(request["url"]), error) from error
    finally:
        _in_request.reset(quiet)


def json_body(answer: Any, body: bytes) -> Any:
    """The body of an answer whose content type is JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        problem = "JSON that is nested too deep" if deep else f"a body that is not JSON, although its type is: {error}"
        raise AsterismError(
            f"{answer.request.method} {masked_url(str(answer.request.url))} answered with {problem}"
        ) from None


class RequestJudge(Protocol):
    """What judges the requests of a place. Each method raises to refuse."""

    proxies: bool
    """Whether a proxy that the environment names may be used."""

    def headers(self, names: Iterable[str]) -> None: ...

    def url(self, url: httpx.URL, hop: int) -> None:
        """Judge an address, after ``hop`` redirects."""

    def watch(self, client: httpx.AsyncClient) -> None:
        """Judge the connections of a client."""


async def send_request(
    request: Mapping[str, Any],
    mask: Mask,
    limit: SizeLimit | None = None,
    *,
    headers: Mapping[str, str] = NOTHING,
    judge: RequestJudge | None = None,
) -> Any:
    """Send a request and return the body of the answer: parsed if it is JSON, text otherwise. ``mask`` has the secrets
    that are not sent to another origin, ``limit`` says how large the answer may be. ``headers`` replace those in
    ``request``; ``judge`` may refuse the request.

    ``expect`` lists the statuses that count as success; by default every 2xx does. Raises RequestFailed for any other
    status, NoAnswer without an answer, TooLarge for one over ``limit``, NotJson for one that is not text,
    AnswerRefused, UnsafeRedirect, DeviceTrouble if this machine could not open a connection, and what ``judge``
    raises."""
    loaded = await load_httpx("HTTP tasks need httpx" if judge is None else "HTTP requests need httpx on this device")
    mine = loaded.Headers(request.get("headers"))
    if judge is not None:
        judge.headers(mine)
    mine.update(headers)
    try:
        with request_errors(request):
            # without a timeout: that of the task applies
            async with await http_client(timeout=None, trust_env=judge is None or judge.proxies) as client:
                if judge is None:
                    return await exchange(client, request, mine, mask, limit)
                judge.watch(client)
                return await exchange(client, request, mine, mask, limit, judge.url)
    except (NoAnswer, OSError) as error:
        out_of = _exhausted(error)
        if out_of is None:
            raise
        raise DeviceTrouble(f"the request could not be sent: {out_of.strerror}") from error


def _exhausted(error: BaseException | None) -> OSError | None:
    """The error of the operating system behind an error of httpx, if this machine has run out of a resource."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            return error
        error = error.__cause__ or error.__context__
    return None


async def exchange(
    client: httpx.AsyncClient,
    request: Mapping[str, Any],
    headers: Any,
    mask: Mask,
    limit: SizeLimit | None,
    judge: Callable[[httpx.URL, int], None] = lambda url, hop: None,
) -> Any:
    """The result of a request, after its redirects. ``judge`` may refuse each address, with the number of redirects
    that led to it. Raises as ``send_request`` does."""
    asked = build_request(client, request, headers)
    for hop in range(MAX_REDIRECTS + 1):
        judge(asked.url, hop)
        answer = await client.send(asked, stream=True)
        try:
            if answer.next_request is None:
                return await _value(answer, request.get("expect"), limit)
        finally:
            await answer.aclose()
        asked = follow_redirect(answer, mask)
    raise too_many_redirects(request)


async def _value(answer: httpx.Response, expected: Any, limit: SizeLimit | None) -> Any:
    wrong = answer.status_code not in expected if expected else not answer.is_success
    # the limit is that of a result, not that of the answer that says what went wrong
    body = await (read_answer(answer) if wrong or limit is None else _result_body(answer, limit))
    if wrong:
        text = await call_apart(bytes.decode, body, _encoding(answer), "replace")
        raise RequestFailed(answer.status_code, str(answer.request.url), text, answer.request.method)
    return await call_apart(_parsed, body, answer)


def _parsed(body: bytes, answer: httpx.Response) -> Any:
    if "json" in answer.headers.get("content-type", "") and body:
        return json_body(answer, body)
    return decode_whole(body, _name(answer), "download it to a file with a command, such as curl", _encoding(answer))


def _name(answer: httpx.Response) -> str:
    return f"the answer to {answer.request.method} {masked_url(str(answer.request.url))}"


async def _result_body(answer: httpx.Response, limit: SizeLimit) -> bytes:
    """The body of an answer. Raises AnswerRefused and TooLarge."""
    what = _name(answer)
    length = None if "content-encoding" in answer.headers else answer.headers.get("content-length")
    try:
        return await read_answer(answer, limit.size)
    except AnswerTooLarge as error:
        if length is not None:
            limit.check(int(length), what)
        limit.check(error.read, f"what was read of {what}")
        raise


def _encoding(answer: httpx.Response) -> str:
    """The encoding of a body; UTF-8 if it names none of texts."""
    try:
        known = codecs.lookup(answer.charset_encoding or "utf-8").name
        b" ".decode(known, "replace")  # raises LookupError for one that is not for texts, such as zlib
    except (LookupError, ValueError):
        return "utf-8"
    return "utf-8" if known in _NOT_OF_TEXTS else known


def build_request(client: httpx.AsyncClient, request: Mapping[str, Any], headers: Any) -> httpx.Request:
    return client.build_request(
        request.get("method", "GET"),
        request["url"],
        headers=headers,
        params=request.get("params"),
        json=request.get("json"),
        content=request.get("body"),
    )


def follow_redirect(answer: httpx.Response, mask: Mask) -> httpx.Request:
    """The request to which a redirect leads. Raises UnsafeRedirect."""
    import httpx

    following = answer.next_request
    assert following is not None
    if _origin(following.url) == _origin(answer.request.url):
        return following
    for name, value in following.headers.items():
        if name in _CREDENTIALS or (name not in _FRAMING and mask.contains_secret(value)):
            del following.headers[name]
    # empty if the redirect has made it a GET
    body = b"".join(following.stream) if isinstance(following.stream, httpx.ByteStream) else b""
    if body and mask.contains_secret(body.decode(errors="replace")):
        raise UnsafeRedirect(
            f"{masked_url(str(answer.request.url))} redirects ({answer.status_code}) to another origin, "
            f"{_origin_text(following.url)}, and the body of the request contains a secret, so it was not sent there; "
            "to send it, use that address as 'url'"
        )
    return following


def too_many_redirects(request: Mapping[str, Any]) -> AsterismError:
    return AsterismError(f"{masked_url(request['url'])} redirected more than {MAX_REDIRECTS} times")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    port = url.port if url.port is not None else {"http": 80, "https": 443}.get(url.scheme)
    return url.scheme, url.host, port


def _origin_text(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
