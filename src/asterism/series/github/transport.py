"""One request to GitHub through githubkit, and the credentials that authenticate it. Requests are not repeated here.

A request ends in one of three ways: with a response, whatever its status; without having left this machine
(RequestNotSent); or without a complete response (ResponseLost), so that it may have taken effect.

The credentials are a token, or an App with its private key, from the environment.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from githubkit import AppAuthStrategy, GitHub, TokenAuthStrategy
from githubkit.cache import MemCacheStrategy
from githubkit.exception import GitHubException, RequestError, RequestFailed

from asterism.base.http_answers import ACCEPTED, AnswerRefused, bound_hook
from asterism.series.register import RegisterUnavailable, SeriesError

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
