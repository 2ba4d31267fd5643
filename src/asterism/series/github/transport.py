"""One request to GitHub through githubkit, which knows how to authenticate; nothing is repeated here.

There are three ends: an answer was heard, whatever it says; the request did not leave (NotSent); or it left and no
whole answer came back (Lost), so it may have had its effect.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from githubkit import AppAuthStrategy, GitHub, TokenAuthStrategy
from githubkit.cache import MemCacheStrategy
from githubkit.exception import GitHubException, RequestError, RequestFailed

from asterism.series.github.auth import Credentials
from asterism.series.register import RegisterUnavailable

TIMEOUT = 15.0
"""For one request from its beginning to its end, in seconds."""
API_VERSION = "2022-11-28"


class NotSent(Exception):
    """Nothing reached GitHub."""


class Lost(Exception):
    """The request left, and no whole answer came back."""


class Heard(NamedTuple):
    url: str
    status: int
    headers: Mapping[str, str]
    data: Any

    @property
    def message(self) -> str:
        """What GitHub says about it, with the details of a validation that failed."""
        if not isinstance(self.data, dict):
            return ""
        details = [error.get("message") for error in self.data.get("errors") or [] if isinstance(error, dict)]
        return "; ".join(str(part) for part in dict.fromkeys([self.data.get("message"), *details]) if part)


class Connection:
    """``base_url`` is GITHUB_API_URL: that of github.com, of an Enterprise server (``…/api/v3``), or of a test.

    githubkit keeps its connections open only within the context of the task that opened it. Here that is a context of
    its own, so that any task may ask."""

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
    ) -> Heard:
        """Raises NotSent and Lost."""
        github = await self._opened()
        address = url if "://" in url else self.base_url + url
        words = {
            "params": dict(params) if params else None,
            "json": body,
            "headers": {"X-GitHub-Api-Version": API_VERSION, **headers},
        }
        try:
            async with asyncio.timeout(TIMEOUT):
                response = await self._answered(github, method, address, words)
        except RequestFailed as failed:
            return _heard(failed.response.raw_response)
        except RequestError as error:
            if isinstance(error.exc, RequestFailed):
                return _without_token(_heard(error.exc.response.raw_response))
            raise _ending(error.exc) from None
        except TimeoutError:
            raise Lost(f"no answer within {TIMEOUT:.0f} s") from None
        except GitHubException as error:
            raise RegisterUnavailable(f"GitHub cannot be asked: {error or type(error).__name__}") from None
        return _heard(response.raw_response)

    async def _answered(self, github: GitHub[Any], method: str, address: str, words: Mapping[str, Any]) -> Any:
        """githubkit asks for a new token of an App a minute before the old one ends, by the clock of this machine. One
        that was taken back, or ended by another clock, is refused: then a new one is asked for too, once. What was
        refused so has not happened, so it may be sent again, whatever it is."""
        try:
            return await self._in_context(github.arequest(method, address, **words))
        except RequestFailed as failed:
            if failed.response.status_code != 401 or self._credentials.token:
                raise
        self._tokens.cleanup()
        return await self._in_context(github.arequest(method, address, **words))

    async def close(self) -> None:
        if self._github is not None:
            await self._in_context(self._github.__aexit__())
            self._github = None

    def _in_context(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coroutine, context=self._context)

    async def _opened(self) -> GitHub[Any]:
        async with self._opening:
            if self._github is None:
                github = await self._authenticated()
                await self._in_context(github.__aenter__())  # type: ignore[no-untyped-call]
                self._github = github
            return self._github

    async def _authenticated(self) -> GitHub[Any]:
        known = self._credentials
        if known.token:
            return self._made(TokenAuthStrategy(known.token))
        app = AppAuthStrategy(known.app_id, known.private_key or "")
        installation = known.installation
        if installation is None:
            owner, name = self._repository
            try:
                found = await self._made(app).arequest("GET", f"{self.base_url}/repos/{owner}/{name}/installation")
                installation = int(found.json()["id"])
            except (GitHubException, KeyError, TypeError, ValueError) as error:
                raise RegisterUnavailable(f"the App is not known to be installed on {owner}/{name}: {error}") from None
        return self._made(app.as_installation(installation))

    def _made(self, auth: Any) -> GitHub[Any]:
        return GitHub(
            auth,
            base_url=self.base_url,
            user_agent="asterism",
            follow_redirects=False,
            timeout=TIMEOUT,
            # without TLS there is nothing to load the authorities for; HTTPS in capitals is verified as well
            ssl_verify=urlsplit(self.base_url).scheme != "http",
            cache_strategy=self._tokens,
            http_cache=False,
            auto_retry=False,
        )


def _heard(response: httpx.Response) -> Heard:
    try:
        data = json.loads(response.content) if response.content else None
    except ValueError:
        if response.is_success:  # cut off, or not GitHub
            raise Lost("the answer is not JSON") from None
        data = None
    return Heard(str(response.request.url), response.status_code, response.headers, data)


def _without_token(heard: Heard) -> Heard:
    """What was answered to the request for a token of an App: what was to be asked with it did not leave."""
    if heard.status >= 500:
        raise NotSent(f"GitHub answered {heard.status} when it was asked for a token of the App")
    return heard


def _ending(error: Exception) -> Exception:
    said = f"{type(error).__name__} {error}".strip()
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol):
        return NotSent(said)
    if isinstance(error, httpx.TransportError):
        return Lost(said)
    return RegisterUnavailable(f"GitHub cannot be asked: {said}")
