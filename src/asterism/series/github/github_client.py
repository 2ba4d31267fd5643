"""How GitHub is asked: with patience, with conditions, and without believing what was not heard.

- A read says what it knows already (``If-None-Match``): an answer of 304 is free.
- A limit is honoured as its headers say, within the patience of the caller; beyond that RateLimited is raised.
- What may be sent twice (reads, and writes that leave the same behind) is sent again after a broken connection or an
  error of the server, a few times. What may not raises Unsure: the caller looks whether it happened.
- GraphQL answers 200 also when it refuses; that is read, not the status.
- A list is read to its end: a page that is full is followed by another, whatever was known of it before.

The clock of GitHub is known from its ``Date``, to the second. Leases are judged by it, since the clocks of the machines
that run workflows need not agree.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from asterism.core.errors import safe_repr
from asterism.series.github.answer_cache import AnswerCache, Kept
from asterism.series.github.transport import Connection, Heard, Lost, NotSent
from asterism.series.register import RateLimited, RegisterUnavailable, SeriesError, Unsure

ATTEMPTS = 4
PER_PAGE = 100
PATIENCE = 90.0
"""How long to wait for limits, in seconds, all waits of one piece of work together."""
FEATURES = "issues_copilot_assignment_api_support"


class Refused(SeriesError):
    """GitHub understood and said no: there is no such thing, or what was asked for cannot be."""

    def __init__(self, status: int, message: str, location: str | None = None) -> None:
        self.status, self.location = status, location
        super().__init__(message)


class Asked(NamedTuple):
    """One question; ``again`` says whether it may be sent twice, ``guard`` is called before it is sent, and ``reads``
    says that it changes nothing, so that it does not matter whether it arrived."""

    method: str
    url: str
    body: Any = None
    params: Mapping[str, str] | None = None
    headers: Mapping[str, str] = {}
    again: bool = True
    guard: Callable[[], None] | None = None
    reads: bool = False


class GitHubClient:
    """``owner`` and ``name`` are the repository's; paths without a leading slash are below it. It may be used from one
    event loop. ``calls`` counts what was asked. No limit is waited for beyond the ``patience``, nor beyond the
    ``deadline`` of a piece of work; both are in seconds, and the deadline counts from its beginning."""

    def __init__(
        self,
        owner: str,
        name: str,
        connection: Connection,
        cache: AnswerCache | None = None,
        *,
        patience: float = PATIENCE,
        deadline: float | None = None,
    ) -> None:
        self.owner, self.name = owner, name
        self.cache = cache or AnswerCache()
        self.calls: Counter[str] = Counter()
        self._connection = connection
        self._patience, self._deadline = patience, deadline
        self.begin()
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._chance = random.SystemRandom()
        self._ahead: float | None = None
        self._blocked_until = 0.0

    @property
    def url(self) -> str:
        """Names the repository in messages."""
        return f"github:{self.owner}/{self.name}"

    def clock(self) -> float:
        """The time at GitHub, as far as it is known from here."""
        return time.time() + (self._ahead or 0.0)

    def begin(self, with_reads: bool = False) -> None:
        """A new piece of work, with the whole patience and all the time again. ``with_reads`` ends also the reads that
        go on beyond the deadline, which harms nothing: what is being written is never cut off here."""
        self._left, self._with_reads = self._patience, with_reads
        self._until = math.inf if self._deadline is None else time.monotonic() + self._deadline

    async def close(self) -> None:
        self.cache.save()
        await self._connection.close()

    # -- questions -----------------------------------------------------------------------------------------------------

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """What is there now. Raises Refused if nothing is, RegisterUnavailable and RateLimited."""
        return (await self._get(self._address(path), params)).data

    async def pages(self, path: str, params: Mapping[str, str]) -> list[Any]:
        """All of a list, page by page.

        A page that has not changed need not say that another has come after it, so one that is full is always followed
        by a look at the next. A list that is not given in pages brings the same again, and ends with that."""
        found: list[Any] = []
        before: list[Any] = []
        first, wanted = self._address(path), {**params, "per_page": str(PER_PAGE)}
        address: str | None = first
        asked: Mapping[str, str] | None = wanted
        page = 1
        while address is not None:
            kept = await self._get(address, asked)
            if not isinstance(kept.data, list):
                raise RegisterUnavailable(f"GitHub answered {safe_repr(kept.data)} where a list was asked for")
            if kept.data and kept.data == before:
                break
            found += kept.data
            before, page = kept.data, page + 1
            address, asked = kept.next, None
            if address is None and len(kept.data) == PER_PAGE:
                address, asked = first, {**wanted, "page": str(page)}
        return found

    async def send(
        self, method: str, path: str, body: Any, *, again: bool = True, guard: Callable[[], None] | None = None
    ) -> Any:
        """Change something. ``again`` is for what leaves the same behind when it is sent twice. Raises Unsure too."""
        heard = await self._ask(Asked(method, self._address(path), body, again=again, guard=guard))
        return heard.data

    async def ask(
        self, query: str, variables: Mapping[str, Any], *, again: bool = True, guard: Callable[[], None] | None = None
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """GraphQL: the data, and the errors that stand in its place."""
        self.calls["graphql"] += 1
        body = {"query": query, "variables": dict(variables)}
        headers = {"GraphQL-Features": FEATURES}
        asked = Asked(
            "POST",
            self._connection.graphql_url,
            body,
            headers=headers,
            again=again,
            guard=guard,
            reads=not query.lstrip().startswith("mutation"),
        )
        while True:
            heard = await self._ask(asked)
            answer = heard.data if isinstance(heard.data, dict) else {}
            errors = [error for error in answer.get("errors") or [] if isinstance(error, dict)]
            if not any(error.get("type") in ("RATE_LIMIT", "RATE_LIMITED") for error in errors):
                return answer.get("data") or {}, errors
            await self._wait_out(heard)

    # -- one question --------------------------------------------------------------------------------------------------

    def _address(self, path: str) -> str:
        return path if "://" in path or path.startswith("/") else f"/repos/{self.owner}/{self.name}/{path}"

    async def _get(self, address: str, params: Mapping[str, str] | None) -> Kept:
        place = address + "?" + "&".join(f"{key}={value}" for key, value in sorted((params or {}).items()))
        known = self.cache.answer(place)
        headers = {"If-None-Match": known.etag} if known else {}
        heard = await self._ask(Asked("GET", address, params=params, headers=headers, reads=True))
        if heard.status == 304 and known:
            self.calls["not_modified"] += 1
            if "link" not in heard.headers:
                return known
            known = known._replace(next=self._next_page(heard))  # what comes after it may have changed all the same
            self.cache.keep(place, known)
            return known
        kept = Kept(heard.headers.get("etag", ""), heard.data, self._next_page(heard))
        if kept.etag:
            self.cache.keep(place, kept)
        return kept

    def _next_page(self, heard: Heard) -> str | None:
        """Only if it leads to where we already are: the credentials go along."""
        for part in heard.headers.get("link", "").split(","):
            address, _, relation = part.partition(";")
            if relation.strip() == 'rel="next"':
                url = address.strip().strip("<>")
                return url if _place(url) == _place(self._connection.base_url) else None
        return None

    async def _ask(self, asked: Asked) -> Heard:
        """As ``_asked``, and a read no longer than there is time for it."""
        if not (asked.reads and self._with_reads) or self._until == math.inf:
            return await self._asked(asked)
        timer = asyncio.timeout(max(0.0, self._until - time.monotonic()))
        try:
            async with timer:
                return await self._asked(asked)
        except TimeoutError:
            if not timer.expired():
                raise
            raise RegisterUnavailable(
                f"the deadline of {self._deadline:g} s was over before GitHub answered {asked.method} {asked.url}"
            ) from None

    async def _asked(self, asked: Asked) -> Heard:
        """Until it is answered, refused, or the patience is at its end."""
        failed = 0
        while True:
            await self._wait_for_limit(asked)
            if asked.guard:
                asked.guard()
            self.calls["requests"] += 1
            try:
                heard = await self._connection.send(asked.method, asked.url, asked.params, asked.body, asked.headers)
            except NotSent as error:
                trouble, maybe = str(error), False
            except Lost as error:
                trouble, maybe = str(error), True
            else:
                self._learn(heard)
                if heard.status < 500:
                    if not self._is_limit(heard):
                        return self._judged(heard)
                    await self._wait_out(heard)
                    continue
                trouble, maybe = f"GitHub answered {heard.status}", True
            failed += 1
            if maybe and not asked.again:
                raise Unsure(f"it is not known whether {asked.method} {asked.url} happened: {trouble}")
            if failed >= ATTEMPTS:
                harmless = asked.reads or not maybe
                what = "GitHub is out of reach" if harmless else "GitHub's answers get lost"
                kind: type[SeriesError] = RegisterUnavailable if harmless else Unsure
                raise kind(f"{what} after {failed} attempts at {asked.method} {asked.url}: {trouble}")
            self.calls["repeated"] += 1
            await self._sleep(self._chance.uniform(0.5, 1.0) * 0.2 * 2**failed)

    def _learn(self, heard: Heard) -> None:
        try:
            at = parsedate_to_datetime(heard.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            pass
        else:
            ahead = at - time.time()
            known = self._ahead
            # The header is cut to the second: the largest difference that was seen is the nearest to the truth, unless
            # one of the clocks was set.
            self._ahead = ahead if known is None or abs(ahead - known) > 5.0 else max(known, ahead)
        if heard.headers.get("x-ratelimit-remaining") == "0" and heard.status < 400 and "/graphql" not in heard.url:
            self._blocked_until = max(self._blocked_until, _number(heard.headers.get("x-ratelimit-reset")))

    def _is_limit(self, heard: Heard) -> bool:
        if heard.status not in (403, 429):
            return False
        spent = heard.headers.get("x-ratelimit-remaining") == "0"
        return heard.status == 429 or spent or "retry-after" in heard.headers or "rate limit" in heard.message.lower()

    async def _wait_out(self, heard: Heard) -> None:
        """As the headers say; a minute if they say nothing, as GitHub asks."""
        if "retry-after" in heard.headers:
            wait = _number(heard.headers["retry-after"])
        elif heard.headers.get("x-ratelimit-remaining") == "0" and "x-ratelimit-reset" in heard.headers:
            wait = _number(heard.headers["x-ratelimit-reset"]) - self.clock() + 1.0
        else:
            wait = 60.0
        self.calls["rate_limited"] += 1
        await self._wait(max(0.0, wait))

    async def _wait_for_limit(self, asked: Asked) -> None:
        wait = self._blocked_until - self.clock()
        if wait > 0 and "/graphql" not in asked.url:
            self.calls["rate_limited"] += 1
            await self._wait(wait + 1.0)
            self._blocked_until = 0.0

    async def _wait(self, seconds: float) -> None:
        if seconds > self._left or time.monotonic() + seconds >= self._until:
            raise RateLimited(f"GitHub asks to wait {seconds:.0f} s before the next request", seconds)
        self._left -= seconds
        await self._sleep(seconds)

    def _judged(self, heard: Heard) -> Heard:
        where = f"{self.owner}/{self.name}"
        if heard.status in (401, 403):
            raise RegisterUnavailable(f"GitHub refuses the credentials for {where}: {heard.message or heard.status}")
        if heard.status >= 300 and heard.status != 304:
            location = heard.headers.get("location")
            raise Refused(heard.status, f"GitHub answered {heard.status} for {where}: {heard.message}", location)
        return heard


def said(errors: list[dict[str, Any]]) -> str:
    """Why GraphQL did not do what it was asked, in its own words."""
    return "; ".join(str(error.get("message", "no reason")) for error in errors) or "no reason was given"


def scope_of(base_url: str, owner: str, name: str, secret: str) -> str:
    """Tells apart whose answers a cache holds, without holding the secret."""
    return hashlib.sha256("\0".join((base_url, owner, name, secret)).encode()).hexdigest()


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 60.0
