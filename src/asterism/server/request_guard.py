"""The guard in front of every route: Host and Origin, who calls, what they may do, and how often.

**Host.** A page that its attacker serves under a name of theirs, which then resolves to this machine (DNS rebinding),
sends that name as the host. So only known hosts are answered.

**Origin.** Browsers name the origin of a request that another page makes. Only our own origin is answered, for every
method and also for event streams; nothing is shared with other origins (no CORS). ``Sec-Fetch-Site`` refuses what has
no ``Origin``, such as a script or an image that another page names.

**Caller.** A token in ``Authorization``, or the cookie of a session and the key of its page in ``X-Asterism-Page``. The
cookie alone is nothing: browsers send it to every port of this host, and with requests that other pages make. Or a
proxy that logs people in names somebody (``people_proxy.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from starlette.datastructures import Headers, MutableHeaders

from asterism.api.credentials import TOKEN, Credential, Credentials
from asterism.api.operation import KEY_HEADER, VERSION_HEADER
from asterism.base.http_limits import (
    PROXY,
    Limits,
    RecentBytes,
    RecentEvents,
    RequestRefused,
    address_of,
    bearer_token,
    place_of,
)
from asterism.base.startup import VERSION
from asterism.server.people_proxy import PROXY as PROXIED
from asterism.server.people_proxy import WORD_LASTS, PeopleProxy
from asterism.server.problems import problem
from asterism.store.protocol import CREDENTIALS_CHANGED, Store, Watch
from asterism.store.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "asterism_session"
SECURE_COOKIE = "__Host-asterism_session"
"""The name of the cookie over TLS: browsers accept it only with ``Secure``, and from this very host."""

PAGE_HEADER = "x-asterism-page"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")

SERVER_LIMITS = Limits(connections=20_000, descriptors=0.75, per_client=64, idle=75.0, bodies=64 * 1024 * 1024)
"""Devices wait for work in a connection each, and send heartbeats in another that stays open between them."""

LONGEST_HEADERS = 16 * 1024
"""The longest headers of a request, in bytes."""

ONLY_ONCE = ("host", "origin", "authorization", "cookie", PAGE_HEADER, "sec-fetch-site", "content-type", KEY_HEADER)
"""Headers that a request may have once: a proxy, or another part of this server, could believe the second one."""

MAX_FAILURES = 10
FAILURE_WINDOW = 60.0
"""The most wrong tokens of one address within so many seconds. Login codes have none: one has 192 bits."""

EDITS_PER_MINUTE = 120
"""How many edits one credential may make in a minute."""

REFUSALS_PER_MINUTE = 60
"""How many refused operations of one credential are recorded in a minute; more get 429."""

REQUESTS_AT_ONCE = 32
"""How many requests of one credential may be answered at once, event streams included."""

HEAVY_AT_ONCE = 2
"""How many of them may be such that take long to compute: drawings and dry runs. The others wait."""

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class RequestGuard:
    """An ASGI application around another: refuses foreign hosts and origins, and adds headers to every answer.

    ``hosts`` are the names, without a port, by which clients know this server. ``https`` is whether they reach it over
    TLS, its own or that of a proxy."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], *, https: bool) -> None:
        self._app, self._https = app, https
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        answer = self._app
        refusal = self.refusal(scope["method"], scope["path"], headers)
        if any(len(headers.getlist(name)) > 1 for name in ONLY_ONCE):
            answer = problem(400, f"the request has one of these headers twice: {', '.join(ONLY_ONCE)}")
        elif sum(len(name) + len(value) for name, value in scope["headers"]) > LONGEST_HEADERS:
            answer = problem(431, f"the headers are too long: the limit is {LONGEST_HEADERS:,} bytes")
        elif refusal is not None:
            answer = problem(421 if refusal.startswith("host") else 403, refusal, "foreign-request")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    sent.setdefault(name, value)
                sent.setdefault("cache-control", "no-store")
                sent.setdefault(VERSION_HEADER, VERSION)
                if self._https:
                    sent.setdefault("strict-transport-security", "max-age=31536000")
            await send(message)

        await answer(scope, receive, guarded)

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> str | None:
        """Why a request is refused; None if it is not."""
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name.lower() not in self._hosts:
            return "host unknown: open the server by an address that it was started with (asterism serve --name HOST)"
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{'https' if self._https else 'http'}://{host}".lower():
            return "requests from pages of another origin are refused"
        site = headers.get("sec-fetch-site", "same-origin")
        followed = method == "GET" and headers.get("sec-fetch-mode") == "navigate" and not path.startswith("/api/")
        if site not in ("same-origin", "none") and not followed:
            return "requests from pages of another site are refused"
        return None


# -- callers -----------------------------------------------------------------------------------------------------------


class Gate:
    """Finds out who calls, and counts. ``now`` is a monotonic clock in seconds. ``shared`` is whether all clients share
    connections, as behind a proxy."""

    def __init__(
        self,
        credentials: Credentials,
        now: Callable[[], float],
        *,
        https: bool,
        shared: bool = False,
        edits_per_minute: int = EDITS_PER_MINUTE,
        requests_at_once: int = REQUESTS_AT_ONCE,
        people: PeopleProxy | None = None,
    ) -> None:
        self.people = people
        self.credentials, self.cookie = credentials, SECURE_COOKIE if https else COOKIE
        self.https, self._shared = https, shared
        self._failures = RecentEvents(now, MAX_FAILURES, FAILURE_WINDOW)
        self._edits = RecentEvents(now, edits_per_minute, 60.0)
        self._stored = RecentBytes(now)
        self._heavy: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._refusals = RecentEvents(now, REFUSALS_PER_MINUTE, 60.0)
        self._under_way = RequestsUnderWay(requests_at_once)

    async def caller(self, request: Request) -> Credential:
        """Who makes a request. A token counts before the word of a proxy, and that before the session of a browser.
        Raises RequestRefused: with 401, or with 403 for somebody who names a person and is not the proxy."""
        person = None if self.people is None else self.people.person(request)
        if "authorization" in request.headers:
            credential = await self._find(request, bearer_token(request))
            if credential.kind != TOKEN:
                raise RequestRefused(
                    401, "the session of a browser is no token: create one with: asterism token create"
                )
            return credential
        if person is not None:
            self._check_page(request)
            return person
        caller = await self._find(request, request.cookies.get(self.cookie, ""))
        self._check_page_key(request, caller)
        return caller

    def admit(self, request: Request, client: str) -> None:
        """Give the connection of a request to its client. Raises RequestRefused."""
        place = place_of(request)
        if place is not None:
            place.readmit(PROXY if self._shared else client)

    def counted(self, caller: Credential) -> AbstractContextManager[None]:
        """Count a request while it is answered. Raises RequestRefused if too many of its credential are."""
        return self._under_way.counted(caller.id, caller.name)

    def count_edit(self, caller: Credential) -> None:
        """Raises RequestRefused if a credential has made too many edits in the last minute."""
        self._edits.check(caller.id, f"too many edits of {caller.name} in a minute")
        self._edits.add(caller.id)

    def count_stored(self, caller: Credential, size: int, most: int) -> None:
        """Raises RequestRefused if a credential would store more than ``most`` bytes within an hour."""
        text = f"{caller.name} may store {most:,} bytes within an hour (setting credential_bytes)"
        self._stored.add(caller.id, size, most, text)

    @asynccontextmanager
    async def heavy(self, caller: Credential | None) -> AsyncIterator[None]:
        """The turn of a request that takes long to compute, a few at once of each credential. The others wait; how many
        can is bounded by ``counted``."""
        key = "" if caller is None else caller.id
        async with self._heavy.setdefault(key, asyncio.Semaphore(HEAVY_AT_ONCE)):
            yield

    def count_refusal(self, caller: Credential) -> None:
        """Raises RequestRefused if a credential was refused too often in the last minute: each refusal is recorded, and
        the record must not grow as fast as somebody likes."""
        self._refusals.check(caller.id, f"{caller.name} was refused too often in a minute")
        self._refusals.add(caller.id)

    def client_address(self, request: Request) -> str:
        """The address of who sent a request, for people."""
        named = None if self.people is None else self.people.client_address(request)
        return named or (request.client.host if request.client is not None else "")

    async def _find(self, request: Request, token: str) -> Credential:
        credential = await self.credentials.find(token) if token else None
        if credential is None:
            if not token:
                raise RequestRefused(401, "a token is needed: create one with: asterism token create")
            self._count_failure(request)
            raise RequestRefused(401, "this token is unknown, expired or revoked")
        return credential

    def _count_failure(self, request: Request) -> None:
        """Count a wrong token. Raises RequestRefused if its address has sent too many. A right token is accepted all
        the same."""
        address = address_of(request)
        self._failures.check(address, f"too many wrong tokens from {address}")
        self._failures.add(address)

    def _check_page(self, request: Request) -> None:
        """That the page sent a request for a person whom the proxy named: a form or an image of another site has no
        header of its own, and a script of another origin would have to be allowed to send one."""
        if not request.headers.get(PAGE_HEADER):
            raise RequestRefused(401, "the header X-Asterism-Page is missing: programs need a token")

    def _check_page_key(self, request: Request, caller: Credential) -> None:
        if not caller.has_page_key(request.headers.get(PAGE_HEADER, "")):
            raise RequestRefused(
                401, "the header X-Asterism-Page is missing or wrong: open a link of: asterism token login"
            )


class RequestsUnderWay:
    """Counts the requests that are being answered, at most ``most`` of one client."""

    def __init__(self, most: int) -> None:
        self._most, self._busy = most, dict[str, int]()

    @contextmanager
    def counted(self, client: str, name: str) -> Iterator[None]:
        """Count a request while it is answered; ``name`` is for people. Raises RequestRefused if there are too many."""
        if self._busy.get(client, 0) >= self._most:
            raise RequestRefused(429, f"{self._most} requests of {name} are under way: wait for them", 1.0)
        self._busy[client] = self._busy.get(client, 0) + 1
        try:
            yield
        finally:
            self._busy[client] -= 1
            if not self._busy[client]:
                del self._busy[client]


def cookie_header(gate: Gate, token: str, max_age: float) -> str:
    """The Set-Cookie header of a session; with ``max_age`` 0 it ends the session."""
    secure = "; Secure" if gate.https else ""
    return f"{gate.cookie}={token}; Path=/; Max-Age={max_age:.0f}; HttpOnly; SameSite=Strict{secure}"


def request_hosts(host: str, names: Collection[str]) -> list[str]:
    """The hosts by which clients may know a server that listens on ``host``. ``names`` are given by its operator."""
    if host in ("127.0.0.1", "localhost", "::1"):
        return [*LOOPBACK_HOSTS, *names]
    shown = f"[{host}]" if ":" in host else host
    return [*names] if host in ("0.0.0.0", "::") else [shown, *names]


def client_of(caller: Credential) -> Mapping[str, Any]:
    """A caller as ``GET /me`` shows it."""
    return {
        "name": caller.name,
        "scopes": sorted(caller.scopes),
        "kind": caller.kind,
        "expires_at": caller.expires_at,
    }


# -- the ends of credentials -------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

LOOK_INTERVAL = 15.0
"""Seconds between two looks, if nothing wakes it."""


class CredentialEnds:
    """The credentials whose ends somebody waits for, and how many do."""

    def __init__(self, store: Store) -> None:
        self._store, self._credentials = store, Credentials(store)
        self._waiting: dict[str, asyncio.Event] = {}
        self._waiters: dict[str, int] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, caller: Credential) -> None:
        """Return when a credential is revoked or has expired, or when the proxy has to name a person again."""
        identity = caller.id
        if caller.kind == PROXIED:
            await asyncio.sleep(WORD_LASTS)
            return
        if self._looking is None or self._looking.done():
            watch = self._store.watch(frozenset({CREDENTIALS_CHANGED}))
            self._looking = asyncio.create_task(self._look(watch))
        ended = self._waiting.setdefault(identity, asyncio.Event())
        self._waiters[identity] = self._waiters.get(identity, 0) + 1
        try:
            with suppress(StoreError):  # it may have ended since the request was authenticated
                if not await self._credentials.is_active(identity):
                    return
            await ended.wait()
        finally:
            self._waiters[identity] -= 1
            if not self._waiters[identity]:
                del self._waiters[identity], self._waiting[identity]
            if not self._waiting:
                self._stop_looking()

    def _stop_looking(self) -> None:
        """Who waits next begins a new look: a task is not ``done()`` until its cancellation has been executed."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self, watch: Watch) -> None:
        try:
            while True:
                await watch.wait(LOOK_INTERVAL)
                try:
                    await self._end_waits()
                except StoreError:
                    continue
                except Exception:  # streams must not outlive their credentials because one look failed
                    log.exception("cannot look for credentials that ended; the next look is in %g s", LOOK_INTERVAL)
        finally:
            watch.close()

    async def _end_waits(self) -> None:
        now = self._store.clock()
        active = {credential.id for credential in await self._credentials.all() if credential.state(now) == "active"}
        for identity in self._waiting.keys() - active:
            self._waiting[identity].set()
