"""The GitHub client: requests through githubkit, credentials, cached responses, rate limits, retries, lost responses.

One request (``Connection``) is not repeated. It ends in one of three ways: with a response, whatever its status;
without having left this machine (RequestNotSent); or without a complete response (ResponseLost), so that it may have
taken effect. The credentials are a token, or an App with its private key, from the environment.

``GitHubClient`` sends requests until there is an answer:

- A read sends the ETag that is cached (``If-None-Match``): a response of 304 is free.
- A rate limit is waited for as its headers say, within limits; beyond them RateLimited is raised.
- A request that is safe to repeat (a read, or an idempotent write) is repeated a few times after a broken connection or
  a server error. Otherwise OutcomeUnknown is raised, and the caller has to find out whether it took effect.
- GraphQL answers 200 also to a request that it refuses: the body decides, not the status.
- A list is read to its end: after a full page comes another request, whatever is cached.
- The content of a commit never changes, so it is requested once. The cache may have a file, for processes that run one
  sync each. An unreadable file counts as an empty cache, never as an error.

The client derives GitHub's clock from the ``Date`` header, to the second. That clock decides about leases, because the
clocks of the machines that run workflows may differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from githubkit import AppAuthStrategy, GitHub, TokenAuthStrategy
from githubkit.cache import MemCacheStrategy
from githubkit.exception import GitHubException, RequestError, RequestFailed

from asterism.base.http_answers import ACCEPTED, AnswerRefused, bound_hook
from asterism.base.private_file import write_private
from asterism.base.remembered import Remembered
from asterism.core.backoff import retry_delay
from asterism.core.errors import safe_repr
from asterism.core.json_values import JsonObject
from asterism.series.register import OutcomeUnknown, RateLimited, RegisterUnavailable, SeriesError

TIMEOUT = 15.0
"""The timeout of one request, from start to end, in seconds."""
MAX_RESPONSE_BYTES = 64 << 20
"""The largest response, in bytes: a page of a hundred issues with the longest texts is far smaller."""
API_VERSION = "2022-11-28"


# -- credentials ------------------------------------------------------------------------------------------------------


class NoCredentials(SeriesError):
    """The environment has neither a token nor an App, or they cannot be used."""


@dataclass(frozen=True)
class Credentials:
    """Either a token, or an App: its id, its private key, and its installation if that is known."""

    token: str | None = field(default=None, repr=False)
    app_id: str | None = None
    private_key: str | None = field(default=None, repr=False)
    installation: int | None = None


def credentials_from(environ: Mapping[str, str]) -> Credentials:
    """The App of GITHUB_APP_ID with GITHUB_APP_PRIVATE_KEY or GITHUB_APP_PRIVATE_KEY_FILE; without an App, the token of
    GITHUB_TOKEN or GH_TOKEN. Raises NoCredentials."""
    app = environ.get("GITHUB_APP_ID")
    if app:
        installation = environ.get("GITHUB_APP_INSTALLATION_ID", "")
        if installation and not installation.isdecimal():
            raise NoCredentials(f"GITHUB_APP_INSTALLATION_ID is {installation!r}, but it must be a number")
        return Credentials(None, app, _private_key(environ), int(installation) if installation else None)
    token = (environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN") or "").strip()
    if not token:
        raise NoCredentials(
            "no credentials for GitHub: set GITHUB_TOKEN, or GITHUB_APP_ID with GITHUB_APP_PRIVATE_KEY_FILE"
        )
    return Credentials(token)


def _private_key(environ: Mapping[str, str]) -> str:
    key, file = environ.get("GITHUB_APP_PRIVATE_KEY"), environ.get("GITHUB_APP_PRIVATE_KEY_FILE")
    if not key and not file:
        raise NoCredentials("GITHUB_APP_ID is set, but neither GITHUB_APP_PRIVATE_KEY nor GITHUB_APP_PRIVATE_KEY_FILE")
    if not key:
        try:
            key = Path(file or "").read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise NoCredentials(f"cannot read the private key of the App from {file}: {error}") from None
    key = key.replace("\\n", "\n")  # a variable that takes one line has the line breaks escaped
    if "PRIVATE KEY" not in key:
        raise NoCredentials(
            "the private key of the App is not in PEM form: it begins with -----BEGIN … PRIVATE KEY-----"
        )
    return key


# -- requests ---------------------------------------------------------------------------------------------------------


class RequestNotSent(Exception):
    """The request did not reach GitHub."""


class ResponseLost(Exception):
    """The request was sent, but no complete response arrived."""


class Response(NamedTuple):
    """A response of GitHub, whatever its status."""

    url: str
    status: int
    headers: Mapping[str, str]
    data: Any

    @property
    def message(self) -> str:
        """The error message of GitHub, with the details of a failed validation."""
        if not isinstance(self.data, dict):
            return ""
        details = [error.get("message") for error in self.data.get("errors") or [] if isinstance(error, dict)]
        return "; ".join(str(part) for part in dict.fromkeys([self.data.get("message"), *details]) if part)


class Connection:
    """``base_url`` is the API of github.com, of an Enterprise server (``…/api/v3``), or of a test.

    githubkit keeps connections open only within the context of the task that opened them. This class uses a context of
    its own, so that any task can send."""

    def __init__(self, base_url: str, credentials: Credentials, owner: str, name: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._credentials, self._repository = credentials, (owner, name)
        self._context = contextvars.copy_context()
        self._github: GitHub[Any] | None = None
        self._opening = asyncio.Lock()
        self._tokens = MemCacheStrategy()

    @property
    def graphql_url(self) -> str:
        return re.sub(r"/api/v3$", "/api", self.base_url) + "/graphql"

    async def send(
        self, method: str, url: str, params: Mapping[str, str] | None, body: Any, headers: Mapping[str, str]
    ) -> Response:
        """Raises RequestNotSent and ResponseLost."""
        github = await self._open()
        address = url if "://" in url else self.base_url + url
        request = {
            "params": dict(params) if params else None,
            "json": body,
            "headers": {"X-GitHub-Api-Version": API_VERSION, **headers},
        }
        try:
            async with asyncio.timeout(TIMEOUT):
                response = await self._send_with_fresh_token(github, method, address, request)
        except RequestFailed as failed:
            return _to_response(failed.response.raw_response)
        except RequestError as error:
            if isinstance(error.exc, RequestFailed):
                return _token_response(_to_response(error.exc.response.raw_response))
            raise _transport_error(error.exc) from None
        except TimeoutError:
            raise ResponseLost(f"no response within {TIMEOUT:.0f} s") from None
        except GitHubException as error:
            raise RegisterUnavailable(f"the request to GitHub failed: {error or type(error).__name__}") from None
        return _to_response(response.raw_response)

    async def _send_with_fresh_token(
        self, github: GitHub[Any], method: str, address: str, request: Mapping[str, Any]
    ) -> Any:
        """Send a request; if GitHub refuses the token of the App, send it once more with a new one.

        githubkit renews a token a minute before it expires, by the clock of this machine. A token that was revoked, or
        expired by another clock, is refused. A refused request had no effect, so it is safe to repeat."""
        try:
            return await self._in_context(github.arequest(method, address, **request))
        except RequestFailed as failed:
            if failed.response.status_code != 401 or self._credentials.token:
                raise
        self._tokens.cleanup()
        return await self._in_context(github.arequest(method, address, **request))

    async def close(self) -> None:
        if self._github is not None:
            await self._in_context(self._github.__aexit__())
            self._github = None

    def _in_context(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coroutine, context=self._context)

    async def _open(self) -> GitHub[Any]:
        async with self._opening:
            if self._github is None:
                github = await self._authenticate()
                await self._in_context(github.__aenter__())  # type: ignore[no-untyped-call]
                self._github = github
            return self._github

    async def _authenticate(self) -> GitHub[Any]:
        known = self._credentials
        if known.token:
            return self._make(TokenAuthStrategy(known.token))
        app = AppAuthStrategy(known.app_id, known.private_key or "")
        installation = known.installation
        if installation is None:
            owner, name = self._repository
            try:
                response = await self._make(app).arequest("GET", f"{self.base_url}/repos/{owner}/{name}/installation")
                installation = int(response.json()["id"])
            except (GitHubException, KeyError, TypeError, ValueError) as error:
                raise RegisterUnavailable(
                    f"cannot find the installation of the App on {owner}/{name}: {error}"
                ) from None
        return self._make(app.as_installation(installation))

    def _make(self, auth: Any) -> GitHub[Any]:
        return GitHub(
            auth,
            base_url=self.base_url,
            user_agent="asterism",
            follow_redirects=False,
            timeout=TIMEOUT,
            # plain HTTP needs no certificate authorities; urlsplit lowers the scheme, so HTTPS:// is verified
            ssl_verify=urlsplit(self.base_url).scheme != "http",
            cache_strategy=self._tokens,
            http_cache=False,
            auto_retry=False,
            async_event_hooks={"request": [_accept], "response": [bound_hook(MAX_RESPONSE_BYTES)]},
        )


async def _accept(request: httpx.Request) -> None:
    request.headers["accept-encoding"] = ACCEPTED


def _to_response(response: httpx.Response) -> Response:
    try:
        data = json.loads(response.content) if response.content else None
    except (ValueError, RecursionError):
        if response.is_success:  # truncated, or not from GitHub
            raise ResponseLost("the response is not JSON") from None
        data = None
    return Response(str(response.request.url), response.status_code, response.headers, data)


def _token_response(response: Response) -> Response:
    """The response to the request for a token of the App: the request that needs the token was not sent."""
    if response.status >= 500:
        raise RequestNotSent(f"GitHub answered {response.status} to the request for a token of the App")
    return response


def _transport_error(error: Exception) -> Exception:
    said = f"{type(error).__name__} {error}".strip()
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol):
        return RequestNotSent(said)
    if isinstance(error, httpx.TransportError | AnswerRefused):
        return ResponseLost(said)
    return RegisterUnavailable(f"the request to GitHub failed: {said}")


MAX_ATTEMPTS = 4
PAGE_SIZE = 100
MAX_RATE_LIMIT_WAIT = 90.0
"""The longest wait for rate limits within one operation, in seconds."""
GRAPHQL_FEATURES = "issues_copilot_assignment_api_support"
MAX_ENTRIES = 512
"""The most entries of each kind; the least recently used ones are dropped first."""


class RequestRejected(SeriesError):
    """GitHub answered with an error status: the resource does not exist, or the request is not valid."""

    def __init__(self, status: int, message: str, location: str | None = None) -> None:
        self.status, self.location = status, location
        super().__init__(message)


# -- the cache --------------------------------------------------------------------------------------------------------


class CachedResponse(NamedTuple):
    """A response: its ETag, its data, and the URL of the next page."""

    etag: str
    data: Any
    next: str | None


class ResponseCache:
    """``scope`` identifies the credentials: they only see responses that were given to them.

    The file is read, and written by ``save`` unless the cache is ``read_only``."""

    def __init__(self, file: Path | None = None, scope: str = "", read_only: bool = False) -> None:
        self._file, self._scope, self._read_only = file, scope, read_only
        self._responses: Remembered[str, CachedResponse] = Remembered(MAX_ENTRIES)
        self._texts: Remembered[str, str] = Remembered(MAX_ENTRIES)
        self._changed = False
        if file is not None:
            self._load(file)

    def response(self, url: str) -> CachedResponse | None:
        cached = self._responses.get(url)
        if cached is not None:
            self._responses.move_to_end(url)
        return cached

    def put_response(self, url: str, response: CachedResponse) -> None:
        self._responses[url], self._changed = response, True

    def text(self, sha: str) -> str | None:
        """The content of a commit."""
        return self._texts.get(sha) or None

    def put_text(self, sha: str, text: str) -> None:
        """An empty text is not cached: a stale replica of GitHub may not know the commit yet."""
        if text:
            self._texts[sha], self._changed = text, True

    def save(self) -> None:
        """Write the file atomically if anything changed. A failure costs requests later, nothing else."""
        if self._file is None or self._read_only or not self._changed:
            return
        form = {"scope": self._scope, "answers": self._responses, "texts": self._texts}
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_private(self._file, json.dumps(form).encode(), replace=True)
            self._changed = False

    def _load(self, file: Path) -> None:
        try:
            form = json.loads(file.read_text("utf-8"))
            if form["scope"] != self._scope:
                return
            responses = {
                str(url): CachedResponse(str(etag), data, following)
                for url, (etag, data, following) in form["answers"].items()
            }
            texts = {str(sha): str(text) for sha, text in form["texts"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        self._responses.update(responses)
        self._texts.update(texts)


# -- the client -------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """One request.

    ``repeatable``: safe to send twice. ``guard``: called before each sending; raises if it is too late. ``reads``:
    changes nothing."""

    method: str
    url: str
    body: Any = None
    params: Mapping[str, str] | None = None
    headers: Mapping[str, str] = {}
    repeatable: bool = True
    guard: Callable[[], None] | None = None
    reads: bool = False


class GitHubClient:
    """A client for the repository ``owner/name``, for one event loop.

    Paths without a leading slash are relative to the repository. ``calls`` counts the requests. An operation waits for
    rate limits at most ``max_wait`` seconds, and not beyond its ``deadline``, in seconds from its start."""

    def __init__(
        self,
        owner: str,
        name: str,
        connection: Connection,
        cache: ResponseCache | None = None,
        *,
        max_wait: float = MAX_RATE_LIMIT_WAIT,
        deadline: float | None = None,
    ) -> None:
        self.owner, self.name = owner, name
        self.cache = cache or ResponseCache()
        self.calls: Counter[str] = Counter()
        self._connection = connection
        self._max_wait, self._deadline = max_wait, deadline
        self.begin_operation()
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._chance = random.SystemRandom()
        self._clock_offset: float | None = None
        self._blocked_until = 0.0

    @property
    def url(self) -> str:
        """Names the repository in messages."""
        return f"github:{self.owner}/{self.name}"

    def clock(self) -> float:
        """The time at GitHub, as far as it is known."""
        return time.time() + (self._clock_offset or 0.0)

    def begin_operation(self, cut_reads: bool = False) -> None:
        """Start the limits of wait and time again. With ``cut_reads`` the deadline also ends a read that is under way.

        A write is never cut off, because its outcome would be unknown."""
        self._wait_left, self._cut_reads = self._max_wait, cut_reads
        self._until = math.inf if self._deadline is None else time.monotonic() + self._deadline

    async def close(self) -> None:
        self.cache.save()
        await self._connection.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """Read a resource. Raises RequestRejected if it does not exist, RegisterUnavailable and RateLimited."""
        return (await self._get(self._address(path), params)).data

    async def get_all(self, path: str, params: Mapping[str, str]) -> list[Any]:
        """Read all pages of a list.

        An unchanged page may not mention that another page follows it by now, so a full page is always followed by a
        request for the next one. A list without pages returns the same page again, which ends it."""
        items: list[Any] = []
        before: list[Any] = []
        first, wanted = self._address(path), {**params, "per_page": str(PAGE_SIZE)}
        address: str | None = first
        query: Mapping[str, str] | None = wanted
        number = 1
        while address is not None:
            page = await self._get(address, query)
            if not isinstance(page.data, list):
                raise RegisterUnavailable(f"GitHub answered {safe_repr(page.data)} instead of a list")
            if page.data and page.data == before:
                break
            items += page.data
            before, number = page.data, number + 1
            address, query = page.next, None
            if address is None and len(page.data) == PAGE_SIZE:
                address, query = first, {**wanted, "page": str(number)}
        return items

    async def send(
        self, method: str, path: str, body: Any, *, repeatable: bool = True, guard: Callable[[], None] | None = None
    ) -> Any:
        """Write. ``repeatable`` means that sending it twice has the effect of sending it once. Raises as ``get`` does,
        and OutcomeUnknown."""
        request = Request(method, self._address(path), body, repeatable=repeatable, guard=guard)
        return (await self._send_in_time(request)).data

    async def graphql(
        self,
        query: str,
        variables: Mapping[str, Any],
        *,
        repeatable: bool = True,
        guard: Callable[[], None] | None = None,
    ) -> tuple[JsonObject, list[JsonObject]]:
        """Run a GraphQL query or mutation. Returns its data and its errors."""
        self.calls["graphql"] += 1
        body = {"query": query, "variables": dict(variables)}
        request = Request(
            "POST",
            self._connection.graphql_url,
            body,
            headers={"GraphQL-Features": GRAPHQL_FEATURES},
            repeatable=repeatable,
            guard=guard,
            reads=not query.lstrip().startswith("mutation"),
        )
        while True:
            response = await self._send_in_time(request)
            answer = response.data if isinstance(response.data, dict) else {}
            errors = [error for error in answer.get("errors") or [] if isinstance(error, dict)]
            if not any(error.get("type") in ("RATE_LIMIT", "RATE_LIMITED") for error in errors):
                return answer.get("data") or {}, errors
            await self._wait_for_reset(response)

    # -- one request ---------------------------------------------------------------------------------------------------

    def _address(self, path: str) -> str:
        return path if "://" in path or path.startswith("/") else f"/repos/{self.owner}/{self.name}/{path}"

    async def _get(self, address: str, params: Mapping[str, str] | None) -> CachedResponse:
        key = address + "?" + "&".join(f"{key}={value}" for key, value in sorted((params or {}).items()))
        known = self.cache.response(key)
        headers = {"If-None-Match": known.etag} if known else {}
        response = await self._send_in_time(Request("GET", address, params=params, headers=headers, reads=True))
        if response.status == 304 and known:
            self.calls["not_modified"] += 1
            if "link" not in response.headers:
                return known
            known = known._replace(next=self._next_page(response))  # the page is unchanged, but the next one may be new
            self.cache.put_response(key, known)
            return known
        new = CachedResponse(response.headers.get("etag", ""), response.data, self._next_page(response))
        if new.etag:
            self.cache.put_response(key, new)
        return new

    def _next_page(self, response: Response) -> str | None:
        """The URL of the next page, if it is on the same server: the credentials are sent with it."""
        for part in response.headers.get("link", "").split(","):
            address, _, relation = part.partition(";")
            if relation.strip() == 'rel="next"':
                url = address.strip().strip("<>")
                return url if _origin(url) == _origin(self._connection.base_url) else None
        return None

    async def _send_in_time(self, request: Request) -> Response:
        """Send; end a read at the deadline of the operation if reads may be cut off."""
        if not (request.reads and self._cut_reads) or self._until == math.inf:
            return await self._send(request)
        timer = asyncio.timeout(max(0.0, self._until - time.monotonic()))
        try:
            async with timer:
                return await self._send(request)
        except TimeoutError:
            if not timer.expired():
                raise
            raise RegisterUnavailable(
                f"GitHub did not answer {request.method} {request.url} within the deadline of {self._deadline:g} s"
            ) from None

    async def _send(self, request: Request) -> Response:
        """Send until there is a response, or the attempts or the time for rate limits run out."""
        failed = 0
        while True:
            await self._wait_for_known_limit(request)
            if request.guard:
                request.guard()
            self.calls["requests"] += 1
            try:
                response = await self._connection.send(
                    request.method, request.url, request.params, request.body, request.headers
                )
            except RequestNotSent as error:
                problem, may_have_happened = str(error), False
            except ResponseLost as error:
                problem, may_have_happened = str(error), True
            else:
                self._update_clock(response)
                if response.status < 500:
                    if not self._is_rate_limit(response):
                        return self._check_status(response)
                    await self._wait_for_reset(response)
                    continue
                problem, may_have_happened = f"GitHub answered {response.status}", True
            failed += 1
            if may_have_happened and not request.repeatable:
                raise OutcomeUnknown(f"it is unknown whether {request.method} {request.url} took effect: {problem}")
            if failed >= MAX_ATTEMPTS:
                harmless = request.reads or not may_have_happened
                what = "GitHub is not reachable" if harmless else "the responses of GitHub are lost"
                kind: type[SeriesError] = RegisterUnavailable if harmless else OutcomeUnknown
                raise kind(f"{what} after {failed} attempts of {request.method} {request.url}: {problem}")
            self.calls["repeated"] += 1
            await self._sleep(retry_delay(failed, 0.3, chance=self._chance, spread=1 / 3))

    def _update_clock(self, response: Response) -> None:
        try:
            at = parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            pass
        else:
            offset = at - time.time()
            known = self._clock_offset
            # The header is truncated to the second, so the largest offset is the most exact, unless a clock was set.
            self._clock_offset = offset if known is None or abs(offset - known) > 5.0 else max(known, offset)
        spent = response.headers.get("x-ratelimit-remaining") == "0"
        if spent and response.status < 400 and "/graphql" not in response.url:
            self._blocked_until = max(self._blocked_until, _number(response.headers.get("x-ratelimit-reset")))

    def _is_rate_limit(self, response: Response) -> bool:
        if response.status not in (403, 429):
            return False
        spent = response.headers.get("x-ratelimit-remaining") == "0"
        # a secondary limit may have no other sign than the message
        said = "rate limit" in response.message.lower()
        return response.status == 429 or spent or said or "retry-after" in response.headers

    async def _wait_for_reset(self, response: Response) -> None:
        """Wait as the headers say; without them a minute, as GitHub documents."""
        if "retry-after" in response.headers:
            wait = _number(response.headers["retry-after"])
        elif response.headers.get("x-ratelimit-remaining") == "0" and "x-ratelimit-reset" in response.headers:
            wait = _number(response.headers["x-ratelimit-reset"]) - self.clock() + 1.0
        else:
            wait = 60.0
        self.calls["rate_limited"] += 1
        await self._wait(max(0.0, wait))

    async def _wait_for_known_limit(self, request: Request) -> None:
        wait = self._blocked_until - self.clock()
        if wait > 0 and "/graphql" not in request.url:
            self.calls["rate_limited"] += 1
            await self._wait(wait + 1.0)
            self._blocked_until = 0.0

    async def _wait(self, seconds: float) -> None:
        if seconds > self._wait_left or time.monotonic() + seconds >= self._until:
            raise RateLimited(
                f"the rate limit of GitHub is exceeded: it accepts the next request in {seconds:.0f} s", seconds
            )
        self._wait_left -= seconds
        await self._sleep(seconds)

    def _check_status(self, response: Response) -> Response:
        where = f"{self.owner}/{self.name}"
        if response.status in (401, 403):
            reason = response.message or response.status
            raise RegisterUnavailable(f"GitHub refuses the credentials for {where}: {reason}")
        if response.status >= 300 and response.status != 304:
            location = response.headers.get("location")
            reason = f"GitHub answered {response.status} for {where}: {response.message}"
            raise RequestRejected(response.status, reason, location)
        return response


def graphql_reason(errors: list[JsonObject]) -> str:
    """The messages of GraphQL errors, as one text."""
    return "; ".join(str(error.get("message", "no reason")) for error in errors) or "no reason given"


def scope_of(base_url: str, owner: str, name: str, secret: str) -> str:
    """Identifies the credentials of a cache without revealing them."""
    return hashlib.sha256("\0".join((base_url, owner, name, secret)).encode()).hexdigest()


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 60.0
